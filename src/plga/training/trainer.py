"""Transformers' Trainer with the block objective, the published clipping, and checkpoints that resume exactly."""

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader
from transformers import TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer_callback import PrinterCallback

from plga.training import checkpoints
from plga.training.config import RunSettings
from plga.training.data.dataset import Data
from plga.training.guards import guards_of
from plga.training.monitor import Monitor
from plga.training.penalties import Penalties
from plga.training.subject import Subject


class Trainer(transformers.Trainer):
    """Trains a model; made by :func:`plga.training.run.train`.

    Args:
        subject: whose model was built.
        data: as many processes share it as run this.
        settings: of the run.
        callbacks: beside the guards and the monitor.

    Raises:
        ValueError: a batch that the processes and their accumulated parts cannot share equally.
    """

    def __init__(
        self,
        subject: Subject,
        data: Data,
        settings: RunSettings,
        callbacks: list[transformers.TrainerCallback],
    ) -> None:
        self.subject, self.settings, self.data = subject, settings, data
        self.recipe = settings.optimizer
        self.penalties = Penalties(settings.objective, self.recipe.steps)
        self.monitor = Monitor(self)
        self.guards = guards_of(self)
        self._sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=self.args.device))
        self._accuracy: Tensor | float = 0.0
        self._data_since = 0, 0  # a step, and the windows that this process had taken from the data before it
        self._last_logged = time.perf_counter()
        self.losses: list[Tensor] = []  # of each step since the last log line, of this process
        super().__init__(
            model=subject.model,
            args=_arguments(settings),
            train_dataset=data.train,
            callbacks=[*_trackers(settings.logging.report_to), *self.guards, self.monitor, *callbacks],
        )
        self.remove_callback(PrinterCallback)
        self.loss_is_scaled_for_ga = True
        self.label_names = ["labels"]
        self._loss_shifts_labels = False  # they come as next tokens
        self.last_checkpoint: Path | None = None
        if settings.distributed.strategy == "fsdp2" and self.args.world_size > 1:
            self._shard(subject.model)

    def _shard(self, model: Any) -> None:
        """FSDP2: every layer, and the rest, sharded over the processes."""
        for layer in self.subject.layers():
            fully_shard(layer)
        fully_shard(model)
        # What Transformers calls a model that owns its placement: Accelerate then leaves it as it is.
        self.is_distributed_loading_by_transformers = True
        model._is_fsdp_managed_module = True

    @contextmanager
    def _defer_fsdp_gradient_reduction(self) -> Iterator[None]:
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.model.set_requires_gradient_sync(True)

    # --- what a step is made of ---

    def get_train_dataloader(self) -> DataLoader:
        """Batches of this process. Not Accelerate's loader: the data is sharded already, and resumes by itself."""
        # A generator of its own: a loader that starts draws a number, and a resumed run starts one more.
        return DataLoader(self.data.train, batch_size=self._train_batch_size, generator=torch.Generator())

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The recipe's AdamW."""
        if self.optimizer is None:
            self.optimizer: Any = self.recipe.optimizer(model or self.model)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The recipe's schedule, whose length is the recipe's, wherever the run stops."""
        optimizer = optimizer or self.optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", self.recipe.learning_rate)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: self.recipe.learning_rate_at(min(step, self.recipe.steps)) / self.recipe.learning_rate,
            last_epoch=self.state.global_step - 1,  # a function of the step alone, so a resumed run needs no more
        )
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Cross-entropy over all real targets of the step, and the penalties; this part's share of both.

        Raises:
            FloatingPointError: a non-finite loss or deductive output, with the step and the last good checkpoint.
        """
        assert num_items_in_batch is not None
        passed = self.subject.forward(
            model, inputs, num_items_in_batch, self.penalties.needs_deductive, self.penalties.alignment_blocks
        )
        # Processes average their gradients, accumulated parts add them up.
        parts = self.recipe.accumulate
        entropy = passed.loss * self.args.world_size
        if (self.state.global_step + 1) % self.args.logging_steps == 0:
            self._accuracy = self._accuracy + passed.hits() * self.args.world_size / num_items_in_batch
        penalty, values = self.penalties.parts(self.state.global_step, passed.deductive, passed.alignment)
        loss = entropy + penalty / parts
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss.item()}")
        self._count("loss", entropy)
        for name, value in values.items():
            self._count(name, value / parts)
        if len(self.losses) == self.state.global_step - self._globalstep_last_logged:
            self.losses.append(torch.zeros((), device=entropy.device))
        self.losses[-1] += entropy.detach()
        return (loss, passed.outputs) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward pass of one part; non-finite numbers end the run with step and remedy."""
        try:
            return super().training_step(*args, **kwargs)
        except FloatingPointError as error:
            raise FloatingPointError(self._non_finite(str(error))) from None

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """Clip as the recipe says, and give the norm before.

        Raises:
            FloatingPointError: a non-finite gradient, with its parameter, layer and heads.
        """
        named = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        norm = checkpoints.whole(nn.utils.get_total_norm(list(named.values())))
        if not torch.isfinite(norm):
            raise FloatingPointError(self._non_finite(_first_non_finite(named)))
        if self.recipe.clip == "value":
            for gradient in named.values():
                gradient.clamp_(-self.recipe.clip_at, self.recipe.clip_at)
        else:
            factor = (self.recipe.clip_at / (norm + 1e-6)).clamp(max=1.0)
            for gradient in named.values():
                gradient.mul_(factor)
        return norm

    def _non_finite(self, what: str) -> str:
        kept = f"the last good checkpoint is {self.last_checkpoint}" if self.last_checkpoint else "no checkpoint yet"
        return f"step {self.state.global_step}: {what}; {kept}"

    # --- what a log line says ---

    def _count(self, name: str, value: Tensor) -> None:
        self._sums[name] = self._sums[name] + value.detach()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add to a log line of training what was counted since the last: means over steps and processes."""
        self.state.epoch = None  # the data has no end, and what Trainer takes for one is another after a resume
        if "grad_norm" in logs:
            steps = len(self.losses)
            counted = {name: float(value) / steps for name, value in self._sums.items()}
            if self.state.global_step % self.args.logging_steps == 0:
                counted["accuracy"] = float(self._accuracy)  # of the last step alone: it costs a pass of the head
            by_process = checkpoints.gathered(counted)
            logs |= {name: sum(c[name] for c in by_process) / len(by_process) for name in counted}
            logs |= {
                f"coefficient_{n}": c for n, c in self.penalties.coefficients(self.state.global_step - 1).items() if c
            }
            now = time.perf_counter()
            tokens = steps * self.recipe.batch * self.settings.context
            if bad := sum(self.data.bad_rows.values()):
                logs["bad_rows"] = bad  # of this process
            logs["tokens_per_second"] = tokens / (now - self._last_logged)
            self._look_at_losses()
            self._sums.clear()
            self._accuracy = 0.0
            self._last_logged = now
            super().log(logs, start_time)
            self.monitor.after_log()
        else:
            super().log(logs, start_time)

    def _look_at_losses(self) -> None:
        mine = torch.stack(self.losses).tolist()
        by_process = checkpoints.gathered(mine)
        means = [math.fsum(column) / len(column) for column in zip(*by_process, strict=True)]
        first = self.state.global_step - len(means) + 1
        for guard in self.guards:
            guard.on_losses(first, means)
        self.losses.clear()

    def record(self, **event: Any) -> None:
        """Put an event into the history that every checkpoint carries."""
        self.state.log_history.append({**event, "step": self.state.global_step})

    # --- checkpoints ---

    def _consumed_at(self, step: int) -> int:
        """Windows that this process had taken from the data after a step, as the data counts them: where another
        number of processes goes on, it does not count from the beginning."""
        since, consumed = self._data_since
        return consumed + (step - since) * (self.recipe.batch // self.args.world_size)

    def _save_checkpoint(self, model: nn.Module, trial: Any = None) -> None:
        step = self.state.global_step
        checkpoints.save(
            self.settings.logging.output,
            step,
            self.model,
            self.optimizer.optimizer,
            self.data.tokenizer,
            own=self.data.train.state(self._consumed_at(step)),
            shared={
                "settings": self.settings.model_dump(mode="json"),
                "data": self.data.identity,
                "boost": self.penalties.boost,
                "guards": {guard.name: guard.state() for guard in self.guards},
            },
            trainer_state=json.dumps({k: v for k, v in vars(self.state).items() if k != "stateful_callbacks"}),
            keep=self.settings.logging.keep,
        )
        self.last_checkpoint = self.settings.logging.output / f"checkpoint-{step}"

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        path = Path(resume_from_checkpoint)
        checkpoints.restore_model(path, self.model)
        run = checkpoints.read_run(path)
        processes = run["processes"]
        same = len(processes) == self.args.world_size
        self.data.train.load_state(processes[self.args.process_index if same else 0])
        self._data_since = checkpoints.step_of(path), self.data.train.consumed
        self.penalties.boost = run["boost"]
        for guard in self.guards:
            guard.load_state(run["guards"][guard.name])
        self.last_checkpoint = path

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            checkpoints.restore_optimizer(Path(checkpoint), self.model, self.optimizer.optimizer)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            checkpoints.restore_random(Path(checkpoint))


def require_equal_parts(settings: RunSettings, processes: int) -> None:
    """Raise ValueError unless a batch divides into equal parts, one at a time for each process."""
    batch, accumulate = settings.optimizer.batch, settings.optimizer.accumulate
    if batch % (processes * accumulate):
        those = f"{processes} processes x " if processes > 1 else ""
        raise ValueError(
            f"optimizer.batch is {batch}, expected a multiple of {those}optimizer.accumulate = {accumulate}"
        )


def _trackers(names: Sequence[str]) -> list[transformers.TrainerCallback]:
    """Trackers of Transformers' Trainer. It would make them itself, and end in whatever each of them raises."""
    made = []
    for name in names:
        try:
            made.append(INTEGRATION_TO_CALLBACK[name]())
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"logging.report_to: {name}: {reason}") from error
    return made


