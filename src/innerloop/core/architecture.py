"""Architectures: what a memory is, as a function of a key.

Matrix      m(x) = S^T x                                        S: [B, H, K, V]
MLP         z_0 = x,  z_l = act(z_{l-1} W_l + b_l),  the last layer linear; then, as TTT has them,
            m(x) = LN(z_L)  with norm,   m(x) = x + ...  with residual
SwiGLU      m(x) = (silu(x gate) * (x up)) down
Features    m(x) = inner(phi(x))                                see features.py
Exemplars   m(x) = sum_j p_j(x) v_j                             all pairs are kept
            p_j = w_j / sum w,   w_j = exp(<x, k_j> / h^2)      kernel "exp"
                                 w_j = exp(-|x - k_j|^2 / 2h^2) kernel "gaussian"
            order 1: the intercept of the weighted linear fit around x

Each parametric one is a composition of linear layers and fixed functions, and says so: `apply` takes the linear map as
an argument, so that whoever runs it may put another in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

from array_api_compat import array_namespace

from .axis import Array, Axis, Weights, boolean, one_of, positive
from .functions import ACTIVATIONS, activation, fit_channels, layer_norm

Layer = tuple[str, str | None]
"""Names of a linear layer's weight [in, out] and bias [out] (None: it has none)."""

Linear = Callable[[Layer, Array], Array]
"""What a layer makes of its inputs [B, H, n, in]: [B, H, n, out]."""


def plainly(weights: Weights) -> Linear:
    """`x W + b` with these weights [B, H, in, out], [B, H, out]."""

    def linear(layer: Layer, x: Array) -> Array:
        weight, bias = layer
        y = array_namespace(x).matmul(x, weights[weight])
        return y if bias is None else y + weights[bias][..., None, :]

    return linear


