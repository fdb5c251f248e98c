"""Gate regimes and hard keys: no decay, strong decay, forgetting all, repeated keys, zero keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..core.architecture import Matrix
from ..core.dispatch import read
from ..core.explain import default_gates, stability
from ..core.learner import GradientLearner, GradientStep, Momentum
from ..core.memory import Memory
from ..core.objective import L2, Dot, Lp
from ..core.preconditioned import AdaGrad, Adam, Shampoo
from ..core.reference import Result
from ..core.retention import KL, Decay, Keep, Lq, RowNorm
from ..core.solvers import GradientFlow, Kalman, Proximal, Ridge
from ..core.state import State
from .check import Outcome, assert_same, body, check, chunks, outcome, scan, steps
from .inputs import Draw, Inputs, largest_lr, normed
from .tolerance import assert_close

WORST = 1e6
"""Largest `condition` that is held to the table.

Beyond it two float64 computations by different roads agree to fewer digits than the table asks of either: the answer
itself is not determined by the inputs' digits. Such cells (strong decay with few or equal keys, which leaves a Gram
matrix of the last tokens alone) must still be finite.
"""


def condition(memory: Memory, x: Inputs) -> float:
    """The largest condition number that a Ridge row meets on this call, or the `sensitivity` of a gradient row."""
    learner = memory.learner
    if isinstance(learner, GradientLearner):
        return sensitivity(memory, x)
    if not isinstance(learner, Ridge):
        return 1.0
    state, worst = x.state(memory), 1.0
    penalty = state.parameters.get("penalty", torch.tensor(learner.penalty, dtype=torch.float64))
    for t in range(x.q.shape[1]):
        state = scan(memory, x.tokens(t, t + 1), state).state
        A = state.memory["gram"]
        if learner.rule == "static":
            A = A + torch.diag_embed(penalty.expand(*A.shape[:-1]))
        worst = max(worst, float(torch.linalg.cond(A).nan_to_num(float("inf")).max()))
    return worst


def sensitivity(memory: Memory, x: Inputs) -> float:
    """How many times a change of the inputs in their last digits comes out larger: measured on the oracle.

    A network that is trained for a while under gates that decay its weights below a layer norm, or that write equal
    keys at a large step, is chaotic: there are no digits to compare.
    """
    generator = torch.Generator().manual_seed(5)
    size = 1e-12
    moved = {}
    for name, t in x.tensors().items():
        finite = t.isfinite() & (t.abs() < 1e20)
        noise = 1 + size * torch.randn(t.shape, generator=generator, dtype=t.dtype)
        upper = 1.0 if name == "gates.momentum" else float("inf")
        moved[name] = torch.where(finite, (t * noise).clamp(max=upper), t)
    with torch.no_grad():
        (plain, before, _), (output, after, _) = (scan(memory, y, y.state(memory)) for y in (x, x.with_tensors(moved)))
    worst = 1.0
    for a, b in zip((plain, *before.tensors().values()), (output, *after.tensors().values()), strict=True):
        if a.is_floating_point() and a.numel() and not torch.equal(a, b):
            change = float((a - b).abs().max() / a.abs().max()) / size
            worst = max(worst, change if change == change else float("inf"))
    return worst


def assert_chunked(memory: Memory, x: Inputs, what: str, sizes: tuple[int | None, ...] = (16, None)) -> None:
    """Chunked against scan, gradients included; cells of worse condition than `WORST` must be finite."""
    exempt = condition(memory, x) > WORST
    wanted = None if exempt else outcome(scan, memory, x)
    for size in sizes:
        got = outcome(chunks(size), memory, x)
        if wanted is not None:
            assert_same(got, wanted, f"{what}, chunk_size={size}")
        assert_finite(got, f"{what}, chunk_size={size}")


def assert_finite(got: Outcome, what: str) -> None:
    """Output, state and gradients; a segment's pending sum of log_decay is -inf once a token has forgotten all."""
    for name, t in {"output": got.output, **body(got.state), **got.gradients}.items():
        if name == "buffers/pending.log_decay":
            t = t.clamp(min=-1.0)
        assert not t.is_floating_point() or bool(t.isfinite().all()), f"{what}: {name} is not finite"


