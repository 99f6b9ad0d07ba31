"""Adoption: an SDPA model of Transformers becomes a PLGA model at G = I, and nothing that it computes changes.

At G = I PLGA is SDPA (theorem, arXiv:2608.10288). That this holds to the last bit for the model at hand is not taken
on trust: a few tokens go through it before and after.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from plga.adopt.classes import adopted_model_class, attach, base_model_class, detach, is_adopted, operators
from plga.adopt.kernels import OPERATOR, attention_configs, watched, with_operators
from plga.adopt.settings import OperatorSettings

PROBE_TOKENS = 5


def adopt(
    model: PreTrainedModel,
    operator: str = "constant",
    *,
    rank: int = 8,
    metric_units: int = 8,
    metric_blocks: int = 2,
    metric_intermediate_size: int | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """Give every attention layer of a causal LM an operator on its rotated queries, which starts at G = I.

    ``model`` itself becomes the adopted model, of a class that extends its own; its weights are not touched. Logits,
    hidden states and greedy tokens stay the same to the bit, with the attention kernel that it runs on.

    Args:
        model: any causal LM of Transformers whose attention goes through the attention interface, on any device.
        operator: ``constant`` (one learned matrix a head), ``learned`` (built from the queries by the PLGA generator,
            arXiv:2608.10288, with a = 0 and b_a = I) or ``low_rank`` (I + U Vᵀ, U = 0).
        rank: columns of U and V (``low_rank``).
        metric_units, metric_blocks, metric_intermediate_size: N_res, N_glu and A_dff of the metric learner
            (``learned``); None: A_dff = ⌊8 d / 3⌋.
        seed: of what is drawn: V, and the tensors of the generator. PyTorch's own random state is left as it was.

    Returns:
        ``model``.

    Raises:
        TypeError: ``model`` is no model of Transformers.
        ValueError: a model that is no decoder-only causal LM, is adopted already, has operators of its own, runs its
            attention past the attention interface, is on the meta device, does not run on tokens alone, or would not
            be the same at G = I: the message has its name and the reason; ``model`` is then as it was. And the errors
            of OperatorSettings.
    """
    settings = OperatorSettings(operator, rank, metric_units, metric_blocks, metric_intermediate_size)
    return adopt_with(model, settings, seed)


def adopt_with(
    model: PreTrainedModel,
    settings: OperatorSettings,
    seed: int,
    fill: Callable[[PreTrainedModel], None] | None = None,
) -> PreTrainedModel:
    """:func:`adopt`, after which ``fill`` may set the operators; where that raises, ``model`` is as it was too."""
    require_adoptable(model)
    tokens = _probe(model)
    try:
        expected = _outputs(model, tokens)
    except Exception as error:  # whatever the model itself raises
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"{type(model).__name__} does not run on {PROBE_TOKENS} tokens alone: {reason}") from error
    layers = _attention_layers(model, tokens, settings)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            _become(model, settings, layers)
        _require_same(model, expected, _outputs(model, tokens))
        if fill is not None:
            fill(model)
    except BaseException:
        if is_adopted(model):
            detach(model)
        raise
    return model


def train_operators_only(model: nn.Module) -> None:
    """Leave gradients to the operators of an adopted model, and to nothing else.

    Raises:
        ValueError: ``model`` has no operators.
    """
    found = operators(model)
    if not found:
        raise ValueError(f"{type(model).__name__} has no operators, expected a model that plga.adopt has adopted")
    model.requires_grad_(False)
    for module in found.values():
        module.requires_grad_(True)


def require_adoptable(model: Any) -> None:
    """Raise TypeError or ValueError unless ``model`` looks like one that can be adopted; nothing is run."""
    if not isinstance(model, PreTrainedModel):
        wrapped = "; adopt the base model before PEFT wraps it" if type(model).__module__.startswith("peft.") else ""
        raise TypeError(f"model is {type(model).__name__}, expected a causal LM of Transformers{wrapped}")
    name = type(model).__name__
    if is_adopted(model):
        raise ValueError(f"{name} is adopted already; its operators are at {OPERATOR!r} of each attention layer")
    if type(model).__module__.startswith("plga."):
        raise ValueError(f"{name} is a PLDR-LLM, which has operators of its own; expected an SDPA model")
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    if not any(cls.__name__ in known for cls in type(model).__mro__) or model.config.is_encoder_decoder:
        raise ValueError(f"{name} is no decoder-only causal LM, expected what AutoModelForCausalLM gives")
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise ValueError(f"weights of {name} are on the meta device; load them first, then adopt the model")
    if not model._can_set_attn_implementation():
        raise ValueError(f"{name} {_BYPASSES}")


_BYPASSES = (
    "runs its attention past Transformers' attention interface (ALL_ATTENTION_FUNCTIONS), so there is no place for an "
    "operator; expected a model whose attention kernel can be chosen by name"
)


def _require_same(model: PreTrainedModel, expected: list[Tensor], found: list[Tensor]) -> None:
    """Raise ValueError unless all tensors are equal, to the bit."""
    if all(torch.equal(a, b) for a, b in zip(expected, found, strict=True)):
        return
    if not all(bool(tensor.isfinite().all()) for tensor in expected):
        raise ValueError(f"{base_model_class(model).__name__} gives logits or hidden states that are not finite")
    difference = max(float((a - b).abs().max()) for a, b in zip(expected, found, strict=True))
    raise ValueError(
        f"{base_model_class(model).__name__} is not the same model at G = I on this device (largest difference "
        f"{difference:.3g}), so it is not adopted; expected products with the identity to be exact, which "
        "torch.set_float32_matmul_precision('highest') asks for"
    )


def _become(model: PreTrainedModel, settings: OperatorSettings, layers: dict[str, list[int]]) -> None:
    config: Any = model.config
    base_type = config.model_type
    adopted = adopted_model_class(model.__class__)
    model.__class__, config.__class__ = adopted, adopted.config_class
    config.base_model_type, config.plga_operator, config.plga_layers = base_type, settings.as_dict(), layers
    for part in attention_configs(model):
        part._attn_implementation = with_operators(part._attn_implementation, adopted.__module__)
    model._keep_in_fp32_modules_strict = adopted._keep_in_fp32_modules_strict
    attach(model)
    for name, operator in operators(model).items():
        like = next(p for p in model.get_submodule(name).parameters() if p.is_floating_point())
        wide = torch.promote_types(like.dtype, torch.float32)
        operator.to(device=like.device, dtype=wide)


def _probe(model: PreTrainedModel) -> Tensor:
    """A few tokens of the vocabulary, [1, S]."""
    embedding = next(model.get_input_embeddings().parameters())
    tokens = torch.arange(1, PROBE_TOKENS + 1) % embedding.shape[0]
    return tokens.unsqueeze(0).to(embedding.device)


@torch.no_grad()
def _outputs(model: PreTrainedModel, tokens: Tensor) -> list[Tensor]:
    """Logits and hidden states of every layer."""
    training = [module for module in model.modules() if module.training]
    try:
        with _hooks_taken_back(model):
            found = model.eval()(input_ids=tokens, use_cache=False, output_hidden_states=True)
    finally:
        for module in training:  # each by itself: part of a model may be in eval mode
            module.training = True
    return [found.logits, *found.hidden_states]


@contextmanager
def _hooks_taken_back(model: nn.Module) -> Iterator[None]:
    """Leave no hook behind: asked for hidden states a model keeps Transformers', and cannot be pickled then."""
    before = {module: set(module._forward_hooks) for module in model.modules()}
    marked = {module for module in before if hasattr(module, _HOOKED)}
    try:
        yield
    finally:
        for module, hooks in before.items():
            for added in module._forward_hooks.keys() - hooks:
                del module._forward_hooks[added]
            if module not in marked:
                module.__dict__.pop(_HOOKED, None)


