"""The published Transformers format (``model_type: pldrllm``): its configuration and its tensors (arXiv:2502.13502)."""

from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor

from plga.model.configuration import CONSTANTS, PldrConfig
from plga.model.names import from_released, to_released

VALUES = "decoder.past_G_values"
STATUS = "decoder.past_G_values_status"
CURVATURE = "model.layers.{}.self_attn.operator.curvature"
# Where G_LM lies on axis 1 of VALUES, [L, 3, 1, H, d, d]. No computation reads the other two slots.
SLOT = 2

_RENAMED = {
    "A_dff": "metric_intermediate_size",
    "num_reslayerA": "num_metric_units",
    "num_denseA": "num_metric_blocks",
    "reference_rope": "rope_interleaved",
}
# What a published configuration may also say, and the only value of it that this model computes.
_FIXED: dict[str, Any] = {
    "attention_bias": True,
    "glu_bias": True,
    "final_bias": True,
    "hidden_act": "silu",
    "rope_scaling": None,
    "tie_word_embeddings": False,
}
_OURS_ONLY = (
    *_RENAMED.values(),
    "operator",
    "constant",
    "constant_seed",
    "gram",
    "gram_chunk",
    "operator_mode",
    "operator_initialization",
    "metric_initialization",
)


@strict
class PldrllmConfig(PldrConfig):
    """A PldrConfig that reads and writes the names of the published ``config.json``.

    Both names of a number work: ``A_dff`` is ``metric_intermediate_size``, ``num_reslayerA`` is ``num_metric_units``,
    ``num_denseA`` is ``num_metric_blocks`` and ``reference_rope`` is ``rope_interleaved``.

    Args:
        custom_G_type: None for a learned operator; ``identity``, ``random`` or ``external`` for a constant one.
        cache_first_G: generate with the G_LM of the prompt (mode ``prompt``) instead of the online contract.
        output_pldr_attentions: kept for the round trip; deductive outputs are asked for with ``output_deductive=True``.

    Raises:
        ValueError: as PldrConfig, and a published option that this model does not compute, naming it.
    """

    model_type = "pldrllm"
    attribute_map = _RENAMED

    # The published Transformers port draws W, P and a from this law.
    operator_initialization: str = "xavier_uniform"
    initializer_range: float = 0.02
    output_pldr_attentions: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        if self.tie_word_embeddings:
            kwargs["tie_word_embeddings"] = True
        for name, value in _FIXED.items():
            given = kwargs.pop(name, value)
            if given != value:
                raise ValueError(f"{name} is {given!r}, expected {value!r}: this model computes no other")
        for name in (*_RENAMED, "custom_G_type", "cache_first_G"):
            if name in kwargs:
                # By our name where there is one, so that its type is checked.
                setattr(self, _RENAMED.get(name, name), kwargs.pop(name))
        # The published modules are not on this side, so neither is the pointer to them.
        kwargs.pop("auto_map", None)
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """As PldrConfig's; and raise ValueError on what the published format has no word for."""
        super().validate_architecture()
        if self.gram != "global":
            raise ValueError(f"gram is {self.gram!r}, expected 'global': the published format has no other")

    @property
    def custom_G_type(self) -> str | None:
        """The published name of the operator: None, ``identity``, ``random`` or ``external``."""
        return None if self.operator == "learned" else self.constant

    @custom_G_type.setter
    def custom_G_type(self, value: str | None) -> None:
        if value is not None and value not in CONSTANTS:
            raise ValueError(f"custom_G_type is {value!r}, expected null or one of {', '.join(CONSTANTS)}")
        self.operator = "learned" if value is None else "constant"
        if value is not None:
            self.constant = value

    @property
    def cache_first_G(self) -> bool:
        """Whether generation keeps the G_LM of the prompt."""
        return self.operator_mode == "prompt"

    @cache_first_G.setter
    def cache_first_G(self, value: bool) -> None:
        self.operator_mode = "prompt" if value else "recompute"

    def to_dict(self) -> dict[str, Any]:
        """The published dictionary."""
        written = super().to_dict()
        for published, ours in _RENAMED.items():
            written[published] = getattr(self, ours)
        for name in _OURS_ONLY:
            written.pop(name, None)
        return (
            written
            | _FIXED
            | {
                "custom_G_type": self.custom_G_type,
                "cache_first_G": self.cache_first_G,
                "head_dim": self.head_dim,
            }
        )

    def to_plga(self) -> PldrConfig:
        """The same model under our names."""
        return PldrConfig(**_plain(self))

    @classmethod
    def from_plga(cls, config: PldrConfig) -> "PldrllmConfig":
        """The same model under the published names."""
        return cls(**_plain(config))


def _plain(config: PldrConfig) -> dict[str, Any]:
    """Every setting of ``config`` by our name, but for what says of which format it is."""
    own = ("architectures", "model_type", "transformers_version", "initializer_range", "output_pldr_attentions")
    return {name: value for name, value in vars(config).items() if not name.startswith("_") and name not in own}


def from_published(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """Tensors of a published checkpoint under our names.

    Args:
        tensors: by published name, with ``decoder.past_G_values`` [L, 3, 1, H, d, d] when the operator is constant.

    Returns:
        Tensors by our name, G_LM as [H, d, d] a layer, and whether the two slots beside G_LM hold any non-zero value.

    Raises:
        ValueError: ``decoder.past_G_values`` of another shape.
    """
    ours: dict[str, Tensor] = {}
    unread = False
    for key, tensor in tensors.items():
        if key == VALUES:
            if tensor.dim() != 6 or tensor.shape[1:3] != (3, 1):
                raise ValueError(f"{VALUES} is {list(tensor.shape)}, expected [L, 3, 1, H, d, d]")
            unread = bool(tensor[:, :SLOT].any())
            ours |= {CURVATURE.format(i): values[SLOT, 0].contiguous() for i, values in enumerate(tensor)}
        elif key != STATUS:
            ours[from_released(key)] = tensor
    return ours, unread


def to_published(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of our model under the published names; a constant G_LM goes to ``decoder.past_G_values``.

    Args:
        tensors: by our name, G_LM as [H, d, d] a layer.

    Returns:
        Tensors by published name.
    """
    constants = {name: tensor for name, tensor in tensors.items() if name.endswith(".operator.curvature")}
    published = {to_released(name): tensor for name, tensor in tensors.items() if name not in constants}
    if constants:
        published[VALUES], published[STATUS] = stack([constants[CURVATURE.format(i)] for i in range(len(constants))])
    return published


def stack(curvatures: list[Tensor]) -> tuple[Tensor, Tensor]:
    """``past_G_values``, [L, 3, 1, H, d, d], and its status, [L], from G_LM, [H, d, d], of every layer.

    The two slots beside G_LM are zero and the status is True.
    """
    curvature = torch.stack(curvatures)
    values = curvature.new_zeros(len(curvatures), 3, 1, *curvature.shape[1:])
    values[:, SLOT, 0] = curvature
    return values, torch.ones(len(curvatures), dtype=torch.bool)
