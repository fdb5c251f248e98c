"""Independent oracles of the deep and the preconditioned rows: numpy, float64, one batch row and one head.

Nothing here knows the library. `descend` is the token loop that these rows share; its gradients are those of
independent_deep_parts.py, by hand, and its learners look at all gradients so far, each time from scratch:

    row(Call(q [T, K], k [T, K], v [T, V], gates, start, order), ...)  ->  outputs [T, V], final state

start holds the weights by name, the final state by its flat names ("memory/weight_0", "buffers/first.S"). Options that
the weights show (expansion, depth, biases, norm) are ignored.
Gates: "lr" [T], [T, 3] of SwiGLU's gate, up, down, or [T, V] per channel; "log_decay", "momentum", "scale", "delta",
"precond_lr", "precond_log_decay" [T]; "window" [T, W]. A gate that a row does not read raises.
"""

# fmt: off
from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

import independent_deep_parts as parts
from independent import RW, WR, _reads, _span, _spread, _unroll
from independent_deep_parts import LOSSES, Array, Loss, Matrix, Network, SwiGlu, Weights

Answer = tuple[Array, dict[str, Array]]


class Call(NamedTuple):
    q: Array
    k: Array
    v: Array
    gates: Mapping[str, ArrayLike | None]
    start: Mapping[str, ArrayLike]
    order: str = WR


def _read(x: Call, names: str, **absent: float) -> dict[str, Array]:
    """The gates by name, absent ones constant."""
    given = {name: np.asarray(gate, float) for name, gate in x.gates.items() if gate is not None}
    if unread := set(given) - set(names.split()):
        raise ValueError(f"this row reads the gates {names!r} only, not {sorted(unread)}")
    constants = {"lr": 1.0, "log_decay": 0.0, "momentum": 0.9, "delta": 1.0} | absent
    return {name: np.full(len(x.q), value) for name, value in constants.items()} | given


# -- learners: the step, and the buffers, that the gradients so far make --

class Seen(NamedTuple):
    """A gradient of one weight, with the step size and momentum it came with."""

    g: Array
    lr: float
    m: float


Learner = Callable[[Sequence[Seen]], tuple[Array, dict[str, Any]]]


def _carried(past: Sequence[Seen], terms: Sequence[Any]) -> Any:
    """sum_i m_n ... m_{i+1} terms_i."""
    return sum(np.prod([seen.m for seen in past[i + 1 :]]) * term for i, term in enumerate(terms))


def plain(past: Sequence[Seen]) -> tuple[Array, dict[str, Any]]:
    return -past[-1].lr * past[-1].g, {}


def momentum(past: Sequence[Seen]) -> tuple[Array, dict[str, Any]]:
    U = -_carried(past, [seen.lr * seen.g for seen in past])
    return U, {"{}": U}


def muon(num_steps: int, triples: Any = parts.STANDARD) -> Learner:
    def step(past: Sequence[Seen]) -> tuple[Array, dict[str, Any]]:
        U = _carried(past, [seen.g for seen in past])
        return -past[-1].lr * parts.orthogonal(U, triples[:num_steps]), {"{}": U}
    return step


def adagrad(past: Sequence[Seen]) -> tuple[Array, dict[str, Any]]:
    G = sum(seen.g**2 for seen in past)
    return -past[-1].lr * past[-1].g / (np.sqrt(G) + 1e-8), {"{}": G}


def adam(past: Sequence[Seen]) -> tuple[Array, dict[str, Any]]:
    """Two weighted means of the past: their weights are divided by their sums."""
    one = [1 - seen.m for seen in past]
    M, m = _carried(past, [w * seen.g for w, seen in zip(one, past, strict=True)]), _carried(past, one)
    two = [0.01 * 0.99 ** (len(past) - 1 - i) for i in range(len(past))]
    N, n = sum(w * seen.g**2 for w, seen in zip(two, past, strict=True)), sum(two)
    buffers = {"first.{}": M, "second.{}": N, "first_mass": m, "second_mass": n}
    return -past[-1].lr * (M / m) / (np.sqrt(N / n) + 1e-8), buffers


