"""The models of the published Transformers format, under their published class names.

Each is the PLDR-LLM of modeling.py. What differs is what Transformers reads and writes: ``from_pretrained`` takes a
published directory as it is, without remote code, and ``save_pretrained`` gives the published names back.
"""

import copy
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.initialization import no_init_weights

from plga.model import modeling
from plga.model.initialization import constant
from plga.model.names import PIECES
from plga.model.operator import ConstantOperator
from plga.model.released import SLOT, PldrllmConfig, stack


class PublishedConstant(ConstantOperator):
    """G_LM of one layer, [H, d, d]: a view of the one tensor that a published checkpoint has for all layers."""

    def __init__(self, owner: "PldrllmModel", layer_idx: int) -> None:
        super().__init__(owner.config, layer_idx)
        del self.curvature  # the parameter, in whose place the property stands from here on
        # In a tuple, so that the owner is not taken for a submodule of its own layer.
        self._owner = (owner,)

    @property
    def curvature(self) -> Tensor:  # type: ignore[override]
        return self._owner[0].past_G_values[self.layer_idx, SLOT, 0]


if TYPE_CHECKING:
    from plga.model.modeling import PldrPreTrainedModel as _Base  # or whatever class of ours comes behind it
else:
    _Base = object


class _Published(_Base):
    """What the published classes add to ours."""

    config: PldrllmConfig
    config_class = PldrllmConfig

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, PldrllmModel) and module.config.operator == "constant":
            init.copy_(module.past_G_values, module.initial_values())
            init.ones_(module.past_G_values_status)
        elif not isinstance(module, PublishedConstant):
            super()._init_weights(module)


class PldrllmModel(_Published, modeling.PldrModel):
    """PldrModel; with a constant operator it holds ``past_G_values``, [L, 3, 1, H, d, d], and its status, [L].

    Slot 2 on axis 1 is G_LM. The other two slots and the status are kept for the round trip; nothing reads them.
    """

    past_G_values: Tensor
    past_G_values_status: Tensor

    def __init__(self, config: PldrllmConfig) -> None:
        super().__init__(config)
        if config.operator == "constant":
            shape = (config.num_hidden_layers, 3, 1, config.num_attention_heads, config.head_dim, config.head_dim)
            self.register_buffer("past_G_values", torch.empty(shape))
            self.register_buffer("past_G_values_status", torch.empty(shape[0], dtype=torch.bool))
            for index, layer in enumerate(self.layers):
                attention: Any = layer.self_attn
                attention.operator = PublishedConstant(self, index)
            self.register_load_state_dict_pre_hook(_take_our_names)
            if not self.past_G_values.is_meta:
                self._init_weights(self)

    def initial_values(self) -> Tensor:
        """``past_G_values`` before a checkpoint or a hand sets them: G_LM as the configuration says, the rest zero."""
        values = torch.zeros(self.past_G_values.shape)
        for index, layer in enumerate(self.layers):
            attention: Any = layer.self_attn
            values[index, SLOT, 0] = constant(attention.operator, self.config)
        return values

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: the published format is one of whole models.

        Raises:
            ValueError: always.
        """
        raise ValueError("PldrllmModel has no published format of its own, expected to save a PldrllmForCausalLM")


def _take_our_names(model: PldrllmModel, tensors: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Let ``load_state_dict`` take the G_LM of each layer, as our own format has it, for ``past_G_values``."""
    names = [f"{prefix}layers.{index}.self_attn.operator.curvature" for index in range(len(model.layers))]
    if all(name in tensors for name in names):
        values, status = stack([tensors.pop(name) for name in names])
        tensors[f"{prefix}past_G_values"], tensors[f"{prefix}past_G_values_status"] = values, status


class PldrllmForCausalLM(_Published, modeling.PldrForCausalLM):
    """PldrForCausalLM in the published format."""

    def __init__(self, config: PldrllmConfig) -> None:
        super().__init__(config)
        self.model = PldrllmModel(config)

    @classmethod
    def from_plga(cls, model: modeling.PldrForCausalLM) -> "PldrllmForCausalLM":
        """The same model in the published format, on the same tensors; the slots beside a constant G_LM are zero."""
        with no_init_weights(), torch.device("meta"):
            published = cls(PldrllmConfig.from_plga(model.config))
        published.load_state_dict(model.state_dict(), assign=True)
        published.generation_config = copy.deepcopy(model.generation_config)
        published.generation_config.guard = None  # the format has no place for what a guard needs
        return published.train(model.training)


class PldrllmForSequenceClassification(_Published, modeling.PldrForSequenceClassification):
    """PldrForSequenceClassification on a checkpoint of the published format."""


class PldrllmForTokenClassification(_Published, modeling.PldrForTokenClassification):
    """PldrForTokenClassification on a checkpoint of the published format."""


class PldrllmForQuestionAnswering(_Published, modeling.PldrForQuestionAnswering):
    """PldrForQuestionAnswering on a checkpoint of the published format."""


def register_names() -> None:
    """Tell Transformers how published checkpoints name their tensors; it renames them when it loads and saves."""
    pieces = [WeightRenaming(re.escape(published), re.escape(ours)) for published, ours in PIECES]
    register_checkpoint_conversion_mapping(PldrllmConfig.model_type, pieces, overwrite=True)
