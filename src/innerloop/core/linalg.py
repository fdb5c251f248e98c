"""Dense linear algebra that the oracle and the executors share: a library call each, with the edge cases settled."""

from __future__ import annotations

from typing import Any

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


def quadratic(matrix: Tensor, x: Tensor) -> Tensor:
    """`x^T matrix^-1 x` [...] for positive semidefinite matrices [..., K, K] and x [..., K].

    Infinite where x leaves the range of a singular matrix: a direction of which nothing is known.
    """
    factor, regular = cholesky(matrix)
    if not eager() or bool(regular.all()):
        return torch.linalg.solve_triangular(factor, x[..., None], upper=False).square().sum((-2, -1))
    solved = solve_psd(matrix, x[..., None])
    scale = matrix.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))  # columns in their own units, as `cholesky` sees them
    lost = ((matrix @ solved)[..., 0] - x) / scale
    outside = ~regular & (lost.square().sum(-1) > 1e-12 * (x / scale).square().sum(-1))
    return torch.where(outside, torch.full_like(x[..., 0], torch.inf), (x * solved[..., 0]).sum(-1))


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


class _Power(torch.autograd.Function):
    """`matrix^exponent` of symmetric positive matrices, whose derivative has no trouble with equal eigenvalues.

    In the eigenbasis, `d f(A)_ij = dA_ij (f(x_i) - f(x_j)) / (x_i - x_j)`, and f'(x_i) where x_i = x_j (Daleckii and
    Krein): no difference of eigenvectors is ever divided by a small gap. Here f is constant below a floor.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, exponent: float) -> Tensor:
        digits, wide = torch.finfo(matrix.dtype), matrix.to(torch.float64)
        wide = (wide + wide.mT) / 2
        x, vectors = _eigh(wide)
        # what the matrix's own digits do not tell from 0, and may have turned below it
        floor = (digits.eps * x[..., -1:]).clamp(min=torch.finfo(torch.float64).tiny ** 0.5)
        ctx.save_for_backward(x, vectors, floor)
        ctx.exponent, ctx.dtype = exponent, matrix.dtype
        return ((vectors * torch.maximum(x, floor)[..., None, :] ** exponent) @ vectors.mT).to(matrix.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        x, vectors, floor = ctx.saved_tensors
        p, kept = ctx.exponent, torch.maximum(x, floor)
        a, b = kept[..., :, None], kept[..., None, :]
        larger, ratio = torch.maximum(a, b), torch.minimum(a, b) / torch.maximum(a, b)
        # (a^p - b^p) / (a - b) = larger^(p-1) (1 - ratio^p) / (1 - ratio), by expm1 and log1p of the small gap
        gap = torch.log(ratio)
        equal = gap == 0
        safe = torch.where(equal, -torch.ones_like(gap), gap)
        slope = torch.where(equal, torch.full_like(gap, p), torch.expm1(p * safe) / torch.expm1(safe))
        # below the floor f stands still while x goes on: nothing between two such, the rest over the longer way
        low = (x < floor)[..., :, None] | (x < floor)[..., None, :]
        way = (x[..., :, None] - x[..., None, :]).abs()
        share = torch.where(low, (a - b).abs() / torch.where(way > 0, way, torch.ones_like(way)), torch.ones_like(way))
        grad = vectors.mT @ grads[0].to(torch.float64) @ vectors
        grad = vectors @ (grad * larger ** (p - 1) * slope * share) @ vectors.mT
        return ((grad + grad.mT) / 2).to(ctx.dtype), None


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors of symmetric float64 matrices; NaN, not an error, where one is infinite.

    Each is taken in units of its largest entry. Where the library's iteration does not end, the singular vectors, which
    are found another way, give the same.
    """
    finite = matrix.isfinite().all(-1).all(-1)[..., None, None]
    unit = matrix.abs().amax((-2, -1), keepdim=True)
    unit = torch.where(finite & (unit > 0), unit, torch.ones_like(unit))
    scaled = torch.where(finite, matrix / unit, torch.zeros_like(matrix))
    try:
        x, vectors = torch.linalg.eigh(scaled)
    except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
        left, _, _ = torch.linalg.svd(scaled)
        # (they may mix x and -x, which a positive matrix does not have but for rounding)
        x, order = ((left.mT @ scaled) * left.mT).sum(-1).sort(-1)
        vectors = left.gather(-1, order[..., None, :].expand_as(left))
    x = torch.where(finite[..., 0], x * unit[..., 0], torch.full_like(x, float("nan")))
    return x, vectors


def power(matrix: Tensor, exponent: float) -> Tensor:
    """`matrix^exponent` of symmetric positive matrices [..., K, K], differentiable once; in float64 inside.

    Eigenvalues below the rounding error of the largest, in the matrix's dtype, count as that: neither they nor a
    negative one that rounding left are raised to a negative power. A matrix that is not finite gives NaN.
    """
    return _Power.apply(matrix, exponent)  # pyright: ignore