def shampoo(past: Sequence[Seen]) -> tuple[Array, dict[str, Any]]:
    def root(A: Array) -> Array:  # (A + 1e-6 I)^(-1/4)
        size, basis = np.linalg.eigh(A)
        return (basis * (size.clip(0) + 1e-6) ** -0.25) @ basis.T

    gradients = [np.atleast_2d(seen.g) for seen in past]
    L, R = sum(g @ g.T for g in gradients), sum(g.T @ g for g in gradients)
    step = root(np.asarray(L)) @ gradients[-1] @ root(np.asarray(R))
    return -past[-1].lr * step.reshape(past[-1].g.shape), {"left.{}": L, "right.{}": R}


# -- the token loop --

def descend(
    x: Call, gate: dict[str, Array], net: Any, loss: Loss, learner: Learner = plain, *,
    segment: int = 1, apply: str = "token", window: int = 1, toward: str = "zero",
    link: Callable[[Array], Array] | None = None, settle: Callable[..., Array] | None = None,
    average: bool = False, inside: bool = False, channel: bool = False,
) -> Answer:
    """Gradients at the segment's start, one for each token; momentum and decay go on from token to token.

    apply="segment": what is not linear in the gradient acts at the segment's last token, and reads see the segment's
    start until it has been written. Of the other learners, their gradients are summed and make one step, with the mean
    step size and momentum and the product of the decays. inside, channel: step sizes weigh gradients, or errors.
    """
    q, k, v, T, first = x.q, x.k, x.v, len(x.q), {n: np.array(w, float) for n, w in x.start.items()}
    outer = {n: first.pop(n) for n in parts.OUTER if n in first}
    waits, linear = apply == "segment", learner in (plain, momentum)
    gammas, ld = gate.get("window", np.ones((T, window))), gate["log_decay"]

    def weights(A: Weights) -> Weights:
        return outer | {n: link(w) if link and w.ndim == 2 else w for n, w in A.items()}  # biases are plain

    def rate(name: str, i: int) -> float:
        lr = gate["lr"][i]
        return np.broadcast_to(lr, 3)[SwiGlu.names.index(name)] if isinstance(net, SwiGlu) else lr

    memory, anchor, since, outputs = first, first, 0, np.zeros((T, v.shape[1]))
    gradients: list[Weights] = []
    past: dict[str, list[Seen]] = {n: [] for n in first}
    buffers: dict[str, Array] = {}
    for t in range(T):
        if t % segment == 0:
            anchor, since = memory, t
        closes = (t + 1) % segment == 0
        if x.order == RW:
            outputs[t] = net.answer(weights(anchor if waits else memory), q[t])

        W, total = weights(anchor), {n: np.zeros_like(w) for n, w in first.items()}
        for j in range(min(window, t + 1)):  # the pair t - j of the window, with the threshold it came with
            e = gammas[t][j] * loss.slope(net.answer(W, k[t - j]), v[t - j], gate["delta"][t - j])
            for n, g in net.gradient(W, k[t - j], e * gate["lr"][t] if channel else e).items():
                total[n] += rate(n, t) * g if inside else g
        gradients.append(total)

        pooled = range(since, t + 1) if waits and not linear else range(t, t + 1)
        if average:  # the mean (times scale i) of the segment's gradients, from its start
            summed = {n: sum(rate(n, i) * gradients[i][n] for i in range(since, t + 1)) for n in first}
            scale = gate["scale"][t] if "scale" in gate else 1 / (t + 1 - since)
            memory = {n: anchor[n] - scale * summed[n] for n in first}
            buffers = {} if closes else {f"buffers/{n}": g for n, g in summed.items()}
        elif linear or not waits or closes:
            new, kept = {}, np.exp(sum(ld[i] for i in pooled))
            for n, w in memory.items():
                size = 1.0 if inside or channel else float(np.mean([rate(n, i) for i in pooled]))
                m = float(np.mean([gate["momentum"][i] for i in pooled]))
                past[n].append(Seen(np.asarray(sum(gradients[i][n] for i in pooled)), size, m))
                step, left = learner(past[n])
                buffers |= {f"buffers/{key.format(n)}": np.asarray(b) for key, b in left.items()}
                new[n] = (first[n] + kept * (w - first[n]) if toward == "init" else kept * w) + step
                if settle and (closes or not waits) and w.ndim == 2:
                    rates = [rate(n, i) for i in (range(since, t + 1) if waits and linear else pooled)]
                    new[n] = settle(new[n], first[n], sum(rates) if linear else np.mean(rates))
            memory = new

        if x.order == WR:
            outputs[t] = net.answer(weights(memory if closes or not waits else anchor), q[t])
    return outputs, {f"memory/{n}": w for n, w in (memory | outer).items()} | buffers


