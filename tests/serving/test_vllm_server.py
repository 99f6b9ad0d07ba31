"""``plga serve`` on vLLM: our tokens, the right HTTP errors, and a server that outlives its clients."""

import contextlib
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from torch import Tensor

from plga.model.modeling import PldrForCausalLM
from plga.model.tokenizer import load_tokenizer
from tests.serving.conftest import greedy
from tests.serving.servers import Server

pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-serving")
openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx")


@pytest.fixture(scope="module")
def server(collapsed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(collapsed, "vllm", tmp_path_factory.mktemp("log") / "vllm.log") as started:
        yield started


def complete(server: Server, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens that the server writes after ``prompt``."""
    answer = server.client().completions.create(
        model=str(server.checkpoint),
        prompt=prompt,
        max_tokens=count,
        temperature=0,
        extra_body={"return_token_ids": True},
    )
    tokens: list[int] = answer.choices[0].token_ids
    return tokens


def metric(server: Server, name: str) -> float:
    """A gauge of vLLM."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        found = re.search(rf"^vllm:{name}{{.*}} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found, name
    return float(found[1])


def require_idle(server: Server) -> None:
    """No request runs, and the keys and values of none are kept."""
    deadline = time.monotonic() + 120
    while metric(server, "num_requests_running") or metric(server, "kv_cache_usage_perc"):
        assert time.monotonic() < deadline, "a request still runs, or its keys and values are still there"
        time.sleep(0.2)


@pytest.mark.parametrize("clients", [16, 64])
def test_concurrent_requests_get_our_tokens(
    server: Server, requests: list[tuple[list[int], list[int]]], clients: int
) -> None:
    asked = requests * (clients // len(requests))
    with ThreadPoolExecutor(clients) as pool:
        written = list(pool.map(lambda request: complete(server, request[0], len(request[1])), asked))
    assert written == [expected for _, expected in asked]
    require_idle(server)


def test_openai_client_streams(server: Server, model: PldrForCausalLM) -> None:
    tokenizer = load_tokenizer(server.checkpoint)
    prompt = "def __init__(self, name):\n"
    expected = tokenizer.decode(greedy(model, tokenizer(prompt).input_ids, 40))
    stream = server.client().completions.create(
        model=str(server.checkpoint), prompt=prompt, max_tokens=40, temperature=0, stream=True
    )
    pieces = [chunk.choices[0].text for chunk in stream]
    assert len(pieces) > 10
    assert "".join(pieces) == expected


def test_the_model_has_the_name_of_its_folder(server: Server) -> None:
    assert [served.id for served in server.client().models.list()] == [str(server.checkpoint)]


def test_wrong_model_name(server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        server.client().completions.create(model="another", prompt="def", max_tokens=2)
    assert "another" in str(error.value)
    assert server.lives()


def test_too_long_prompt(server: Server, text: Tensor) -> None:
    for length in (129, 5000):
        with pytest.raises(openai.BadRequestError) as error:
            complete(server, text[:length].tolist(), 1)
        assert "128" in str(error.value)
    # More tokens than there is room for end at the context.
    assert len(complete(server, text[:100].tolist(), 60)) == 28
    assert server.lives()


def test_token_outside_the_vocabulary(server: Server) -> None:
    with pytest.raises(openai.BadRequestError):
        complete(server, [2048], 1)
    assert server.lives()


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'{"prompt": "def"', b"\xff"])
def test_malformed_json(server: Server, body: bytes) -> None:
    status, answer = server.post(body)
    assert status in (400, 422), answer
    assert json.loads(answer)
    assert server.lives()


def test_client_that_hangs_up(server: Server, model: PldrForCausalLM, text: Tensor) -> None:
    prompt = text[:20].tolist()
    for _ in range(8):
        stream = server.client().completions.create(
            model=str(server.checkpoint), prompt=prompt, max_tokens=108, temperature=0, stream=True
        )
        next(iter(stream))
        stream.close()
    require_idle(server)
    assert complete(server, prompt, 20) == greedy(model, prompt, 20)


def test_sigterm_ends_all_of_it_while_clients_stream(server: Server, text: Tensor) -> None:
    """The last of this file: the server is gone after it, though its engine tells the clients nothing more."""
    streams = [
        iter(
            server.client().completions.create(
                model=str(server.checkpoint), prompt=text[:8].tolist(), max_tokens=120, temperature=0, stream=True
            )
        )
        for _ in range(4)
    ]
    for stream in streams:
        next(stream)
    tree = server.tree()
    next(process for process in tree if "EngineCore" in "".join(process.cmdline())).suspend()
    server.process.terminate()
    server.process.wait(timeout=120)
    for stream in streams:
        with contextlib.suppress(openai.APIError, httpx.HTTPError):  # cut off, or told; not left waiting
            list(stream)
    assert psutil.wait_procs(tree, timeout=60)[1] == []
    assert not server.lives()
