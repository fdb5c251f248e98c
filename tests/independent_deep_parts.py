"""What the deep memories' oracles are made of: networks with gradients by hand, losses with slopes, links, Muon's map.

Nothing here knows the library. One batch row, one head, one token: x [K], answers y and values v [V]; weights by name,
matrices [in, out] and biases [out]. The `slope` of a loss and the `gradient` of a network are derivatives worked out on
paper, without autograd; test_independent_deep_self.py holds them against differences of what they derive.
"""

# fmt: off
from collections.abc import Callable
from itertools import combinations_with_replacement
from math import factorial, pi, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import svd
from scipy.special import expit, ndtr, softmax

Array = NDArray[np.float64]
Weights = dict[str, Array]
OUTER = ("norm_weight", "norm_bias", "feature_coefficients")  # read, never written

C = sqrt(2 / pi)


def _bend(x: Array) -> Array:
    return np.tanh(C * (x + 0.044715 * x**3))


# each activation with its derivative
ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "gelu": (lambda x: x * ndtr(x), lambda x: ndtr(x) + x * np.exp(-x * x / 2) / sqrt(2 * pi)),
    "gelu_tanh": (
        lambda x: x * (1 + _bend(x)) / 2,
        lambda x: (1 + _bend(x)) / 2 + x / 2 * (1 - _bend(x) ** 2) * C * (1 + 3 * 0.044715 * x * x),
    ),
    "silu": (lambda x: x * expit(x), lambda x: expit(x) * (1 + x * expit(-x))),
}


def monomials(x: Array, degree: int, coefficients: Array | None = None) -> Array:
    """Every monomial up to the degree, order by order, index tuples in lexicographic order; order i times c_i."""
    c = [1 / factorial(i) for i in range(degree + 1)] if coefficients is None else coefficients
    orders = [combinations_with_replacement(range(len(x)), i) for i in range(degree + 1)]
    return np.array([c[i] * np.prod([x[j] for j in indices]) for i, tuples in enumerate(orders) for indices in tuples])


class Matrix:
    """S^T x."""

    def answer(self, W: Weights, x: Array) -> Array:
        return x @ W["S"]

    def gradient(self, W: Weights, x: Array, e: Array) -> Weights:
        """The gradient of a loss whose gradient at the answer is e."""
        return {"S": np.outer(x, e)}


class Network:
    """Layers z W_l + b_l with an activation between them, layer norm, residual, each where its weights or options say.

    With degree, the first layer sees the monomials of x.
    """

    def __init__(self, activation: str = "gelu", residual: bool = False, degree: int | None = None) -> None:
        self.act, self.bent = ACTIVATIONS[activation]
        self.residual, self.degree = residual, degree

    def _forward(self, W: Weights, x: Array) -> tuple[list[Array], list[Array]]:
        """What each layer sees, and what it answers before the activation."""
        seen = [x if self.degree is None else monomials(x, self.degree, W.get("feature_coefficients"))]
        sums: list[Array] = []
        while (name := f"weight_{len(sums)}") in W:
            sums.append(seen[-1] @ W[name] + W.get(f"bias_{len(sums)}", 0.0))
            seen.append(self.act(sums[-1]))
        return seen[:-1], sums

    @staticmethod
    def _standard(z: Array) -> tuple[Array, float]:
        spread = sqrt(((z - z.mean()) ** 2).mean() + 1e-6)
        return (z - z.mean()) / spread, spread

    def answer(self, W: Weights, x: Array) -> Array:
        y = self._forward(W, x)[1][-1]
        if "norm_weight" in W:
            y = W["norm_weight"] * self._standard(y)[0] + W["norm_bias"]
        # x is cut or padded with zeros to the answer's length
        return y + np.pad(x, (0, len(y)))[: len(y)] if self.residual else y

    def gradient(self, W: Weights, x: Array, e: Array) -> Weights:
        """The gradient of a loss whose gradient at the answer is e; the residual has no weights and passes e on.

        Of LN = w * n + b with n = (z - mean) / s:  ds/dz = n/V and dmean/dz = 1/V, so with h = w * e
        d/dz = (h - mean(h) - n mean(h n)) / s.  Of a layer: dW = (input) delta^T, db = delta, and delta goes on as
        (W delta) * act'(sum before).
        """
        seen, sums = self._forward(W, x)
        if "norm_weight" in W:
            (n, spread), h = self._standard(sums[-1]), W["norm_weight"] * e
            e = (h - h.mean() - n * (h * n).mean()) / spread
        out: Weights = {}
        for layer in reversed(range(len(sums))):
            out[f"weight_{layer}"] = np.outer(seen[layer], e)
            if f"bias_{layer}" in W:
                out[f"bias_{layer}"] = e
            if layer:
                e = (W[f"weight_{layer}"] @ e) * self.bent(sums[layer - 1])
        return out


