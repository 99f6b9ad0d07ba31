"""PldrModel and its heads: padding, constants, attention, outputs, training, initialization, bad input."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, StaticCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from plga.model.cache import PldrCache
from plga.model.modeling import (
    PldrAttention,
    PldrForCausalLM,
    PldrForQuestionAnswering,
    PldrForSequenceClassification,
    PldrForTokenClassification,
    PldrModel,
)
from plga.model.operator import DeductiveOutputs, LearnedOperator, SwiGLU, require_finite
from plga.ops.acyclicity import dag_loss
from plga.ops.power_law import metric_tensor
from tests.model.conftest import (
    VOCABULARY,
    chunked,
    constant,
    curvatures,
    pad,
    relative,
    scatter,
    source,
    tiny,
    tiny_config,
    tokens,
)


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}


# Padding --------------------------------------------------------------------------------------------------------------

EIGHT = [tokens(length, seed=length) for length in (1, 2, 3, 5, 6, 8, 9, 12)]


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padded_batch_equals_its_sequences_alone(left: bool, attention: str) -> None:
    model = tiny(attn_implementation=attention)
    ids, mask = pad(EIGHT, left)
    logits, operators = model(ids, attention_mask=mask).logits, curvatures(model, ids, mask)
    for row, sequence in enumerate(EIGHT):
        assert relative(operators[:, row], curvatures(model, sequence[None])[:, 0]) < 1e-6
        # The last real token's row too, which a right-padded batch is read at.
        assert relative(logits[row, mask[row] == 1], model(sequence[None]).logits[0]) < 1e-9


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("model", [tiny, constant], ids=["learned", "constant"])
def test_what_stands_at_padding_changes_nothing(model, left: bool, attention: str) -> None:
    model = model(torch.float32, attn_implementation=attention)
    results = []
    for filler in (0, 1, VOCABULARY - 1):
        ids, mask = pad(EIGHT, left, filler)
        outputs = model(ids, attention_mask=mask, output_deductive=True)
        results.append((outputs.logits[mask == 1], *(layer.curvature for layer in outputs.deductive)))
    for other in results[1:]:
        assert all(torch.equal(ours, first) for ours, first in zip(other, results[0], strict=True))


# Constants ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_identity_is_sdpa_bit_for_bit(dtype: torch.dtype, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the same model with the bend q' = q G taken out, padded and not."""
    model = PldrForCausalLM(
        tiny_config(operator="constant", constant="identity", hidden_size=32, attn_implementation=attention)
    )
    for layer in model.model.layers:
        assert torch.equal(layer.self_attn.operator.curvature, torch.eye(16).expand(2, 16, 16))
        scatter(layer.self_attn.q_proj)
    model = model.to(dtype).eval()
    inputs = [(tokens(3, 9), None), pad(EIGHT, left=True)]
    bent = [model(ids, attention_mask=mask).logits for ids, mask in inputs]
    monkeypatch.setattr("plga.model.modeling.bend", lambda query, curvature, check_values: query)
    straight = [model(ids, attention_mask=mask).logits for ids, mask in inputs]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(bent, straight, strict=True))


def random_constants(**changes) -> Tensor:
    model = PldrForCausalLM(tiny_config(operator="constant", constant="random", **changes))
    return torch.stack([layer.self_attn.operator.curvature for layer in model.model.layers])


def test_random_constants_are_seeded() -> None:
    first = random_constants(constant_seed=3)
    torch.rand(7)  # the global stream plays no part
    assert torch.equal(random_constants(constant_seed=3), first)
    several = torch.cat([random_constants(constant_seed=seed).flatten(1) for seed in range(4)])
    assert len(torch.unique(several, dim=0)) == len(several), "no two layers, of any seeds, are alike"
    low = PldrForCausalLM._from_config(
        tiny_config(operator="constant", constant="random", constant_seed=3), dtype=torch.bfloat16
    )
    assert torch.equal(low.model.layers[1].self_attn.operator.curvature, first[1].bfloat16())


