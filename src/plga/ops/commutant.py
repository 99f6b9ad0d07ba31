"""Matrices that commute with every rotary rotation: their projection, and how far a matrix is from it.

The rotation by position t turns the pair a of coordinates by t θ_a (arXiv:2104.09864). A matrix that commutes with the
turns of each pair by every angle consists of one block [[α, -β], [β, α]] a pair and zeros elsewhere (Schur's lemma on
the pairs). Such a matrix commutes with the rotations of every position; where two frequencies coincide others do too,
which are not looked for here.
"""

import torch
from torch import Tensor

from plga.ops import _check


def commutant_projection(g: Tensor, interleaved: bool = True) -> Tensor:
    """The nearest matrix, in the Frobenius norm, that commutes with the rotations: the mean of R G Rᵀ over all angles.

    Args:
        g: [..., d, d], d even, finite.
        interleaved: pairs are (2a, 2a+1), as in :func:`plga.ops.rotary.rotate_interleaved`; False: (a, a + d/2), as in
            :func:`plga.ops.rotary.rotate_half`.

    Returns:
        [..., d, d].

    Raises:
        ValueError: ``g`` is not a finite floating [..., d, d] with an even d.
    """
    _check.square("g", g)
    _check.finite("g", g)
    width = g.shape[-1]
    if width % 2:
        raise ValueError(f"g is {tuple(g.shape)}, expected [..., d, d] with an even d")
    half = torch.arange(width // 2, device=g.device)
    first, second = (2 * half, 2 * half + 1) if interleaved else (half, half + width // 2)
    alpha = (g[..., first, first] + g[..., second, second]) / 2
    beta = (g[..., second, first] - g[..., first, second]) / 2
    projected = torch.zeros_like(g)
    projected[..., first, first], projected[..., second, second] = alpha, alpha
    projected[..., second, first], projected[..., first, second] = beta, -beta
    return projected


def commutant_residual(g: Tensor, interleaved: bool = True) -> Tensor:
    """‖G - Π(G)‖_F / ‖G‖_F, Π being :func:`commutant_projection`: 0 where G commutes, 1 where nothing of it does.

    Args and errors as for :func:`commutant_projection`.

    Returns:
        [...], in float64, in [0, 1]; 0 for a zero matrix.
    """
    _check.square("g", g)
    # In units of the largest entry, so that no square leaves the dtype.
    peak = g.double().abs().amax(dim=(-2, -1), keepdim=True)
    unit = g.double() / torch.where(peak > 0, peak, 1.0)
    norm = torch.linalg.matrix_norm(unit)
    distance = torch.linalg.matrix_norm(unit - commutant_projection(unit, interleaved))
    return torch.where(norm > 0, distance / norm.clamp(min=torch.finfo(norm.dtype).tiny), 0.0)
