"""What a run trains, as its trainer and its looks see it: a PLDR-LLM, or an adopted model (see adopted.py)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plga.model.checkpoint import load_model, save_model
from plga.model.loss import next_token_hits
from plga.model.modeling import PldrForCausalLM
from plga.model.operator import DeductiveOutputs, LearnedOperator
from plga.training.config import TrainSettings


class Pass(NamedTuple):
    """What one forward pass gives.

    Attributes:
        outputs: of the model.
        loss: cross-entropy of the next tokens in nats, a scalar.
        hits: when called, how many targets have the largest logit of their row, an integer scalar.
        deductive: of each layer; None where not asked for.
        alignment: relative difference of each layer, scalars; None where not asked for.
    """

    outputs: Any
    loss: Tensor
    hits: Callable[[], Tensor]
    deductive: tuple[DeductiveOutputs, ...] | None
    alignment: tuple[Tensor, ...] | None


class Subject(ABC):
    """A model that is trained.

    Attributes:
        model: once it was built.
    """

    model: Any

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Embeddings of the model: no token id is larger."""

    @abstractmethod
    def build(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        """The model at step 0, in float32, its random numbers drawn from PyTorch's own state."""

    @abstractmethod
    def forward(
        self,
        called: nn.Module,
        batch: Mapping[str, Tensor],
        num_items: Tensor | int | None = None,
        deductive: bool = False,
        blocks: int | None = None,
    ) -> Pass:
        """One pass over a batch, by the block contract.

        Args:
            called: the model, or what wraps it for training.
            batch: ``input_ids`` and ``labels`` [B, S], already shifted; ``attention_mask`` where some of it is padding.
            num_items: the sum over the targets is divided by it; None: the mean over this batch.
            deductive: whether to give the deductive outputs.
            blocks: into how many each sequence is cut for the alignment; None: into none.
        """

    @abstractmethod
    def layers(self) -> list[nn.Module]:
        """Those that FSDP2 shards one by one."""

    @abstractmethod
    def finish(self, last: Path, output: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Put the model of the last checkpoint into ``output``."""


class PldrSubject(Subject):
    """A new PLDR-LLM."""

    def __init__(self, settings: TrainSettings) -> None:
        self.settings = settings

    @property
    def vocab_size(self) -> int:
        return self.settings.model.vocab_size

    def build(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        self.model = PldrForCausalLM(
            self.settings.model.config(
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
        return self.model

    def forward(
        self,
        called: nn.Module,
        batch: Mapping[str, Tensor],
        num_items: Tensor | int | None = None,
        deductive: bool = False,
        blocks: int | None = None,
    ) -> Pass:
        outputs = called(
            input_ids=batch["input_ids"],
            attention_mask=batch.get("attention_mask"),
            next_tokens=batch["labels"],
            num_items_in_batch=num_items,
            use_cache=False,
            output_deductive=deductive,
            alignment_blocks=blocks,
        )

        def hits() -> Tensor:
            return next_token_hits(outputs.last_hidden_state, self.model.lm_head, batch["labels"])

        return Pass(outputs, outputs.loss, hits, outputs.deductive, outputs.alignment)

    def layers(self) -> list[nn.Module]:
        return list(self.model.model.layers)

    def finish(self, last: Path, output: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        save_model(load_model(last), output / "final", overwrite=True, tokenizer=tokenizer)


def learned_operators(model: nn.Module) -> list[LearnedOperator]:
    """Operators that are built from the queries, in the order of the layers."""
    return [module for module in model.modules() if isinstance(module, LearnedOperator)]
