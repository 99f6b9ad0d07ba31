"""The objective is the cross-entropy of the model's logits, in value and in gradient."""

import torch
from torch.nn import functional

from plga.training.objective import next_token_loss
from tests.training import examples


def test_loss_and_gradients_are_those_of_plain_cross_entropy() -> None:
    model = examples.model(dtype=torch.float64)
    windows = torch.randint(examples.VOCABULARY, (3, examples.CONTEXT + 1))

    loss = next_token_loss(model, windows)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    logits = model(windows[:, :-1], use_cache=False).logits
    plain = functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    expected = torch.autograd.grad(plain, list(model.parameters()))

    torch.testing.assert_close(loss, plain, rtol=1e-10, atol=0)
    for (name, _), gradient, want in zip(model.named_parameters(), gradients, expected, strict=True):
        scale = float(want.abs().max())
        assert scale > 0, name  # the loss reaches every parameter
        torch.testing.assert_close(gradient, want, rtol=1e-10, atol=1e-10 * scale, msg=name)


def test_in_float32_too() -> None:
    model = examples.model()
    windows = torch.randint(examples.VOCABULARY, (3, examples.CONTEXT + 1))
    logits = model(windows[:, :-1], use_cache=False).logits
    plain = functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    torch.testing.assert_close(next_token_loss(model, windows), plain, rtol=1e-5, atol=0)
