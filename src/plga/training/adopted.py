"""An adopted model as what a run trains: any causal LM of Transformers with operators, or its operators alone."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plga.adopt.adoption import train_operators_only
from plga.adopt.checkpoints import load_adopted
from plga.adopt.configuration import MODEL_TYPE
from plga.adopt.files import save_operators
from plga.model.checkpoint import save_model
from plga.model.files import read_json, read_safetensors
from plga.model.loss import logits_cross_entropy
from plga.model.operator import DeductiveOutputs
from plga.training.config import AdoptedTrainSettings
from plga.training.subject import Pass, Subject, learned_operators


class AdoptedSubject(Subject):
    """A model that ``plga adopt`` wrote, trained on.

    Raises:
        ValueError: no directory of an adopted model, one that is not whole, quantized weights, more context than it has
            positions, or settings for a learned operator where it has none.
        OSError: missing or unreadable.
    """

    def __init__(self, settings: AdoptedTrainSettings) -> None:
        self.settings, path = settings, settings.model.adopted
        self.model = trainable_model(Path(path))
        positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if positions is not None and settings.context > positions:
            raise ValueError(f"model.context is {settings.context}, expected <= {positions}, the positions of {path}")
        kind = self.model.config.operator_settings.kind
        dag = settings.objective.dag
        for name, asked in (
            ("objective.dag has a coefficient", dag.metric or dag.potential or dag.curvature),
            ("optimizer.checkpointing is 'learner'", settings.optimizer.checkpointing == "learner"),
            ("logging.steadiest is true", settings.logging.steadiest),
        ):
            if asked and kind != "learned":
                raise ValueError(f"{name}, which is for learned operators, but those of {path} are {kind}")
        if kind == "learned" and len({(h, d) for h, d in self.model.config.plga_layers.values()}) > 1:
            raise ValueError(
                f"{path}: its layers differ in heads or their width, expected alike with learned operators"
            )

    @property
    def vocab_size(self) -> int:
        rows: int = self.model.get_input_embeddings().weight.shape[0]
        return rows

    def build(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        if self.settings.model.trainable == "operators":
            train_operators_only(self.model)
        return self.model

    def forward(
        self,
        called: nn.Module,
        batch: Mapping[str, Tensor],
        num_items: Tensor | int | None = None,
        deductive: bool = False,
        blocks: int | None = None,
    ) -> Pass:
        with _deductive_outputs(self.model) as found:
            outputs = called(input_ids=batch["input_ids"], attention_mask=batch.get("attention_mask"), use_cache=False)
        # The model's own logits: what else it does to them, as Gemma 2's soft-capping, is in them.
        logits, targets = outputs.logits, batch["labels"]
        loss = logits_cross_entropy(logits.flatten(0, -2), targets.flatten(), num_items)
        return Pass(
            outputs,
            loss,
            lambda: (logits.detach().argmax(dim=-1) == targets).sum(),
            tuple(found) if deductive else None,
            None,
        )

    def layers(self) -> list[nn.Module]:
        names = set(self.model._no_split_modules or ())
        return [module for module in self.model.modules() if type(module).__name__ in names]

    def finish(self, last: Path, output: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        model = trainable_model(last)
        save_model(model, output / "final", overwrite=True, tokenizer=tokenizer)
        if self.settings.model.trainable == "operators":
            save_operators(model, output / "operators.safetensors", overwrite=True)


def trainable_model(path: Path) -> PreTrainedModel:
    """The adopted model of a directory in float32, in which alone it is trained.

    Raises:
        ValueError: not the directory of an adopted model, quantized weights, or tensors that are missing, unknown,
            damaged or of other shapes.
        OSError: missing or unreadable.
    """
    config = read_json(path / "config.json", "the directory of a model has one")
    if config.get("model_type") != MODEL_TYPE:
        raise ValueError(
            f"{path}: model_type is {config.get('model_type')!r}, expected {MODEL_TYPE!r}, which `plga adopt` writes"
        )
    if config.get("quantization_config"):
        raise ValueError(f"{path}: its weights are quantized, expected floating point ones to train")
    read_safetensors(path)  # what is damaged is named before Transformers meets it
    return load_adopted(str(path), torch.float32)


@contextmanager
def _deductive_outputs(model: Any) -> Iterator[list[DeductiveOutputs]]:
    """What the learned operators of a model build inside of the block, in the order of the layers."""
    found: list[DeductiveOutputs] = []
    # A layer that is computed again in the backward pass comes after the block, so it is not found twice.
    hooks = [
        operator.register_forward_hook(lambda module, inputs, outputs: found.append(outputs))
        for operator in learned_operators(model)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
