"""Classes of adopted models: each extends the class of its base, so an adopted Llama is a Llama."""

import functools
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import AutoModelForCausalLM
from transformers.configuration_utils import PreTrainedConfig
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from plga.adopt.configuration import ADDED, AdoptedConfigMixin, adopted_config_class, base_config_class
from plga.adopt.kept import watch
from plga.adopt.kernels import OPERATOR, PREFIX, REACHED, attention_configs, require_reached, with_operators
from plga.adopt.operators import AdoptedOperator, GeneratedOperator, make
from plga.adopt.pickles import by_base

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel as _Base  # or whatever model class comes behind it
else:
    _Base = object


class AdoptedModel(_Base):
    """What an adopted model adds to the class of its base: operators, and kernels that know of them."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        attach(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        made: Any = super().__reduce_ex__(protocol)
        return by_base(made, adopted_model_class, base_model_class(self))

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        for part in attention_configs(self):
            if part._attn_implementation not in ALL_ATTENTION_FUNCTIONS:  # the process that reads may not have it yet
                with_operators(part._attn_implementation.removeprefix(PREFIX), type(self).__module__)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, AdoptedOperator):
            module.start()
        else:
            super()._init_weights(module)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args: Any, **kwargs: Any) -> str:
        # Transformers comes by here whenever a kernel is chosen: when a model is made, loaded, or told another one.
        kernel = attn_implementation.removeprefix(PREFIX) if attn_implementation is not None else None
        kernel = super()._check_and_adjust_attn_implementation(kernel, *args, **kwargs)
        return with_operators(kernel, type(self).__module__)

    def _prefill(self, input_ids: Any, generation_config: Any, *args: Any, **kwargs: Any) -> Any:
        if generation_config.prefill_chunk_size is not None and self._is_learned():
            raise ValueError(
                f"prefill_chunk_size is {generation_config.prefill_chunk_size}, expected None: a learned operator is "
                "built from the prompt as a whole"
            )
        return super()._prefill(input_ids, generation_config, *args, **kwargs)

    def _assisted_decoding(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_learned():
            raise ValueError(
                "assisted decoding is not for a learned operator: its first call has guessed tokens after the prompt, "
                "and the operator is built from all of them"
            )
        return super()._assisted_decoding(*args, **kwargs)

    def _is_learned(self) -> bool:
        return bool(self.config.operator_settings.kind == "learned")


@functools.cache
def adopted_model_class(base: Any) -> Any:
    """The class of adopted models whose base was of class ``base``, known to AutoModelForCausalLM."""
    members = {
        "config_class": adopted_config_class(base.config_class),
        # A cast of G would not be undone: an operator stays in float32 when a model is loaded in less.
        "_keep_in_fp32_modules_strict": {*(base._keep_in_fp32_modules_strict or ()), OPERATOR},
        "__module__": base.__module__,  # where Transformers looks up how its attention is written
        "__doc__": f"{base.__name__} with an operator on the queries of each attention layer.",
    }
    name = f"Adopted{base.__name__}"
    conversions = get_checkpoint_conversion_mapping(base.__name__) or get_checkpoint_conversion_mapping(
        base.config_class.model_type
    )
    if conversions is not None:
        # What renames the base's tensors for its published files goes by its model_type; this goes by the class.
        register_checkpoint_conversion_mapping(name, conversions, overwrite=True)
    adopted = type(name, (AdoptedModel, base), members)
    AutoModelForCausalLM.register(members["config_class"], adopted, exist_ok=True)
    return adopted


def register(config_class: type[PreTrainedConfig]) -> None:
    """Let AutoModelForCausalLM know adopted models of ``config_class``, which extends that of their base."""
    adopted_model_class(MODEL_FOR_CAUSAL_LM_MAPPING[config_class.__mro__[2]])


def base_model_class(model: PreTrainedModel) -> type[PreTrainedModel]:
    """The class that an adopted model extends."""
    return next(cls for cls in type(model).__mro__[1:] if cls is not AdoptedModel)


def attach(model: PreTrainedModel) -> None:
    """Give each attention module that the configuration names its operator, at G = I.

    Raises:
        ValueError: a name that is no module of the model, or one that has an attribute ``operator`` already.
    """
    settings = model.config.operator_settings
    for index, (name, (heads, width)) in enumerate(model.config.plga_layers.items()):
        try:
            attention = model.get_submodule(name)
        except AttributeError:
            raise ValueError(f"plga_layers: {name} is no module of {type(model).__name__}") from None
        if hasattr(attention, OPERATOR):
            raise ValueError(f"{name} of {type(model).__name__} has an attribute {OPERATOR!r} already")
        operator = make(settings, heads, width, index)
        setattr(attention, OPERATOR, operator)
        operator.start()
        operator.watching = [require_reached(attention)]
        if isinstance(operator, GeneratedOperator):
            operator.watching += watch(attention)


def detach(model: PreTrainedModel) -> None:
    """Make an adopted model one of the class and configuration of its base again, without its operators."""
    for name, operator in operators(model).items():
        attention = model.get_submodule(name)
        delattr(attention, OPERATOR)
        attention.__dict__.pop(REACHED, None)
        for handle in operator.watching:
            handle.remove()
    config: Any = model.config
    # First the classes: an adopted configuration would give the kernels their other names again.
    model.__class__, config.__class__ = base_model_class(model), base_config_class(config)
    for part in attention_configs(model):
        part._attn_implementation = part._attn_implementation.removeprefix(PREFIX)
    for name in ADDED:
        config.__dict__.pop(name, None)
    model._keep_in_fp32_modules_strict = set(model._keep_in_fp32_modules_strict or ()) - {OPERATOR}


def operators(model: nn.Module) -> dict[str, AdoptedOperator]:
    """Operators of an adopted model, by the names of their attention modules, in the order of the layers."""
    named = ((name, module) for name, module in model.named_modules() if isinstance(module, AdoptedOperator))
    return {name.removesuffix(f".{OPERATOR}"): module for name, module in named}


def is_adopted(model: Any) -> bool:
    return isinstance(getattr(model, "config", None), AdoptedConfigMixin)