def not_compared(memory: Memory, decay: str) -> str:
    """Why a kind of decay leaves a row nothing to compare (empty: it does)."""
    retention = memory.retention
    if decay not in ("-5.0", "-inf", "mixed"):
        return ""
    if isinstance(retention, Lq) and retention.form == "paper" and retention.q > 3:
        return "m = A / |A|^(q-2), the link as printed, grows without bound as A is forgotten"
    if isinstance(retention, KL) and normed(memory) and decay != "-5.0":
        return (
            "logits of 0 give all channels one answer: the layer norm's input and all gradients are 0 but for rounding"
        )
    return ""


@check
def decay_regimes(memory: Memory, draw: Draw) -> None:
    """log_decay 0, tiny, moderate, strong, -inf, and all of them mixed with -1e30."""
    if "log_decay" not in memory.reads:
        return
    for decay in ("0.0", "-1e-3", "-0.1", "-5.0", "-inf", "mixed"):
        if not not_compared(memory, decay):
            assert_chunked(memory, draw(memory, 40, start="memory", decay=decay), f"log_decay {decay}")
        elif isinstance(memory.retention, KL):
            x = draw(memory, 40, start="memory", decay=decay)
            assert_finite(outcome(chunks(16), memory, x), f"log_decay {decay}")


@check
def forgetting_all_starts_anew(memory: Memory, draw: Draw) -> None:
    """A token that keeps nothing starts the memory anew: later answers are those of one that never read before it.

    It says so with every gate it has: log_decay and precond_log_decay -inf, momentum 0, window weights 0 on the pairs
    before it. Some memories have more past than gates can reach:

    - decayed to zero, a memory that started elsewhere (the weights of an MLP) is not back at its start;
    - a gradient at the memory before its decay, or at the segment's start, saw what is forgotten (unless the loss is
      Dot of a Matrix, whose gradient looks at no memory);
    - AdaGrad, Adam and Shampoo keep second moments that no gate of theirs decays;
    - a step that waits for the segment's end, or a running mean, sums over the segment whatever its tokens say.
    """
    learner, retention = memory.learner, memory.retention
    if not memory.retention.gates:
        return
    at_start = isinstance(memory.architecture, Matrix) or (isinstance(retention, Decay) and retention.toward == "init")
    blind = memory.is_matrix and isinstance(memory.objective, Dot)
    sees = isinstance(learner, GradientLearner) and not blind and (memory.anchor == "previous" or memory.segment > 1)
    moments = isinstance(learner, AdaGrad | Adam | Shampoo)
    if not at_start or sees or moments or memory.apply == "segment":
        return
    x = draw(memory, 30)
    given = {}
    for name, value in FORGETTING.items():
        gate = getattr(x.gates, name)
        if gate is not None:
            given[name] = gate.clone()
            given[name][:, 13] = value
    if memory.window > 1:
        assert x.gates.window is not None
        given["window"] = x.gates.window.clone()
        for later in range(memory.window - 1):  # a token `later` after the forgetting one sees pairs 0, ..., later back
            given["window"][:, 13 + later, :, later + 1 :] = 0
    x = replace(x, gates=x.gates._replace(**given))
    late = x.tokens(13, 30)
    fresh = outcome(scan, memory, late, gradients=False)
    for name, run in (("scan", scan), ("chunked", chunks(8)), ("step", steps)):
        assert_close(outcome(run, memory, x, gradients=False).output[:, 13:], fresh.output, f"{name} after -inf")


FORGETTING = {"log_decay": float("-inf"), "precond_log_decay": float("-inf"), "momentum": 0.0}
"""Gates by which a token keeps nothing of the past."""


def absent_values(memory: Memory, x: Inputs) -> dict[str, Tensor]:
    """What the gates' documentation says that an absent one is worth, as gates of the call."""
    heads, time = (torch.arange(n, dtype=torch.float64) for n in (x.q.shape[2], x.q.shape[1]))
    values: dict[str, Tensor] = {}
    for name in memory.reads:
        gate = getattr(x.gates, name)
        known = {
            "lr": 1.0, "window": 1.0, "log_decay": 0.0, "precond_log_decay": 0.0,
            "momentum": getattr(memory.learner, "coefficient", 0.0), "delta": getattr(memory.objective, "delta", 1.0),
        }  # fmt: skip
        if name == "precond_lr":
            values[name] = x.gates.lr  # type: ignore[assignment]
        elif name == "scale" and isinstance(memory.learner, Kalman):
            values[name] = torch.ones_like(gate)
        elif name == "scale":
            values[name] = (1 / (time % memory.segment + 1))[:, None].expand_as(gate)
        elif name == "log_decay" and isinstance(memory.retention, Decay) and memory.retention.schedule:
            values[name] = torch.log1p(-(2.0 ** -(5 + heads))).expand_as(gate)
        else:
            values[name] = torch.full_like(gate, known[name])
    return values