def test_random_constants_have_entries_of_variance_one_over_width() -> None:
    entries = random_constants(hidden_size=128, num_hidden_layers=3)
    assert float(entries.std()) == pytest.approx(1 / math.sqrt(64), rel=0.03)
    assert abs(float(entries.mean())) < 0.003


def test_external_constants_are_nan_until_set_and_then_survive_saving(tmp_path) -> None:
    """A fused kernel may take NaN scores for masked ones and go on: the operator itself has to refuse."""
    model = constant(torch.float32, constant="external")
    operators = [layer.self_attn.operator for layer in model.model.layers]
    assert all(operator.curvature.isnan().all() for operator in operators)
    with pytest.raises(FloatingPointError, match=r"^G_LM of layer 0 is not finite in heads \[0, 1\]$"):
        model(tokens(1, 5))
    for seed, operator in enumerate(operators):
        torch.manual_seed(seed)
        operator.curvature.data.normal_()
    model.save_pretrained(tmp_path)
    loaded = PldrForCausalLM.from_pretrained(tmp_path)
    for layer, operator in zip(loaded.model.layers, operators, strict=True):
        assert torch.equal(layer.self_attn.operator.curvature, operator.curvature)
    assert torch.equal(loaded(tokens(1, 5)).logits, model(tokens(1, 5)).logits)


def test_no_optimizer_moves_a_constant(tmp_path) -> None:
    model = constant(torch.float32)
    model.save_pretrained(tmp_path)
    for each in (model, PldrForCausalLM.from_pretrained(tmp_path)):
        each.train()(tokens(2, 5), labels=tokens(2, 5)).loss.backward()
        for layer in each.model.layers:
            assert not layer.self_attn.operator.curvature.requires_grad
            assert layer.self_attn.operator.curvature.grad is None
        assert all(gradient is not None for gradient in gradients(each).values())


# Attention through Transformers ---------------------------------------------------------------------------------------


def test_serving_engines_find_one_lookup_and_one_call() -> None:
    text = source(PldrAttention.forward)
    assert text.count("ALL_ATTENTION_FUNCTIONS.get_interface(") == 1
    assert text.count("attention_interface(") == 1
    assert text.count("scaling=self.scaling") == text[text.index("attention_interface(") :].count("scaling=") == 1


@torch.no_grad()
@pytest.mark.parametrize("model", [tiny, constant], ids=["learned", "constant"])
def test_a_registered_attention_function_gets_bent_queries(model) -> None:
    """q' = q G, the module's scaling, and the keys and values: all that ordinary attention needs."""
    calls = []

    def probe(module, query, key, value, attention_mask, scaling, **kwargs):
        calls.append((module, query, key, scaling))
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)

    AttentionInterface.register("plga_probe", probe)
    AttentionMaskInterface.register("plga_probe", sdpa_mask)
    ids, mask = pad(EIGHT, left=False)
    wanted = model()(ids, attention_mask=mask).logits
    model = model(attn_implementation="plga_probe")
    operators = [layer.self_attn.operator for layer in model.model.layers]
    seen = []
    for operator in operators:
        operator.register_forward_hook(lambda module, args, outputs: seen.append((args[0], outputs.curvature)))
    assert torch.equal(model(ids, attention_mask=mask).logits, wanted)
    assert [module for module, *_ in calls] == [layer.self_attn for layer in model.model.layers]
    for (module, query, key, scaling), (straight, curvature) in zip(calls, seen, strict=True):
        assert torch.equal(query, straight @ curvature)
        assert query.shape == key.shape == (len(EIGHT), 2, 12, 4)
        assert scaling == module.scaling == 0.5


@torch.no_grad()
def test_sdpa_and_eager_agree() -> None:
    ids, mask = pad(EIGHT, left=True)
    fused, open_ = (tiny(attn_implementation=name)(ids, attention_mask=mask).logits for name in ("sdpa", "eager"))
    assert relative(fused[mask == 1], open_[mask == 1]) < 1e-12


