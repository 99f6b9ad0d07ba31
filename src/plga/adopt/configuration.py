"""Configuration of an adopted model: that of its base, and which operator each attention layer has.

An adopted model has a ``model_type`` of its own. Whoever loads it without ``plga`` is told that the type is unknown,
where the base's type would give the base model with the operators silently left out.
"""

import copy
import functools
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from transformers.configuration_utils import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from plga.adopt.pickles import by_base
from plga.adopt.settings import OperatorSettings

MODEL_TYPE = "plga_adopted"


if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig as _Base  # or whatever class comes behind it
else:
    _Base = object


class AdoptedConfigMixin(_Base):
    """What an adopted configuration adds to that of its base.

    Attributes:
        base_model_type: ``model_type`` of the base.
        plga_operator: OperatorSettings as a dictionary.
        plga_layers: attention modules with an operator, by name in the model: [H, d].
    """

    base_model_type: str
    plga_operator: dict[str, Any]
    plga_layers: dict[str, list[int]]
    _attn_implementation_internal: Any

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        made: Any = super().__reduce_ex__(protocol)
        return by_base(made, _known_config_class, base_config_class(self))

    @property
    def operator_settings(self) -> OperatorSettings:
        """Which operator, and of what size."""
        return OperatorSettings.from_dict(self.plga_operator)

    @property
    def _attn_implementation(self) -> Any:
        return self._attn_implementation_internal

    @_attn_implementation.setter
    def _attn_implementation(self, value: Any) -> None:
        # Whoever sets a kernel here, past the model, would leave the operators out without a word.
        if isinstance(value, str) and str(value) in ("eager", "sdpa"):  # str: a Kernel is equal to both its names
            from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

            from plga.adopt.kernels import with_operators

            value = with_operators(value, MODEL_FOR_CAUSAL_LM_MAPPING[base_config_class(self)].__module__)
        super(AdoptedConfigMixin, type(self))._attn_implementation.fset(self, value)

    @property
    def output_attentions(self) -> Any:
        return self._output_attentions  # not super(): torch.compile takes that for a property, which is true

    @output_attentions.setter
    def output_attentions(self, value: Any) -> None:
        with self._plain_kernel():
            super(AdoptedConfigMixin, type(self)).output_attentions.fset(self, value)

    def validate(self) -> None:
        """What Transformers checks before it writes a configuration."""
        with self._plain_kernel():
            super().validate()

    @contextmanager
    def _plain_kernel(self) -> Iterator[None]:
        """The kernel by the name that Transformers has for it: only ``eager`` may give attention weights."""
        kernel = self._attn_implementation_internal
        if isinstance(kernel, str):
            self._attn_implementation_internal = str(kernel).removeprefix("plga_")
        try:
            yield
        finally:
            self._attn_implementation_internal = kernel


@functools.cache
def adopted_config_class(base: Any) -> Any:
    """The configuration class of adopted models whose configuration was of class ``base``."""
    name = f"Adopted{base.__name__}"
    return type(name, (AdoptedConfigMixin, base), {"model_type": MODEL_TYPE, "__module__": base.__module__})


def _known_config_class(base: Any) -> Any:
    """As :func:`adopted_config_class`; AutoModelForCausalLM knows its models, too."""
    from plga.adopt.classes import register

    config_class = adopted_config_class(base)
    register(config_class)
    return config_class


def base_config_class(config: PreTrainedConfig) -> type[PreTrainedConfig]:
    """The class that an adopted configuration extends."""
    return next(cls for cls in type(config).__mro__[1:] if cls is not AdoptedConfigMixin)


def base_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """A copy of a configuration as its base has it; of one that is not adopted, a copy."""
    base = copy.deepcopy(config)
    if isinstance(config, AdoptedConfigMixin):
        base.__class__ = base_config_class(config)
        for name in ADDED:
            delattr(base, name)
        base.architectures = None  # save_pretrained writes them
    return base


def base_digest(config: PreTrainedConfig) -> str:
    """SHA-256 of what a base configuration says about its model, and of nothing that may change beside it.

    Only what differs from the defaults counts, so that a field which a later Transformers adds does not.
    """
    told = base_config(config).to_diff_dict()
    kept = {name: value for name, value in told.items() if name not in _PASSING and not name.startswith("_")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


ADDED = ("base_model_type", "plga_operator", "plga_layers")

# Not of the model: how it is stored, run or stopped.
_PASSING = {
    *("architectures", "bos_token_id", "dtype", "eos_token_id", "output_attentions", "output_hidden_states"),
    *("pad_token_id", "quantization_config", "return_dict", "torch_dtype", "transformers_version", "use_cache"),
}


class AdoptedConfig(PreTrainedConfig):
    """What ``model_type: plga_adopted`` stands for: it reads a configuration as one that extends its base's."""

    model_type = MODEL_TYPE

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """Configuration of the class that extends ``base_model_type``'s; the model class is registered with it.

        Raises:
            ValueError: no ``base_model_type`` of a causal LM that Transformers knows; no operators, or one whose heads
                and width are no whole numbers >= 1.
        """
        base = config_dict.get("base_model_type")
        if not isinstance(base, str) or base == MODEL_TYPE or base not in CONFIG_MAPPING:
            raise ValueError(
                f"config.json: base_model_type is {base!r}, expected a type that this version of Transformers knows"
            )
        for name in ("plga_operator", "plga_layers"):
            if not isinstance(config_dict.get(name), dict) or not config_dict[name]:
                raise ValueError(f"config.json: {name} is {config_dict.get(name)!r}, expected what plga.adopt wrote")
        for name, shape in config_dict["plga_layers"].items():
            if not isinstance(shape, list) or [type(n) for n in shape] != [int, int] or min(shape) < 1:
                raise ValueError(
                    f"config.json: plga_layers has {shape!r} for {name}, expected [heads, width], whole numbers >= 1"
                )
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

        if CONFIG_MAPPING[base] not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise ValueError(f"config.json: base_model_type is {base!r}, expected that of a causal LM")
        return _known_config_class(CONFIG_MAPPING[base]).from_dict(config_dict, **kwargs)
