"""The laws that the tensors of a new PLDR-LLM are drawn from (arXiv:2410.16703)."""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

from plga.model.configuration import PldrConfig
from plga.model.operator import ConstantOperator, LearnedOperator

# b_W of the small start, and how far W A may move it: iSwiGLU(0.62) = 0.25, iSwiGLU(0.62 ± 0.2) lies in (0.1, 0.5).
SMALL_BIAS, SMALL_DEVIATION = 0.62, 0.2


@torch.no_grad()
def initialize(module: nn.Module, config: PldrConfig) -> None:
    """Draw the tensors of one module, as in the published trainings: linear layers Xavier-uniform, embeddings N(0, 1).

    Transformers' ``init`` passes over what a checkpoint has filled already.
    """
    if isinstance(module, nn.Linear):
        init.xavier_uniform_(module.weight)
        if module.bias is not None:
            init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        init.normal_(module.weight, mean=0.0, std=1.0)
    elif isinstance(module, nn.LayerNorm):
        init.ones_(module.weight)
        init.zeros_(module.bias)
    elif isinstance(module, LearnedOperator):
        law = init.xavier_normal_ if config.operator_initialization == "xavier_normal" else init.xavier_uniform_
        for weight in (module.metric_weight, module.exponent, module.coupling_weight):
            law(weight)
        init.zeros_(module.metric_bias)
        init.zeros_(module.coupling_bias)
        if config.metric_initialization == "small":
            bound = small_bound(config.head_dim)
            init.uniform_(module.metric_weight, -bound, bound)
            init.constant_(module.metric_bias, SMALL_BIAS)
    elif isinstance(module, ConstantOperator):
        init.copy_(module.curvature, constant(module, config))


def small_bound(width: int) -> float:
    """Largest entry of W for which every entry of W A stays within ±0.2, whatever the input, while φ is new.

    φ ends in a LayerNorm, which gives every row of A mean 0 and variance at most 1, so that no entry is larger than
    √(d - 1); an entry of W A is a sum of d of them.
    """
    return SMALL_DEVIATION / (width * math.sqrt(width - 1))


def constant(module: ConstantOperator, config: PldrConfig) -> Tensor:
    """The constant G_LM of one layer, [H, d, d], that ``config.constant`` names; NaN if it is yet to be set."""
    heads, width, _ = module.curvature.shape
    if config.constant == "identity":
        return torch.eye(width).expand(heads, width, width)
    if config.constant == "random":
        # q G then has the length of q on average. The layers are pieces of one float32 stream, whatever the dtype
        # of the model: two seeds share no layer.
        generator = torch.Generator().manual_seed(config.constant_seed)
        shape = (module.layer_idx + 1, heads, width, width)
        return torch.randn(shape, generator=generator, dtype=torch.float32)[-1] / math.sqrt(width)
    return torch.full((heads, width, width), float("nan"))
