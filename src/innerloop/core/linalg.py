"""Dense linear algebra that the oracle and the executors share: a library call each, with the edge cases settled."""

from __future__ import annotations

import torch
from torch import Tensor


def eager() -> bool:
    """False while torch.compile traces: checks that look at values are skipped there."""
    return not torch.compiler.is_compiling()


def solve_psd(matrix: Tensor, right: Tensor) -> Tensor:
    """`matrix^-1 right` for symmetric positive semidefinite matrices [..., K, K]; minimum norm where singular.

    Cholesky where it succeeds well above rounding, the pseudo-inverse elsewhere. Gradients flow through both.
    """
    factor, regular = cholesky(matrix)
    if not eager() or bool(regular.all()):
        return torch.cholesky_solve(right, factor)
    good = regular[..., None, None]
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    factor, _ = torch.linalg.cholesky_ex(torch.where(good, matrix, eye))
    # regular matrices get the identity here, so that no gradient of their decomposition is asked for
    inverse = torch.linalg.pinv(torch.where(good, eye, matrix), hermitian=True)
    return torch.where(good, torch.cholesky_solve(right, factor), inverse @ right)


def solve_ridge(matrix: Tensor, ridge: Tensor, right: Tensor) -> Tensor:
    """`(matrix + ridge I)^-1 right` for positive semidefinite matrices [..., K, K] and ridges [...] >= 0.

    Worked in units of the whole, which may be tiny. A ridge below the rounding error of that is raised to it, so that
    what rounding left of the smallest directions is neither inverted nor differentiated; 0 without a ridge gives 0.
    """
    K, digits = matrix.shape[-1], torch.finfo(matrix.dtype)
    trace = matrix.detach().diagonal(dim1=-2, dim2=-1).sum(-1)
    unit = (trace + ridge.detach()).clamp(min=digits.tiny**0.5)  # gradients divide by it twice
    share = (ridge / unit).clamp(min=16 * K * digits.eps)
    unit = unit[..., None, None]
    return solve_psd(matrix / unit + torch.diag_embed(share[..., None].expand(*share.shape, K)), right / unit)


def cholesky(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Lower Cholesky factors [..., K, K] and which of them exist well above rounding error [...]."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    pivots = factor.detach().diagonal(dim1=-2, dim2=-1)
    scale = matrix.detach().diagonal(dim1=-2, dim2=-1)
    floor = matrix.shape[-1] * torch.finfo(matrix.dtype).eps
    # each pivot is compared with its own diagonal entry, so that badly scaled columns do not count as singular
    regular = (info == 0) & (pivots.square() > 4 * floor * scale).all(-1)
    return factor, regular


def segment_sums(gate: Tensor) -> Tensor:
    """Sums over (i, t] of a gate [..., c]: [..., c, c] with -inf above the diagonal, so that `exp` masks.

    Every entry is a sum over its own interval: a difference of two cumulative sums would lose float32's digits and
    turn -inf into NaN.
    """
    c = gate.shape[-1]
    t = torch.arange(c, device=gate.device)
    later = t[:, None] > t[None, :]
    terms = torch.where(later, gate[..., :, None], torch.zeros((), dtype=gate.dtype, device=gate.device))
    return terms.cumsum(-2).masked_fill(t[:, None] < t[None, :], float("-inf"))