class SwiGlu:
    """(silu(x gate) * (x up)) down."""

    names = ("gate", "up", "down")  # in the order of the three step sizes
    silu, bent = ACTIVATIONS["silu"]

    def answer(self, W: Weights, x: Array) -> Array:
        return (SwiGlu.silu(x @ W["gate"]) * (x @ W["up"])) @ W["down"]

    def gradient(self, W: Weights, x: Array, e: Array) -> Weights:
        a, b, back = x @ W["gate"], x @ W["up"], W["down"] @ e
        return {
            "gate": np.outer(x, back * b * SwiGlu.bent(a)),
            "up": np.outer(x, back * SwiGlu.silu(a)),
            "down": np.outer(SwiGlu.silu(a) * b, e),
        }


class Loss(NamedTuple):
    """Of r = y - v; `delta` is Huber's threshold. `slope` is the gradient of `value` at y."""

    value: Callable[[Array, Array, float], float]
    slope: Callable[[Array, Array, float], Array]


def _length(r: Array) -> float:
    return sqrt(float(r @ r))


def lp(p: float) -> Loss:
    """1/p sum |r|^p."""
    return Loss(lambda y, v, _: float((abs(y - v) ** p).sum()) / p,
                lambda y, v, _: np.sign(y - v) * abs(y - v) ** (p - 1))


def robust(radius: float) -> Loss:
    """The largest 1/2 |r - d|^2 over |d| <= radius: d points against r, so that it is 1/2 (|r| + radius)^2."""
    return Loss(lambda y, v, _: (_length(y - v) + radius) ** 2 / 2,
                lambda y, v, _: (y - v) * (1 + radius / _length(y - v)))


def _bowl(size: float, delta: float) -> float:
    return size**2 / 2 if size <= delta else delta * (size - delta / 2)


LOSSES = {
    "dot": Loss(lambda y, v, _: -float(y @ v), lambda y, v, _: -v),
    "l2": Loss(lambda y, v, _: float((y - v) @ (y - v)) / 2, lambda y, v, _: y - v),
    "coordinate": Loss(lambda y, v, d: sum(_bowl(abs(r), d) for r in y - v),
                       lambda y, v, d: np.clip(y - v, -d, d)),
    "norm": Loss(lambda y, v, d: _bowl(_length(y - v), d),
                 lambda y, v, d: (y - v) * min(1.0, d / _length(y - v))),
    "switch": Loss(lambda y, v, d: float((y - v) @ (y - v)) / 2 if _length(y - v) <= d else d * float(abs(y - v).sum()),
                   lambda y, v, d: y - v if _length(y - v) <= d else d * np.sign(y - v)),
}


# -- maps of whole matrices: from what is kept to what is read, after a write, of a step --

def lq(q: float, form: str) -> Callable[[Array], Array]:
    """A / |A|_q^(q-2) as printed, or with the entries' powers, sign(A) |A|^(q-1) / |A|_q^(q-2); 0 stays 0."""
    def link(A: Array) -> Array:
        size = (abs(A) ** q).sum() ** (1 / q) or 1.0
        return (A if form == "paper" else np.sign(A) * abs(A) ** (q - 1)) / size ** (q - 2)
    return link


def kl(total: float) -> Callable[[Array], Array]:
    """Every column a softmax, of that sum."""
    return lambda A: total * softmax(A, axis=0)


def row_norm(W: Array, W0: Array, _: float = 1.0) -> Array:
    """Every unit's incoming weights (a column) get the length they started with."""
    return W / (np.sqrt((W**2).sum(0)) + 1e-5) * np.sqrt((W0**2).sum(0))


def elastic(l1: float, l2: float) -> Callable[[Array, Array, float], Array]:
    """argmin_w |w - W|^2 / 2 lr + l1 |w|_1 + l2 |w|^2 / 2, entry by entry."""
    def prox(W: Array, _: Array, lr: float) -> Array:
        return np.sign(W) * np.clip(abs(W) - lr * l1, 0, None) / (1 + lr * l2)
    return prox


STANDARD = ((3.4445, -4.7750, 2.0315),) * 5
LACT = ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012))


def orthogonal(S: Array, triples: tuple[tuple[float, float, float], ...]) -> Array:
    """Newton-Schulz: X <- a X + b X X^T X + c (X X^T)^2 X acts on singular values alone, s <- a s + b s^3 + c s^5."""
    if not S.any():
        return np.zeros_like(S)
    left, s, right = svd(np.atleast_2d(S), full_matrices=False)  # a bias is a matrix of one row
    s = s / sqrt(float(s @ s))
    for a, b, c in triples:
        s = a * s + b * s**3 + c * s**5
    return (left * s @ right).reshape(S.shape)
