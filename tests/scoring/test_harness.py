"""The model of lm-evaluation-harness: the numbers of its Transformers model, and what that one does not know."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("lm_eval", reason="needs the extra eval")

from lm_eval.api.instance import Instance  # after it is known to be there
from lm_eval.api.model import CachingLM
from lm_eval.api.registry import get_model
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from plga.collapse.freeze import freeze_on
from plga.model.checkpoint import load_model, save_model
from plga.model.tokenizer import load_tokenizer
from plga.scoring.harness import PlgaLM
from plga.scoring.windows import windows
from tests.cli.runner import environment
from tests.scoring.checkpoints import by_definition

TEXT = inspect.getsource(inspect)
CONTEXT = 128
TASKS = Path(__file__).parent / "tasks" / "library_text.yaml"


@pytest.fixture(scope="module")
def constant(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The critical checkpoint of the reference data, its operator frozen."""
    tokenizer = load_tokenizer(reference / "critical.pth")
    ids = torch.tensor(tokenizer.encode(TEXT, verbose=False)[: 8 * CONTEXT]).view(8, CONTEXT)
    frozen, _ = freeze_on(load_model(reference / "critical.pth"), ids)
    folder = tmp_path_factory.mktemp("harness") / "constant"
    save_model(frozen, folder, tokenizer=tokenizer)
    return folder


def instance(kind: str, *arguments: object, document: int = 0, choice: int = 0) -> Instance:
    return Instance(kind, {}, arguments, choice, ("library", document, 1))


def continuations() -> list[Instance]:
    """Of contexts that are shared, empty, longer than the context of the model, or end in spaces."""
    pairs = [
        (TEXT[50 * start : 50 * start + length], continuation)
        for start in range(6)
        for length, continuation in (
            (40, " return self"),
            (40, "x"),
            (40, " return None"),
            (900, " None\n"),
            (0, "import"),
        )
    ]
    pairs += [("def f: ", "return"), ("a\n\n  ", " b"), ("", "<eos>import os"), ("x = ", "(")]
    return [instance("loglikelihood", *pair, document=number) for number, pair in enumerate(pairs)]


def test_same_requests_same_numbers_as_hf(constant: Path) -> None:
    ours = PlgaLM(str(constant), device="cpu", batch_size=4)
    theirs = HFLM(pretrained=str(constant), device="cpu", batch_size=4)
    requests = continuations()
    for (score, greedy), (expected, likeliest) in zip(
        ours.loglikelihood(requests), theirs.loglikelihood(requests), strict=True
    ):
        assert score == pytest.approx(expected, abs=1e-5)
        assert greedy == likeliest
    assert ours.truncated == 6

    texts = [instance("loglikelihood_rolling", TEXT[:length]) for length in (1, 300, 3000)]
    for score, expected in zip(ours.loglikelihood_rolling(texts), theirs.loglikelihood_rolling(texts), strict=True):
        assert score == pytest.approx(expected, rel=1e-6, abs=1e-5)

    settings = {"until": ["\n\n"], "max_gen_toks": 12}
    asked = [instance("generate_until", TEXT[70 * start : 70 * start + 90], settings) for start in range(5)]
    assert ours.generate_until(asked) == theirs.generate_until(asked)


def test_greedy_continuations_are_what_is_written(constant: Path) -> None:
    lm = PlgaLM(str(constant), device="cpu")
    contexts = [TEXT[70 * start : 70 * start + 90] for start in range(4)]
    settings = {"until": [], "max_gen_toks": 1}
    written = lm.generate_until([instance("generate_until", context, settings) for context in contexts])
    pairs = [(c, w) for c, w in zip(contexts, written, strict=True) if w.strip() and not c.endswith((" ", "\n"))]
    assert pairs
    answers = lm.loglikelihood([instance("loglikelihood", *pair) for pair in pairs])
    # Where text and tokens agree on where the continuation begins.
    joined = [lm.tok_encode(c + w) == [*lm.tok_encode(c), *lm.tok_encode(w)] for c, w in pairs]
    assert any(joined)
    assert all(greedy for (_, greedy), same in zip(answers, joined, strict=True) if same)


