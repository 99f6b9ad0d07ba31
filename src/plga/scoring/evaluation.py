"""Tasks of lm-evaluation-harness under one protocol or both, resumable, with what differs (the extra ``eval``)."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.model import CacheHook
from lm_eval.tasks import TaskManager

from plga.scoring.choices import Choice, Question, compare_choices, metrics
from plga.scoring.harness import PlgaLM
from plga.scoring.report import checked
from plga.scoring.tasks import read_task

_LEFT_OUT = ("name", "alias", "sample_len")  # of lm-evaluation-harness's table of a task


def evaluate(
    lm: PlgaLM,
    tasks: Sequence[str],
    protocols: Sequence[str],
    cache: Path | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
    gen_kwargs: str | None = None,
    include_path: Path | None = None,
    confirm_unsafe_code: bool = False,
) -> dict[str, Any]:
    """Evaluate under each protocol in turn; what is generated has no protocol, and is written once.

    Args:
        lm: whose protocol is set to each of them.
        tasks: names that lm-evaluation-harness knows, or task files (.yaml).
        protocols: of plga.scoring.score.PROTOCOLS; with ``block`` and ``sequential`` both are compared.
        cache: folder of answers, in SQLite; an evaluation that was interrupted goes on from there. None: keep none.
        limit: documents a task.
        num_fewshot, gen_kwargs, include_path: as for lm-evaluation-harness.
        confirm_unsafe_code: run tasks that execute what the model writes.

    Returns:
        Plain data: ``protocols`` by name (metrics of each task, check of ``auto``, truncated contexts) and, of both,
        ``comparison`` by task that is scored.

    Raises:
        ValueError: an unknown task, a task file that is none, a request that cannot be scored, or a damaged cache;
            it is named.
        OSError: a folder of task files that is missing, or a cache that cannot be written.
    """
    if include_path is not None and not include_path.is_dir():
        raise NotADirectoryError(f"{include_path}: no such folder, expected one with task files")
    files = [task for task in tasks if task.endswith((".yaml", ".yml"))]
    manager = TaskManager(
        include_path=None if include_path is None else str(include_path),
        include_defaults=len(files) < len(tasks),  # to look through them takes seconds
    )
    known = [read_task(Path(task)) if task in files else _known(task, manager) for task in tasks]
    found, samples = {}, {}
    lm.written = {}
    for protocol in protocols:
        lm.protocol, lm.checks, lm.truncated = protocol, {}, 0
        answers = None if cache is None else f"{cache / protocol}-{lm.identity()[:12]}"
        if answers is not None:
            _require_sound(Path(f"{answers}_rank0.db"))  # as lm-evaluation-harness will call it
        results = lm_eval.simple_evaluate(
            model=lm,
            tasks=[dict(task) if isinstance(task, dict) else task for task in known],
            use_cache=answers,
            limit=limit,
            num_fewshot=num_fewshot,
            gen_kwargs=gen_kwargs,
            bootstrap_iters=1000,
            task_manager=manager,
            confirm_run_unsafe_code=confirm_unsafe_code,
        )
        found[protocol] = {
            "tasks": {
                name: {metric: value for metric, value in table.items() if metric not in _LEFT_OUT}
                for name, table in results["results"].items()
            },
            "checks": {kind: checked(check) for kind, check in lm.checks.items()},
            "truncated": lm.truncated,
        }
        generated = {name for name, task in results["configs"].items() if task["output_type"] == "generate_until"}
        samples[protocol] = {name: each for name, each in results["samples"].items() if name not in generated}
        lm.written = {
            (name, sample["doc_id"]): [text for texts in sample["resps"] for text in texts]
            for name in generated
            for sample in results["samples"][name]
        }
        if lm.cache_hook.dbdict is not None:
            lm.cache_hook.dbdict.close()
            lm.set_cache_hook(CacheHook(None))
    lm.written = {}
    comparison = {}
    if {"block", "sequential"} <= samples.keys():
        block, sequential = samples["block"], samples["sequential"]
        comparison = {name: _compared(name, block[name], sequential[name]) for name in block}
    return {"protocols": found, "comparison": comparison}


def _require_sound(file: Path) -> None:
    if not file.exists():
        return
    try:
        with closing(sqlite3.connect(file)) as connection:
            (found,) = connection.execute("PRAGMA quick_check").fetchone()
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        raise ValueError(
            f"{file}: not a sound cache ({found}), expected one that SQLite can read; remove it to begin anew"
        )


def _known(task: str, manager: TaskManager) -> str:
    if not manager.match_tasks([task]):
        raise ValueError(f"task {task!r} is unknown to lm-evaluation-harness, expected one of its names or a .yaml")
    return task


def _compared(task: str, block: list[dict[str, Any]], sequential: list[dict[str, Any]]) -> dict[str, Any]:
    """What differs between both protocols on the documents of a task."""
    largest = {
        metric: max(abs(ours[metric] - theirs[metric]) for ours, theirs in zip(block, sequential, strict=True))
        for metric in block[0]["metrics"]
        if all(isinstance(sample[metric], int | float) for sample in (*block, *sequential))
    }
    compared: dict[str, Any] = {"largest_change_of_a_document": largest}
    questions = [_question(task, sample) for sample in block], [_question(task, sample) for sample in sequential]
    ours, theirs = ([each for each in side if each is not None] for side in questions)
    if len(ours) == len(theirs) == len(block):
        compared["choices"] = asdict(compare_choices(ours, theirs))
        compared["metrics"] = {"block": asdict(metrics(ours)), "sequential": asdict(metrics(theirs))}
    return compared


def _question(task: str, sample: dict[str, Any]) -> Question | None:
    """A sample of lm-evaluation-harness as a question; None where it is not one, or does not say what is true."""
    answers = [responses[0] for responses in sample["resps"]]
    arguments = sample["arguments"]
    if len(answers) < 2 or not all(isinstance(answer, tuple | list) and len(answer) == 2 for answer in answers):
        return None
    if len({context for context, _ in arguments}) > 1:  # choices stand in the context, one continuation after each
        texts = [context for context, _ in arguments]
    else:
        texts = [continuation.strip() for _, continuation in arguments]
    true = _true(sample, texts, answers)
    if not true or not set(true) < set(range(len(texts))) or not all(texts):
        return None
    choices = (
        Choice(float(logprob), len(text), len(text.encode())) for (logprob, _), text in zip(answers, texts, strict=True)
    )
    return Question(f"{task}, document {sample['doc_id']}", tuple(choices), true)


def _true(sample: dict[str, Any], texts: list[str], answers: list[Any]) -> tuple[int, ...]:
    target = sample["target"]
    if isinstance(target, list):
        return tuple(index for index in target if isinstance(index, int))
    if isinstance(target, int):
        return (target,)
    if target in texts:
        return (texts.index(target),)
    # Of two choices in the context the sample says only whether the likelier one was right.
    if len(texts) == 2 and "acc" in sample:
        likelier = max((0, 1), key=lambda index: answers[index][0])
        return (likelier if sample["acc"] else 1 - likelier,)
    return ()
