"""Two runs over prompts, sampled or read from a file, and the published order parameter of them."""

import argparse
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from plga.collapse.freeze import freeze
from plga.criticality.order_parameter import deductive_outputs, order_parameter
from plga.criticality.regimes import RMSE_OVER_ABS_MEAN, regime
from plga.criticality.runs import Runs, load_runs, order_parameters, sample_runs, save_runs
from plga.model.checkpoint import load_model
from plga.model.tokenizer import load_tokenizer
from tests.training import examples


def prompts(*lengths: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(examples.VOCABULARY, (length,), generator=generator) for length in lengths]


def equal(first: Runs, second: Runs) -> bool:
    return all(torch.equal(x, y) for a, b in zip(first, second, strict=True) for x, y in zip(a, b, strict=True))


def test_the_cache_stands_at_the_prompt_and_the_runs_go_on() -> None:
    model = examples.model(dtype=torch.float64)
    given = prompts(5, 3, 5)
    runs = sample_runs(model, given, new_tokens=4)
    for place, prompt in enumerate(given):
        for ours, alone in zip(runs.cached, deductive_outputs(model, prompt[None]), strict=True):
            torch.testing.assert_close(ours[place], alone[0], rtol=1e-10, atol=1e-12)
    for run in runs:
        assert {tuple(tensor.shape) for tensor in run} == {(3, 2, 2, 4, 4)}
    assert not torch.equal(runs.run_1.curvature, runs.cached.curvature)
    assert not torch.equal(runs.run_1.curvature, runs.run_2.curvature)


def test_a_run_is_the_operator_of_a_continuation(monkeypatch: pytest.MonkeyPatch) -> None:
    model = examples.model()
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(
        "plga.criticality.runs.deductive_outputs",
        lambda model, ids: seen.append(ids) or deductive_outputs(model, ids),  # type: ignore[func-returns-value]
    )
    given = prompts(5, 5)
    sample_runs(model, given, new_tokens=4)
    cached, run_1, run_2 = seen
    assert torch.equal(cached, torch.stack(given))
    for run in (run_1, run_2):
        assert run.shape == (2, 9)
        assert torch.equal(run[:, :5], cached)
    assert not torch.equal(run_1, run_2)


def test_the_seed_decides_and_the_global_random_numbers_stay() -> None:
    model = examples.model()
    given = prompts(5, 4)
    before = torch.get_rng_state()
    first = sample_runs(model, given, 4, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert equal(first, sample_runs(model, given, 4, seed=1))
    assert not equal(first, sample_runs(model, given, 4, seed=2))


def test_sampling_never_ends_early() -> None:
    model = examples.model()
    with torch.no_grad():
        model.lm_head.bias[model.config.eos_token_id] = 100.0  # the end of the sequence is all but certain
    assert equal(sample_runs(model, prompts(5, 4), 4), sample_runs(model, prompts(5, 4), 4))


def test_prompts_that_cannot_be_run() -> None:
    model = examples.model()
    with pytest.raises(ValueError, match="1 prompts, expected at least 2"):
        sample_runs(model, prompts(5), 2)
    with pytest.raises(ValueError, match=r"prompt 2 has 11 tokens, expected 1 to 10: context 12 less 2 new tokens"):
        sample_runs(model, prompts(5, 11), 2)
    with pytest.raises(ValueError, match="prompt 1 has 0 tokens"):
        sample_runs(model, prompts(0, 5), 2)
    with pytest.raises(ValueError, match="constant, expected learned"):
        sample_runs(freeze(model, torch.randn(2, 2, 4, 4)), prompts(5, 5), 2)


def test_what_is_stored_is_what_is_read(tmp_path: Path) -> None:
    runs = sample_runs(examples.model(), prompts(5, 4), 3)
    file = tmp_path / "new" / "runs.safetensors"
    save_runs(runs, file)
    assert equal(load_runs(file), runs)
    assert order_parameters(load_runs(file)) == order_parameters(runs)
    with pytest.raises(FileExistsError, match="exists"):
        save_runs(runs, file)
    save_runs(runs, file, overwrite=True)


def test_order_parameters_are_by_symbol() -> None:
    runs = sample_runs(examples.model(), prompts(5, 4), 3)
    found = order_parameters(runs)
    assert list(found) == ["A", "A_LM", "A_P", "G_LM"]
    assert found["A_P"] == order_parameter(runs.run_1.potential, runs.run_2.potential, runs.cached.potential)


def test_files_that_hold_no_runs(tmp_path: Path) -> None:
    file = tmp_path / "runs.safetensors"
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_runs(file)
    file.write_text("hello")
    with pytest.raises(ValueError, match="truncated, or not a safetensors file"):
        load_runs(file)
    save_runs(sample_runs(examples.model(), prompts(5, 4), 3), file, overwrite=True)
    good = load_file(file)

    def refused(changes: dict[str, torch.Tensor | None], message: str) -> None:
        save_file({k: t for k, t in {**good, **changes}.items() if t is not None}, file)
        with pytest.raises(ValueError, match=message):
            load_runs(file)

    refused({"cached.metric": None}, "missing or unknown: cached.metric; expected run_1.generator, ...")
    refused({"extra": torch.ones(1)}, "missing or unknown: extra")
    refused({"run_1.metric": torch.ones(2, 2)}, "every tensor .* of one shape")
    refused({name: torch.ones(1, 2, 2, 4, 4) for name in good}, "expected N >= 2 inputs")
    save_file({name: torch.full((2, 1, 1, 2, 2), torch.nan) for name in good}, file)
    with pytest.raises(ValueError, match="non-finite entries"):
        order_parameters(load_runs(file))


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    # Measured, RMSE_1C / |mean| of G_LM: 1.4e-4 and 2.0e1; published runs: up to 2.2e-2, and from 1.6e1.
    [("critical", "near-critical"), ("subcritical", "sub-critical")],
)
def test_regimes_of_trained_checkpoints(reference: Path, checkpoint: str, expected: str) -> None:
    model = load_model(reference / f"{checkpoint}.pth")
    tokenizer = load_tokenizer(reference / "tokenizer.json")
    ids = tokenizer(Path(argparse.__file__).read_text(encoding="utf-8"), return_tensors="pt").input_ids[0]
    found = order_parameters(sample_runs(model, list(ids[: 4 * 64].view(4, 64)), new_tokens=16))["G_LM"]
    assert regime(found.rms_normalized) == expected
    for published in (found.rmse_12_over_abs_mean, found.rmse_1c_over_abs_mean):
        assert regime(published, thresholds=RMSE_OVER_ABS_MEAN) == expected
