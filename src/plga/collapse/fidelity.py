"""What replacing the rebuilt operator by a kept one changes: tokens, logits, and the time that a token takes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plga.model.modeling import PldrForCausalLM


@dataclass(frozen=True)
class Decoding:
    """Greedy decoding of some prompts: tokens [N, T] generated, their logits [N, T, V], seconds taken."""

    tokens: Tensor
    logits: Tensor
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens a second, prompts one at a time."""
        return self.tokens.numel() / self.seconds

    @property
    def margins(self) -> Tensor:
        """Distance between the best and the second best logit of each step, [N, T]."""
        best = self.logits.topk(2, dim=-1).values
        return best[..., 0] - best[..., 1]


def decode(model: PldrForCausalLM, prompts: Tensor, new_tokens: int, operator_mode: str | None = None) -> Decoding:
    """Decode each prompt of [N, S] greedily by itself, never stopping early.

    Args:
        operator_mode: see PldrForCausalLM.generate.
    """
    tokens, logits, seconds = [], [], 0.0
    for prompt in prompts.split(1):
        start = time.perf_counter()
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            operator_mode=operator_mode,
            do_sample=False,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        seconds += time.perf_counter() - start
        tokens.append(out.sequences[:, prompt.shape[1] :])
        logits.append(torch.stack(out.logits, dim=1))
    return Decoding(torch.cat(tokens), torch.cat(logits), seconds)


def join(decodings: Sequence[Decoding]) -> Decoding:
    """Decodings of one prompt each, or of several, as one; their seconds add up."""
    return Decoding(
        torch.cat([decoding.tokens for decoding in decodings]),
        torch.cat([decoding.logits for decoding in decodings]),
        sum(decoding.seconds for decoding in decodings),
    )


@dataclass(frozen=True)
class Fidelity:
    """One decoding against a reference decoding of the same prompts."""

    agreeing: int
    total: int
    largest_deviation: float
    within_margin: int


def compare(reference: Decoding, other: Decoding) -> Fidelity:
    """Count the tokens on which two decodings agree, and the largest logit deviation while they are on one prefix.

    After the first disagreement of a prompt the two read different texts: its later tokens count as they fall, and
    its later logits are not compared. ``within_margin`` counts the steps on one prefix where twice the deviation lies
    below the reference's decoding margin, which is sufficient for the same token (arXiv:2608.10288).
    """
    same = reference.tokens == other.tokens
    one_prefix = torch.ones_like(same)
    one_prefix[:, 1:] = same.long().cumprod(dim=1)[:, :-1].bool()
    deviation = (reference.logits - other.logits).abs().amax(dim=-1)
    within = (2 * deviation < reference.margins) & one_prefix
    return Fidelity(int(same.sum()), same.numel(), float(deviation[one_prefix].max()), int(within.sum()))
