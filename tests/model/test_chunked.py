"""The chunked Gram: no row sees its target, so that one pass, many passes and every cache agree row by row."""

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plga.model.cache import PldrCache
from plga.model.checkpoint import load_model, save_model, save_pth
from plga.model.modeling import PldrForCausalLM
from plga.model.released import PldrllmConfig
from plga.model.sizes import bytes_per_sequence
from plga.ops.chunks import Layout, bend_chunks
from plga.ops.density import gram
from tests.model.conftest import chunked, pad, relative, tiny, tiny_config, tokens

LENGTH = 20
ROUNDING = 1e-12  # float64, sums in another order


@torch.no_grad()
def whole(model: PldrForCausalLM, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Logits of one pass without a cache."""
    return model(ids, attention_mask=mask, use_cache=False).logits


@torch.no_grad()
def in_pieces(model: PldrForCausalLM, ids: Tensor, cuts: list[int], mask: Tensor | None = None) -> Tensor:
    """Logits of every row, the tokens given to a cache in pieces that end at ``cuts`` and at the end."""
    cache, rows = PldrCache(model.config), []
    for start, end in itertools.pairwise([0, *cuts, ids.shape[1]]):
        known = None if mask is None else mask[:, :end]
        rows.append(model(ids[:, start:end], attention_mask=known, cache=cache).logits)
    return torch.cat(rows, dim=1)


# Prefix consistency ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 8, LENGTH, 2 * LENGTH])
def test_every_row_is_that_of_its_own_prefix(size: int) -> None:
    model, ids = chunked(gram_chunk=size), tokens(2, LENGTH)
    rows = whole(model, ids)
    sequential = torch.stack([whole(model, ids[:, :end])[:, -1] for end in range(1, LENGTH + 1)], dim=1)
    assert relative(sequential, rows) < ROUNDING
    other = ids.clone()
    other[:, 11:] = tokens(2, LENGTH - 11, seed=1)
    assert relative(whole(model, other)[:, :11], rows[:, :11]) < ROUNDING


def test_a_global_gram_is_not_prefix_consistent() -> None:
    """With the same weights; otherwise the tests here would hold for any model."""
    model, ids = tiny(), tokens(2, LENGTH)
    sequential = torch.stack([whole(model, ids[:, :end])[:, -1] for end in range(1, LENGTH + 1)], dim=1)
    assert relative(sequential[:, :-1], whole(model, ids)[:, :-1]) > 1e-3


@torch.no_grad()
def test_each_chunk_is_bent_by_the_operator_of_all_tokens_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, size = chunked(), tokens(2, 10), 3
    seen: list[tuple[Tensor, Tensor]] = []

    def recording(query: Tensor, curvature: Tensor, chunks: Layout) -> Tensor:
        seen.append((query, bend_chunks(query, curvature, chunks)))
        return seen[-1][1]

    monkeypatch.setattr("plga.model.modeling.bend_chunks", recording)
    outputs = model(ids, use_cache=False, output_deductive=True)
    for layer, (query, bent), deductive in zip(model.model.layers, seen, outputs.deductive, strict=True):
        for chunk, start in enumerate(range(0, 10, size)):
            expected = layer.self_attn.operator.build(gram(query[:, :, :start]))
            for ours, theirs in zip(deductive, expected, strict=True):
                assert relative(ours[:, chunk], theirs) < ROUNDING
            rows = slice(start, start + size)
            assert relative(bent[:, :, rows], query[:, :, rows] @ expected.curvature) < ROUNDING
        # Otherwise the chunks would not need an operator each.
        assert relative(deductive.curvature[:, 1:], deductive.curvature[:, :-1]) > 1e-3


def test_one_chunk_has_the_operator_of_no_token() -> None:
    model, ids = chunked(gram_chunk=LENGTH), tokens(2, LENGTH)
    with torch.no_grad():
        layers = model(ids, use_cache=False, output_deductive=True).deductive
    for layer, outputs in zip(model.model.layers, layers, strict=True):
        nothing = layer.self_attn.operator.build(torch.zeros(2, 4, 4, dtype=torch.float64))
        assert torch.equal(outputs.curvature, nothing.curvature.expand(2, 1, 2, 4, 4))


# Padding and caches ---------------------------------------------------------------------------------------------------

EIGHT = [tokens(length, seed=length) for length in (1, 2, 3, 5, 6, 8, 9, LENGTH)]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padded_batch_equals_its_sequences_alone(left: bool, attention: str) -> None:
    model = chunked(attn_implementation=attention)
    alone = [whole(model, sequence[None])[0] for sequence in EIGHT]
    for filler in (0, 17):
        ids, mask = pad(EIGHT, left, filler)
        for logits in (whole(model, ids, mask), in_pieces(model, ids, [2, 3, 4, 11], mask)):
            for row, expected in enumerate(alone):
                assert relative(logits[row, mask[row] == 1], expected) < ROUNDING


def test_what_stands_at_padding_changes_no_bit() -> None:
    model = chunked(torch.float32)
    (ids, mask), (other, _) = pad(EIGHT, True, 0), pad(EIGHT, True, 17)
    assert torch.equal(whole(model, ids, mask)[mask == 1], whole(model, other, mask)[mask == 1])


@settings(max_examples=40)
@given(
    st.integers(1, 9),
    st.sets(st.integers(1, LENGTH - 1)),
    st.sampled_from(["whole", "left", "right", "anywhere"]),
)
def test_pieces_of_any_size_equal_one_pass(size: int, cuts: set[int], padding: str) -> None:
    model, ids, mask = chunked(gram_chunk=size), tokens(3, LENGTH), None
    if padding in ("left", "right"):
        ids, mask = pad([tokens(7), tokens(LENGTH, seed=1), tokens(12, seed=2)], padding == "left")
    elif padding == "anywhere":
        mask = (torch.rand(3, LENGTH, generator=torch.Generator().manual_seed(size)) > 0.3).long()
    real = torch.ones_like(ids) if mask is None else mask
    pieces, once = in_pieces(model, ids, sorted(cuts), mask), whole(model, ids, mask)
    assert relative(pieces[real == 1], once[real == 1]) < ROUNDING


@pytest.mark.parametrize("seed", range(3))
def test_float32_of_the_published_head_width(seed: int) -> None:
    """Random weights as they are drawn; narrower heads amplify the rounding of any pass to more than 1e-5."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 128, "metric_intermediate_size": 170, "num_metric_units": 8}
    model = PldrForCausalLM(tiny_config(gram="chunked", gram_chunk=16, **sizes)).eval()
    ids, mask = pad([tokens(100, seed=seed), tokens(77, seed=seed + 1)], left=True)
    once, pieces = whole(model, ids, mask), in_pieces(model, ids, list(range(1, 100)), mask)
    assert relative(pieces[mask == 1], once[mask == 1]) < 1e-5
    for end in (30, 64, 99):
        prefix = whole(model, ids[:, :end], mask[:, :end])
        assert relative(prefix[mask[:, :end] == 1], once[:, :end][mask[:, :end] == 1]) < 1e-5
    same = PldrForCausalLM(tiny_config(**sizes)).eval()
    same.load_state_dict(model.state_dict())
    prefix, longer = whole(same, ids[:1, :64]), whole(same, ids[:1])[:, :64]
    assert relative(prefix, longer) > 1e-2  # the same weights with a global Gram


@torch.no_grad()
def test_an_operator_is_built_once_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, cache = chunked(gram_chunk=4), tokens(2, 12), None
    operator, built = model.model.layers[0].self_attn.operator, []
    build = operator.build
    monkeypatch.setattr(operator, "build", lambda density: built.append(density.shape[1]) or build(density))
    cache = PldrCache(model.config)
    for token in range(12):
        outputs = model(ids[:, token : token + 1], cache=cache, output_deductive=True)
        assert len(built) == token // 4 + 1
        assert outputs.deductive[0].curvature.shape == (2, 1, 2, 4, 4)
        assert (outputs.deductive[0].metric is None) == (token % 4 > 0)
    assert built == [1, 1, 1]
    model(ids[:, :9], use_cache=False)
    assert built == [1, 1, 1, 3]


@torch.no_grad()
@pytest.mark.parametrize("removed", [0, 1, 5, 7])
def test_crop_removes_everything_or_nothing(removed: int) -> None:
    """A sum over tokens gives none of them back."""
    model, ids, more = chunked(), tokens(2, 7), tokens(2, 4, seed=1)
    cache = PldrCache(model.config)
    model(ids, cache=cache)
    if removed in (0, 7):
        cache.crop(-removed)
    else:
        with pytest.raises(ValueError, match=f"crop would leave {7 - removed} of 7 tokens, expected all or none"):
            cache.crop(-removed)
    assert cache.get_seq_length() == (0 if removed == 7 else 7)
    kept = ids[:, : cache.get_seq_length()]
    expected = whole(model, torch.cat([kept, more], dim=1))[:, -4:]
    assert relative(model(more, cache=cache).logits, expected) < ROUNDING  # what was refused has changed nothing


@torch.no_grad()
def test_a_copy_of_the_cache_goes_its_own_way() -> None:
    model, ids = chunked(), tokens(2, 7)
    cache = PldrCache(model.config)
    model(ids, cache=cache)
    other = copy.deepcopy(cache)
    for seed, each in enumerate((cache, other)):
        more = tokens(2, 4, seed=seed + 1)
        assert relative(model(more, cache=each).logits, whole(model, torch.cat([ids, more], dim=1))[:, -4:]) < ROUNDING


def test_bytes_held_are_those_foretold() -> None:
    model = chunked(torch.float32)
    cache = PldrCache(model.config)
    with torch.no_grad():
        model(tokens(1, 8), cache=cache)
    assert cache.nbytes() == sum(bytes_per_sequence(model.config, 8, torch.float32).values())


# Training -------------------------------------------------------------------------------------------------------------


def gradients_of_loss(model: PldrForCausalLM) -> dict[str, Tensor]:
    ids, mask = pad([tokens(10), tokens(7, seed=1)], left=True)
    outputs = model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100), output_deductive=True)
    deductive = sum(tensor.square().mean() for layer in outputs.deductive for tensor in layer)
    (outputs.loss + 0.01 * deductive).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("kind", ["reentrant", "layers", "learner"])
