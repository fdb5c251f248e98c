"""The dual form: one tile of a memory whose gradients are taken at the segment's start, without any per-token weight.

For every linear layer z = x W (+ b) the gradient of token i is rank one, x_i delta_i^T, with x_i the layer's input on
the key and delta_i the loss's gradient at its output, both at the anchor. With the coefficients of `coefficients.py`

    W_t = A_t W_0 + m_t U_0 + (1 - A_t) W_init - sum_i C[t, i] x_i delta_i^T        (W_init: decay toward it)

so that a layer, on inputs x'_t of the query pass, is three products and a masked one:

    z'_t = A_t (x'_t W_0) + m_t (x'_t U_0) + (1 - A_t) (x'_t W_init) - sum_i C[t, i] (x'_t . x_i) delta_i

(biases: the same with x = 1). Any network of such layers is read by putting this map in their place. At the tile's end

    W_c = A_c W_0 + m_c U_0 + (1 - A_c) W_init - X^T diag(C[c]) D        U_c = p_c U_0 - X^T diag(E[c]) D

    G heads of all rows, c tokens, n = c + window - 1 keys
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, bmm  # all products here are of three-dimensional tensors: @ would look first

from ..core.architecture import MLP, Architecture, Layer, Linear, Matrix, SwiGLU
from ..core.functions import EPS
from ..core.objective import Objective
from .activations import with_slope
from .coefficients import Rows

Weights = Mapping[str, Tensor]
KNOWN = (Matrix, MLP, SwiGLU)


class Pass(NamedTuple):
    """What the keys leave in each layer, by the weight's name: inputs X [G, n, in], gradients D [G, n, out]."""

    inputs: dict[str, Tensor]
    deltas: dict[str, Tensor]


def key_pass(architecture: Architecture, weights: Weights, x: Tensor, error: Callable[[Tensor], Tensor]) -> Pass:
    """Forward on keys x [G, n, K] and backward to every layer; `error` is minus the loss's gradient at the answer."""
    if isinstance(architecture, Matrix):
        return Pass({"S": x}, {"S": -error(x @ weights["S"])})
    if isinstance(architecture, SwiGLU):
        return _gated_pass(weights, x, error)
    assert isinstance(architecture, MLP)

    def linear(layer: Layer, x: Tensor) -> Tensor:
        weight, bias = layer
        y = bmm(x, weights[weight])
        return y if bias is None else y.add_(weights[bias][..., None, :])

    inputs, slopes = [x], []
    for layer in architecture.layers[:-1]:
        hidden, slope = with_slope(architecture.activation, linear(layer, inputs[-1]))
        inputs.append(hidden)
        slopes.append(slope)
    y = linear(architecture.layers[-1], inputs[-1])
    delta = -error(architecture.finish(dict(weights), x, y))
    if architecture.norm:
        delta = _norm_backward(delta, y, weights["norm_weight"])
    names = [weight for weight, _ in architecture.layers]
    deltas = {names[-1]: delta}
    for name, lower, slope in zip(names[:0:-1], names[-2::-1], slopes[::-1], strict=True):
        delta = bmm(delta, weights[name].mT) * slope
        deltas[lower] = delta
    return Pass(dict(zip(names, inputs, strict=True)), deltas)


def _gated_pass(weights: Weights, x: Tensor, error: Callable[[Tensor], Tensor]) -> Pass:
    gate, up = x @ weights["gate"], x @ weights["up"]
    opened, slope = with_slope("silu", gate)
    hidden = opened * up
    down = -error(hidden @ weights["down"])
    back = down @ weights["down"].mT
    deltas = {"gate": back * up * slope, "up": back * opened, "down": down}
    return Pass({"gate": x, "up": x, "down": hidden}, deltas)