# -- the rows --

def ttt_linear(x: Call, segment: int = 16, average: bool = True, activation: str = "gelu", **_: Any) -> Answer:
    """f(x) = x + LN(x W + b); W_t = W_seg - scale_t sum lr g, or without average W_t = W_{t-1} - lr g."""
    gate = _read(x, "lr scale" if average else "lr")
    return descend(x, gate, Network(activation, residual=True), LOSSES["l2"], segment=segment, average=average)


def ttt_mlp(x: Call, **options: Any) -> Answer:
    """The same of f(x) = x + LN(gelu(x W_0 + b_0) W_1 + b_1), with the tanh form of gelu."""
    return ttt_linear(x, activation="gelu_tanh", **options)


def titans(x: Call, segment: int = 64, toward: str = "zero", residual: bool = False, **_: Any) -> Answer:
    """U = m U - lr g, W = a W + U."""
    gate = _read(x, "lr log_decay momentum")
    return descend(x, gate, Network(residual=residual), LOSSES["l2"], momentum, segment=segment, toward=toward)


def moneta(
    x: Call, variant: str = "paper", segment: int = 64, apply: str = "token", p: float = 3.0, q: float = 4.0,
    residual: bool = True, **_: Any,
) -> Answer:
    """A = a A - lr grad 1/p sum |r|^p, W = A / |A|_q^(q-2) as printed, or with the power that was lost there."""
    gate, link = _read(x, "lr log_decay"), parts.lq(q, variant)
    return descend(x, gate, Network(residual=residual), parts.lp(p), segment=segment, apply=apply, link=link)


def yaad(
    x: Call, variant: str = "paper", segment: int = 64, delta: float = 1.0, toward: str = "zero",
    residual: bool = True, **_: Any,
) -> Answer:
    """W = a W - lr grad Huber: as printed |r| switches the whole step, "corrected" goes channel by channel."""
    gate, loss = _read(x, "lr log_decay delta", delta=delta), LOSSES["switch" if variant == "paper" else "coordinate"]
    return descend(x, gate, Network(residual=residual), loss, segment=segment, toward=toward)


def memora(
    x: Call, segment: int = 64, apply: str = "token", total: float = 1.0, residual: bool = True, **_: Any
) -> Answer:
    """A = a A - lr g, W = total softmax(A) of every column."""
    gate, net = _read(x, "lr log_decay"), Network(residual=residual)
    return descend(x, gate, net, LOSSES["l2"], segment=segment, apply=apply, link=parts.kl(total))


def omeganet(x: Call, segment: int = 64, window: int = 4, degree: int = 2, toward: str = "zero", **_: Any) -> Answer:
    """W = a W - lr sum over the window of gamma g, on polynomial features."""
    gate, net = _read(x, "lr log_decay window"), Network(degree=degree)
    return descend(x, gate, net, LOSSES["l2"], segment=segment, window=window, toward=toward)


def atlas(
    x: Call, segment: int = 64, window: int = 4, degree: int = 2, num_steps: int = 5, apply: str = "token",
    toward: str = "zero", **_: Any,
) -> Answer:
    """U = m U + sum over the window of gamma g, W = a W - lr NS(U), on polynomial features."""
    return descend(x, _read(x, "lr log_decay momentum window"), Network(degree=degree), LOSSES["l2"], muon(num_steps),
                   segment=segment, apply=apply, window=window, toward=toward)


def lact(x: Call, segment: int = 2048, num_steps: int = 5, **_: Any) -> Answer:
    """At the segment's end U = mean(m) U - sum lr grad <f(k), v>, W = W - NS(U), and the units' norms are restored."""
    return descend(x, _read(x, "lr momentum", momentum=0.0), SwiGlu(), LOSSES["dot"], muon(num_steps, parts.LACT),
                   segment=segment, apply="segment", inside=True, settle=parts.row_norm)