@dataclass(frozen=True)
class Architecture(Axis):
    """The class of functions that a memory is drawn from."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The linear layers, first to last."""
        return ()

    @property
    def parametric(self) -> Architecture:
        """The parametric function behind a feature map (itself, where there is none)."""
        return self

    @property
    def rates(self) -> tuple[str, ...]:
        """Weights that have a step size of their own, in the order of the gate's last axis; empty: one for all."""
        return ()

    def inputs(self, key_dim: int) -> int:
        """Channels that the first layer sees."""
        return key_dim

    def embed(self, weights: Weights, x: Array) -> Array:
        """What the first layer sees of x [B, H, n, K]."""
        return x

    def shapes(self, key_dim: int, value_dim: int, width: int | None = None) -> dict[str, tuple[int, ...]]:
        """Name and shape (without [B, H]) of each weight that the memory writes.

        width: the dimension that hidden layers are counted in (the key's own, default: key_dim).
        """
        raise TypeError(f"{type(self).__name__} has no weights")

    def constants(self, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """Name and shape of the outer parameters, which a memory reads and never writes."""
        return {}

    def start(self, draw: Callable[[tuple[int, ...]], Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
        """Starting values of the entries in `shapes` that do not start at zero; `draw(shape)` is standard normal."""
        return {}

    def apply(self, weights: Weights, x: Array, linear: Linear | None = None) -> Array:
        """The memory's answers to x [B, H, n, K]: [B, H, n, V]; `linear` runs the layers (default: `x W + b`)."""
        raise TypeError(f"{type(self).__name__} is not a parametric function")


@dataclass(frozen=True)
class Matrix(Architecture):
    """A linear memory `S: [B, H, K, V]`, read by `S^T x`; it starts at zero."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """One, without a bias."""
        return (("S", None),)

    def shapes(self, key_dim: int, value_dim: int, width: int | None = None) -> dict[str, tuple[int, ...]]:
        """One weight, `S: (K, V)`."""
        return {"S": (key_dim, value_dim)}

    def apply(self, weights: Weights, x: Array, linear: Linear | None = None) -> Array:
        """`x S`, row by row."""
        return (linear or plainly(weights))(self.layers[0], x)


@cache  # asked for at every tile
def _numbered(depth: int, bias: bool) -> tuple[Layer, ...]:
    return tuple((f"weight_{i}", f"bias_{i}" if bias else None) for i in range(depth))


@dataclass(frozen=True)
class MLP(Architecture):
    """`depth` linear layers with an activation between them; hidden layers have `expansion * K` channels.

    bias: layers have biases. norm: a layer norm (eps 1e-6) over the answer, whose `norm_weight` and `norm_bias`
    [B, H, V] are outer parameters. residual: the key is added to the answer (cut, or padded with zeros, where K is not
    V). With both, `f(x) = x + LN(f_res(x))`, as in TTT (Sun et al. 2024, section 2.7).
    std: standard deviation of the starting weights (None: 1 / sqrt(fan in)); biases start at 0.

    The weights are `weight_0: (K, h)`, `bias_0: (h,)`, `weight_1`, ...
    """

    expansion: int = 4
    depth: int = 2
    activation: Literal["gelu", "gelu_tanh", "silu"] = "gelu"
    bias: bool = False
    norm: bool = False
    residual: bool = False
    std: float | None = None

    def __post_init__(self) -> None:
        for name in ("expansion", "depth"):
            _count("MLP", name, getattr(self, name))
        one_of("MLP", "activation", self.activation, ACTIVATIONS)
        for name in ("bias", "norm", "residual"):
            boolean("MLP", name, getattr(self, name))
        if self.std is not None:
            positive("MLP", "std", self.std, zero=True)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """`weight_l` and `bias_l` for l = 0, ..., depth - 1."""
        return _numbered(self.depth, self.bias)

    def shapes(self, key_dim: int, value_dim: int, width: int | None = None) -> dict[str, tuple[int, ...]]:
        """Weights and biases, layer by layer."""
        hidden = [self.expansion * (width or key_dim)] * (self.depth - 1)
        sizes = [key_dim, *hidden, value_dim]
        out: dict[str, tuple[int, ...]] = {}
        for (weight, bias), fan_in, fan_out in zip(self.layers, sizes[:-1], sizes[1:], strict=True):
            out[weight] = (fan_in, fan_out)
            if bias is not None:
                out[bias] = (fan_out,)
        return out

    def constants(self, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """The norm's affine part."""
        return {"norm_weight": (value_dim,), "norm_bias": (value_dim,)} if self.norm else {}

    def start(self, draw: Callable[[tuple[int, ...]], Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
        """Normal weights, layer by layer; the norm is the identity."""
        out: dict[str, Any] = {w: draw(shapes[w]) * _std(self.std, shapes[w]) for w, _ in self.layers}
        return out | ({"norm_weight": 1.0} if self.norm else {})

    def apply(self, weights: Weights, x: Array, linear: Linear | None = None) -> Array:
        """The layers, the norm, the residual."""
        linear = linear or plainly(weights)
        *hidden, last = self.layers
        y = x
        for layer in hidden:
            y = activation(self.activation, linear(layer, y))
        return self.finish(weights, x, linear(last, y))

    def finish(self, weights: Weights, x: Array, y: Array) -> Array:
        """What norm and residual make of the last layer's y."""
        if self.norm:
            y = layer_norm(y, weights["norm_weight"], weights["norm_bias"])
        return y + fit_channels(x, y.shape[-1]) if self.residual else y


@dataclass(frozen=True)
class SwiGLU(Architecture):
    """`(silu(x gate) * (x up)) down` with `gate`, `up`: (K, h) and `down`: (h, V), h = expansion * K (LaCT).

    Each weight has its own step size: the gate `lr` is [B, T, H, 3], for gate, up and down.
    """

    expansion: int = 4

    def __post_init__(self) -> None:
        _count("SwiGLU", "expansion", self.expansion)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """gate, up, down."""
        return (("gate", None), ("up", None), ("down", None))

    @property
    def rates(self) -> tuple[str, ...]:
        """A step size for each."""
        return ("gate", "up", "down")

    def shapes(self, key_dim: int, value_dim: int, width: int | None = None) -> dict[str, tuple[int, ...]]:
        """`gate`, `up`, `down`."""
        hidden = self.expansion * (width or key_dim)
        return {"gate": (key_dim, hidden), "up": (key_dim, hidden), "down": (hidden, value_dim)}

    def start(self, draw: Callable[[tuple[int, ...]], Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
        """Normal weights of variance 1 / fan in."""
        return {w: draw(shapes[w]) * _std(None, shapes[w]) for w, _ in self.layers}

    def apply(self, weights: Weights, x: Array, linear: Linear | None = None) -> Array:
        """The gated hidden layer, projected."""
        linear = linear or plainly(weights)
        gate, up, down = self.layers
        return linear(down, activation("silu", linear(gate, x)) * linear(up, x))


@dataclass(frozen=True)
class Exemplars(Architecture):
    """All pairs (or the last `capacity`), read by a kernel around the query.

    kernel: "exp" (softmax attention without its scale) or "gaussian" (Nadaraya and Watson, 1964).
    order: 0 is the local constant fit, 1 the local linear fit, whose slope is penalised by `penalty / 2 |W|^2`.
    bandwidth: h above; `penalty` is read by order 1 only.
    """

    parameters: ClassVar[dict[str, str]] = {"bandwidth": "H", "penalty": "H"}

    kernel: Literal["exp", "gaussian"] = "exp"
    order: Literal[0, 1] = 0
    bandwidth: float = 1.0
    capacity: int | None = None
    penalty: float = 1.0

    def __post_init__(self) -> None:
        one_of("Exemplars", "kernel", self.kernel, ("exp", "gaussian"))
        if self.order not in (0, 1) or not isinstance(self.order, int) or isinstance(self.order, bool):
            raise ValueError(f"Exemplars(order={self.order!r}): pass 0 (local constant) or 1 (local linear)")
        positive("Exemplars", "bandwidth", self.bandwidth)
        positive("Exemplars", "penalty", self.penalty)
        whole = isinstance(self.capacity, int) and not isinstance(self.capacity, bool)
        if self.capacity is not None and (not whole or self.capacity < 1):
            raise ValueError(f"Exemplars(capacity={self.capacity!r}): pass None (keep all) or an int >= 1")

    def log_weights(self, queries: Array, keys: Array, bandwidth: Array) -> Array:
        """`log w` of queries [..., n, K] against keys [..., m, K]: [..., n, m]; bandwidth broadcasts to [..., 1, 1]."""
        xp = array_namespace(queries)
        if self.kernel == "exp":
            return xp.matmul(queries, xp.matrix_transpose(keys)) / bandwidth**2
        difference = queries[..., :, None, :] - keys[..., None, :, :]
        return -0.5 * xp.sum(difference * difference, axis=-1) / bandwidth**2


def _std(std: float | None, shape: tuple[int, ...]) -> float:
    return shape[0] ** -0.5 if std is None else std


def _count(owner: str, name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{owner}({name}={value!r}): pass an int >= 1")
