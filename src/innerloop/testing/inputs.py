"""Inputs of the checks: random calls that suit a memory, in every gate regime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from ..core.architecture import Exemplars
from ..core.learner import GradientLearner, Momentum
from ..core.memory import Gates, Memory
from ..core.objective import Lp
from ..core.preconditioned import Diagonal, Muon
from ..core.state import State, init_state

Start = Literal["zero", "memory", "parameters"]

Fill = Callable[..., Tensor]

#: entries of an initial memory that must be symmetric and positive: they are drawn by a factor
POSITIVE = ("gram", "covariance")


@dataclass(frozen=True)
class Inputs:
    """One call: q, k, v, gates, mask, reset, and what the initial state is made of.

    start: entries of the initial memory and overrides of the axes' scalars. `gram` and `covariance` hold a factor M of
    `M M^T + I`, so that gradients are compared along symmetric matrices only (elsewhere they mean nothing).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    gates: Gates
    start: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    mask: Tensor | None = None
    reset: Tensor | None = None

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """B, T, H, K, V."""
        B, T, H, K = self.k.shape
        return B, T, H, K, self.v.shape[-1]

    def state(self, memory: Memory) -> State:
        """The state in which the call starts."""
        B, _, H, K, V = self.sizes
        made = dict(self.start)
        for name in POSITIVE:
            if name in made:
                M = made[name]
                made[name] = M @ M.mT + torch.eye(M.shape[-1], dtype=M.dtype)
        dtype = torch.promote_types(self.q.dtype, torch.float32)
        return init_state(memory, B, H, K, V, initial=made, dtype=dtype)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a gradient may be asked of, by name."""
        gates = {f"gates.{n}": g for n, g in self.gates._asdict().items() if g is not None}
        return {"q": self.q, "k": self.k, "v": self.v, **gates, **{f"start.{n}": t for n, t in self.start.items()}}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Inputs:
        """The same call of other tensors (those that `tensors` names)."""
        gates = {n.removeprefix("gates."): t for n, t in tensors.items() if n.startswith("gates.")}
        start = {n.removeprefix("start."): t for n, t in tensors.items() if n.startswith("start.")}
        plain = {n: t for n, t in tensors.items() if "." not in n}
        return replace(self, **plain, gates=self.gates._replace(**gates), start={**self.start, **start})

    def tokens(self, first: int, last: int) -> Inputs:
        """Tokens first..last-1."""
        here = slice(first, last)
        gates = Gates(*(None if g is None else g[:, here] for g in self.gates))
        flags = (None if x is None else x[:, here] for x in (self.mask, self.reset))
        return Inputs(self.q[:, here], self.k[:, here], self.v[:, here], gates, self.start, *flags)

    def rows(self, index: Tensor | slice) -> Inputs:
        """Some rows of the batch."""
        gates = Gates(*(None if g is None else g[index] for g in self.gates))
        flags = (None if x is None else x[index] for x in (self.mask, self.reset))
        start = {n: t if t.shape[0] == 1 else t[index] for n, t in self.start.items()}
        return Inputs(self.q[index], self.k[index], self.v[index], gates, start, *flags)

    def heads(self, index: slice) -> Inputs:
        """Some heads."""
        gates = Gates(*(None if g is None else g[:, :, index] for g in self.gates))
        start = {n: t if t.shape[1] == 1 else t[:, index] for n, t in self.start.items()}
        q, k, v = (x[:, :, index] for x in (self.q, self.k, self.v))
        return Inputs(q, k, v, gates, start, self.mask, self.reset)

    def to(self, dtype: torch.dtype, *, gates: torch.dtype | None = None) -> Inputs:
        """Another dtype (gates and the initial state in `gates`, when given)."""
        other = gates or dtype
        small = Gates(*(None if g is None else g.to(other) for g in self.gates))
        start = {n: t.to(other) for n, t in self.start.items()}
        return replace(self, q=self.q.to(dtype), k=self.k.to(dtype), v=self.v.to(dtype), gates=small, start=start)


@dataclass(frozen=True)
class Draw:
    """Draws calls that suit a memory: `draw(memory, tokens)`; the same seed gives the same call.

    batch, heads, key_dim, value_dim: B, H, K, V. value_dim None: 3, or 8 behind a layer norm (over three channels the
    norm is all but singular for one answer in a few hundred).
    """

    seed: int = 0
    batch: int = 2
    heads: int = 2
    key_dim: int = 4
    value_dim: int | None = None

    def channels(self, memory: Memory) -> int:
        """V."""
        return self.value_dim or (8 if normed(memory) else 3)

    def __call__(self, memory: Memory, tokens: int, *, start: Start = "zero", decay: str = "typical") -> Inputs:
        """Keys near unit length, gates in their ranges.

        start: what the initial state overrides: nothing, the memory's entries, or the axes' scalars.
        decay: "typical", a number as text ("-0.1", "-inf"), or "mixed" (all kinds of decays, token by token).
        """
        generator = torch.Generator().manual_seed(1000 * self.seed + tokens)
        B, T, H, K, V = self.batch, tokens, self.heads, self.key_dim, self.channels(memory)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, dtype=torch.float64)

        q, k, v = normal(B, T, H, K), normal(B, T, H, K) / K**0.5, normal(B, T, H, V)
        if isinstance(memory.architecture, Exemplars):
            q = q / 2  # sharper weights leave a local fit with fewer exemplars than channels: it is ill conditioned
        sizes = {"B": B, "T": T, "H": H, "K": K, "V": V, "W": memory.window, "3": 3}
        made: dict[str, Tensor] = {}
        for spec in memory.gate_specs():
            shape = [sizes[letter] for letter in spec.shape.strip("[]").split(", ")]
            gate = 0.05 + 0.9 * uniform(*shape)
            if spec.name == "lr":
                gate = largest_lr(memory) * gate
            if spec.name in ("log_decay", "precond_log_decay"):
                gate = decays(decay, -typical_decay(memory) * gate, generator)
            made[spec.name] = gate
        return Inputs(q, k, v, Gates(**made), self._start(memory, start, normal, uniform))

    def _start(self, memory: Memory, start: Start, normal: Fill, uniform: Fill) -> dict[str, Tensor]:
        B, H, K, V = self.batch, self.heads, self.key_dim, self.channels(memory)
        if start == "parameters":
            channels = {"H": (), "HK": (memory.architecture.inputs(K),)}
            return {
                name: (value or 0.1) * (0.8 + 0.7 * uniform(B, H, *channels[per]))
                for name, (value, per) in memory.parameters.items()
            }
        if start == "memory" and not isinstance(memory.architecture, Exemplars):
            usual = init_state(memory, B, H, K, V, dtype=torch.float64).initial
            drawn: dict[str, Tensor] = {}
            for name, shape in memory.shapes(K, V).items():
                # the first entry is shared by the batch: a leading 1 broadcasts
                rows = 1 if not drawn else B
                if name in POSITIVE:
                    drawn[name] = normal(rows, H, *shape) / 2
                elif name == "bandwidth":
                    drawn[name] = usual[name][:rows] * (0.8 + 0.7 * uniform(rows, H))
                else:
                    fan_in = shape[0] if len(shape) == 2 else 4
                    drawn[name] = usual[name][:rows] + normal(rows, H, *shape) / (4 * fan_in) ** 0.5
            return drawn
        return {}


def normed(memory: Memory) -> bool:
    """Whether a layer norm stands behind the memory's layers."""
    return bool(getattr(memory.architecture.parametric, "norm", False))