def test_every_kind_of_checkpoint_changes_nothing(kind: str) -> None:
    plain, saving = chunked().train(), chunked().train()
    if kind == "learner":
        saving.checkpoint_metric_learner()
    else:
        enable = getattr(saving, "activation_checkpointing_enable", saving.gradient_checkpointing_enable)
        enable({"use_reentrant": kind == "reentrant"})
    expected = gradients_of_loss(plain)
    for name, gradient in gradients_of_loss(saving).items():
        assert gradient is not None and gradient.isfinite().all() and gradient.abs().sum() > 0, name
        torch.testing.assert_close(gradient, expected[name], rtol=1e-12, atol=1e-14, msg=name)


def test_no_gradient_of_a_row_reaches_a_later_token() -> None:
    model, ids = chunked().train(), tokens(1, 10)
    embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
    model(inputs_embeds=embeds).logits[0, 6].sum().backward()
    assert not embeds.grad[0, 7:].any() and embeds.grad[0, :7].abs().sum(-1).gt(0).all()


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_training_compiles_as_one_graph(padded: bool) -> None:
    torch._dynamo.reset()
    model, ids = chunked(torch.float32, num_hidden_layers=1).train(), tokens(2, 10)
    mask = torch.ones_like(ids) if padded else None
    if mask is not None:
        mask[0, :4] = 0
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    losses, gradients = [], []
    for each in (model, compiled):
        model.zero_grad()
        losses.append(each(ids, attention_mask=mask, labels=ids, use_cache=False).loss)
        losses[-1].backward()
        gradients.append(model.model.layers[0].self_attn.q_proj.weight.grad.clone())
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients)
    torch._dynamo.reset()