def preconditioned_deltanet(x: Call, center: float = -0.2, span: float = 1.5, **_: Any) -> Answer:
    """S = (I - lr (M k) k^T) diag(a) S + lr (M k) v^T, unrolled; the moments in M are summed from scratch."""
    (T, K), gate = x.k.shape, _read(x, "lr log_decay precond_lr precond_log_decay")
    seen, fades = gate.get("precond_lr", gate["lr"]), gate.get("precond_log_decay", np.zeros(T))
    A, F, B = np.zeros(K), [], []
    for t in range(T):
        A = np.sum([seen[i] * _span(fades, i + 1, t + 1) * x.k[i] ** 2 for i in range(t + 1)], 0)
        level = np.log(A + 1e-6) - center
        written = gate["lr"][t] * x.k[t] * np.exp(-log(span) * level / (1 + abs(level)))
        F.append((np.eye(K) - np.outer(written, x.k[t])) @ _spread(np.exp(gate["log_decay"][t]), K))
        B.append(np.outer(written, x.v[t]))
    memories = _unroll(F, B, np.array(x.start["S"], float))
    return _reads(x.q, memories, x.order), {"memory/S": memories[-1], "buffers/second": A}


def _matrix(learner: Learner, reads: str) -> Callable[..., Answer]:
    """A matrix moved by that learner: at every token, or with segments at their ends."""
    def row(x: Call, segment: int = 1) -> Answer:
        apply = "token" if segment == 1 else "segment"
        return descend(x, _read(x, reads), Matrix(), LOSSES["l2"], learner, segment=segment, apply=apply)
    return row


DEEP_ROWS: dict[str, Callable[..., Answer]] = {row.__name__: row for row in (
    ttt_linear, ttt_mlp, titans, moneta, yaad, memora, omeganet, atlas, lact, preconditioned_deltanet,
)} | {
    "adagrad_memory": _matrix(adagrad, "lr log_decay"),
    "adam_memory": _matrix(adam, "lr log_decay momentum"),
    "shampoo_memory": _matrix(shampoo, "lr log_decay"),
}


def check_deep_by_hand(
    row: str, q: Any, k: Any, v: Any, wanted: Any, start: Mapping[str, ArrayLike], gates: Any = (), options: Any = (),
    final: Any = (),
) -> None:
    """A flat list stands for [T, 1]."""
    q, k, v, wanted = (np.reshape(np.asarray(x, float), (len(x), -1)) for x in (q, k, v, wanted))
    options = dict(options)
    order = {"order": options.pop("order")} if "order" in options else {"order": RW if row == "lact" else WR}
    outputs, after = DEEP_ROWS[row](Call(q, k, v, dict(gates), start, **order), **options)
    np.testing.assert_allclose(outputs, wanted, rtol=1e-12, atol=1e-12, err_msg=row)
    for name, value in dict(final).items():
        np.testing.assert_allclose(after[name].ravel(), np.ravel(value), rtol=1e-12, atol=1e-15, err_msg=row)


H, R2, R3, ONE = -log(2), 2**0.5, 3**0.5, 1 / (1 + 1e-8)  # exp(H) = 1/2
D = 0.75e-3  # layer norm of (D, -D): s^2 = .75^2 + 1 = 1.25^2 in 1e-6, so +- 3/5; back: e -> (e1 - e2)/2 * .64/1.25e-3
TTT1 = {"weight_0": [[D, -D], [0, 0]], "bias_0": [0, 0], "norm_weight": [1, 1], "norm_bias": [0, 0]}
TTT2 = {"weight_0": [[10]], "weight_1": [[D / 10, -D / 10]], "bias_0": [0], "bias_1": [0, 0]} | {
    n: TTT1[n] for n in ("norm_weight", "norm_bias")}
