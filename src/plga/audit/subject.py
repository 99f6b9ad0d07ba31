"""What is audited: a model and its prompts with all that a pass over each shows, or operators without a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plga.collapse.factors import decoder_layers
from plga.criticality.order_parameter import Deductive
from plga.model.modeling import PldrDecoderLayer, PldrForCausalLM
from plga.model.operator import LearnedOperator
from plga.ops.density import gram


class Visit(NamedTuple):
    """What one pass over a prompt of S tokens shows, layer by layer; the deductive branch in float32 or wider.

    Attributes:
        queries: before the rotation, [L, H, S, d].
        rotated: after it, [L, H, S, d].
        density: D of the rotated queries, [L, H, d, d].
        deductive: A, A_LM, A_P and G_LM, each [L, H, d, d].
    """

    queries: Tensor
    rotated: Tensor
    density: Tensor
    deductive: Deductive


@dataclass(frozen=True)
class Subject:
    """What is audited.

    Attributes:
        model: in evaluation mode; None where only operators are known, or nothing.
        prompts: rows of token ids, [S_i], S_i >= 2.
        operators: G_LM without a model, [L, H, d, d].
        seed: of all that is random.
    """

    model: PldrForCausalLM | None = None
    prompts: tuple[Tensor, ...] = ()
    operators: Tensor | None = None
    seed: int = 0
    _visits: dict[int, Visit] = field(default_factory=dict, repr=False)

    @property
    def layers(self) -> list[PldrDecoderLayer]:
        """The decoder layers of the model."""
        assert self.model is not None
        return decoder_layers(self.model)

    @property
    def learned(self) -> list[LearnedOperator]:
        """The operators of the layers that build G_LM from their queries."""
        operators = (layer.self_attn.operator for layer in self.layers)
        return [operator for operator in operators if isinstance(operator, LearnedOperator)]

    def visit(self, prompt: int) -> Visit:
        """What a pass over one prompt shows; the pass is made once.

        Raises:
            FloatingPointError: a non-finite deductive output, naming it, the layer and the heads.
        """
        if prompt not in self._visits:
            self._visits[prompt] = self._pass(self.prompts[prompt])
        return self._visits[prompt]

    def visits(self) -> Iterator[Visit]:
        """:meth:`visit` of every prompt in turn."""
        return (self.visit(prompt) for prompt in range(len(self.prompts)))

    @torch.no_grad()
    def _pass(self, prompt: Tensor) -> Visit:
        assert self.model is not None
        with self._watching() as (plain, rotated):
            layers = self.model(
                prompt.unsqueeze(0).to(self.model.device), use_cache=False, logits_to_keep=1, output_deductive=True
            ).deductive
        turned = torch.stack(rotated)
        deductive = Deductive(*(torch.cat(tensors) for tensors in zip(*layers, strict=True)))
        return Visit(torch.stack(plain), turned, gram(turned), deductive)

    @contextmanager
    def _watching(self) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Queries before and after their rotation, [H, S, d], layer by layer, in the dtype of the deductive branch."""
        plain: list[Tensor] = []
        rotated: list[Tensor] = []

        def see_plain(module: Any, given: Any, out: Tensor) -> None:
            wide = out[0].to(torch.promote_types(out.dtype, torch.float32))
            plain.append(wide.unflatten(-1, (-1, self.layers[0].self_attn.head_dim)).transpose(0, 1))

        def see_rotated(module: Any, given: tuple[Tensor, ...]) -> None:
            rotated.append(given[0][0].to(torch.promote_types(given[0].dtype, torch.float32)))

        handles = []
        for layer in self.layers:
            handles.append(layer.self_attn.q_proj.register_forward_hook(see_plain))
            handles.append(layer.self_attn.operator.register_forward_pre_hook(see_rotated))
        try:
            yield plain, rotated
        finally:
            for handle in handles:
                handle.remove()
