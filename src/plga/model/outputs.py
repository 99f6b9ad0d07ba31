"""What PldrModel and PldrForCausalLM return."""

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from plga.model.operator import DeductiveOutputs


@dataclass
class PldrModelOutput(BaseModelOutputWithPast):
    """Output of PldrModel: one DeductiveOutputs a layer if ``output_deductive``, one scalar if ``alignment_blocks``."""

    deductive: tuple[DeductiveOutputs, ...] | None = None
    alignment: tuple[Tensor, ...] | None = None


@dataclass
class PldrCausalLMOutput(CausalLMOutputWithPast):
    """Output of PldrForCausalLM; ``deductive`` and ``alignment`` are those of PldrModelOutput.

    With ``next_tokens`` there are no ``logits`` but the ``last_hidden_state``, [B, S, d_model], which the head reads.
    """

    deductive: tuple[DeductiveOutputs, ...] | None = None
    alignment: tuple[Tensor, ...] | None = None
    last_hidden_state: Tensor | None = None
