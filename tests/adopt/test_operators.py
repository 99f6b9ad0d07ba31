"""The three operators: at I, away from it, over batches and padding, and what gradients see."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

import plga
from plga.adopt.classes import operators
from plga.adopt.operators import GeneratedOperator, make, real_tokens
from plga.adopt.settings import OperatorSettings
from plga.ops.density import gram
from plga.ops.power_law import curvature_tensor, metric_tensor, potential_tensor
from tests.adopt.conftest import ARCHITECTURES, KERNELS, KINDS, bend, padded, relative, scatter, small, tokens


def started(kind: str, seed: int = 0, **settings: Any) -> Any:
    operator = make(OperatorSettings(kind, metric_units=2, **settings), heads=3, width=8, index=0)
    torch.manual_seed(seed)
    operator.start()
    return operator


def by_hand(operator: GeneratedOperator, q: Tensor) -> Tensor:
    """G_LM of q [B, H, S, d], from the functions of the papers and plain products."""
    weights = operator.generator.state_dict()

    def linear(key: str, x: Tensor) -> Tensor:
        return x @ weights[f"{key}.weight"].T + weights[f"{key}.bias"]

    def norm(key: str, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        scale = (centred.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt()
        return centred * scale * weights[f"{key}.weight"] + weights[f"{key}.bias"]

    a = norm("learner.input_norm", gram(q))
    for unit in range(len(operator.generator.learner.units)):
        inside = a
        for block in range(2):
            key = f"learner.units.{unit}.blocks.{block}"
            gate = linear(f"{key}.gate_proj", inside)
            inside = linear(f"{key}.down_proj", gate * gate.sigmoid() * linear(f"{key}.up_proj", inside))
        a = norm(f"learner.units.{unit}.norm", inside + a)
    metric = metric_tensor(a, weights["metric_weight"], weights["metric_bias"])
    potential = potential_tensor(metric, weights["exponent"])
    return curvature_tensor(potential, weights["coupling_weight"], weights["coupling_bias"])


@pytest.mark.parametrize("kind", ["constant", "low_rank"])
def test_an_operator_of_one_matrix_starts_at_the_identity(kind: str) -> None:
    operator = started(kind)
    assert torch.equal(operator.matrix(), torch.eye(8).expand(3, 8, 8))


def test_a_learned_operator_starts_with_a_zero_and_b_the_identity_and_the_rest_by_the_published_laws() -> None:
    generator = started("learned").generator
    assert not generator.coupling_weight.any()
    assert torch.equal(generator.coupling_bias, torch.eye(8).expand(3, 8, 8))
    assert not generator.metric_bias.any()
    fan = 8 * 8 + 3 * 8  # PyTorch's fans of a tensor [H, d, d]
    for weight in (generator.metric_weight, generator.exponent):
        assert 0.5 < float(weight.std()) / (2 / fan) ** 0.5 < 1.5
        assert len(weight.unique()) == weight.numel()
    for module in generator.modules():
        if isinstance(module, nn.Linear):
            bound = (6 / sum(module.weight.shape)) ** 0.5
            assert 0.8 * bound < float(module.weight.abs().max()) <= bound and not module.bias.any()
        elif isinstance(module, nn.LayerNorm):
            assert bool((module.weight == 1).all()) and not module.bias.any()


def test_a_low_rank_operator_starts_with_u_zero_and_v_random() -> None:
    operator = make(OperatorSettings("low_rank", rank=4), heads=16, width=16, index=0)
    operator.start()
    assert operator.left.shape == operator.right.shape == (16, 16, 4)
    assert not operator.left.any()
    assert 0.9 < float(operator.right.std()) * 16**0.5 < 1.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_queries_pass_unchanged_at_the_start(kind: str, batch: int, dtype: torch.dtype) -> None:
    query = torch.randn(batch, 3, 5, 8).to(dtype)
    found = started(kind)(query, None)
    assert found.dtype == dtype and torch.equal(found, query)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 3])
def test_each_head_is_multiplied_by_its_own_matrix(kind: str, batch: int) -> None:
    operator = started(kind).double()
    scatter(operator, 0.3)
    query = torch.randn(batch, 3, 5, 8, dtype=torch.float64)
    matrix = by_hand(operator, query) if kind == "learned" else operator.matrix().expand(batch, 3, 8, 8)
    want = torch.stack(
        [torch.stack([q @ g for q, g in zip(*pair, strict=True)]) for pair in zip(query, matrix, strict=True)]
    )
    assert relative(operator(query, None), want) < 1e-12
    assert relative(want, query) > 1e-2


def test_a_low_rank_operator_is_its_matrix() -> None:
    operator = started("low_rank", rank=2).double()
    scatter(operator, 0.3)
    want = torch.eye(8, dtype=torch.float64) + torch.einsum("hir,hjr->hij", operator.left, operator.right)
    assert relative(operator.matrix(), want) < 1e-14


def test_a_learned_operator_has_no_one_matrix() -> None:
    with pytest.raises(ValueError, match="learned: it has no one matrix for all inputs"):
        started("learned").matrix()


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("longer", [0, 4])  # a static cache has room after the tokens
def test_real_tokens_are_read_off_every_kind_of_mask(window: int | None, longer: int) -> None:
    real = torch.tensor([[False, False, True, True, True], [True, True, True, True, False]])
    rows, columns = torch.arange(5)[:, None], torch.arange(5 + longer)
    seen = (columns <= rows) & (columns > rows - (window or 99))
    wide = torch.cat([real, torch.zeros(2, longer, dtype=torch.bool)], dim=1)
    boolean = seen[None, None] & wide[:, None, None, :]
    assert real_tokens(None) is None
    assert torch.equal(real_tokens(real.long()), real)
    assert torch.equal(real_tokens(boolean), real)
    for dtype in (torch.float32, torch.bfloat16):
        for hidden in (torch.finfo(dtype).min, -torch.inf):
            added = torch.zeros(boolean.shape, dtype=dtype).masked_fill(~boolean, hidden)
            assert torch.equal(real_tokens(added), real)


def test_a_mask_that_hides_its_padding_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"the attention mask is a list, but a learned operator has to know .* 'eager'"
    ):
        real_tokens([1, 2])


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"kind": "unitary"}, "operator is 'unitary', expected one of constant, learned, low_rank"),
        ({"rank": 0}, "rank is 0, expected a whole number >= 1"),
        ({"rank": True}, "rank is True, expected a whole number >= 1"),
        ({"rank": "8"}, "rank is '8', expected a whole number >= 1"),
        ({"metric_units": -1}, "metric_units is -1, expected a whole number >= 1"),
        ({"metric_blocks": 1.0}, r"metric_blocks is 1\.0, expected a whole number >= 1"),
        ({"metric_intermediate_size": 0}, "metric_intermediate_size is 0, expected a whole number >= 1"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        OperatorSettings(**settings)


def test_sizes_of_a_learned_operator_are_the_ones_asked_for() -> None:
    ours = plga.adopt(small("llama"), "learned", metric_units=3, metric_blocks=1, metric_intermediate_size=5)
    for operator in operators(ours).values():
        assert len(operator.generator.learner.units) == 3
        assert [len(unit.blocks) for unit in operator.generator.learner.units] == [1, 1, 1]
        assert operator.generator.learner.units[0].blocks[0].gate_proj.weight.shape == (5, 8)
    default = next(iter(operators(plga.adopt(small("llama"), "learned")).values())).generator.learner
    assert len(default.units) == 8 and default.units[0].blocks[0].gate_proj.weight.shape == (21, 8)


# What follows looks at whole models.


def real_logits(model: PreTrainedModel, rows: list[Tensor], left: bool) -> list[Tensor]:
    ids, mask = padded(rows, left)
    positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    return [row[real == 1] for row, real in zip(logits, mask, strict=True)]


@torch.no_grad()
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", KINDS)
def test_padding_never_enters(kind: str, kernel: str, left: bool) -> None:
    ours = bend(plga.adopt(small("llama", kernel, torch.float32), kind, metric_units=1))
    rows = [tokens(5), tokens(11, seed=1), tokens(8, seed=2)]
    together = real_logits(ours, rows, left)
    for row, sequence in zip(together, rows, strict=True):
        assert relative(row, ours(sequence[None], use_cache=False).logits[0]) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kind", ["constant", "low_rank"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "mistral"])
def test_a_prefix_is_not_changed_by_what_follows(name: str, kind: str) -> None:
    ours = bend(plga.adopt(small(name, "sdpa"), kind))
    ids = tokens(2, 12)
    whole = ours(ids).logits
    for length in (1, 4, 9):
        assert relative(ours(ids[:, :length]).logits, whole[:, :length]) < 1e-12


@torch.no_grad()
def test_a_learned_operator_without_a_cache_is_built_from_the_whole_call() -> None:
    ours = bend(plga.adopt(small("llama", "sdpa"), "learned", metric_units=1), by=0.3)
    ids = tokens(1, 12)
    assert relative(ours(ids[:, :6], use_cache=False).logits, ours(ids, use_cache=False).logits[:, :6]) > 1e-3
    # Online contract: each greedy token is read off the pass over its whole prefix.
    found = ours.generate(ids, max_new_tokens=4, do_sample=False, use_cache=False)
    for length in range(12, 16):
        assert found[0, length] == ours(found[:, :length], use_cache=False).logits[0, -1].argmax()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_gradients_reach_every_operator_at_the_first_step(name: str, kind: str, kernel: str) -> None:
    ours = plga.adopt(small(name, kernel, torch.float32), kind, metric_units=1)
    ids, mask = padded([tokens(9), tokens(12, seed=1)])
    ours(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
    for name_, parameter in ours.named_parameters():
        assert parameter.grad is None or bool(parameter.grad.isfinite().all()), name_
    moving = {"constant": ["curvature"], "low_rank": ["left"], "learned": ["coupling_weight", "coupling_bias"]}[kind]
    for operator in operators(ours).values():
        named = dict(operator.named_parameters())
        for end in moving:
            gradient = next(p.grad for n, p in named.items() if n.endswith(end))
            assert bool((gradient.flatten(1).abs().amax(dim=1) > 0).all()), end  # in each head
        # Those behind a factor that is zero wait for the second step.
        still = [p.grad for n, p in named.items() if not n.endswith(tuple(moving))]
        assert all(gradient is None or not gradient.any() for gradient in still)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bent", [False, True], ids=["at I", "bent"])
@pytest.mark.parametrize("kind", ["constant", "low_rank"])
def test_later_tokens_get_no_gradient_at_all(kind: str, bent: bool, kernel: str) -> None:
    ours = plga.adopt(small("llama", kernel, torch.float32), kind)
    if bent:
        bend(ours)
    embeds = torch.randn(2, 9, 32, requires_grad=True)
    row = 4
    ours(inputs_embeds=embeds).logits[:, row].square().sum().backward()
    assert not embeds.grad[:, row + 1 :].any()
    assert bool((embeds.grad[:, : row + 1].abs().amax(dim=-1) > 0).all())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_gets_no_gradient_at_all(kind: str, left: bool, kernel: str) -> None:
    ours = bend(plga.adopt(small("llama", kernel, torch.float32), kind, metric_units=1))
    _, mask = padded([tokens(5), tokens(9)], left)
    embeds = torch.randn(2, 9, 32, requires_grad=True)
    logits = ours(inputs_embeds=embeds, attention_mask=mask).logits
    logits[mask == 1].square().sum().backward()
    assert bool(embeds.grad.isfinite().all())
    assert not embeds.grad[mask == 0].any()
    assert bool((embeds.grad[mask == 1].abs().amax(dim=-1) > 0).all())


def test_a_broken_operator_stops_with_its_layer_and_heads() -> None:
    ours = plga.adopt(small("llama", dtype=torch.float32), "learned", metric_units=1)
    with torch.no_grad():
        list(operators(ours).values())[1].generator.coupling_bias[2, 0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"G_LM of layer 1 is not finite in heads \[2\]"):
        ours(tokens(1, 5))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_copy_computes_the_same_and_shares_nothing(name: str) -> None:
    ours = bend(plga.adopt(small(name, dtype=torch.float32), "learned", metric_units=1))
    other = copy.deepcopy(ours)
    want = ours(tokens(1, 9)).logits
    assert torch.equal(other(tokens(1, 9)).logits, want)
    bend(other)
    assert torch.equal(ours(tokens(1, 9)).logits, want)
    assert not torch.equal(other(tokens(1, 9)).logits, want)