def _norm_backward(grad: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Through the layer norm of y: `(g - mean(g) - y^ mean(g y^)) / std`, g = grad * weight, y^ the normalised y."""
    size = y.shape[-1:]
    _, mean, scale = torch.native_layer_norm(y, size, None, None, EPS)
    g = grad * weight[..., None, :]
    return torch.ops.aten.native_layer_norm_backward(g, y, size, mean, scale, None, None, [True, False, False])[0]


def reader(
    rows: Rows, seen: Pass, rate: Mapping[str, int], W: Weights, U: Weights | None, home: Weights | None
) -> Linear:
    """The linear map of every layer at each token's own weights."""
    A, m = (None if x is None else x[..., None] for x in (rows.A, rows.m))

    def linear(layer: Layer, x: Tensor) -> Tensor:
        weight, bias = layer
        y = _scaled(x, A, W[weight])
        # in place: y is ours, and none of its factors
        if m is not None and U is not None:
            _add_scaled(y, x, m, U[weight])
        if home is not None and A is not None:
            _add_scaled(y, x, 1 - A, home[weight])
        scores = bmm(x, seen.inputs[weight].mT)
        if bias is not None:
            scores.add_(1)
            y.add_(_bias(A, m, W[bias], None if U is None else U[bias], None if home is None else home[bias]))
        return y.baddbmm_(rows.C[rate[weight]] * scores, seen.deltas[weight], alpha=-1)

    return linear


def _scaled(x: Tensor, factor: Tensor | None, weight: Tensor) -> Tensor:
    """`factor * (x W)`, the factor [G, c, 1] on the smaller side."""
    if factor is None:
        return bmm(x, weight)
    return bmm(factor * x, weight) if x.shape[-1] <= weight.shape[-1] else factor * bmm(x, weight)


def _add_scaled(y: Tensor, x: Tensor, factor: Tensor, weight: Tensor) -> None:
    """`y += factor * (x W)`, likewise."""
    if x.shape[-1] <= weight.shape[-1]:
        y.baddbmm_(factor * x, weight)
    else:
        y.addcmul_(factor, bmm(x, weight))


def _bias(A: Tensor | None, m: Tensor | None, b: Tensor, u: Tensor | None, home: Tensor | None) -> Tensor:
    y = b[..., None, :] if A is None else A * b[..., None, :]
    if m is not None and u is not None:
        y = y + m * u[..., None, :]
    return y if home is None or A is None else y + (1 - A) * home[..., None, :]


def added(layer: Layer, seen: Pass, weights: Tensor) -> dict[str, Tensor]:
    """`X^T diag(weights) D` of a layer's weight, and of its bias; weights [G, n]."""
    weight, bias = layer
    X, D, column = seen.inputs[weight], seen.deltas[weight], weights[..., None]
    if bias is None and X.shape[-1] < D.shape[-1]:
        return {weight: bmm((column * X).mT, D)}
    scaled = column * D
    out = {weight: bmm(X.mT, scaled)}
    if bias is not None:
        out[bias] = scaled.sum(-2)
    return out


def grams(layers: tuple[Layer, ...], seen: Pass) -> dict[str, Tensor]:
    """Inner products of the tokens' gradients, [G, n, n] by weight (its bias included)."""
    out: dict[str, Tensor] = {}
    for weight, bias in layers:
        X, D = seen.inputs[weight], seen.deltas[weight]
        products = X @ X.mT
        out[weight] = (products if bias is None else products + 1) * (D @ D.mT)
    return out


def gradient_norms(layers: tuple[Layer, ...], seen: Pass, gamma: Tensor | None) -> Tensor:
    """Frobenius norms of the tokens' gradients over all weights [G, c]; gamma [G, c, n] sums them over a window."""
    if gamma is None:
        squares = seen.inputs[layers[0][0]].new_zeros(())
        for weight, bias in layers:
            x = seen.inputs[weight].square().sum(-1)
            squares = squares + (x if bias is None else x + 1) * seen.deltas[weight].square().sum(-1)
        return _root(squares)
    total = sum(grams(layers, seen).values())
    return _root(((gamma @ total) * gamma).sum(-1))


def memory_norms(
    layers: tuple[Layer, ...], rows: Rows, seen: Pass, rate: Mapping[str, int], W: Weights, U: Weights | None,
    home: Weights | None,
) -> Tensor:  # fmt: skip
    """Frobenius norms [G, c] of every token's weights, from inner products alone."""
    total = torch.zeros((), dtype=rows.C[0].dtype, device=rows.C[0].device)
    products = grams(layers, seen)
    one = torch.ones_like(rows.C[0][..., 0])
    A = one if rows.A is None else rows.A
    parts: list[tuple[Tensor, Weights]] = [(A, W)]
    if rows.m is not None and U is not None:
        parts.append((rows.m, U))
    if home is not None and rows.A is not None:
        parts.append((1 - A, home))
    for weight, bias in layers:
        C = rows.C[rate[weight]]
        total = total + ((C @ products[weight]) * C).sum(-1)
        X, D = seen.inputs[weight], seen.deltas[weight]
        for i, (a, P) in enumerate(parts):
            crossed = ((X @ P[weight]) * D).sum(-1)
            if bias is not None:
                crossed = crossed + (P[bias][..., None, :] * D).sum(-1)
            total = total - 2 * a * (C @ crossed[..., None])[..., 0]
            for j, (b, R) in enumerate(parts[i:]):
                inner = (P[weight] * R[weight]).sum((-2, -1))
                if bias is not None:
                    inner = inner + (P[bias] * R[bias]).sum(-1)
                total = total + (2 if j else 1) * a * b * inner[..., None]
    return _root(total)


def _root(squares: Tensor) -> Tensor:
    """A root whose derivative at 0, where rounding may also lead below, is 0."""
    some = squares > 0
    return torch.where(some, torch.where(some, squares, torch.ones_like(squares)).sqrt(), torch.zeros_like(squares))


def errors(
    objective: Objective, value: Tensor, own: Mapping[str, Tensor], channel: Tensor | None
) -> Callable[[Tensor], Tensor]:
    """Minus the loss's gradient at the answers [G, n, V]; `channel` step sizes weigh it."""
    given = (own,) if own else ()

    def error(answer: Tensor) -> Tensor:
        out = objective.error(answer, value, *given)
        return out if channel is None else channel * out

    return error