def test_the_protocol_that_is_asked_for(reference: Path) -> None:
    requests = continuations()[:10]
    path, context = str(reference / "subcritical.pth"), requests[0].args[0]
    found = {name: PlgaLM(path, name, device="cpu", batch_size=3) for name in ("block", "sequential", "auto")}
    answers = {name: lm.loglikelihood(requests) for name, lm in found.items()}
    assert answers["auto"] == answers["sequential"] != answers["block"]
    assert not found["auto"].checks["continuations"].passed
    assert found["block"].checks == found["sequential"].checks == {}
    (item,) = found["block"]._items([(None, *found["block"]._encode_pair(context, requests[0].args[1]))])
    for name, sequential in (("block", False), ("sequential", True)):
        wanted = float(by_definition(found[name].model, item, sequential)[0].sum())
        assert answers[name][0][0] == pytest.approx(wanted, abs=1e-4)

    critical = PlgaLM(str(reference / "critical.pth"), device="cpu", batch_size=8)
    critical.loglikelihood(requests)
    critical.loglikelihood_rolling([instance("loglikelihood_rolling", TEXT[:200])])
    assert {kind: check.passed for kind, check in critical.checks.items()} == {"continuations": True, "rolling": True}


def test_rolling_is_a_stride_of_the_whole_context() -> None:
    ids = list(range(1, 60))
    for context in (1, 7, 59, 80):
        theirs = map(make_disjoint_window, get_rolling_token_windows(ids, 0, context, 1))
        ours = windows([0, *ids], context, context, "a")
        assert [(list(item.context), list(item.candidate)) for item in ours] == list(theirs)


