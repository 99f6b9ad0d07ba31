"""The loss without logits: PldrForCausalLM.forward(next_tokens=...) and what it is made of."""

import re
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from plga.model.loss import next_token_cross_entropy, next_token_hits
from plga.model.modeling import PldrForCausalLM
from tests.model.conftest import VOCABULARY, constant, pad, tiny, tokens

IDS = tokens(3, 7)
TARGETS = tokens(3, 7, seed=1).masked_fill(tokens(3, 7, seed=2) % 3 == 0, -100)  # a third of them is ignored


def plain(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


def gradients(loss: Tensor, model: PldrForCausalLM) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    for name, want in theirs.items():
        scale = float(want.abs().max())
        assert scale > 0, name
        torch.testing.assert_close(ours[name], want, rtol=tolerance, atol=tolerance * scale, msg=name)


@pytest.fixture
def chunks_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with thousands of rows: several chunks, the last one smaller."""
    monkeypatch.setattr("plga.model.loss.ROWS", 4)


@pytest.mark.usefixtures("chunks_of_four")
def test_equals_the_cross_entropy_of_the_logits() -> None:
    model = tiny()
    outputs = model(IDS, next_tokens=TARGETS)
    logits = model(IDS).logits
    assert outputs.logits is None
    assert torch.equal(model.lm_head(outputs.last_hidden_state), logits)
    expected = plain(logits, TARGETS)
    torch.testing.assert_close(outputs.loss, expected, rtol=1e-12, atol=0)
    assert_same(gradients(outputs.loss, model), gradients(expected, model), 1e-12)


@pytest.mark.usefixtures("chunks_of_four")
def test_in_float32_it_is_as_exact_as_the_plain_one() -> None:
    """Hidden states, head and targets alone: the layers below would magnify any rounding."""
    torch.manual_seed(0)
    hidden, head = torch.randn(3, 7, 8, requires_grad=True), nn.Linear(8, VOCABULARY)
    inputs = (hidden, head.weight, head.bias)
    loss = next_token_cross_entropy(hidden, head, TARGETS)
    ours = (loss, *torch.autograd.grad(loss, inputs))
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = plain(nn.functional.linear(*wide), TARGETS)
    for got, want in zip(ours, (expected, *torch.autograd.grad(expected, wide)), strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-6 * want.abs().max().item())


def test_labels_shifted_already_give_the_loss_of_labels() -> None:
    model, labels = tiny(), IDS.masked_fill(TARGETS == -100, -100)
    ours = model(IDS[:, :-1], next_tokens=labels[:, 1:]).loss
    # Their last row has no target, but G_LM must be built from the same tokens: so the last one is padding.
    mask = torch.ones_like(IDS)
    mask[:, -1] = 0
    theirs = model(IDS, attention_mask=mask, labels=labels).loss
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-6, atol=0)


def test_padding_changes_nothing() -> None:
    model, sequences = tiny(), [tokens(length, seed=length) for length in (3, 5, 8)]
    alone = torch.stack(
        [model(one[None, :-1], next_tokens=one[None, 1:], num_items_in_batch=1).loss for one in sequences]
    )
    ids, mask = pad(sequences, left=False)
    next_tokens = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
    together = model(ids[:, :-1], attention_mask=mask[:, 1:], next_tokens=next_tokens).loss
    torch.testing.assert_close(together, alone.sum() / (2 + 4 + 7), rtol=1e-12, atol=0)


def test_batches_of_one_step_add_up() -> None:
    model, count = tiny(), (TARGETS != -100).sum()
    whole = model(IDS, next_tokens=TARGETS).loss
    pieces = [
        model(IDS[rows], next_tokens=TARGETS[rows], num_items_in_batch=count).loss
        for rows in (slice(0, 1), slice(1, 3))
    ]
    torch.testing.assert_close(sum(pieces), whole, rtol=1e-12, atol=0)
    assert_same(gradients(sum(pieces), model), gradients(whole, model), 1e-12)
    assert model(IDS, labels=IDS, num_items_in_batch=10).loss.item() == pytest.approx(
        plain(model(IDS).logits[:, :-1], IDS[:, 1:], "sum").item() / 10, rel=1e-6
    )


def test_a_batch_without_targets() -> None:
    model, none = tiny(), torch.full_like(TARGETS, -100)
    assert model(IDS, next_tokens=none).loss.isnan()
    assert model(IDS, next_tokens=none, num_items_in_batch=5).loss.item() == 0


@pytest.mark.parametrize("autocast", [False, True], ids=["bfloat16", "autocast"])
def test_low_precision_logits_are_raised_to_float32(autocast: bool) -> None:
    model = tiny(torch.float32 if autocast else torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss, logits = model(IDS, next_tokens=TARGETS).loss, model(IDS).logits
    assert logits.dtype == torch.bfloat16 and loss.dtype == torch.float32
    assert torch.equal(loss, plain(logits.float(), TARGETS))
    assert all(gradient.abs().sum() > 0 for gradient in gradients(loss, model).values())


class Doubled(nn.Linear):
    """A head that is more than its weight and bias, as an adapter makes it."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def replaced(model: PldrForCausalLM) -> None:
    doubled = Doubled(8, VOCABULARY).double()
    doubled.load_state_dict(model.lm_head.state_dict())
    model.lm_head = doubled


def hooked(model: PldrForCausalLM) -> None:
    model.lm_head.register_forward_hook(lambda module, inputs, output: 2 * output)


def hooked_before(model: PldrForCausalLM) -> None:
    model.lm_head.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))


