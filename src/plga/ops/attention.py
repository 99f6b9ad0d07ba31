"""Bilinear attention softmax(q G kᵀ / √d) v on torch's fused attention kernels (arXiv:2608.10288)."""

import torch
from torch import Tensor

from plga.ops import _check


def bend(q: Tensor, curvature: Tensor, check_values: bool = True) -> Tensor:
    """q' = q G, after which ordinary attention on q', k, v is bilinear attention on q, k, v.

    With G = I the result is ``q`` bit for bit: every sum has one term that is not zero.

    Args:
        q: queries, [..., H, S, d].
        curvature: G_LM, broadcastable to [..., H, d, d]; cast to the dtype of ``q``, and only here.
        check_values: also look for non-finite entries (on an accelerator this waits for it).

    Returns:
        q', [..., H, S, d].

    Raises:
        ValueError: ``curvature`` is not a floating [..., d, d] that fits ``q``, or an entry of either is not finite
            (G_LM after its cast).
    """
    if _is_of_one_sequence(q, curvature) and not check_values:
        return torch.bmm(q[0], curvature).unsqueeze(0)
    _check.floating("q", q, min_dims=2)
    _check.square("curvature", curvature)
    width = q.shape[-1]
    _check.broadcasts("curvature", curvature, (*q.shape[:-2], width, width), "[..., H, d, d] with the H and d of q")
    curvature = curvature.to(q.dtype)
    if check_values:
        _check.finite("q", q)
        _check.finite("curvature", curvature)
    return q @ curvature


def _is_of_one_sequence(q: Tensor, curvature: Tensor) -> bool:
    """Whether the two fit without broadcasting: [1, H, S, d] and [H, d, d]. At each generated token, calls count."""
    return (
        not torch.compiler.is_compiling()  # which may leave the number of sequences open
        and q.dim() == 4
        and q.dtype.is_floating_point
        and q.dtype == curvature.dtype
        and q.shape[0] == 1
        and q.shape[3] > 0
        and curvature.shape == (q.shape[1], q.shape[3], q.shape[3])
    )


def bilinear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    curvature: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    check_values: bool = True,
) -> Tensor:
    """softmax(mask(q G kᵀ · scale)) v without forming the S x S matrix (arXiv:2608.10288).

    Args:
        q: queries, [..., H, S, d].
        k, v: keys and values, [..., H, T, d] and [..., H, T, d_v].
        curvature: G_LM, broadcastable to [..., H, d, d]. None is SDPA, which G = I equals bit for bit.
        mask: bool, True where a query may look, broadcastable to [..., H, S, T]; or floating, added to the scores.
            For padding of the keys pass [B, 1, 1, T].
        causal: query s looks only at keys t <= s (S and T counted from the same first token, so S = T).
            With a bool ``mask`` too, both hold.
        scale: 1/√d by default.
        check_values: also look for non-finite entries: a fused kernel may take a NaN score for a masked one and
            return zeros. On an accelerator this waits for it.

    Returns:
        [..., H, S, d_v].

    Raises:
        ValueError: shapes or dtypes that do not fit, or a non-finite entry, naming the argument.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check.floating(name, tensor, min_dims=2)
    _check.same_dtype(q=q, k=k, v=v)
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k is {tuple(k.shape)}, expected [..., H, T, d] with the d = {q.shape[-1]} of q")
    if v.shape[-2] != k.shape[-2]:
        raise ValueError(f"v is {tuple(v.shape)}, expected [..., H, T, d_v] with the T = {k.shape[-2]} of k")
    for name, tensor in (("k", k), ("v", v)):
        _check.broadcasts(name, tensor, (*q.shape[:-2], *tensor.shape[-2:]), "the leading axes of q")
    if check_values:
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            _check.finite(name, tensor)
    scores_shape = (*q.shape[:-1], k.shape[-2])
    if causal and q.shape[-2] != k.shape[-2]:
        raise ValueError(f"causal needs as many queries as keys, got q {tuple(q.shape)} and k {tuple(k.shape)}")
    if mask is not None:
        _check.tensor("mask", mask)
        if mask.dtype != torch.bool and mask.dtype != q.dtype:
            raise ValueError(f"mask is {tuple(mask.shape)} {mask.dtype}, expected bool or the dtype of q, {q.dtype}")
        _check.broadcasts("mask", mask, scores_shape, "[..., H, S, T]")
        if causal:  # torch takes one or the other
            if mask.dtype != torch.bool:
                raise ValueError(f"mask is {tuple(mask.shape)} {mask.dtype}, expected bool together with causal=True")
            mask, causal = mask & torch.ones(scores_shape[-2:], dtype=torch.bool, device=q.device).tril(), False
    if curvature is not None:
        q = bend(q, curvature, check_values)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
