"""What the tests of the sections audit: two reference checkpoints with opposite verdicts, and tiny models."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plga.audit.section import Quantity, Section
from plga.audit.subject import Subject
from plga.model.checkpoint import load_model
from plga.model.tokenizer import load_tokenizer
from tests.training import examples

TEXTS = (
    "def read_text(path):\n    with open(path) as file:\n        return file.read()\n",
    "class Counter(dict):\n    def __missing__(self, key):\n        return 0\n",
    "import os\nimport sys\n\nfor name in sorted(os.listdir(sys.argv[1])):\n    print(name)\n",
    "try:\n    value = int(text)\nexcept ValueError as error:\n    raise SystemExit(str(error)) from error\n",
)


@cache
def trained(reference: Path, name: str) -> Subject:
    """The reference checkpoint ``critical`` or ``subcritical`` with four prompts of 20 to 28 tokens, of either parity.

    Read only: the tests share it, and with it the passes over the prompts.
    """
    file = reference / f"{name}.pth"
    tokenizer = load_tokenizer(reference / "tokenizer.json")
    prompts = [tokenizer(text, return_tensors="pt").input_ids[0] for text in TEXTS]
    cut = tuple(prompt[:length] for prompt, length in zip(prompts, (20, 25, 28, 23), strict=True))
    return Subject(model=load_model(file), prompts=cut)


def tiny(lengths: tuple[int, ...] = (5, 4, 6), seed: int = 0, **changes: Any) -> Subject:
    """A new model of two layers and two heads of width 4, with seeded prompts."""
    model = examples.model(seed=seed, **changes)
    return Subject(model=model, prompts=tuple(prompt(length, seed + i) for i, length in enumerate(lengths)), seed=seed)


def prompt(length: int, seed: int = 0) -> Tensor:
    """Seeded tokens, [length]."""
    return torch.randint(examples.VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))


def summary(section: Section, subject: Subject) -> dict[str, Quantity]:
    """The quantities of a section by their names, of which no two are alike."""
    quantities = section.quantities(section.measure(subject))
    found = {quantity.name: quantity for quantity in quantities}
    assert len(found) == len(quantities)
    return found


def by_name(section: Section, raw: Any) -> dict[str, Any]:
    """The values of a section's quantities of some arrays, by name."""
    return {quantity.name: quantity.value for quantity in section.quantities(raw)}


def shown(subject: Subject, **tensors: Tensor) -> Subject:
    """A subject with the model of another, whose passes show what is given instead: each tensor [N, L, H, ...]."""
    visits = {}
    for number, given in enumerate(zip(*tensors.values(), strict=True)):
        of = dict(zip(tensors, given, strict=True))
        visit = subject.visit(number)
        deductive = visit.deductive._replace(**{k: v for k, v in of.items() if k in visit.deductive._fields})
        others = {k: v for k, v in of.items() if k not in visit.deductive._fields}
        visits[number] = visit._replace(deductive=deductive, **others)
    return Subject(model=subject.model, prompts=subject.prompts[: len(visits)], seed=subject.seed, _visits=visits)