@pytest.mark.parametrize("change", [replaced, hooked, hooked_before])
def test_a_head_that_was_changed_is_called(change: Callable[[PldrForCausalLM], None]) -> None:
    model = tiny()
    before = model(IDS, next_tokens=TARGETS).loss
    change(model)
    after = model(IDS, next_tokens=TARGETS).loss
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, plain(model(IDS).logits, TARGETS), rtol=1e-12, atol=0)


@pytest.mark.usefixtures("chunks_of_four")
def test_hits() -> None:
    model = tiny()
    hidden, best = model(IDS, next_tokens=TARGETS).last_hidden_state, model(IDS).logits.argmax(dim=-1)
    targets = torch.where(IDS % 2 == 0, best, (best + 1) % VOCABULARY)
    targets[0, :3] = -100
    expected = int((IDS % 2 == 0).sum() - (IDS[0, :3] % 2 == 0).sum())
    assert 0 < expected < targets.numel()
    hits = next_token_hits(hidden, model.lm_head, targets)
    assert hits.dtype == torch.int64 and int(hits) == expected


@pytest.mark.parametrize("model", [tiny, constant], ids=["learned", "constant"])
def test_whole_graph_compilation(model: Callable[..., PldrForCausalLM]) -> None:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain_model = model(torch.float32)
        compiled = torch.compile(plain_model, fullgraph=True, backend="aot_eager")
        ours = compiled(IDS, next_tokens=TARGETS, use_cache=False).loss
        ours.backward()
    theirs = plain_model(IDS, next_tokens=TARGETS, use_cache=False).loss
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    ours_by_name = {name: p.grad for name, p in plain_model.named_parameters() if p.requires_grad}
    named = {name: p for name, p in plain_model.named_parameters() if p.requires_grad}
    assert_same(ours_by_name, dict(zip(named, torch.autograd.grad(theirs, list(named.values())), strict=True)), 1e-5)
    torch._dynamo.reset()


# Distributed ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[None]:
    """This process as a group of one: parameters are sharded and gathered as with many."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def shard(*parts: str) -> Callable[[PldrForCausalLM], PldrForCausalLM]:
    def sharded(model: PldrForCausalLM) -> PldrForCausalLM:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        for part in (*parts, ""):
            fully_shard(model.get_submodule(part), mesh=mesh)
        return model

    return sharded


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    "wrap",
    [
        nn.parallel.DistributedDataParallel,
        shard(),
        shard("model.layers.0", "model.layers.1"),
        shard("lm_head"),
    ],
    ids=["DDP", "FSDP", "FSDP, layers", "FSDP, head"],
)
def test_wrapped_models_compute_it_inside(wrap: Callable[[PldrForCausalLM], nn.Module]) -> None:
    model, other = tiny(), tiny()
    expected = model(IDS, next_tokens=TARGETS).loss
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = wrap(other)(IDS, next_tokens=TARGETS).loss
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    found = {name: getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for name, p in other.named_parameters()}
    assert_same(found, gradients(expected, model), 1e-12)


# Bad input ------------------------------------------------------------------------------------------------------------


def test_labels_of_both_kinds() -> None:
    with pytest.raises(ValueError, match=r"^expected at most one of labels and next_tokens$"):
        tiny()(IDS, labels=IDS, next_tokens=TARGETS)


@pytest.mark.parametrize("shape", [(3, 6), (2, 7), (21,)], ids=str)
def test_next_tokens_of_another_shape(shape: tuple[int, ...]) -> None:
    message = f"next_tokens is {shape}, expected [B, S] = (3, 7)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        tiny()(IDS, next_tokens=torch.ones(shape, dtype=torch.long))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        next_token_cross_entropy(torch.ones(3, 7, 8), nn.Linear(8, 9), torch.ones(shape, dtype=torch.long))


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_next_tokens_outside_the_vocabulary(token: int) -> None:
    targets = TARGETS.clone()
    targets[1, 3] = token
    with pytest.raises(ValueError, match=f"^token id {token} is outside the vocabulary of {VOCABULARY} pieces$"):
        tiny()(IDS, next_tokens=targets)