# Outputs --------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_hidden_states_attentions_and_deductive_outputs() -> None:
    model, ids = tiny(attn_implementation="eager"), tokens(2, 5)
    plain = model(ids)
    assert plain.hidden_states is None and plain.attentions is None and plain.deductive is None
    outputs = model(ids, output_hidden_states=True, output_attentions=True, output_deductive=True)
    assert torch.equal(outputs.logits, plain.logits)

    assert len(outputs.hidden_states) == 3
    embedded = model.model.embed_norm(model.model.embed_tokens(ids) * math.sqrt(8))
    assert torch.equal(outputs.hidden_states[0], embedded)
    assert torch.equal(model.lm_head(outputs.hidden_states[-1]), outputs.logits)

    assert len(outputs.attentions) == 2
    for probabilities in outputs.attentions:
        assert probabilities.shape == (2, 2, 5, 5)
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(2, 2, 5, dtype=torch.float64))
        assert probabilities.triu(1).abs().max() == 0

    assert len(outputs.deductive) == 2
    for layer in outputs.deductive:
        assert all(tensor.shape == (2, 2, 4, 4) for tensor in layer)
        assert layer.metric.min() >= 1e-9 and layer.potential.min() > 0
    assert torch.equal(
        PldrModel.forward(model.model, ids, output_deductive=True).deductive[1].curvature,
        outputs.deductive[1].curvature,
    )


@torch.no_grad()
def test_a_constant_operator_has_its_curvature_only() -> None:
    for layer in constant()(tokens(2, 5), output_deductive=True).deductive:
        assert layer[:3] == (None, None, None)
        assert layer.curvature.shape == (2, 4, 4)


@torch.no_grad()
def test_hidden_states_of_a_recomputed_prefix_have_one_length() -> None:
    outputs = tiny(torch.float32).generate(
        tokens(2, 5), max_new_tokens=2, output_hidden_states=True, return_dict_in_generate=True
    )
    assert [tuple(state.shape) for state in outputs.hidden_states[1]] == [(2, 6, 8)] * 3


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("shown", [{}, {"output_hidden_states": True}], ids=["read", "shown"])
@pytest.mark.parametrize("padding", [0, 2])
def test_a_recomputed_token_is_the_last_row_of_one_pass(padding: int, shown: dict, attention: str) -> None:
    """The last layer finishes that row alone, or all of them where they are to be shown."""
    model, ids = tiny(attn_implementation=attention), tokens(2, 6)
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    cache = PldrCache(model.config, "recompute")
    model(ids[:, :-1], attention_mask=mask[:, :-1], cache=cache)
    step = model(ids[:, -1:], attention_mask=mask, cache=cache, **shown)
    assert step.logits.shape == (2, 1, VOCABULARY)
    assert relative(step.logits[:, -1], model(ids, attention_mask=mask).logits[:, -1]) < 1e-9


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows that each layer's feed-forward network saw."""
    rows: list[int] = []
    forward = SwiGLU.forward

    def counted(self: SwiGLU, x: Tensor) -> Tensor:
        if x.shape[-1] == 8:  # not in the metric learner
            rows.append(x.shape[1])
        return forward(self, x)

    monkeypatch.setattr(SwiGLU, "forward", counted)
    return rows


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [tiny, constant])
@pytest.mark.parametrize("padding", [0, 2])
def test_where_one_row_is_read_the_last_layer_finishes_no_other(
    make: Callable[..., PldrForCausalLM], attention: str, padding: int, finished: list[int]
) -> None:
    model, ids, found = make(attn_implementation=attention), tokens(2, 6), []
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    for last_row in (True, False):
        model.zero_grad()
        row = model.model(ids, attention_mask=mask, use_cache=False, last_row=last_row).last_hidden_state[:, -1]
        row.logsumexp(-1).sum().backward()
        grads = [p.grad.flatten() for p in model.model.parameters() if p.grad is not None]
        found.append((row.detach(), torch.cat(grads)))
    assert finished == [6, 1, 6, 6]
    for one, all_ in zip(*found, strict=True):
        assert relative(one, all_) < 1e-9


