"""What mode ``recompute`` keeps of the first layer: one row a token, and nothing once the prefix is another."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from plga.model.cache import PldrCache
from plga.model.modeling import PldrForCausalLM
from tests.model.conftest import VOCABULARY, relative, tiny, tokens

LENGTH = 6


def seen_by_first_layer(model: PldrForCausalLM) -> list[int]:
    """Rows that each pass projects; a hook on the input would itself have every row computed."""
    rows: list[int] = []
    projection = model.model.layers[0].self_attn.k_proj
    forward = projection.forward

    def counted(x: Tensor) -> Tensor:
        rows.append(x.shape[1])
        return forward(x)

    projection.forward = counted  # type: ignore[method-assign]
    return rows


def written(model: PldrForCausalLM, ids: Tensor, mask: Tensor | None = None) -> tuple[PldrCache, list[Tensor]]:
    """A cache after all tokens, and the logits of the last three, read one at a time."""
    cache, logits = PldrCache(model.config, "recompute"), []
    for first, last in ((0, LENGTH - 3), *((i, i + 1) for i in range(LENGTH - 3, LENGTH))):
        known = None if mask is None else mask[:, :last]
        logits.append(model(ids[:, first:last], attention_mask=known, cache=cache).logits[:, -1])
    return cache, logits[1:]


@torch.no_grad()
@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("interleaved", [True, False])
def test_each_step_projects_one_row_and_equals_one_pass(interleaved: bool, padding: int) -> None:
    model, ids = tiny(rope_interleaved=interleaved), tokens(2, LENGTH)
    rows = seen_by_first_layer(model)
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    _, logits = written(model, ids, mask)
    assert rows == [LENGTH - 3, 1, 1, 1]
    for step, ours in enumerate(logits, start=LENGTH - 2):
        whole = model(ids[:, :step], attention_mask=mask[:, :step]).logits[:, -1]
        assert relative(ours, whole) < 1e-9


def swap(cache: PldrCache) -> None:
    cache.reorder_cache(torch.tensor([1, 0]))


@torch.no_grad()
@pytest.mark.parametrize(
    ("change", "prefix"),
    [
        (swap, lambda ids: ids.flip(0)),
        (lambda cache: cache.batch_repeat_interleave(2), lambda ids: ids.repeat_interleave(2, dim=0)),
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), lambda ids: ids[1:]),
        (lambda cache: cache.crop(-2), lambda ids: ids[:, :-2]),
        (lambda cache: cache.reset(), lambda ids: ids[:, :0]),
    ],
    ids=["reorder", "repeat", "select", "crop", "reset"],
)
def test_another_prefix_is_projected_anew(
    change: Callable[[PldrCache], None], prefix: Callable[[Tensor], Tensor]
) -> None:
    model, ids = tiny(), tokens(2, LENGTH)
    cache, _ = written(model, ids)
    change(cache)
    known = prefix(ids)
    new = torch.full((len(known), 1), VOCABULARY - 1)
    rows = seen_by_first_layer(model)
    ours = model(new, cache=cache).logits[:, -1]
    assert rows == [known.shape[1] + 1]
    assert relative(ours, model(torch.cat((known, new), dim=1)).logits[:, -1]) < 1e-9


@pytest.mark.parametrize("hooked", [True, False], ids=["hook", "gradients"])
def test_hooks_and_gradients_get_every_row(hooked: bool) -> None:
    model, ids, seen = tiny(), tokens(1, LENGTH), []
    with torch.no_grad():
        cache, _ = written(model, ids)
    if hooked:
        projection = model.model.layers[0].self_attn.q_proj
        projection.register_forward_hook(lambda module, given, output: seen.append(output.shape[1]))
    new = torch.full((1, 1), VOCABULARY - 1)
    with torch.set_grad_enabled(not hooked):
        ours = model(new, cache=cache).logits[:, -1]
        whole = model(torch.cat((ids, new), dim=1)).logits[:, -1]
    assert relative(ours.detach(), whole.detach()) < 1e-9
    assert seen == ([LENGTH + 1] * 2 if hooked else [])
    assert cache.steps.rows.length == 0
