"""The order parameter in the history of any Trainer of Transformers."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from plga.criticality.callback import OrderParameterCallback
from plga.criticality.order_parameter import deductive_outputs, fluctuation
from tests.training import examples


class Batches(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(examples.VOCABULARY, (9,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def test_it_looks_every_so_many_steps_and_after_the_last(tmp_path: Path) -> None:
    model = examples.model()
    probe = torch.randint(examples.VOCABULARY, (3, 9))
    untrained = fluctuation(deductive_outputs(model, probe).curvature)
    trainer = Trainer(
        model,
        TrainingArguments(
            str(tmp_path), max_steps=5, learning_rate=1e-2, report_to=[], disable_tqdm=True, save_strategy="no"
        ),
        train_dataset=Batches(),
        callbacks=[OrderParameterCallback(probe, every=2)],
    )
    trainer.train()
    looks = [entry for entry in trainer.state.log_history if "order_parameter" in entry]
    assert [look["step"] for look in looks] == [2, 4, 5]
    outputs = deductive_outputs(model, probe)
    assert looks[-1] == {
        "order_parameter": fluctuation(outputs.curvature),
        "order_parameter_A": fluctuation(outputs.generator),
        "order_parameter_A_LM": fluctuation(outputs.metric),
        "order_parameter_A_P": fluctuation(outputs.potential),
        "step": 5,
    }
    assert looks[-1]["order_parameter"] != untrained
    assert model.training  # as the Trainer left it


def test_a_probe_that_cannot_fluctuate() -> None:
    with pytest.raises(ValueError, match=r"probe is \(1, 9\), expected \[N, S\] with N >= 2 inputs"):
        OrderParameterCallback(torch.ones(1, 9, dtype=torch.int64), 1)
    with pytest.raises(ValueError, match="every is 0"):
        OrderParameterCallback(torch.ones(2, 9, dtype=torch.int64), 0)
