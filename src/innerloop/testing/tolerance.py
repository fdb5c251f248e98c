"""The one table of tolerances, and the comparison that reads it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Tolerance(NamedTuple):
    """Largest error of values and of gradients, relative to the largest entry of the expected tensor."""

    values: float
    gradients: float


TOLERANCES = {
    torch.float64: Tolerance(1e-10, 1e-9),
    torch.float32: Tolerance(1e-5, 1e-3),
    torch.bfloat16: Tolerance(2e-2, 5e-2),
}


def assert_close(
    got: Tensor,
    wanted: Tensor,
    what: str = "tensor",
    *,
    gradient: bool = False,
    dtype: torch.dtype | None = None,
    scale: float = 0.0,
    slack: float = 1.0,
) -> None:
    """Raise AssertionError unless `got` equals `wanted` within the table's tolerance.

    The error is taken relative to the largest finite entry of `wanted` (or to `scale`, when that is larger); infinite
    and NaN entries must stand in the same places. `dtype` names the row of the table (default: got's); `slack` times
    its tolerance is allowed, and the caller says why.
    """
    row = TOLERANCES[got.dtype if dtype is None else dtype]
    allowed = slack * (row.gradients if gradient else row.values)
    assert got.shape == wanted.shape, f"{what}: shape {list(got.shape)}, wanted {list(wanted.shape)}"
    if not wanted.numel():
        return
    a, b = got.detach().to(torch.float64), wanted.detach().to(torch.float64)
    finite = b.isfinite()
    same = (a == b) | (a.isnan() & b.isnan())
    assert bool((finite | same).all()), f"{what}: infinite or NaN entries differ"
    assert bool(a[finite].isfinite().all()), f"{what}: {int((~a[finite].isfinite()).sum())} entries are not finite"
    if not finite.any():
        return
    size = max(float(b[finite].abs().max()), scale)
    error = float((a[finite] - b[finite]).abs().max())
    assert error <= allowed * size, (
        f"{what}: error {error:.2e} of {size:.2e}, relative {error / (size or 1):.1e} > {allowed:g}"
    )