@torch.no_grad()
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (tiny, {"output_hidden_states": True}),
        (tiny, {"output_attentions": True}),
        (constant, {"use_cache": True}),
        (chunked, {}),
    ],
    ids=["hidden states", "attention", "cache", "chunked"],
)
def test_every_row_is_finished_where_it_is_wanted(
    make: Callable[..., PldrForCausalLM], options: dict, finished: list[int]
) -> None:
    model = make(attn_implementation="eager")
    model.model(tokens(2, 6), **{"use_cache": False, "last_row": True, **options})
    assert finished == [6, 6]


@torch.no_grad()
def test_logits_to_keep_and_tuples() -> None:
    model, ids = tiny(), tokens(2, 5)
    logits = model(ids).logits
    assert relative(model(ids, logits_to_keep=2).logits, logits[:, -2:]) < 1e-14  # of fewer rows, by another kernel
    assert relative(model(ids, logits_to_keep=torch.tensor([0, 3])).logits, logits[:, [0, 3]]) < 1e-14
    assert relative(model(ids, return_dict=False, use_cache=False)[0], logits) < 1e-14


@torch.no_grad()
@pytest.mark.parametrize("autocast", [False, True], ids=["bfloat16", "autocast"])
def test_deductive_outputs_are_float32_in_low_precision(autocast: bool) -> None:
    model = tiny(torch.float32 if autocast else torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        outputs = model(tokens(2, 5), output_deductive=True)
    assert outputs.logits.dtype == torch.bfloat16
    assert {tensor.dtype for layer in outputs.deductive for tensor in layer} == {torch.float32}


# Training -------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_loss_is_the_mean_next_token_cross_entropy() -> None:
    model, ids = tiny(), tokens(2, 6)
    labels = ids.clone()
    labels[0, :3] = -100
    outputs = model(ids, labels=labels)
    losses = nn.functional.cross_entropy(
        outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="none"
    )
    assert float(outputs.loss) == pytest.approx(float(losses.sum() / (labels[:, 1:] != -100).sum()), rel=1e-6)


def loss_with_regularizer(model: PldrForCausalLM) -> Tensor:
    outputs = model(tokens(2, 6), labels=tokens(2, 6), output_deductive=True)
    deductive = [tensor for layer in outputs.deductive for tensor in layer[1:]]
    return outputs.loss + 0.1 * sum(dag_loss(tensor).mean() for tensor in deductive)


def test_gradients_reach_every_parameter() -> None:
    model = tiny().train()
    model(tokens(2, 6), labels=tokens(2, 6)).loss.backward()
    for name, gradient in gradients(model).items():
        assert gradient is not None and gradient.isfinite().all() and gradient.abs().sum() > 0, name


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_nothing(reentrant: bool) -> None:
    """The loss of the deductive outputs included: its gradient has to come through the checkpoint too."""
    plain, saving = tiny().train(), tiny().train()
    # The newest Transformers has another name for it, and warns.
    enable = getattr(saving, "activation_checkpointing_enable", saving.gradient_checkpointing_enable)
    enable({"use_reentrant": reentrant})
    ours, theirs = loss_with_regularizer(saving), loss_with_regularizer(plain)
    assert torch.equal(ours, theirs)
    ours.backward()
    theirs.backward()
    plain_gradients = gradients(plain)
    for name, gradient in gradients(saving).items():
        assert gradient is not None, name
        torch.testing.assert_close(gradient, plain_gradients[name], rtol=1e-12, atol=1e-14, msg=name)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_with_a_constant_operator(reentrant: bool) -> None:
    """A layer that returned its parameter itself, not a view, would be its own input in the reentrant form."""
    plain, saving = constant().train(), constant().train()
    getattr(saving, "activation_checkpointing_enable", saving.gradient_checkpointing_enable)(
        {"use_reentrant": reentrant}
    )
    for model in (plain, saving):
        embeds = model.model.embed_tokens(tokens(2, 6)).detach().requires_grad_()
        model(inputs_embeds=embeds, use_cache=False).logits.logsumexp(-1).sum().backward()
    plain_gradients = gradients(plain)
    for name, gradient in gradients(saving).items():
        torch.testing.assert_close(gradient, plain_gradients[name], rtol=1e-12, atol=1e-14, msg=name)


def saved_bytes(model: PldrForCausalLM) -> int:
    """Bytes that autograd keeps from the forward to the backward pass, parameters left out."""
    kept = {parameter.untyped_storage().data_ptr(): 0 for parameter in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_with_regularizer(model)
    return sum(kept.values())


@pytest.mark.parametrize("layers", [False, True], ids=["alone", "in checkpointed layers"])
def test_checkpointing_the_metric_learner_changes_no_bit(layers: bool) -> None:
    plain, saving = tiny(torch.float32).train(), tiny(torch.float32).train()
    saving.checkpoint_metric_learner()
    for model in (plain, saving) if layers else ():
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)({"use_reentrant": False})
    for model in (plain, saving):
        loss_with_regularizer(model).backward()
    plain_gradients = gradients(plain)
    for name, gradient in gradients(saving).items():
        assert gradient is not None and torch.equal(gradient, plain_gradients[name]), name


def test_checkpointing_the_metric_learner_keeps_less(tmp_path) -> None:
    model = tiny(torch.float32).train()
    everything = saved_bytes(model)
    model.checkpoint_metric_learner()
    assert saved_bytes(model) < 0.7 * everything
    model.save_pretrained(tmp_path)
    assert saved_bytes(PldrForCausalLM.from_pretrained(tmp_path).train()) == everything  # a setting that is not saved
    model.checkpoint_metric_learner(False)
    assert saved_bytes(model) == everything
    with pytest.raises(ValueError, match="the operator of this model is constant, expected learned"):
        constant().checkpoint_metric_learner()


@torch.no_grad()
def test_attention_dropout_acts_in_training_only() -> None:
    model, ids = tiny(attention_dropout=0.5), tokens(2, 6)
    assert torch.equal(model(ids).logits, tiny()(ids).logits)
    assert not torch.equal(model.train()(ids).logits, model(ids).logits)


HEADS = [
    (PldrForSequenceClassification, lambda: {"labels": torch.tensor([0, 1, 2])}, (3, 3)),
    (PldrForTokenClassification, lambda: {"labels": torch.tensor([[0, 1, 2, 0, 1]] * 3)}, (3, 5, 3)),
    (
        PldrForQuestionAnswering,
        lambda: {"start_positions": torch.tensor([0, 1, 2]), "end_positions": torch.tensor([2, 2, 4])},
        (3, 5),
    ),
]


@pytest.mark.parametrize(("head", "labels", "shape"), HEADS, ids=[head.__name__ for head, *_ in HEADS])
def test_heads(head, labels, shape: tuple, tmp_path) -> None:
    torch.manual_seed(0)
    model = head(tiny_config(num_labels=3))
    scatter(model)
    outputs = model(tokens(3, 5), **labels())
    result = outputs.logits if "logits" in outputs else outputs.start_logits
    assert result.shape == shape and outputs.loss.isfinite()
    outputs.loss.backward()
    for name, gradient in gradients(model).items():
        assert gradient is not None and gradient.abs().sum() > 0, name
    # On top of a language model: the decoder is that of the checkpoint.
    base = tiny(torch.float32)
    base.save_pretrained(tmp_path)
    loaded = head.from_pretrained(tmp_path, num_labels=3)
    for key, tensor in base.model.state_dict().items():
        assert torch.equal(loaded.base_model.state_dict()[key], tensor), key


@torch.no_grad()
def test_sequence_classification_reads_the_last_real_token() -> None:
    torch.manual_seed(0)
    model = PldrForSequenceClassification(tiny_config(num_labels=3)).double().eval()
    scatter(model)
    for left in (True, False):
        ids, mask = pad(EIGHT, left)
        together = model(ids, attention_mask=mask).logits
        alone = torch.cat([model(sequence[None]).logits for sequence in EIGHT])
        assert relative(together, alone) < 1e-12


# Compilation ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_whole_graph_compilation_in_constant_mode(backend: str) -> None:
    torch._dynamo.reset()
    model, ids = constant(torch.float32, num_hidden_layers=1), tokens(2, 8)
    block = model(ids, use_cache=False).logits
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(ids, use_cache=False).logits, block)

    cache = StaticCache(config=model.config, max_cache_len=16)
    model(ids[:, :5], cache=cache)
    steps = [compiled(ids[:, 5:6], cache=cache), compiled(ids[:, 6:7], past_key_values=cache)]
    steps.append(compiled(ids[:, 7:], cache=cache, position_ids=torch.tensor([[7]])))
    torch.testing.assert_close(torch.cat([step.logits for step in steps], dim=1), block[:, 5:])
    torch._dynamo.reset()


