"""The model ``plga`` of lm-evaluation-harness (the extra ``eval``).

Requests are encoded, batched and generated from as its Transformers model ``hf`` does, from which this one inherits:
context and continuation encoded together, spaces at the end of the context given to the continuation, the first token
(else the last) of the tokenizer before an empty context. What differs is how continuations are scored: under the
protocol that is asked for.

``lm_eval`` knows it through :mod:`plga_autoload`. ``python -m plga.scoring.harness`` is the same command, for where
PyTorch is kept from loading what it does not come with (TORCH_DEVICE_BACKEND_AUTOLOAD=0).
"""

import hashlib
import inspect
import json
import logging
from collections.abc import Sequence
from typing import Any

import torch
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs
from tqdm import tqdm

import plga
from plga.model.checkpoint import load_model
from plga.model.prefix import model_digest, tokenizer_digest
from plga.model.tokenizer import load_tokenizer, name_special_tokens
from plga.scoring.devices import on_device
from plga.scoring.items import Item
from plga.scoring.protocols import Scores, block_logprobs, causal, sequential_logprobs
from plga.scoring.score import PROTOCOLS, SAMPLE, THRESHOLD, Check, compare

logger = logging.getLogger(__name__)

Request = tuple[Any, list[int], list[int]]  # (context, continuation) as text, or None; tokens of either
# Beside answers, whose keys are hashes.
_IDENTITY, _CHECKS, _TRUNCATED = "plga identity", "plga checks", "plga truncated"


