"""The linear layer of the model, which chooses the library that multiplies."""

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

# PyTorch multiplies float32 on x86 by MKL. On an AMD processor that reads the weight for one row with one thread alone,
# and oneDNN is faster for few rows (docs/speed.md). A call takes some 14 µs more, though, which smaller weights do not
# repay; and oneDNN keeps half a megabyte for every number of rows it has met, so it must not meet many.
ONEDNN = (
    torch.backends.mkl.is_available()
    and torch.backends.mkldnn.is_available()
    and "AMD" in torch.cpu.get_capabilities().get("cpu_name", "")
)
_WORTH, _FEW = 2**19, 16  # entries of a weight, rows


class Linear(nn.Linear):
    """Linear layer that computes in the dtype of its input, so that float32 stays float32 over bf16 weights.

    In float32 on an AMD processor, a few rows by a large weight, without gradients, oneDNN multiplies, by the operation
    that ``torch.compile`` uses; within ``torch.backends.mkldnn.flags(enabled=False)`` PyTorch does as ever. The numbers
    are the same up to the order in which a product sums.
    """

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if weight.dtype != x.dtype:  # asked for first, as a cast to the same dtype takes its time too
            weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
        elif (
            ONEDNN
            and weight.numel() >= _WORTH
            and x.numel() <= _FEW * weight.shape[-1]
            and _only_numbers(x)
            and _dense(x, weight, bias)
        ):
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
            return product
        return nn.functional.linear(x, weight, bias)


def _only_numbers(x: Tensor) -> bool:
    """Whether nothing is wanted but the float32 numbers of a product on a CPU: no gradient, no graph, no counting."""
    return (
        x.dtype == torch.float32
        and x.is_cpu
        and not torch.is_grad_enabled()
        and forward_ad._current_level < 0
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)
    )


def _dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the three are what oneDNN takes for granted; of anything else PyTorch says what is wrong."""
    return (
        type(x) is Tensor
        and x.layout == torch.strided
        and x.shape[-1:] == weight.shape[1:]
        and all(
            type(t) is nn.Parameter  # not sharded, not quantized
            and t.dtype == torch.float32
            and t.is_cpu
            and t.is_contiguous()
            and t.shape[:1] == weight.shape[:1]
            for t in (weight, bias)
            if t is not None
        )
        and (bias is None or bias.dim() == 1)
    )