# Saving ---------------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model", [tiny, constant], ids=["learned", "constant"])
def test_save_and_load_bit_for_bit(model, dtype: torch.dtype, tmp_path) -> None:
    model = model(dtype)
    model.save_pretrained(tmp_path)
    loaded, report = PldrForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.dtype == dtype and not loaded.training
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for key, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor), key
    assert torch.equal(loaded(tokens(2, 5)).logits, model(tokens(2, 5)).logits)


# Initialization -------------------------------------------------------------------------------------------------------

# Two heads of width 32: PyTorch counts d² inputs and H d outputs in an [H, d, d] tensor.
WIDE = {"hidden_size": 64, "metric_intermediate_size": 40, "intermediate_size": 170, "num_hidden_layers": 3}
OPERATOR_STD = math.sqrt(2 / (32 * 32 + 2 * 32))


@torch.no_grad()
@pytest.mark.parametrize("law", ["xavier_normal", "xavier_uniform"])
def test_operator_initialization(law: str) -> None:
    torch.manual_seed(0)
    model = PldrForCausalLM(tiny_config(operator_initialization=law, **WIDE))
    operators = [module for module in model.modules() if isinstance(module, LearnedOperator)]
    assert len(operators) == 3
    for name in ("metric_weight", "exponent", "coupling_weight"):
        entries = torch.stack([getattr(operator, name) for operator in operators])
        assert float(entries.std()) == pytest.approx(OPERATOR_STD, rel=0.03), name
        largest = float(entries.abs().max())
        if law == "xavier_uniform":
            assert 0.99 * math.sqrt(3) * OPERATOR_STD < largest <= math.sqrt(3) * OPERATOR_STD
        else:
            assert largest > 3 * OPERATOR_STD
    for operator in operators:
        assert not operator.metric_bias.any() and not operator.coupling_bias.any()