@check
def absent_gates_take_their_values(memory: Memory, draw: Draw) -> None:
    """An absent gate equals its documented value: log_decay 0 (or the schedule's), lr 1, momentum its coefficient..."""
    x = draw(memory, 12)
    if isinstance(memory.learner, GradientLearner):
        x = replace(x, k=x.k / 2, v=x.v / 2)  # lr = 1 must not diverge
    for name, full in absent_values(memory, x).items():
        given = replace(x, gates=x.gates._replace(**{name: full}))
        absent = replace(x, gates=x.gates._replace(**{name: None}))
        for what, run in (("scan", scan), ("chunked", chunks(5)), ("step", steps)):
            a, b = (outcome(run, memory, y, gradients=False) for y in (absent, given))
            assert_finite(b, f"{what} with {name} at its absent value")
            toward = getattr(memory.retention, "toward", "zero")
            if name == "log_decay" and what != "chunked" and toward == "zero":  # m_0 + 1 (m - m_0) is rounded
                assert torch.equal(a.output, b.output), f"{what}: log_decay 0 is not exactly no decay"
            assert_same(a, b, f"{what} without {name}")


LIMITS: dict[str, tuple[float, ...]] = {
    "lr": (0.0,), "momentum": (0.0, 1.0), "window": (0.0,), "scale": (0.0,), "delta": (0.0,), "precond_lr": (0.0,),
    "precond_log_decay": (0.0, float("-inf")),
}  # fmt: skip
"""Legal values at the ends of the gates' ranges (log_decay: see `decay_regimes`)."""


@check
def gates_at_their_limits(memory: Memory, draw: Draw) -> None:
    """Each gate at the ends of its range, everywhere and here and there: chunked = scan, gradients too."""
    for name in memory.reads:
        for value in LIMITS.get(name, ()):
            x = draw(memory, 20, start="memory")
            gate = getattr(x.gates, name)
            some = torch.rand(gate.shape, generator=torch.Generator().manual_seed(3)) < 0.5
            for what, where in (("everywhere", torch.ones_like(some)), ("here and there", some)):
                y = replace(x, gates=x.gates._replace(**{name: torch.where(where, value, gate)}))
                assert_chunked(memory, y, f"{name}={value:g} {what}", sizes=(8,))


@check
def nothing_written_is_nothing_learned(memory: Memory, draw: Draw) -> None:
    """With lr 0 (or a running mean's scale 0) and no decay every answer is the initial memory's.

    Up to what RowNorm's division by `|W| + eps` takes off the norm at each write.
    """
    writes = {"lr"} if isinstance(memory.learner, Kalman) else {"lr", "scale"}
    for name in writes & set(memory.reads):
        x = draw(memory, 10)
        still = {n: torch.zeros_like(g) for n in (name, "log_decay") if (g := getattr(x.gates, n)) is not None}
        x = replace(x, gates=x.gates._replace(**still))
        output = outcome(chunks(4), memory, x, gradients=False).output
        wanted = read(memory, x.q, x.state(memory))
        if isinstance(memory.retention, RowNorm):
            assert float((output - wanted).abs().max()) < 100 * RowNorm.eps, f"{name} 0 writes something"
        elif float(wanted.abs().max()) > 0:
            assert_close(output, wanted, f"{name} 0")
        else:
            # not exactly 0: the exact solvers replace the root of a zero weight, which has no derivative, by 1e-15
            assert float(output.abs().max()) < 1e-25, "a memory that starts at zero and writes nothing reads 0"


@check
def repeated_keys(memory: Memory, draw: Draw) -> None:
    """Equal unit keys at a large lr, with and without decay: the triangular systems of a tile are at their worst."""
    x = draw(memory, 70)
    key = torch.nn.functional.normalize(x.k[:, :1], dim=-1)
    x = replace(x, k=key.expand_as(x.k).contiguous())
    if "lr" in memory.reads:
        # a step of 1 writes v exactly
        overwrites = (
            memory.is_matrix and getattr(memory.learner, "linear", True) and not isinstance(memory.objective, Lp)
        )
        lr = torch.full_like(x.gates.lr, 1.0 if overwrites else largest_lr(memory))  # type: ignore[arg-type]
        x = replace(x, gates=x.gates._replace(lr=lr))
    decays = ("0.0", "-0.1", "-5.0") if "log_decay" in memory.reads else (None,)
    for decay in decays:
        if decay is not None:
            gate = torch.full_like(x.gates.log_decay, float(decay))  # type: ignore[arg-type]
            x = replace(x, gates=x.gates._replace(log_decay=gate))
        assert_chunked(memory, x, f"equal keys, log_decay {decay}", sizes=(64, None))


