"""Deep memories token by token and segment by segment: `scan` against loops written here, over plain functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import innerloop as il
from innerloop.testing import assert_close
from test_preconditioned import LACT, POINTWISE, normal, orthogonalised, uniform

torch.set_num_threads(1)

B, T, H, K, V, SEGMENT = 2, 14, 2, 4, 3, 4
Weights = dict[str, Tensor]


Q, KEYS, VALUES = normal(B, T, H, K, seed=1) / 2, normal(B, T, H, K, seed=2) / 2, normal(B, T, H, V, seed=3)
# row 0 has masked tokens inside its segments, row 1 documents that begin inside them
MASK, RESET = torch.ones(B, T, dtype=torch.bool), torch.zeros(B, T, dtype=torch.bool)
MASK[0, [1, 6, 7]] = False
RESET[1, [6, 13]] = True
GATES = {
    "lr": uniform(B, T, H, seed=5, high=0.4),
    "log_decay": uniform(B, T, H, seed=6, low=0.8, high=0.99).log(),
    "momentum": uniform(B, T, H, seed=7),
    "scale": uniform(B, T, H, seed=8),
    "window": uniform(B, T, H, 3, seed=9),
}


# plain functions of weights without [B, H]


def matrix(m: Weights, x: Tensor) -> Tensor:
    return x @ m["S"]


def network(m: Weights, x: Tensor) -> Tensor:
    return F.gelu(x @ m["weight_0"] + m["bias_0"]) @ m["weight_1"] + m["bias_1"]


def ttt(m: Weights, x: Tensor) -> Tensor:
    return x[..., :V] + F.layer_norm(x @ m["weight_0"] + m["bias_0"], (V,), m["norm_weight"], m["norm_bias"], 1e-6)


def swiglu(m: Weights, x: Tensor) -> Tensor:
    return (F.silu(x @ m["gate"]) * (x @ m["up"])) @ m["down"]


def squares(y: Tensor, v: Tensor) -> Tensor:
    return 0.5 * (y - v).square().sum()


def dot(y: Tensor, v: Tensor) -> Tensor:
    return -(y * v).sum()


@dataclass
class Row:
    """One batch row and head: its tokens, gates and starting weights."""

    f: Callable[[Weights, Tensor], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]
    link: Callable[[Weights], Weights]
    start: Weights
    outer: Weights
    gates: Weights
    k: Tensor
    v: Tensor

    def g(self, m: Weights, i: int) -> Weights:
        """The gradient of token i's loss at what is kept in m."""
        at = {n: w.clone().requires_grad_() for n, w in self.link(m).items()}
        slopes = torch.autograd.grad(self.loss(self.f({**self.outer, **at}, self.k[i]), self.v[i]), list(at.values()))
        return dict(zip(at, slopes, strict=True))


Hook = Callable[[Row, Weights, Weights, list[int], dict[str, Any]], Weights]
"""(row, memory, anchor, tokens of the segment so far, memo) -> memory; with `ends` at the segment's last token only."""


