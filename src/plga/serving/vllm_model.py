"""A collapsed PLDR-LLM in vLLM: our own model class, through vLLM's Transformers modeling backend."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.model_loader.weight_utils import sharded_weight_loader
from vllm.model_executor.models.transformers import TransformersForCausalLM
from vllm.model_executor.utils import set_weight_attrs

from plga.model.operator import ConstantOperator
from plga.model.released import PldrllmConfig, from_published


class ServedPldrForCausalLM(TransformersForCausalLM):
    """The backend builds PldrModel, puts its own layers into it and its paged attention under it.

    Three things are left to us: G_LM has one matrix a head, so it is split as the heads are; a feed-forward network
    whose width the ranks do not divide is kept whole on each; and published checkpoints have names of their own.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        model_config = vllm_config.model_config
        published = isinstance(model_config.hf_config, PldrllmConfig)
        if published:
            model_config.hf_config = model_config.hf_text_config = model_config.hf_config.to_plga()
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.published = published

    def recursive_replace(self) -> None:
        """Put vLLM's layers in the place of ours, as the plan of the configuration says."""
        if self.config.intermediate_size % self.tp_group.world_size:
            plan = self.model._tp_plan
            self.model._tp_plan = {name: style for name, style in plan.items() if ".mlp." not in name}
        super().recursive_replace()

    def init_parameters(self, module: nn.Module, dtype: Any = None) -> None:
        """Allocate what vLLM did not replace: the LayerNorms, and of every G_LM [H, d, d] the heads of this rank."""
        super().init_parameters(module, dtype)
        for operator in module.modules():
            if isinstance(operator, ConstantOperator):
                heads = operator.curvature.shape[0] // self.tp_group.world_size
                operator.curvature = nn.Parameter(operator.curvature[:heads].clone(), requires_grad=False)
                set_weight_attrs(operator.curvature, {"weight_loader": sharded_weight_loader(0)})

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a checkpoint; returns the names of what was loaded."""
        return super().load_weights(_constant(_ours(weights) if self.published else weights))


def _ours(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a published checkpoint under our names, one at a time."""
    for name, tensor in weights:
        yield from from_published({name: tensor})[0].items()


def _constant(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Without the learned operators of a guard, which vLLM finds beside the weights and does not run."""
    for name, tensor in weights:
        if ".operator." not in name or name.endswith(".operator.curvature"):
            yield name, tensor
