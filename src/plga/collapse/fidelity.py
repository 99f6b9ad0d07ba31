"""What replacing the rebuilt operator by a kept one changes: tokens, logits, and the time that a token takes."""

import time
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
    def smallest_margin(self) -> float:
        """Smallest distance between the best and the second best logit over all steps: what a deviation must stay
        below half of for the token to be safe."""
        best = self.logits.topk(2, dim=-1).values
        return float((best[..., 0] - best[..., 1]).min())


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


@dataclass(frozen=True)
class Fidelity:
    """One decoding against a reference decoding of the same prompts."""

    agreeing: int
    total: int
    largest_deviation: float


def compare(reference: Decoding, other: Decoding) -> Fidelity:
    """Count the tokens on which two decodings agree, and the largest logit deviation while they are on one prefix.

    After the first disagreement of a prompt the two read different texts: its later tokens count as they fall, and
    its later logits are not compared.
    """
    same = reference.tokens == other.tokens
    one_prefix = torch.ones_like(same)
    one_prefix[:, 1:] = same.long().cumprod(dim=1)[:, :-1].bool()
    deviation = (reference.logits - other.logits).abs().amax(dim=-1)[one_prefix].max()
    return Fidelity(int(same.sum()), same.numel(), float(deviation))
