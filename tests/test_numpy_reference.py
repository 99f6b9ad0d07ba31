"""The NumPy reference against the published implementation's figures, and its own identities on random weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests import numpy_reference as ref

CASES = ("case0", "case1", "case2")
BOUND = 1e-9  # max |difference| over max |reference|, per tensor


def distance(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.fixture(scope="module", params=["critical", "subcritical"])
def published(request: pytest.FixtureRequest, reference: Path):
    """Weights, number of heads and expected figures of one published-format checkpoint."""
    state = torch.load(reference / f"{request.param}.pth", weights_only=True)["model_state_dict"]
    weights = {key: tensor.double().numpy() for key, tensor in state.items()}
    heads = json.loads((reference / f"{request.param}.hparams.json").read_text())["num_heads"]
    return weights, heads, load_file(reference / f"{request.param}.expected.safetensors")


def run(weights, ids, heads: int, **options) -> ref.Outputs:
    width = weights["decoder.embedding.weight"].shape[1] // heads
    return ref.forward(weights, ids, num_heads=heads, score_scale=ref.published_score_scale(width), **options)


@pytest.mark.parametrize("case", CASES)
def test_published_figures(published, case: str) -> None:
    weights, heads, expected = published
    ours = run(weights, expected[f"{case}.input_ids"], heads)
    for name in ("logits", "last_hidden"):
        assert distance(getattr(ours, name), expected[f"{case}.{name}"]) < BOUND, name
    for name in ("generator", "metric", "potential", "curvature"):
        assert distance(getattr(ours, name)[:, 0], expected[f"{case}.{name}"]) < BOUND, name


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["metric", "potential", "curvature"])
def test_published_dag_losses(published, case: str, name: str) -> None:
    _, _, expected = published
    theirs = expected[f"{case}.dag_{name}"]
    np.testing.assert_allclose(ref.dag_loss(expected[f"{case}.{name}"]), theirs, rtol=BOUND, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_published_log_probabilities(published, case: str) -> None:
    """Both contracts: one pass over all tokens but the last (only a target), and one call for each prefix."""
    weights, heads, expected = published
    prompt, continuation = expected[f"{case}.input_ids"], expected[f"{case}.continuation"]
    whole = np.concatenate([prompt, continuation], axis=1)
    length, steps = prompt.shape[1], range(continuation.shape[1])

    def log_probability(logits: NDArray[np.float64], token: int) -> float:
        return logits[token] - np.logaddexp.reduce(logits)

    block_logits = run(weights, whole[:, :-1], heads).logits[0]
    block = [log_probability(block_logits[length - 1 + t], continuation[0, t]) for t in steps]
    sequential = [
        log_probability(run(weights, whole[:, : length + t], heads).logits[0, -1], continuation[0, t]) for t in steps
    ]
    np.testing.assert_allclose(block, expected[f"{case}.logprob_block"][0], rtol=BOUND)
    np.testing.assert_allclose(sequential, expected[f"{case}.logprob_sequential"][0], rtol=BOUND)


@pytest.mark.parametrize("case", CASES)
def test_published_greedy_tokens(published, case: str) -> None:
    """Everything recomputed at each step; and G kept from the prompt, which one pass at that constant G repeats."""
    weights, heads, expected = published
    prompt = expected[f"{case}.input_ids"]
    length, recomputed = prompt.shape[1], prompt
    for _ in range(16):
        best = run(weights, recomputed, heads).logits[:, -1].argmax(axis=-1)
        recomputed = np.concatenate([recomputed, best[:, None]], axis=1)
    np.testing.assert_array_equal(recomputed[:, length:], expected[f"{case}.greedy_recompute"])

    frozen = expected[f"{case}.greedy_prompt_frozen"]
    curvature = run(weights, prompt, heads).curvature[:, 0]
    whole = np.concatenate([prompt, frozen[:, :-1]], axis=1)
    logits = run(weights, whole, heads, curvature=curvature).logits[0, length - 1 :]
    assert distance(logits, expected[f"{case}.prompt_frozen_step_logits"]) < BOUND
    np.testing.assert_array_equal(logits.argmax(axis=-1), frozen[0])


def random_weights(seed: int, layers: int = 2, heads: int = 2, width: int = 4, vocabulary: int = 11):
    """A small model under the published key names, biases and scales away from their trivial values."""
    rng, model, inner, hidden = np.random.default_rng(seed), heads * width, 5, 6
    weights: dict[str, NDArray[np.float64]] = {"decoder.embedding.weight": rng.normal(size=(vocabulary, model))}

    def linear(key: str, out: int, into: int) -> None:
        weights[f"{key}.weight"] = rng.normal(size=(out, into)) / np.sqrt(into)
        weights[f"{key}.bias"] = 0.1 * rng.normal(size=out)

    def norm(key: str, size: int) -> None:
        weights[f"{key}.weight"] = 1 + 0.1 * rng.normal(size=size)
        weights[f"{key}.bias"] = 0.1 * rng.normal(size=size)

    def glu(key: str, size: int, middle: int) -> None:
        linear(f"{key}.gluw1", middle, size)
        linear(f"{key}.gluw2", middle, size)
        linear(f"{key}.gluw3", size, middle)

    norm("decoder.layernorm1", model)
    linear("final_layer", vocabulary, model)
    for index in range(layers):
        layer = f"decoder.dec_layers.{index}"
        for name in ("wq", "wk", "wv", "dense"):
            linear(f"{layer}.mha1.{name}", model, model)
        norm(f"{layer}.mha1.layernorm1", width)
        for unit in range(2):
            for block in range(2):
                glu(f"{layer}.mha1.reslayerAs.{unit}.denseAs.{block}", width, inner)
            norm(f"{layer}.mha1.reslayerAs.{unit}.layernormA", width)
        for name in ("Wlst", "blst", "pwlst", "alst", "balst"):
            weights[f"{layer}.mha1.plgatt_layer.{name}"] = 0.4 * rng.normal(size=(heads, width, width))
        glu(f"{layer}.ffn", model, hidden)
        norm(f"{layer}.layernorm1", model)
        norm(f"{layer}.layernorm2", model)
    return weights


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_padded_batch_equals_sequences_alone(left: bool, interleaved: bool) -> None:
    weights, lengths = random_weights(0), (3, 7, 5)
    rng = np.random.default_rng(1)
    sequences = [rng.integers(0, 11, size=(1, n)) for n in lengths]
    ids = rng.integers(0, 11, size=(3, 7))  # whatever stands at padding
    mask = np.zeros((3, 7), dtype=bool)
    where = [slice(7 - n, 7) if left else slice(0, n) for n in lengths]
    for row, sequence in enumerate(sequences):
        ids[row, where[row]], mask[row, where[row]] = sequence[0], True
    batch = ref.forward(weights, ids, num_heads=2, mask=mask, interleaved=interleaved)
    assert np.isfinite(batch.logits).all()
    for row, sequence in enumerate(sequences):
        alone = ref.forward(weights, sequence, num_heads=2, interleaved=interleaved)
        np.testing.assert_allclose(batch.logits[row, where[row]], alone.logits[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(batch.curvature[:, row], alone.curvature[:, 0], rtol=1e-10, atol=1e-12)


def test_constant_operator() -> None:
    """With its own G held fixed a pass repeats itself; with any constant G every row is that of its prefix."""
    weights, ids = random_weights(2), np.random.default_rng(3).integers(0, 11, size=(1, 6))
    learned = ref.forward(weights, ids, num_heads=2)
    held = ref.forward(weights, ids, num_heads=2, curvature=learned.curvature[:, 0])
    assert held.generator is None and held.metric is None and held.potential is None
    np.testing.assert_allclose(held.logits, learned.logits, rtol=1e-12)
    prefix = ref.forward(weights, ids[:, :4], num_heads=2, curvature=learned.curvature[:, 0])
    np.testing.assert_allclose(prefix.logits, held.logits[:, :4], rtol=1e-12, atol=1e-13)
    # The learned operator has no such property: this model is not collapsed.
    assert np.abs(ref.forward(weights, ids[:, :4], num_heads=2).logits - learned.logits[:, :4]).max() > 1e-3


def test_rotary_layouts_differ_by_a_permutation() -> None:
    """Reordering the coordinates of q and k within a head turns one layout into the other, at a constant G."""
    weights, ids = random_weights(4), np.random.default_rng(5).integers(0, 11, size=(2, 6))
    width, heads = 4, 2
    order = np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])  # pairs first, second
    rows = np.concatenate([head * width + order for head in range(heads)])
    moved = dict(weights)
    for key in weights:
        if ".wq." in key or ".wk." in key:
            moved[key] = weights[key][rows]
    constant = np.random.default_rng(6).normal(size=(2, heads, width, width))
    interleaved = ref.forward(weights, ids, num_heads=heads, curvature=constant)
    halves = ref.forward(
        moved, ids, num_heads=heads, interleaved=False, curvature=constant[..., order, :][..., :, order]
    )
    np.testing.assert_allclose(halves.logits, interleaved.logits, rtol=1e-10, atol=1e-12)


def test_dag_loss_by_hand() -> None:
    """1 x 1: m²; a 2-cycle with weights a, b: log cosh(ab); no cycle: 0."""
    assert ref.dag_loss(np.array([[3.0]])) == pytest.approx(9.0, rel=1e-14)
    assert ref.dag_loss(np.array([[0.0, 2.0], [0.5, 0.0]])) == pytest.approx(np.log(np.cosh(1.0)), rel=1e-13)
    assert ref.dag_loss(np.triu(np.full((4, 4), 3.0), 1)) == pytest.approx(0.0, abs=1e-12)
    assert ref.dag_loss(np.full((2, 3, 1, 1), 1e3)) == pytest.approx(np.full((2, 3), 1e6), rel=1e-14)
