"""Weighted kernel averages by the memory `nadaraya_watson`: what a query sees is told by `valid` of its own batch row.

    yhat(x) = sum_j p_j(x) y_j,   p_j(x) = w_j K_j(x) / sum w K,   K_j(x) = exp(-sum_k (x_k - x_jk)^2 / (2 h_k^2))

The memory knows one bandwidth and no weights: it is given columns divided by h, and values (w y, w), of which it
returns the averages under K / sum K: their quotient is the weighted average.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from ..core.dispatch import read
from ..core.registry import get
from ..core.state import init_state

BLOCK = 2**20  # numbers in the largest array of one block of queries: bounds the memory, changes no number
FAR = 1e100  # bandwidths from the median row: beyond, squares would overflow


class Rows(NamedTuple):
    """X [n, d], y [n, V], weight [n], all weights positive."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray


def averages(
    rows: Rows, bandwidth: np.ndarray, queries: np.ndarray, low: np.ndarray, high: np.ndarray,
    own: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Averages [m, V] around queries [m, d]: query i sees the rows low_i <= j < high_i (without j = own_i).

    A query that sees nothing gets 0. By `read`, not by the faster `chunked`: its distances are differences, exact also
    for rows far from each other, and a query's answer does not depend on the queries asked with it.
    """
    (n, d), V = rows.X.shape, rows.y.shape[1]
    memory = get("nadaraya_watson")
    empty = init_state(memory, 1, 1, d, V + 1, dtype=torch.float64)
    # before the division, so that large columns keep their digits; the median, so that one far row costs none
    center = np.median(rows.X, axis=0) if n else np.zeros(d)
    with np.errstate(over="ignore"):
        keys, asked = (torch.from_numpy(np.clip((x - center) / bandwidth, -FAR, FAR)) for x in (rows.X, queries))
    weight = rows.weight[:, None] / rows.weight.max(initial=0)
    values = torch.from_numpy(np.concatenate([weight * rows.y, weight], 1))
    output = np.zeros((len(queries), V))
    width = int((high - low).max(initial=0))
    size = max(1, min(BLOCK // (max(width, 1) * d), max(width, 64)))  # a block sees at most width + size rows
    for a in range(0, len(queries), size):
        block = slice(a, a + size)
        first, last = int(low[block].min()), int(high[block].max())
        place = np.arange(first, last)
        visible = (place >= low[block, None]) & (place < high[block, None])
        if own is not None:
            visible &= place != own[block, None]
        m = len(visible)
        state = replace(
            empty,
            position=torch.zeros(m, dtype=torch.int64),
            memory={
                "keys": keys[first:last].expand(m, 1, -1, -1),
                "values": values[first:last].expand(m, 1, -1, -1),
                "valid": torch.from_numpy(visible),
            },
        )
        answers = read(memory, asked[block, None, None], state)[:, 0, 0].numpy()
        total = answers[:, -1:]
        np.divide(answers[:, :-1], total, out=output[block], where=total > 0)
    return output
