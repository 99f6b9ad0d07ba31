"""The objective is the cross-entropy of the model's logits, in value and in gradient."""

import torch
from torch.nn import functional

from plga.training.objective import accuracy, block_loss, next_token_loss
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


def test_block_loss_of_padded_sequences_with_and_without_a_number_of_items() -> None:
    model = examples.model(dtype=torch.float64)
    ids = torch.randint(1, examples.VOCABULARY, (2, 6))
    labels, mask = torch.randint(examples.VOCABULARY, (2, 6)), torch.ones(2, 6, dtype=torch.long)
    labels[1, 4:], mask[1, 4:] = -100, 0

    result = block_loss(model, ids, labels, mask, output_deductive=True)
    outputs = model(ids, attention_mask=mask, output_deductive=True)
    summed = functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(result.loss, summed / 10, rtol=1e-10, atol=0)
    assert torch.equal(model.lm_head(result.hidden_states), outputs.logits)
    assert len(result.deductive) == 2
    assert all(torch.equal(*both) for both in zip(result.deductive[1], outputs.deductive[1], strict=True))

    result = block_loss(model, ids, labels, mask, num_items=40)
    torch.testing.assert_close(result.loss, summed / 40, rtol=1e-10, atol=0)
    assert result.deductive is None


def test_accuracy_counts_labels_only() -> None:
    model = examples.model()
    ids = torch.randint(examples.VOCABULARY, (2, 6))
    labels = model(ids).logits.argmax(dim=-1)
    hidden = block_loss(model, ids, labels).hidden_states
    assert float(accuracy(hidden, model.lm_head, labels)) == 1
    labels[0, :3] = (labels[0, :3] + 1) % examples.VOCABULARY
    labels[1, :4] = -100
    assert float(accuracy(hidden, model.lm_head, labels)) == 5 / 8
    assert accuracy(hidden, model.lm_head, torch.full_like(labels, -100)).isnan()
