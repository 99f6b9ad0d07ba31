"""Tasks under both protocols, with what differs, and from where an evaluation stopped."""

import json
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("lm_eval", reason="needs the extra eval")

from lm_eval.models.huggingface import HFLM  # after it is known to be there

from plga.scoring.evaluation import evaluate
from plga.scoring.exposure import bits_per_byte
from plga.scoring.harness import PlgaLM
from plga.scoring.protocols import block_logprobs, sequential_logprobs
from plga.scoring.windows import windows

TASKS = Path(__file__).parent / "tasks"
NAMES = ("library_choices", "library_text", "library_lines")
FILES = [str(TASKS / f"{name}.yaml") for name in NAMES]


def documents(name: str) -> list[dict]:
    return [json.loads(line) for line in (TASKS / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def subcritical(reference: Path) -> PlgaLM:
    return PlgaLM(str(reference / "subcritical.pth"), device="cpu", batch_size=8)


def test_both_protocols_of_every_kind_of_task(subcritical: PlgaLM) -> None:
    found = evaluate(subcritical, FILES, ("block", "sequential"))
    assert list(found["protocols"]) == ["block", "sequential"]
    assert all(list(results["tasks"]) == list(NAMES) for results in found["protocols"].values())

    choices = found["comparison"]["library_choices"]
    assert choices["choices"]["questions"] == 6
    assert 0.01 < choices["choices"]["largest_gap"] < 0.5
    for protocol in ("block", "sequential"):
        table = found["protocols"][protocol]["tasks"]["library_choices"]
        assert table["acc,none"] == pytest.approx(choices["metrics"][protocol]["accuracy"])
        assert table["acc_norm,none"] == pytest.approx(choices["metrics"][protocol]["length_normalized"])
    assert list(found["comparison"]) == ["library_choices", "library_text"]
    assert "choices" not in found["comparison"]["library_text"]

    # The rolling task from the scores themselves.
    prefix = subcritical.prefix_token_id
    for protocol, score in (("block", block_logprobs), ("sequential", sequential_logprobs)):
        total, size = [], 0
        for document in documents("library_text"):
            ids = [prefix, *subcritical.tok_encode(document["text"])]
            total += [s.logprobs for s in score(subcritical.model, windows(ids, 128, 128, "text"))]
            size += len(document["text"].encode())
        wanted = bits_per_byte(torch.cat(total).double(), size)
        table = found["protocols"][protocol]["tasks"]["library_text"]
        assert table["bits_per_byte,none"] == pytest.approx(wanted, rel=1e-5)
        assert table["byte_perplexity,none"] == pytest.approx(2**wanted, rel=1e-5)


def test_what_is_generated_is_generated_once(
    subcritical: PlgaLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twice.yaml").write_text((TASKS / "library_lines.yaml").read_text() + "repeats: 2\n")
    (tmp_path / "library_lines.jsonl").write_text((TASKS / "library_lines.jsonl").read_text())
    asked: list[int] = []
    plain = HFLM.generate_until

    def counted(self: PlgaLM, requests: list, disable_tqdm: bool = False) -> list[str]:
        asked.append(len(requests))
        return plain(self, requests, disable_tqdm)

    monkeypatch.setattr(HFLM, "generate_until", counted)
    for task, settings, times in (
        (FILES[2], None, 3),
        (str(tmp_path / "twice.yaml"), "do_sample=True,temperature=1.0", 6),
    ):
        for cache in (None, tmp_path / f"answers-{times}"):
            asked.clear()
            found = evaluate(subcritical, [task], ("block", "sequential"), cache, gen_kwargs=settings)
            assert asked == [times]
            block, sequential = found["protocols"].values()
            assert block == sequential
            assert found["comparison"] == {}
    evaluate(subcritical, FILES[2:], ("block", "sequential"), tmp_path / "answers-3")
    assert asked == [6]  # greedy answers were kept
    evaluate(subcritical, FILES[2:], ("sequential",))
    assert asked == [6, 3]  # and a new evaluation writes anew


def test_several_true_answers_count(subcritical: PlgaLM) -> None:
    found = evaluate(subcritical, FILES[:1], ("block", "sequential"), limit=2)
    masses = []
    for document in documents("library_choices")[:2]:
        scores = subcritical.loglikelihood(
            [
                type("Request", (), {"args": (document["code"], choice), "idx": 0, "task_name": "t", "doc_id": 0})
                for choice in document["choices"]
            ]
        )
        weights = [math.exp(score) for score, _ in scores]
        masses.append(sum(weights[index] for index in document["answers"]) / sum(weights))
    metrics = found["comparison"]["library_choices"]["metrics"]["sequential"]
    assert subcritical.protocol == "sequential"
    assert metrics["mc2"] == pytest.approx(sum(masses) / 2, rel=1e-4)


def test_auto_is_sequential_below_the_critical_point_and_block_at_it(reference: Path, subcritical: PlgaLM) -> None:
    critical = PlgaLM(str(reference / "critical.pth"), device="cpu", batch_size=8)
    for lm, passed in ((subcritical, False), (critical, True)):
        found = evaluate(lm, FILES[:1], ("auto",))["protocols"]["auto"]
        assert found["checks"]["continuations"]["passed"] == passed
        assert found["truncated"] == 0


def test_a_second_evaluation_reads_its_answers(
    subcritical: PlgaLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = evaluate(subcritical, FILES[:2], ("auto", "sequential"), cache=tmp_path / "answers")
    assert len(list((tmp_path / "answers").glob("*.db"))) == 2

    def never(self: PlgaLM, items: list, protocol: str) -> list:
        raise AssertionError("scored again")

    monkeypatch.setattr(PlgaLM, "_scored", never)
    assert evaluate(subcritical, FILES[:2], ("auto", "sequential"), cache=tmp_path / "answers") == first
    with pytest.raises(AssertionError, match="scored again"):
        evaluate(subcritical, FILES[:2], ("auto",))  # without a cache nothing is kept of the one before


@pytest.mark.parametrize("damage", ["no database", "a page"])
def test_a_damaged_cache_is_named(subcritical: PlgaLM, tmp_path: Path, damage: str) -> None:
    evaluate(subcritical, FILES[:1], ("block",), tmp_path, limit=2)
    (file,) = tmp_path.glob("*.db")
    content = file.read_bytes()
    file.write_bytes(
        b"no database" * 99 if damage == "no database" else content[:4096] + b"\xff" * (len(content) - 4096)
    )
    with pytest.raises(ValueError, match=r"_rank0\.db: not a sound cache \(.*remove it to begin anew"):
        evaluate(subcritical, FILES[:1], ("block",), tmp_path, limit=2)


def test_a_folder_of_tasks_that_is_missing(subcritical: PlgaLM, tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="nowhere: no such folder, expected one with task files"):
        evaluate(subcritical, FILES[:1], ("block",), include_path=tmp_path / "nowhere")


def test_an_unknown_task_is_named(subcritical: PlgaLM) -> None:
    with pytest.raises(ValueError, match="task 'library_nothing' is unknown to lm-evaluation-harness"):
        evaluate(subcritical, ["library_nothing"], ("block",))


def test_tasks_of_a_folder_and_settings_of_generation(subcritical: PlgaLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TASKS)  # where lm-evaluation-harness looks for their data
    with pytest.raises(ValueError, match="task library_lines, document 0: max_gen_toks is 128, expected less than"):
        evaluate(subcritical, FILES[2:], ("block",), gen_kwargs="max_gen_toks=128")
    found = evaluate(subcritical, ["library_lines"], ("block",), include_path=TASKS, limit=1)
    assert list(found["protocols"]["block"]["tasks"]) == ["library_lines"]
