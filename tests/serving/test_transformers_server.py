"""``plga serve`` on ``transformers serve``, the fall-back: our text, its HTTP errors, and a server that lives."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from plga.model.modeling import PldrForCausalLM
from plga.model.tokenizer import load_tokenizer
from tests.serving.conftest import greedy
from tests.serving.servers import Server

openai = pytest.importorskip("openai")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def server(collapsed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(collapsed, "transformers", tmp_path_factory.mktemp("log") / "transformers.log") as started:
        yield started


@pytest.fixture(scope="module")
def tokenizer(collapsed: Path) -> PreTrainedTokenizerFast:
    return load_tokenizer(collapsed)


def complete(server: Server, prompt: str, count: int) -> str:
    """What the server writes after ``prompt``, greedily."""
    answer = server.client().completions.create(
        model=str(server.checkpoint), prompt=prompt, max_tokens=count, temperature=0
    )
    written: str = answer.choices[0].text
    return written


@pytest.mark.parametrize("clients", [16, 64])
def test_concurrent_requests_get_our_text(
    server: Server, requests: list[tuple[list[int], list[int]]], tokenizer: PreTrainedTokenizerFast, clients: int
) -> None:
    # Text, as this server takes no tokens; that of these prompts comes back as the same tokens.
    asked = [(tokenizer.decode(prompt), expected) for prompt, expected in requests] * (clients // len(requests))
    with ThreadPoolExecutor(clients) as pool:
        written = list(pool.map(lambda request: complete(server, request[0], len(request[1])), asked))
    assert written == [tokenizer.decode(expected) for _, expected in asked]
    assert server.lives()


def test_openai_client_streams(server: Server, model: PldrForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = "def __init__(self, name):\n"
    expected = tokenizer.decode(greedy(model, tokenizer(prompt).input_ids, 40))
    stream = server.client().completions.create(
        model=str(server.checkpoint), prompt=prompt, max_tokens=40, temperature=0, stream=True
    )
    pieces = [chunk.choices[0].text for chunk in stream]
    assert len(pieces) > 2
    assert "".join(pieces) == expected


def test_wrong_model_name(server: Server) -> None:
    with pytest.raises(openai.APIStatusError) as error:
        server.client().completions.create(model="another", prompt="def", max_tokens=2)
    assert error.value.status_code in (400, 404)
    assert "another" in error.value.response.text
    assert server.lives()


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'{"prompt": "def"', b"\xff"])
def test_malformed_json(server: Server, body: bytes) -> None:
    status, answer = server.post(body)
    assert 400 <= status < 500, answer
    assert server.lives()


def test_client_that_hangs_up(server: Server, model: PldrForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = "import os\n"
    for _ in range(4):
        stream = server.client().completions.create(
            model=str(server.checkpoint), prompt=prompt, max_tokens=100, temperature=0, stream=True
        )
        next(iter(stream))
        stream.close()
    # One sequence is written at a time, so this answer comes after those that nobody waits for.
    assert complete(server, prompt, 20) == tokenizer.decode(greedy(model, tokenizer(prompt).input_ids, 20))
    assert server.lives()