TINY = {"weight_0": [[20]], "weight_1": [[0.05]]}  # f(1) = gelu(20)/20 = 1: far from 0, gelu is x or 0
OMEGA = {"weight_0": [[10], [10]], "weight_1": [[0.05]], "feature_coefficients": [1, 1]}  # features (1, x)
BARE = {"norm": False, "residual": False, "segment": 4}
# arguments of check_deep_by_hand, worked out on paper
DEEP_HAND_CASES: list[tuple[Any, ...]] = [
    # f(k) = (1.6, -.6), r = (1, -1), at z 512 (1, -1): one step takes D from W's first row and from b, z = -D.
    # The next pair is fitted: half that step, z = 0; without average the whole one; by the gate none
    ("ttt_linear", [[1, 0]] * 2, [[1, 0]] * 2, [[0.6, 0.4], [1.6, -0.6]], [[0.4, 0.6], [1, 0]], TTT1,
     {"lr": [D / 512] * 2}, {}, {"memory/weight_0": [D / 2, -D / 2, 0, 0], "memory/bias_0": [-D / 2, D / 2]}),
    ("ttt_linear", [[1, 0]] * 2, [[1, 0]] * 2, [[0.6, 0.4], [1.6, -0.6]], [[0.4, 0.6]] * 2, TTT1, {"lr": [D / 512] * 2},
     {"average": False}),
    ("ttt_linear", [[1, 0]] * 2, [[1, 0]] * 2, [[0.6, 0.4], [1.6, -0.6]], [[0.4, 0.6], [1.6, -0.6]], TTT1,
     {"lr": [D / 512] * 2, "scale": [1, 0]}, {"average": True}),
    # hidden 10, the same r: b1 = -+D, W1 = +-(D/10 - 10 D); at the hidden sum 2 (D/10) 512 times lr: D^2/5. q = -1: 0
    ("ttt_mlp", [-1], [1], [[0.6, 0.4]], [[-1.6, 0.6]], TTT2, {"lr": [D / 512]}, {"expansion": 1},
     {"memory/weight_0": 10 - D * D / 5, "memory/bias_0": -D * D / 5, "memory/weight_1": [-9.9 * D, 9.9 * D]}),
    # r = -2: g = (-.1, -40) of (W0, W1), twice. U = (.01, 4), (.015, 6); W = (10.01, 4.025), (10.025, 10.025)
    ("titans", [1, 1], [1, 1], [3, 3], [40.29025, 100.500625], TINY,
     {"lr": [0.1] * 2, "momentum": [0.5] * 2, "log_decay": [H, 0]}, {"expansion": 1},
     {"buffers/weight_0": 0.015, "buffers/weight_1": 6}),
    # toward the start: (20.01, 4.05); halfway back, (20.005, 2.05) + (.015, 6)
    ("titans", [1, 1], [1, 1], [3, 3], [81.0405, 20.02 * 8.05], TINY,
     {"lr": [0.1] * 2, "momentum": [0.5] * 2, "log_decay": [H, H]}, {"expansion": 1, "toward": "init"}),
    # W = 1/A; r = -2, slope -4: g = (-.2, -80), A = (.1, 40). At the segment's end A = (.15, 60): f(10) = (200/3)/60
    ("moneta", [1], [1], [3], [0.25], {"weight_0": [[0.05]], "weight_1": [[20]]}, {"lr": [0.25]}, BARE),
    ("moneta", [1, 10], [1, 1], [3, 3], [1, 10 / 9], {"weight_0": [[0.05]], "weight_1": [[20]]}, {"lr": [0.25] * 2},
     BARE | {"segment": 2, "apply": "segment"}, {"memory/weight_0": 0.15, "memory/weight_1": 60}),
    # |(3^(1/2), 2)|_4^2 = (9 + 16)^(1/2) = 5: W1 = (3^(1/2), 2)/5, corrected (3 3^(1/2), 8)/5
    ("moneta", [1], [1], [[0, 0]], [[4 * R3, 8]], {"weight_0": [[0.05]], "weight_1": [[R3, 2]]}, {"lr": [0]}, BARE),
    ("moneta", [1], [1], [[0, 0]], [[12 * R3, 32]], {"weight_0": [[20]], "weight_1": [[R3, 2]]}, {"lr": [0]},
     BARE | {"variant": "corrected"}),
    # r = -2: slope -1 under the first threshold, -2 under the second: W = (20.005, 2.05), then + (.01, 4)
    ("yaad", [1, 1], [1, 1], [3, 3], [20.005 * 2.05, 20.015 * 6.05], TINY, {"lr": [0.1] * 2, "delta": [1, 4]}, BARE),
    # r = (-2, -.5), |r| > 1: slope (-1, -1); corrected (-1, -.5): W0 + .1 * .05 * (2 or 1.5), W1 + 2 * (1, 1 or .5)
    ("yaad", [1], [1], [[3, 1.5]], [[20.01 * 2.05] * 2], {"weight_0": [[20]], "weight_1": [[0.05] * 2]},
     {"lr": [0.1]}, BARE),
    ("yaad", [1], [1], [[3, 1.5]], [[20.0075 * 2.05, 20.0075 * 1.05]], {"weight_0": [[20]], "weight_1": [[0.05] * 2]},
     {"lr": [0.1]}, BARE | {"variant": "corrected"}),
    # columns (1/2, 1/2), (3/4, 1/4): hidden (50, 75), f = 50*50 + 50*75, r = 1. lr g = ln2 (2, 3) of A1, ln2 (2, 2) of
    # A0's first row: (1/5, .), (3/7, .) and (2/3, 1/3): 100*(2/3*20 + 1/3*300/7)
    ("memora", [[1, 0]], [[1, 0]], [6249], [58000 / 21], {"weight_0": [[0, log(3)], [0, 0]], "weight_1": [[0], [0]]},
     {"lr": [-H / 25]}, BARE | {"total": 100}),
    # r = -1: g = -(.05, .05; 20), W = (10.005, 10.005; 2.05). At k = 2: f = 1.5, r = -1, g = -(.05, .1; 30), and half
    # of the first again: W = (10.0125, 10.0175; 6.05)
    ("omeganet", [1, 1], [1, 2], [2, 2.5], [20.01 * 2.05, 20.03 * 6.05], OMEGA,
     {"lr": [0.1] * 2, "window": [[1, 0.5]] * 2}, {"window": 2, "degree": 1, "expansion": 1}),
    # NS of one step takes the only singular value 1 to .701: W1 + .701, W0 + .701/2^(1/2) (1, 1), and again (U halves)
    ("atlas", [1, 1], [1, 1], [2, 1], [(20 + 0.701 * R2) * 0.751, (20 + 1.402 * R2) * 1.452], OMEGA,
     {"momentum": [0.5] * 2}, {"window": 1, "degree": 1, "expansion": 1, "num_steps": 1}),
    # once, at the end: half of W, + 3/4 of that step
    ("atlas", [1, 1], [1, 1], [2, 1], [1, (10 + 0.52575 * R2) * 0.55075], OMEGA,
     {"lr": [1, 0.5], "log_decay": [H, 0]},
     {"window": 1, "degree": 1, "expansion": 1, "num_steps": 1, "segment": 2, "apply": "segment"}),
    # f(1) = silu(40)/40; NS takes 1 to .1172: gate 40.1172, up 1.1172, down .025, which keep their lengths but for 1e-5
    ("lact", [1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 40.1172 / 40.11721 * 1.1172 / 1.11721 * 0.025 / 0.02501],
     {"gate": [[40]], "up": [[1]], "down": [[0.025]]}, {"lr": [[1, 1, 0]] * 3},
     {"expansion": 1, "num_steps": 1, "segment": 2}),
    # A = 1, then 1/2 + 1/2: l = 1, M = 4^(-1/2): S = 4/2; half of it, error 3: 1 + 3/2
    ("preconditioned_deltanet", [1, 1], [1, 1], [4, 4], [2, 2.5], {"S": [[0]]},
     {"log_decay": [0, H], "precond_lr": [1, 0.5], "precond_log_decay": [0, H]},
     {"center": log(1 + 1e-6) - 1, "span": 4}, {"buffers/second": 1}),
    # g = -1, G = 1, S = ONE; g = -3/4, G = 25/16. In one segment g = -1 - 2, lr 3/4
    ("adagrad_memory", [1, 1], [1, 1], [1, ONE + 0.75], [ONE, ONE + 0.75 / (1.25 + 1e-8)], {"S": [[0]]}, {}, {},
     {"buffers/S": 25 / 16}),
    ("adagrad_memory", [1, 1], [1, 1], [1, 2], [0, 2.25 / (3 + 1e-8)], {"S": [[0]]}, {"lr": [1, 0.5]}, {"segment": 2}),
    # M = g1; g2 = -g1/2 makes (1/4 g1 + 1/2 g2)/(3/4) nothing
    ("adam_memory", [1, 1], [1, 1], [1, ONE - 0.5], [ONE] * 2, {"S": [[0]]},
     {"momentum": [0.5] * 2}, {}, {"buffers/first.S": 0, "buffers/second.S": 0.99 * 0.01 + 0.01 / 4}),
    # in 1e-3: g = -3/4, L = R = 9/16 + 1 = (5/4)^2, step 3/5; g = -3, L = (5/4)^2 + 3^2 = (13/4)^2, step 12/13
    ("shampoo_memory", [1, 1], [1, 1], [D, 0.603], [0.6, 0.6 + 12 / 13], {"S": [[0]]}),
]

if __name__ == "__main__":
    for case in DEEP_HAND_CASES:
        check_deep_by_hand(*case)
    assert {case[0] for case in DEEP_HAND_CASES} == set(DEEP_ROWS)