@check
def zero_keys(memory: Memory, draw: Draw) -> None:
    """All keys zero, and some: finite answers and gradients, equal to scan's."""
    x = draw(memory, 20, start="parameters")
    zeros = torch.zeros_like(x.k)
    sparse = torch.where(torch.arange(20).reshape(1, 20, 1, 1) % 3 == 0, x.k, zeros)
    for what, keys in (("all keys 0", zeros), ("two of three keys 0", sparse)):
        assert_chunked(memory, replace(x, k=keys), what, sizes=(8,))
    assert_chunked(memory, replace(x, q=zeros), "all queries 0", sizes=(8,))


@check
def default_gates_are_legal(memory: Memory, draw: Draw) -> None:
    """`default_gates` gives gates that the memory takes, and answers that stay finite."""
    x = draw(memory, 64)
    B, T, H, K, V = x.sizes
    more = {"value_dim": V} if memory.rate_per == "channel" else {}
    gates = default_gates(memory, B, T, H, K, dtype=torch.float64, **more)
    assert_finite(
        outcome(chunks(16), memory, replace(x, gates=gates, k=x.k * K**0.5), gradients=False), "default gates"
    )


@check
def stability_is_the_growth_seen(memory: Memory, draw: Draw) -> None:
    """`stability` against the growth of a small difference along the key, measured by running the memory."""
    learner = memory.learner
    linear = isinstance(learner, GradientStep | Momentum | Proximal | GradientFlow)
    linear = linear and isinstance(memory.architecture, Matrix) and memory.window == memory.segment == 1
    linear = linear and type(memory.retention) in (Keep, Decay) and isinstance(memory.objective, L2)
    options = {"per": "head", "max_norm": None, "num_steps": 1, "average": False}
    linear = linear and all(getattr(learner, name, usual) == usual for name, usual in options.items())
    channel = isinstance(memory.retention, Decay) and memory.retention.per == "channel"
    x = draw(memory, 6)
    if not linear or channel:
        try:
            stability(memory, x.k, x.gates)
        except ValueError:
            return
        raise AssertionError("stability of a memory without a growth factor must raise ValueError")
    x = replace(x, k=3 * x.k)  # some keys beyond the explicit step's limit
    factor, unstable = stability(memory, x.k, x.gates)
    assert factor.shape == x.k.shape[:3]
    assert torch.equal(unstable, factor.abs() > 1 + 4 * torch.finfo(factor.dtype).eps)
    for t in range(6):
        token = x.tokens(t, t + 1)
        seen = _growth(memory, token)
        mine = factor[:, t].abs() if isinstance(memory.learner, Momentum) else factor[:, t]
        assert_close(mine, seen, f"factor of token {t}")


def _growth(memory: Memory, x: Inputs) -> Tensor:
    """What one token makes of a difference along its key, [B, H]: the eigenvalue, or with momentum its size."""
    plain = x.state(memory)
    along = (
        x.k[:, 0, :, :, None] / x.k[:, 0].square().sum(-1)[..., None, None] * torch.ones_like(x.v[:, 0, :, None, :1])
    )

    def moved(state: State) -> list[Tensor]:
        shifted: Result = scan(memory, x, state)
        base: Result = scan(memory, x, plain)
        names = [n for n in body(base.state) if n.startswith(("memory/", "buffers/"))]
        return [(x.k[:, 0, :, None] @ (body(shifted.state)[n] - body(base.state)[n]))[..., 0, 0] for n in names]

    columns = [moved(replace(plain, memory={"S": plain.memory["S"] + along}))]
    if not plain.buffers:
        return columns[0][0]
    columns.append(moved(replace(plain, buffers={"S": plain.buffers["S"] + along})))
    steps = torch.stack([torch.stack(c, -1) for c in columns], -1)  # [B, H, 2, 2]
    return torch.from_numpy(np.abs(np.linalg.eigvals(steps.numpy())).max(-1))