class PlgaLM(HFLM):
    """A PLDR-LLM for lm-evaluation-harness.

    Attributes:
        checks: what ``auto`` measured before it chose, by the kind of requests.
        truncated: how many requests lost the beginning of their context.
        written: texts by task and document that are given again where they are asked for, as what is written does not
            depend on the protocol; of a document as often as its task asks.
    """

    def __init__(
        self,
        pretrained: str,
        protocol: str = "auto",
        tokenizer: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int | str | None = 1,
        max_batch_size: int | None = 64,
        threshold: float = THRESHOLD,
        sample: int = SAMPLE,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
    ) -> None:
        """Load a checkpoint.

        Args:
            pretrained: a checkpoint folder (ours or published) or a published .pth file.
            protocol: auto, block or sequential.
            tokenizer: if the checkpoint has none beside it.
            device: as PyTorch names it; None: cuda where there is one, else cpu.
            dtype: of the weights.
            batch_size, max_batch_size, add_bos_token, prefix_token_id: as for ``hf``.
            threshold, sample: of ``auto``, as for :func:`plga.scoring.score.score`.

        Raises:
            ValueError: an unknown protocol, dtype or device; a checkpoint or tokenizer that is none.
            OSError: missing or unreadable.
        """
        if protocol not in PROTOCOLS:
            raise ValueError(f"protocol is {protocol!r}, expected one of {', '.join(PROTOCOLS)}")
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
            raise ValueError(f"dtype is {dtype!r}, expected one of PyTorch's floating-point types, such as float32")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        model = on_device(load_model(pretrained, dtype=kind), device)
        text = load_tokenizer(tokenizer or pretrained, model.config.vocab_size)
        name_special_tokens(model, text)
        if text.bos_token_id is None and text.eos_token_id is None and prefix_token_id is None:
            raise ValueError(
                f"{tokenizer or pretrained}: the tokenizer has no first and no last token, expected prefix_token_id"
            )
        super().__init__(
            pretrained=model,
            backend="causal",
            tokenizer=text,
            batch_size=batch_size,
            max_batch_size=max_batch_size,
            add_bos_token=add_bos_token,
            prefix_token_id=prefix_token_id,
        )
        self.protocol = protocol
        self.threshold, self.sample = threshold, sample
        self.checks: dict[str, Check] = {}
        self.truncated = 0
        self.written: dict[tuple[str | None, int | None], list[str]] = {}
        self._names: dict[tuple[str, ...], str] = {}

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> "PlgaLM":
        """As the command ``lm_eval`` does; see :meth:`create_from_arg_obj`."""
        return cls.create_from_arg_obj(utils.simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> "PlgaLM":
        """As the command ``lm_eval`` does.

        Where no device is named it says cuda:0; where there is no CUDA that is the CPU, as of ``hf``.

        Args:
            arg_dict: ``--model_args``.
            additional_config: its options for batch size and device; None counts as not given.

        Raises:
            ValueError: ``--model_args`` without ``pretrained`` or with an unknown name; and what ``__init__`` raises.
        """
        given = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if str(given.get("device", "")).startswith("cuda") and not torch.cuda.is_available():
            logger.warning("device is %s, but there is no CUDA here: the CPU is used", given["device"])
            given["device"] = "cpu"
        known = inspect.signature(cls).parameters
        if unknown := [name for name in arg_dict if name not in known]:
            raise ValueError(f"model_args has {unknown[0]!r}, expected some of {', '.join(known)}")
        if "pretrained" not in arg_dict:
            raise ValueError("model_args has no 'pretrained', expected pretrained=CHECKPOINT")
        return cls(**{**given, **arg_dict})

    @property
    def max_gen_toks(self) -> int:
        """Tokens to generate where a task does not say: 256, or half of a context below 512."""
        return min(256, self.max_length // 2)

    def identity(self) -> str:
        """SHA-256 of all that an answer depends on beside its request."""
        depends = [
            plga.__version__,
            model_digest(self.model),
            tokenizer_digest(self.tokenizer),
            str(self.model.dtype),
            self.model.config.operator_mode,
            [self.max_length, self.add_bos_token, self.prefix_token_id],
            [self.protocol, self.threshold, self.sample],
        ]
        return hashlib.sha256(json.dumps(depends).encode()).hexdigest()

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Take the SQLite cache of ``use_cache``, and from it what was chosen and counted before.

        Raises:
            ValueError: the answers in it are those of another checkpoint, tokenizer or protocol.
        """
        kept = cache_hook.dbdict
        if kept is not None:
            identity = self.identity()
            if kept.setdefault(_IDENTITY, identity) != identity:
                raise ValueError(
                    f"{kept.filename}: the answers in it are of another checkpoint, tokenizer, protocol or version, "
                    "expected a cache of its own for each"
                )
            self.checks, self.truncated = dict(kept.get(_CHECKS, {})), kept.get(_TRUNCATED, 0)
        super().set_cache_hook(cache_hook)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether it is what greedy decoding writes.

        Raises:
            ValueError: an empty continuation, or one that is longer than the context of the model; named by task,
                document and choice.
        """
        for request in requests:
            name = f"{_named(request)}, choice {request.idx}"
            if not self.tok_encode(request.args[1], add_special_tokens=False):
                raise ValueError(f"{name}: the continuation is empty, expected at least one token")
            self._names.setdefault(request.args, name)
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of each text, in windows as of ``hf``: a stride of the whole context.

        Raises:
            ValueError: an empty text, named by task and document.
        """
        pieces = []
        for request in requests:
            (text,) = request.args
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            found: list[Request] = [(None, *utils.make_disjoint_window(window)) for window in windows]
            if not found:
                raise ValueError(f"{_named(request)}: the text is empty, expected at least one token")
            pieces.append(found)
        everything = [window for found in pieces for window in found]
        protocol = self._chosen("rolling", self._items(everything))
        totals = []
        for request, found in zip(requests, tqdm(pieces, disable=disable_tqdm), strict=True):
            scores = self._scored(self._items(found), protocol)
            totals.append(sum(float(each.logprobs.sum()) for each in scores))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, totals[-1])
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Text written after each context until a stop sequence, the operator in the mode of the checkpoint.

        Raises:
            ValueError: an empty context, or a task that asks for as many tokens as the context of the model has.
        """
        for request in requests:
            context, settings = request.args
            asked = normalize_gen_kwargs(settings, self.max_gen_toks)["max_gen_toks"]
            length = len(self.tok_encode(context))
            if not length:
                raise ValueError(f"{_named(request)}: the context is empty, expected at least one token")
            if asked >= self.max_length:
                raise ValueError(
                    f"{_named(request)}: max_gen_toks is {asked}, expected less than the context of {self.max_length}"
                )
            self.truncated += length > self.max_length - asked
        self._keep(_TRUNCATED, self.truncated)
        again = {key: iter(texts) for key, texts in self.written.items()}
        found = [next(again.get((request.task_name, request.doc_id), iter(())), None) for request in requests]
        asked_for = [request for request, text in zip(requests, found, strict=True) if text is None]
        new = iter(super().generate_until(asked_for, disable_tqdm=disable_tqdm) if asked_for else [])
        return [next(new) if text is None else text for text in found]

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """The hook of TemplateLM. Requests are scored in portions, so that what is done is cached as it is done."""
        items = self._items(requests)
        protocol = self._chosen("continuations", items)
        rows = self._rows()
        found: dict[int, tuple[float, bool]] = {}
        # Requests of one context stay together, for what they share; long ones come first, as memory runs out at once.
        order = sorted(range(len(items)), key=lambda place: (-len(items[place].context), items[place].context))
        bar = tqdm(total=len(items), disable=disable_tqdm, desc=f"Scoring requests ({protocol})")
        for portion in _portions(order, items, rows):
            for place, scores in zip(portion, self._scored([items[place] for place in portion], protocol), strict=True):
                answer = float(scores.logprobs.sum()), bool(scores.greedy.all())
                found[place] = answer
                self.cache_hook.add_partial("loglikelihood", requests[place][0], answer)
            self._keep(_TRUNCATED, self.truncated)
            bar.update(len(portion))
        bar.close()
        return [found[place] for place in range(len(items))]

    def _items(self, requests: Sequence[Request]) -> list[Item]:
        """Items with the names that :meth:`loglikelihood` gave them."""
        return [
            Item(tuple(context), tuple(continuation), self._names.get(texts, "a window of a text"))
            for texts, context, continuation in requests
        ]

    def _chosen(self, kind: str, items: Sequence[Item]) -> str:
        """``block`` or ``sequential``, the same for all requests of a kind; ``auto`` measures on the first of them."""
        if self.protocol != "auto":
            return self.protocol
        if causal(self.model.config):
            return "block"
        if kind not in self.checks:
            self.checks[kind] = compare(self.model, items, self._rows(), self.threshold, self.sample)
            self._keep(_CHECKS, self.checks)  # or an evaluation that goes on might choose otherwise
        return "block" if self.checks[kind].passed else "sequential"

    def _scored(self, items: Sequence[Item], protocol: str) -> list[Scores]:
        score = block_logprobs if protocol == "block" else sequential_logprobs
        scores = score(self.model, items, self._rows())
        self.truncated += sum(1 for each in scores if each.truncated)
        return scores

    def _keep(self, key: str, value: Any) -> None:
        if self.cache_hook.dbdict is not None:
            self.cache_hook.dbdict[key] = value

    def _rows(self) -> int:
        """Rows a pass; ``auto`` is measured once."""
        if self.batch_size == "auto":
            self.batch_size_per_gpu: int = self._detect_batch_size()
        return int(self.batch_size)


def _portions(order: Sequence[int], items: Sequence[Item], rows: int) -> list[list[int]]:
    """``order`` in portions of ``rows`` items, or a little more where a context goes on."""
    portions: list[list[int]] = []
    for place in order:
        last = portions[-1] if portions else None
        if last is None or (len(last) >= rows and items[last[-1]].context != items[place].context):
            portions.append([])
        portions[-1].append(place)
    return portions


def _named(request: Instance) -> str:
    return f"task {request.task_name}, document {request.doc_id}"


def main() -> None:
    """The command ``lm_eval``."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