@torch.no_grad()
@pytest.mark.parametrize("autocast", [False, True], ids=["bfloat16", "autocast"])
def test_the_deductive_branch_is_float32_in_low_precision(autocast: bool) -> None:
    model, ids = chunked(torch.float32 if autocast else torch.bfloat16), tokens(2, 8)
    cache = PldrCache(model.config)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        outputs = model(ids, cache=cache, output_deductive=True)
    assert outputs.logits.dtype == torch.bfloat16
    assert {tensor.dtype for layer in outputs.deductive for tensor in layer} == {torch.float32}
    assert all(tensor.dtype == torch.float32 for tensor in cache.chunk_state(0))
    # The Grams of queries that were rounded once, and not again.
    exact = model.model.layers[0].self_attn.operator.build(cache.chunk_state(0).finished)
    assert relative(outputs.deductive[0].curvature[:, -1], exact.curvature) < 1e-5


def test_a_non_finite_operator_is_named() -> None:
    model = chunked()
    model.model.layers[1].self_attn.q_proj.weight.data[4:] = float("nan")
    with pytest.raises(FloatingPointError, match=r"^A of layer 1 is not finite in heads \[1\]$"):
        whole(model, tokens(2, 8))


# What else there is to do with a model --------------------------------------------------------------------------------


def test_save_and_load_bit_for_bit(tmp_path) -> None:
    model, ids = chunked(torch.float32, gram_chunk=5), tokens(2, LENGTH)
    save_model(model, tmp_path / "saved")
    for loaded in (load_model(tmp_path / "saved"), PldrForCausalLM.from_pretrained(tmp_path / "saved")):
        assert (loaded.config.gram, loaded.config.gram_chunk, loaded.config.operator_mode) == ("chunked", 5, "chunked")
        assert torch.equal(whole(loaded, ids), whole(model, ids))


def test_published_formats_have_no_word_for_it(tmp_path) -> None:
    model = chunked(torch.float32)
    with pytest.raises(ValueError, match="gram is chunked, expected global"):
        save_pth(model, tmp_path / "model.pth")
    with pytest.raises(ValueError, match="gram is 'chunked', expected 'global': the published format has no other"):
        PldrllmConfig.from_plga(model.config)
    assert "gram" not in PldrllmConfig.from_plga(tiny_config()).to_dict()


def test_alignment_is_refused() -> None:
    with pytest.raises(ValueError, match="alignment_blocks is 2, but a chunked Gram gives a sequence no one G_LM"):
        chunked()(tokens(2, 8), use_cache=False, alignment_blocks=2)