def _arguments(settings: RunSettings) -> TrainingArguments:
    recipe, logging = settings.optimizer, settings.logging
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return TrainingArguments(
        output_dir=str(logging.output),
        per_device_train_batch_size=recipe.batch // (processes * recipe.accumulate),
        gradient_accumulation_steps=recipe.accumulate,
        average_tokens_across_devices=True,
        max_steps=recipe.last,
        max_grad_norm=recipe.clip_at,  # that it is not zero makes the Trainer call our clipping
        bf16=recipe.precision == "bf16",
        torch_compile=recipe.compile,
        activation_checkpointing=recipe.checkpointing == "layers",
        logging_steps=logging.every,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=logging.save_every,
        disable_tqdm=True,
        report_to=[],  # see _trackers
        seed=recipe.seed,
        ignore_data_skip=True,  # the data resumes by itself
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        use_cpu=not torch.cuda.is_available(),
    )


def _first_non_finite(named: dict[str, Tensor]) -> str:
    for name, gradient in named.items():
        whole = checkpoints.whole(gradient)
        if not bool(whole.isfinite().all()):
            heads = ""
            if ".operator." in name and whole.dim() == 3:  # [H, d, d]
                broken = (~whole.isfinite().all(dim=(-2, -1))).nonzero().flatten().tolist()
                heads = f" in heads {broken}"
            return f"the gradient of {name} is not finite{heads}"
    return "the norm of the gradient overflows"