def test_automatic_batch_size(constant: Path) -> None:
    lm = PlgaLM(str(constant), device="cpu", batch_size="auto", max_batch_size=4)
    requests = continuations()[:6]
    fixed = PlgaLM(str(constant), device="cpu", batch_size=4).loglikelihood(requests)
    assert lm.loglikelihood(requests) == fixed
    assert lm.batch_size == 4


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("loglikelihood", ("a", ""), "task library, document 3, choice 1: the continuation is empty"),
        ("loglikelihood", ("", ""), "task library, document 3, choice 1: the continuation is empty"),
        ("loglikelihood", ("  ", "a"), "task library, document 3, choice 1: the context is empty"),
        (
            "loglikelihood",
            ("a", " x y" * 65),
            "task library, document 3, choice 1: the candidate has 130 tokens, expected at most the context of 128",
        ),
        ("loglikelihood_rolling", ("",), "task library, document 3: the text is empty"),
        ("generate_until", ("", {"max_gen_toks": 3}), "task library, document 3: the context is empty"),
        (
            "generate_until",
            ("a", {"max_gen_toks": 128}),
            "task library, document 3: max_gen_toks is 128, expected less than the context of 128",
        ),
    ],
)
def test_bad_requests_are_named(constant: Path, kind: str, arguments: tuple, message: str) -> None:
    lm = PlgaLM(str(constant), device="cpu")
    with pytest.raises(ValueError, match=message):
        getattr(lm, kind)([instance(kind, *arguments, document=3, choice=1)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "both"}, "protocol is 'both', expected one of auto, block, sequential"),
        ({"dtype": "int8"}, "dtype is 'int8', expected one of PyTorch's floating-point types"),
        ({"dtype": "wide"}, "dtype is 'wide'"),
        ({"device": "abacus"}, "device is 'abacus', which is not here"),
    ],
)
def test_bad_settings(constant: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlgaLM(str(constant), **options)


def test_generation_without_a_length_stays_within_the_context(constant: Path) -> None:
    lm = PlgaLM(str(constant), device="cpu")
    assert lm.max_gen_toks == 64
    (written,) = lm.generate_until([instance("generate_until", TEXT[:2000], {"until": []})])
    assert len(lm.tok_encode(written)) <= 66
    assert lm.truncated == 1


class Interrupted(Exception):
    pass


def test_an_interrupted_evaluation_goes_on_from_its_cache(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, requests = str(reference / "subcritical.pth"), continuations()[:20]
    expected = PlgaLM(path, device="cpu", batch_size=2).loglikelihood(requests)
    scored: list[int] = []
    plain = PlgaLM._scored

    def counted(self: PlgaLM, items: list, protocol: str) -> list:
        if len(scored) == 3:
            raise Interrupted
        scored.append(len(items))
        return plain(self, items, protocol)

    monkeypatch.setattr(PlgaLM, "_scored", counted)
    first = CachingLM(PlgaLM(path, device="cpu", batch_size=2), str(tmp_path / "answers.db"))
    with pytest.raises(Interrupted):
        first.loglikelihood(requests)
    first.dbdict.close()
    done = sum(scored)
    scored[:] = [-1, -1, -1, -1]  # no longer three
    second = PlgaLM(path, device="cpu", batch_size=2)
    cached = CachingLM(second, str(tmp_path / "answers.db"))
    found = cached.loglikelihood(requests)
    assert sum(scored[4:]) == len(requests) - done < len(requests)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[0] == pytest.approx(theirs[0], abs=1e-4) and ours[1] == theirs[1]
    assert second.truncated == sum(1 for request in requests if len(second.tok_encode(request.args[0])) > 128)
    assert second.checks == first.lm.checks  # chosen once, on all of them
    cached.dbdict.close()


def test_answers_of_another_model_or_protocol_are_refused(reference: Path, constant: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "answers.db")
    CachingLM(PlgaLM(str(constant), device="cpu"), file).dbdict.close()
    CachingLM(PlgaLM(str(constant), device="cpu", batch_size=7), file).dbdict.close()
    for other in (
        PlgaLM(str(constant), "sequential", device="cpu"),
        PlgaLM(str(constant), device="cpu", dtype="bfloat16"),
        PlgaLM(str(reference / "critical.pth"), device="cpu"),
    ):
        with pytest.raises(ValueError, match=r"answers\.db: the answers in it are of another checkpoint"):
            CachingLM(other, file)


def test_settings_as_the_command_gives_them(constant: Path) -> None:
    given = {"batch_size": 3, "max_batch_size": None, "device": None if torch.cuda.is_available() else "cuda:0"}
    lm = PlgaLM.create_from_arg_string(f"pretrained={constant},protocol=block,threshold=0.5", given)
    assert (lm.protocol, lm.threshold, lm.batch_size) == ("block", 0.5, 3)
    assert lm.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    lm = PlgaLM.create_from_arg_obj({"pretrained": str(constant), "device": "cpu", "batch_size": 2}, given)
    assert (lm.device.type, lm.batch_size) == ("cpu", 2)
    with pytest.raises(ValueError, match="device is 'abacus', which is not here"):
        PlgaLM.create_from_arg_string(f"pretrained={constant}", {"device": "abacus"})
    with pytest.raises(ValueError, match=r"model_args has 'protocl', expected some of pretrained, protocol, tokenizer"):
        PlgaLM.create_from_arg_string(f"pretrained={constant},protocl=block")
    with pytest.raises(ValueError, match="model_args has no 'pretrained', expected pretrained=CHECKPOINT"):
        PlgaLM.create_from_arg_string("")


def test_the_harness_finds_it_by_its_name() -> None:
    assert get_model("plga") is PlgaLM
    command = ["run", "--model", "plga", "--model_args", "pretrained=/missing", "--tasks", str(TASKS)]
    without = environment() | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    ending = subprocess.run(
        [sys.executable, "-m", "plga.scoring.harness", *command], env=without, capture_output=True, text=True
    )
    assert "/missing: no such file or directory, expected a checkpoint" in ending.stderr