def largest_lr(memory: Memory) -> float:
    """The largest step that is drawn: with keys of unit length no row multiplies a rounding error by much.

    Two calls that differ by rounding are compared at 1e-10, which says nothing about a diverging memory. A layer norm,
    and a link more so, make the answers steep in the weights; an lp loss is the steeper, the farther off the answer is:
    there a step is short.
    """
    learner = memory.learner
    if not isinstance(learner, GradientLearner):
        return 1.0
    if isinstance(learner, Muon) and learner.weighs_inside:
        return 1.0  # the orthogonalised step forgets how large it is
    if not learner.linear and not isinstance(learner, Diagonal):
        return 0.05  # as long whatever the gradient: a part of the weights' own size, which is near 1
    size = 0.3 if isinstance(learner, Momentum) else 1.0  # past surprise makes it up to 1 / (1 - momentum) times that
    steep = 0.01 if memory.retention.dual else 0.1 if normed(memory) or isinstance(memory.objective, Lp) else 1.0
    return steep * (size if memory.is_matrix else size / 4)


def typical_decay(memory: Memory) -> float:
    """The largest `-log_decay` that is drawn as typical.

    A layer norm looks at the direction of the weights only, so that what decay takes off their length makes every later
    step turn them further: sixty tokens at 0.3 leave e^-10 of them and no digit of the answer.
    """
    if not normed(memory):
        return 0.3
    return 0.01 if memory.retention.dual else 0.03


MIXED = (0.0, -1e-3, -0.1, -5.0, -1e30, float("-inf"))


def decays(kind: str, typical: Tensor, generator: torch.Generator) -> Tensor:
    """A log_decay gate of the wanted kind, shaped as `typical`."""
    if kind == "typical":
        return typical
    if kind == "mixed":
        choice = torch.randint(len(MIXED), typical.shape, generator=generator)
        return torch.tensor(MIXED, dtype=typical.dtype)[choice]
    return torch.full_like(typical, float(kind))