@dataclass
class Case:
    name: str
    memory: il.Memory
    hook: Hook
    f: Callable[[Weights, Tensor], Tensor] = network
    loss: Callable[[Tensor, Tensor], Tensor] = squares
    link: Callable[[Weights], Weights] = dict
    ends: bool = False

    @property
    def gates(self) -> dict[str, Tensor]:
        given = {n: g for n, g in GATES.items() if n in self.memory.reads}
        size = 3 if self.f is swiglu else V if self.memory.rate_per == "channel" else 0
        given |= {"lr": uniform(B, T, H, size, seed=10, high=0.4)} if size else {}
        fades = getattr(self.memory.retention, "per", "") == "channel"
        return given | ({"log_decay": uniform(B, T, H, K, seed=11, low=0.8, high=0.99).log()} if fades else {})

    @property
    def start(self) -> Weights:
        shapes = self.memory.shapes(K, V)
        return {n: normal(B, H, *s, seed=20 + i) / 2 for i, (n, s) in enumerate(shapes.items())}

    def state(self) -> il.State:
        return il.init_state(self.memory, B, H, K, V, initial=self.start, dtype=torch.float64)

    def walk(self, b: int, h: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Outputs [T, V], and what the final memory answers."""
        outer = self.memory.architecture.constants(K, V)
        start = {n: w[b, h] for n, w in self.start.items()}
        begun = {n: w for n, w in start.items() if n not in outer}
        gates = {n: g[b, :, h] for n, g in self.gates.items()}
        constants = {n: start[n] for n in outer}
        row = Row(self.f, self.loss, self.link, begun, constants, gates, KEYS[b, :, h], VALUES[b, :, h])

        def answer(m: Weights, x: Tensor) -> Tensor:
            return self.f({**constants, **self.link(m)}, x)

        m, anchor, held, memo = begun, begun, [], {}
        outputs = []
        for t in range(T):
            if RESET[b, t]:
                m, held, memo = begun, [], {}
            if not MASK[b, t]:
                outputs.append(torch.zeros(V, dtype=torch.float64))
                continue
            before = m
            anchor = anchor if held else m
            held.append(t)
            last = len(held) == self.memory.segment
            if last or not self.ends:
                m = self.hook(row, m, anchor, held, memo)
            if last:
                held = []
            outputs.append(answer(before if self.memory.order == "read-write" else m, Q[b, t, h]))
        final = m
        return torch.stack(outputs), lambda x: answer(final, x)


def total(parts: list[Weights]) -> Weights:
    return {n: sum(p[n] for p in parts) for n in parts[0]}


# token by token


def decayed(toward_start: bool = False, momentum: bool = False) -> Hook:
    def hook(r: Row, m: Weights, anchor: Weights, held: list[int], memo: dict[str, Any]) -> Weights:
        t, g = held[-1], r.g(anchor, held[-1])
        a = r.gates["log_decay"][t].exp() if "log_decay" in r.gates else 1.0
        for n in m:
            memo[n] = (r.gates["momentum"][t] * memo.get(n, 0) if momentum else 0) - r.gates["lr"][t] * g[n]
        home = {n: w if toward_start else 0 * w for n, w in r.start.items()}
        return {n: home[n] + a * (w - home[n]) + memo[n] for n, w in m.items()}

    return hook


def retained(r: Row, m: Weights, anchor: Weights, held: list[int], memo: dict[str, Any]) -> Weights:
    """Decay first, the gradient where that leads."""
    kept = {n: r.gates["log_decay"][held[-1]].exp() * w for n, w in m.items()}
    g = r.g(kept, held[-1])
    return {n: w - r.gates["lr"][held[-1]] * g[n] for n, w in kept.items()}


def averaged(scaled: bool) -> Hook:
    """m = anchor - scale sum lr g; scale 1 / i unless the gate says otherwise."""

    def hook(r: Row, m: Weights, anchor: Weights, held: list[int], memo: dict[str, Any]) -> Weights:
        scale = r.gates["scale"][held[-1]] if scaled else 1 / len(held)
        steps = total([{n: r.gates["lr"][i] * g for n, g in r.g(anchor, i).items()} for i in held])
        return {n: w - scale * steps[n] for n, w in anchor.items()}

    return hook


def three_steps(r: Row, m: Weights, anchor: Weights, held: list[int], memo: dict[str, Any]) -> Weights:
    """The first from the decayed memory with the gradient of the one before, the others where the last one led."""
    t = held[-1]
    g = r.g(m, t)
    m = {n: r.gates["log_decay"][t].exp() * w - r.gates["lr"][t] * g[n] for n, w in m.items()}
    for _ in range(2):
        g = r.g(m, t)
        m = {n: w - r.gates["lr"][t] * g[n] for n, w in m.items()}
    return m


def cut(max_norm: float) -> Hook:
    """The gradient over all weights together, no longer than max_norm, and only then into the momentum."""

    def hook(r: Row, m: Weights, anchor: Weights, held: list[int], memo: dict[str, Any]) -> Weights:
        t, g = held[-1], r.g(anchor, held[-1])
        length = float(torch.cat([x.flatten() for x in g.values()]).norm())
        past = r.gates["momentum"][t] if "momentum" in r.gates else 0
        for n in m:
            memo[n] = past * memo.get(n, 0) - min(1.0, max_norm / length) * r.gates["lr"][t] * g[n]
        return {n: w + memo[n] for n, w in m.items()}

    return hook


def by_channel(r: Row, m: Weights, anchor: Weights, held: list[int], memo: dict[str, Any]) -> Weights:
    """The error, weighed channel by channel, goes backward: the gradient of <f, lr * stopped error>."""
    t = held[-1]
    error = r.gates["lr"][t] * (r.f({**r.outer, **anchor}, r.k[t]) - r.v[t])
    at = {n: w.clone().requires_grad_() for n, w in anchor.items()}
    g = torch.autograd.grad((r.f({**r.outer, **at}, r.k[t]) * error).sum(), list(at.values()))
    return {n: w - x for (n, w), x in zip(m.items(), g, strict=True)}


def windowed(r: Row, m: Weights, anchor: Weights, held: list[int], memo: dict[str, Any]) -> Weights:
    """The gradient of the last three pairs' losses, weights counted back from the token; resets forget the pairs."""
    past = memo.setdefault("past", [])
    past.append(held[-1])
    gamma, lr = r.gates["window"][held[-1]], r.gates["lr"][held[-1]]
    g = total([{n: gamma[j] * x for n, x in r.g(anchor, i).items()} for j, i in enumerate(past[:-4:-1])])
    return {n: w - lr * g[n] for n, w in m.items()}


# once, at the segment's end


def pooled(shape: Callable[[Weights, Any, dict[str, Any]], Weights]) -> Hook:
    """Summed gradients at the anchor, the mean step size and momentum, the product of the decays."""

    def hook(r: Row, m: Weights, anchor: Weights, held: list[int], memo: dict[str, Any]) -> Weights:
        g = total([r.g(anchor, i) for i in held])
        momentum = r.gates["momentum"][held].mean() if "momentum" in r.gates else None
        a = r.gates["log_decay"][held].exp().prod(0) if "log_decay" in r.gates else torch.ones(1)
        a = a[:, None] if a.numel() > 1 else a  # one for each key channel, the row of a matrix
        step = shape(g, momentum, memo)
        return {n: a * w - r.gates["lr"][held].mean() * step[n] for n, w in m.items()}

    return hook


def singular(x: Tensor, triples: list[Any]) -> Tensor:
    return orthogonalised(torch.atleast_2d(x), triples, 5).reshape(x.shape)


def muon(g: Weights, momentum: Any, memo: dict[str, Any]) -> Weights:
    memo.update({n: momentum * memo.get(n, 0) + x for n, x in g.items()})
    return {n: singular(memo[n], [POINTWISE]) for n in g}


def adagrad(g: Weights, momentum: Any, memo: dict[str, Any]) -> Weights:
    memo.update({n: memo.get(n, 0) + x**2 for n, x in g.items()})
    return {n: x / (memo[n].sqrt() + 1e-8) for n, x in g.items()}


def adam(g: Weights, b: Any, memo: dict[str, Any]) -> Weights:
    """Moments as one exponential average of the pair (g, 1): divided, they are weighted means."""
    one, two = memo.get("one", 0), memo.get("two", 0)
    memo["one"], memo["two"] = b * one + (1 - b), 0.99 * two + 0.01
    memo.update({n: b * memo.get(n, 0) + (1 - b) * x for n, x in g.items()})
    memo.update({n + "2": 0.99 * memo.get(n + "2", 0) + 0.01 * x**2 for n, x in g.items()})
    return {n: memo[n] / memo["one"] / ((memo[n + "2"] / memo["two"]).sqrt() + 1e-8) for n in g}


def shampoo(g: Weights, momentum: Any, memo: dict[str, Any]) -> Weights:
    out = {}
    for n, x in g.items():
        x = torch.atleast_2d(x)
        for side, moment in (("L", x @ x.T), ("R", x.T @ x)):
            memo[n + side] = memo.get(n + side, 1e-6 * torch.eye(len(moment), dtype=x.dtype)) + moment
        (a, left), (b, right) = (torch.linalg.eigh(memo[n + side]) for side in "LR")
        out[n] = ((left * a**-0.25) @ left.T @ x @ (right * b**-0.25) @ right.T).reshape(g[n].shape)
    return out


def lact(r: Row, m: Weights, anchor: Weights, held: list[int], memo: dict[str, Any]) -> Weights:
    """dW = mean momentum dW + sum of lr g; W <- W - NS(dW); each unit's incoming norm as at the start."""
    out = {}
    for j, n in enumerate(("gate", "up", "down")):
        weighted = sum(r.gates["lr"][i, j] * r.g(anchor, i)[n] for i in held)
        memo[n] = r.gates["momentum"][held].mean() * memo.get(n, 0) + weighted
        moved = m[n] - singular(memo[n], LACT)
        out[n] = moved / (moved.norm(dim=0) + 1e-5) * r.start[n].norm(dim=0)
    return out


def accumulated(momentum: bool = False, then: Callable[[Row, Weights, list[int]], Weights] | None = None) -> Hook:
    """Token by token in what is kept, every gradient at the segment's start; `then` acts on the whole."""

    def hook(r: Row, m: Weights, anchor: Weights, held: list[int], memo: dict[str, Any]) -> Weights:
        for i in held:
            g, a = r.g(anchor, i), r.gates["log_decay"][i].exp() if "log_decay" in r.gates else 1.0
            past = r.gates["momentum"][i] if momentum else 0
            memo.update({n: past * memo.get(n, 0) - r.gates["lr"][i] * x for n, x in g.items()})
            m = {n: a * w + memo[n] for n, w in m.items()}
        return then(r, m, held) if then else m

    return hook


def soft(r: Row, m: Weights, held: list[int]) -> Weights:
    lr = r.gates["lr"][held].sum()
    return {n: w.sign() * ((w.abs() - 0.05 * lr) / (1 + 0.3 * lr)).clamp(min=0) for n, w in m.items()}


def renormed(r: Row, m: Weights, held: list[int]) -> Weights:
    norms = {n: w.norm(dim=0) for n, w in r.start.items()}
    return {n: w / (w.norm(dim=0) + 1e-5) * norms[n] if w.ndim == 2 else w for n, w in m.items()}


def printed(A: Weights) -> Weights:
    return {n: a / (a**4).sum().sqrt() if a.ndim == 2 else a for n, a in A.items()}


def simplex(A: Weights) -> Weights:
    return {n: 2 * a.softmax(0) if a.ndim == 2 else a for n, a in A.items()}


NET, DECAY, DC = il.MLP(2, 2, bias=True), il.Decay(), il.Decay("channel")
TTT = il.MLP(depth=1, bias=True, norm=True, residual=True)


def at(learner: Any, retention: Any = DECAY, architecture: Any = NET, loss: Any = None, **options: Any) -> il.Memory:
    return il.Memory(architecture, loss or il.L2(), retention, learner, **{"segment": SEGMENT, **options})


def one(hook: Hook) -> Hook:
    """What a rule of the segment's end does in a segment of one token, `anchor` being the memory given."""
    return lambda r, m, anchor, held, memo: hook(r, m, anchor, held[-1:], memo)


STEP, KEEP, TOKEN = il.GradientStep, il.Keep(), {"segment": 1}
ENDS: dict[str, Any] = {"apply": "segment"}
PROX = il.ElasticNet(0.05, 0.3)
CASES = [
    Case("step", at(STEP()), decayed()),
    Case("step, segment 1", at(STEP(), **TOKEN), decayed()),
    Case("toward init", at(STEP(), il.Decay(toward="init")), decayed(True)),
    Case("momentum", at(il.Momentum()), decayed(momentum=True)),
    Case("momentum toward init", at(il.Momentum(), il.Decay(toward="init")), decayed(True, True)),
    Case("retained", at(STEP(), anchor="retained", **TOKEN), retained),
    Case("mean", at(STEP(average=True), KEEP, TTT), averaged(True), ttt),
    Case("three steps", at(STEP(3), **TOKEN), three_steps),
    Case("cut", at(STEP(max_norm=3.0), KEEP), cut(3.0)),
    Case("cut, momentum", at(il.Momentum(max_norm=3.0), KEEP, **TOKEN), cut(3.0)),
    Case("by channel", at(STEP(per="channel"), KEEP), by_channel),
    Case("by channel, matrix", at(STEP(per="channel"), KEEP, il.Matrix(), **TOKEN), by_channel, matrix),
    Case("window", at(STEP(), KEEP, window=3), windowed),
    Case("Lq by token", at(STEP(), il.Lq(4.0)), decayed(), link=printed),
    Case("KL by token", at(STEP(), il.KL(2.0), **TOKEN), decayed(), link=simplex),
    Case("elastic net by token", at(STEP(), PROX, **TOKEN), one(accumulated(then=soft))),
    Case("row norm by token", at(STEP(), il.RowNorm(), **TOKEN), one(accumulated(then=renormed))),
    Case("Muon", at(il.Muon(), **ENDS), pooled(muon), ends=True),
    Case("AdaGrad", at(il.AdaGrad(), **ENDS), pooled(adagrad), ends=True),
    Case("Adam", at(il.Adam(), **ENDS), pooled(adam), ends=True),
    Case("Adam by token", at(il.Adam(), **TOKEN), one(pooled(adam))),
    Case("Adam, channels", at(il.Adam(), DC, il.Matrix(), **ENDS), pooled(adam), matrix, ends=True),
    Case("Shampoo", at(il.Shampoo(), KEEP, **ENDS), pooled(shampoo), ends=True),
    Case("Lq", at(STEP(), il.Lq(4.0), **ENDS), accumulated(), link=printed, ends=True),
    Case("KL, momentum", at(il.Momentum(), il.KL(2.0), **ENDS), accumulated(True), link=simplex, ends=True),
    Case("elastic net", at(STEP(), PROX, **ENDS), accumulated(then=soft), ends=True),
    Case("row norm", at(STEP(), il.RowNorm(), **ENDS), accumulated(then=renormed), ends=True),
    Case("LaCT", il.get("lact", segment=SEGMENT, expansion=2), lact, swiglu, dot, ends=True),
]


@pytest.mark.parametrize("order", ["write-read", "read-write"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_loop_written_out(case: Case, order: Any) -> None:
    """Outputs, with masked tokens and documents inside segments, and what the final memory answers."""
    case = replace(case, memory=replace(case.memory, order=order))
    result = il.scan(case.memory, Q, KEYS, VALUES, il.Gates(**case.gates), case.state(), mask=MASK, reset=RESET)
    final = il.read(case.memory, Q, result.state)
    for b in range(B):
        for h in range(H):
            wanted, answer = case.walk(b, h)
            assert_close(result.output[b, :, h], wanted, f"row {b}, head {h}")
            assert_close(final[b, :, h], answer(Q[b, :, h]), "the final memory")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_state_is_complete(case: Case) -> None:
    """Split after a token inside a segment, and again: the same outputs and the same state."""
    whole = il.scan(case.memory, Q, KEYS, VALUES, il.Gates(**case.gates), case.state(), mask=MASK, reset=RESET)
    state, outputs = case.state(), []
    for first, stop in ((0, 3), (3, 9), (9, 10), (10, T)):
        s = slice(first, stop)
        part = il.Gates(**{n: g[:, s] for n, g in case.gates.items()})
        result = il.scan(
            case.memory, Q[:, s], KEYS[:, s], VALUES[:, s], part, state, mask=MASK[:, s], reset=RESET[:, s]
        )
        state = result.state
        outputs.append(result.output)
    assert_close(torch.cat(outputs, 1), whole.output, "outputs")
    for name, tensor in whole.state.tensors().items():
        assert_close(state.tensors()[name].double(), tensor.double(), name)