_HOOKED = "_output_capturing_hooks_installed"  # what Transformers remembers them by


def _attention_layers(model: PreTrainedModel, tokens: Tensor, settings: OperatorSettings) -> dict[str, list[int]]:
    """Attention modules that call the attention interface, in the order of their calls: name to [H, d].

    Raises:
        ValueError: nobody calls it, or one that does lets tokens see later ones, or does so twice and is to keep a
            learned operator.
    """
    names = {id(module): name for name, module in model.named_modules()}
    layers: dict[str, list[int]] = {}

    def look(module: nn.Module, query: Tensor, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("is_causal", getattr(module, "is_causal", True)):
            raise ValueError(
                f"{type(model).__name__} lets tokens see later ones ({type(module).__name__}.is_causal is False), "
                "expected a causal LM"
            )
        name = names[id(module)]
        if name in layers and settings.kind == "learned":
            raise ValueError(
                f"{type(model).__name__} goes through {name} more than once a pass, and a learned operator is built "
                "once a layer; expected operator 'constant' or 'low_rank'"
            )
        layers[name] = [query.shape[1], query.shape[-1]]

    with watched(model, look):
        _outputs(model, tokens)
    if not layers:
        raise ValueError(f"{type(model).__name__} {_BYPASSES}")
    return layers