@torch.no_grad()
@pytest.mark.parametrize("width", [2, 4, 64])
def test_the_small_start_of_the_metric_tensor(width: int) -> None:
    """Whatever the input, Grams that no text gives included."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 2 * width, "metric_initialization": "small", "metric_intermediate_size": 16}
    model = PldrForCausalLM(tiny_config(**sizes)).eval()
    text = model(tokens(4, 12), output_deductive=True).deductive
    spike = torch.zeros(1, 2, width, width)
    spike[..., 0] = 1e6  # LayerNorm makes of it rows that reach √(d - 1), their largest, in one column
    for layer, outputs in zip(model.model.layers, text, strict=True):
        operator = layer.self_attn.operator
        generators = [outputs.generator, operator.learner(spike), operator.learner.input_norm(spike)]
        for generator in generators:
            metric = metric_tensor(generator, operator.metric_weight, operator.metric_bias)
            assert float(metric.min()) > 0.1 and float(metric.max()) < 0.5
        # The worst that W allows: every entry of one column of A at its largest, with the sign that hurts.
        assert float(operator.metric_weight.abs().sum(-1).max()) * math.sqrt(width - 1) < 0.2
        assert width < 64 or float((outputs.metric - 0.25).abs().max()) < 0.02  # on text, and wide: near its constant
        assert float(operator.metric_weight.std()) > 0  # or nothing of the input would reach the operator


@torch.no_grad()
def test_other_initialization() -> None:
    torch.manual_seed(0)
    model = PldrForCausalLM(tiny_config(vocab_size=512, **WIDE))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            bound = math.sqrt(6 / (module.in_features + module.out_features))
            assert 0.95 * bound < float(module.weight.abs().max()) <= bound, name
            assert float(module.weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05), name
            assert not module.bias.any(), name
        elif isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all() and not module.bias.any() and module.eps == 1e-6, name
    embeddings = model.model.embed_tokens.weight
    assert float(embeddings.std()) == pytest.approx(1.0, rel=0.02)
    assert abs(float(embeddings.mean())) < 0.02


def test_initialization_is_deterministic_under_a_seed() -> None:
    first, second = (PldrForCausalLM(tiny_config()) for _ in range(2) if torch.manual_seed(5))
    for key, tensor in first.state_dict().items():
        assert torch.equal(second.state_dict()[key], tensor), key


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [tiny, constant], ids=["learned", "constant"])
@pytest.mark.parametrize("token", [-1, VOCABULARY, 10**6])
def test_token_ids_outside_the_vocabulary(model, token: int) -> None:
    ids = tokens(2, 5)
    ids[1, 3] = token
    with pytest.raises(ValueError, match=f"token id {token} is outside the vocabulary of {VOCABULARY} pieces"):
        model()(ids)


@pytest.mark.parametrize("model", [tiny, constant], ids=["learned", "constant"])
@pytest.mark.parametrize("shape", [(2, 4), (2, 6), (1, 5), (3, 5)], ids=str)
def test_masks_of_the_wrong_shape(model, shape: tuple) -> None:
    with pytest.raises(ValueError) as error:
        model()(tokens(2, 5), attention_mask=torch.ones(shape, dtype=torch.long))
    assert str(error.value) == f"attention_mask is {shape}, expected [B, past + S] = (2, 5)"


@torch.no_grad()
def test_prepared_masks_need_a_constant_operator() -> None:
    prepared = torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 1, 5, 5)
    with pytest.raises(ValueError, match=r"attention_mask is \(2, 1, 5, 5\), expected \[B, S\]"):
        tiny()(tokens(2, 5), attention_mask=prepared)
    assert torch.equal(constant()(tokens(2, 5), attention_mask=prepared).logits, constant()(tokens(2, 5)).logits)


def test_neither_or_both_inputs() -> None:
    model = tiny()
    for inputs in ({}, {"input_ids": tokens(1, 5), "inputs_embeds": torch.zeros(1, 5, 8, dtype=torch.float64)}):
        with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
            model(**inputs)


def test_non_finite_weights_stop_the_run() -> None:
    """Named by the first of A, A_LM, A_P and G_LM that is not finite, its layer and its heads."""
    queries = tiny()
    queries.model.layers[1].self_attn.q_proj.weight.data[4:] = float("nan")
    with pytest.raises(FloatingPointError, match=r"^A of layer 1 is not finite in heads \[1\]$"):
        queries(tokens(2, 5))

    coupling = tiny()
    coupling.model.layers[0].self_attn.operator.coupling_bias.data[0, 1, 2] = float("inf")
    with pytest.raises(FloatingPointError, match=r"^G_LM of layer 0 is not finite in heads \[0\]$"):
        coupling(tokens(2, 5))

    # An infinite A_LM under negative exponents: A_P and G_LM are finite, and wrong.
    hidden = tiny(torch.float32)
    operator = hidden.model.layers[0].self_attn.operator
    operator.metric_bias.data[:] = 1e25
    operator.exponent.data[:] = -1.0
    with pytest.raises(FloatingPointError, match=r"^A_LM of layer 0 is not finite in heads \[0, 1\]$"):
        hidden(tokens(2, 5))


def test_entries_that_are_finite_may_have_a_sum_that_is_not() -> None:
    large = torch.full((1, 2, 4, 4), 3e38)
    assert not large.sum().isfinite()
    require_finite(DeductiveOutputs(large, large, large, large), 0, torch.float32)
