"""The delta rule is Euler's method, and Longhorn's step the backward one, on one flow.

    dS/ds = -k (S^T k - v)^T,   followed for time beta;   with z = beta |k|^2 an error along k is left with

    explicit Euler, DeltaNet     1 - z                  stable up to z = 2
    backward Euler, Longhorn     1 / (1 + z)            stable at any z, -> 0
    implicit midpoint            (1 - z/2) / (1 + z/2)  stable at any z, -> -1
    the flow itself, EFLA        exp(-z)

Longhorn's paper and the source write the step as 1 / (alpha + |k|^2), alpha = 1 / beta: z = |k|^2 / alpha.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .delta_forms import SOURCE, Tokens, draw
from .experiment import Outcome, Picture, Row, Tick, below, claim, experiment, near
from .implicit import slope

ALPHA, BETA = 1.0, 0.5


def longhorn_as_deltanet(x: Tokens) -> il.Gates:
    """DeltaNet's gates that make it Longhorn's step: beta = 1 / (alpha + |k|^2)."""
    return il.Gates(lr=1 / (ALPHA + x.k.square().sum(-1)))


@cache
def norms(scale: float) -> dict[str, Tensor]:
    """Norm of the memory after each token [L], keys scaled: mean over the batch."""
    unit = draw()
    x = unit._replace(k=scale * unit.k)
    constant = torch.ones_like(x.beta)
    runs = {
        "Longhorn": (il.get("longhorn"), il.Gates(lr=constant / ALPHA)),
        "DeltaNet, beta = 1 / (alpha + |k|^2)": (il.get("deltanet"), longhorn_as_deltanet(x)),
        "DeltaNet, beta .5": (il.get("deltanet"), il.Gates(lr=BETA * constant)),
    }
    out: dict[str, Tensor] = {}
    for name, (memory, gates) in runs.items():
        info = il.scan(memory, x.q, x.k, x.v, gates, info=("memory_norm",)).info
        assert info is not None
        out[name] = info["memory_norm"].mean((0, 2))
    return out


@experiment("W2", "Longhorn is DeltaNet with a step that looks at the key", source=SOURCE)
def same_rule(tick: Tick) -> Outcome:
    """With beta = 1 / (alpha + |k|^2) DeltaNet is Longhorn; a fixed beta explodes when keys grow tenfold."""
    tick("Longhorn as DeltaNet")
    x = draw()
    x = x._replace(k=torch.randn(x.k.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    one = il.scan(il.get("longhorn"), x.q, x.k, x.v, il.Gates(lr=torch.full_like(x.beta, 1 / ALPHA)))
    other = il.scan(il.get("deltanet"), x.q, x.k, x.v, longhorn_as_deltanet(x))
    gap = float((one.output - other.output).abs().max())
    tick("keys ten times as long")
    found, unit = norms(10.0), norms(1.0)
    same = float((unit["Longhorn"] - unit["DeltaNet, beta .5"]).abs().max())
    calm, wild = float(found["Longhorn"].max()), float(found["DeltaNet, beta .5"][-1])
    written = float(x.v.norm(dim=-1).mean(0).sum()) * 10 / (ALPHA + 100)  # no write makes what was there longer
    rows: list[Row] = [
        below("Longhorn against DeltaNet at beta = 1 / (alpha + |k|^2)", gap, 1e-12),
        below("Longhorn against DeltaNet at beta .5, unit keys: norms", same, 1e-12),
        claim(
            "largest norm of Longhorn's memory, keys x10", calm, f"<= {written:.2f}, sum of |v| |k| / (alpha + |k|^2)",
            calm <= written,
        ),
        claim("norm of DeltaNet's memory, beta .5, keys x10", wild, "explodes", wild > 1e10),
    ]  # fmt: skip
    notes = [
        "On unit keys, alpha 1 and beta .5 are the same rule: the picture's left half has one curve.",
        "The source calls Longhorn's step the implicit midpoint rule. It is backward Euler: its factor along the key "
        "is alpha / (alpha + |k|^2); see the next experiment.",
    ]
    return Outcome(rows, {"norms": Picture(paint_norms, (9.0, 4.2))}, notes)


def paint_norms(figure: Any, palette: Palette) -> None:
    """Norm of the memory along the stream, unit keys and long ones."""
    axes = figure.subplots(1, 2)
    styles = ((palette.lines[0], "-", 1.6), (palette.lines[1], "o", 1.6), (palette.lines[4], "-", 1.6))
    for axis, scale in zip(axes, (1.0, 10.0), strict=True):
        for (name, norm), (colour, mark, width) in zip(norms(scale).items(), styles, strict=True):
            axis.plot(range(1, len(norm) + 1), norm, mark, color=colour, lw=width, ms=5, mfc="none", label=name)
        axis.set(xlabel="token", title=f"keys of length {scale:g}", xticks=range(2, 17, 2))
    axes[0].set(ylabel="norm of the memory", ylim=(0, None))
    axes[1].set(yscale="log")
    axes[1].yaxis.set_major_formatter("{x:.0e}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


KEY = torch.full((4,), 0.5, dtype=torch.float64)
"""A unit key: lr |k|^2 = lr."""


def factor(name: str, z: Tensor) -> Tensor:
    """What one write leaves of an error along the key, for z = lr |k|^2 [n], by `stability`; "midpoint": see above."""
    lr = z / (1 + z / 2) if name == "midpoint" else z
    memory = il.get("deltanet" if name == "midpoint" else name)
    return il.stability(memory, KEY.expand(1, len(z), 1, -1), il.Gates(lr=lr.view(1, -1, 1))).factor.view(-1)


def eigenvalues(name: str, z: Tensor) -> Tensor:
    """Eigenvalues [n, 4] of the map S -> next S, which is symmetric: what a write of value 0 makes of the identity."""
    n, d = len(z), len(KEY)
    memory = il.get(name)
    state = il.init_state(memory, n, 1, d, d, initial={"S": torch.eye(d, dtype=torch.float64)[None, None]})
    k = KEY.expand(n, 1, d)
    moved = il.step(memory, k, k, torch.zeros_like(k), il.Gates(lr=z.view(n, 1)), state).state.memory["S"][:, 0]
    return torch.linalg.eigvalsh((moved + moved.mT) / 2)


def furthest(eigen: Tensor) -> Tensor:
    """Of each row, the eigenvalue that is furthest from 1: the one along the key."""
    return torch.take_along_dim(eigen, (eigen - 1).abs().argmax(-1, keepdim=True), -1)[:, 0]


@experiment("W3", "Stability of the delta rule and of Longhorn", source=SOURCE)
def stability(tick: Tick) -> Outcome:
    """DeltaNet's explicit step is unstable past beta |k|^2 = 2; Longhorn's implicit one is stable at any."""
    tick("factors along the key")
    z, ratio = torch.linspace(0, 3, 13, dtype=torch.float64), torch.logspace(-2, 4, 13, dtype=torch.float64)
    explicit, implicit = factor("deltanet", z), factor("longhorn", ratio)
    unstable = il.stability(il.get("deltanet"), KEY.expand(1, 13, 1, -1), il.Gates(lr=z.view(1, -1, 1))).unstable
    rows: list[Row] = []
    for at, value, bad in zip(z.tolist(), explicit.tolist(), unstable.view(-1).tolist(), strict=True):
        text = f"{abs(1 - at):.2f}" + (" unstable" if at > 2 else "")
        holds = abs(abs(value) - abs(1 - at)) < 1e-12 and bad == (at > 2)
        rows.append(claim(f"DeltaNet, |factor| at beta |k|^2 = {at:.2f}", abs(value), text, holds))
    for at, value in zip(ratio.tolist(), implicit.tolist(), strict=True):
        rows.append(near(f"Longhorn, factor at |k|^2 / alpha = {at:.3g}", value, 1 / (1 + at), 1e-12))
    tick("eigenvalues")
    moving = z[z > 0]
    gap = float((furthest(eigenvalues("deltanet", moving)) - (1 - moving)).abs().max())
    gap2 = float((furthest(eigenvalues("longhorn", ratio)) - 1 / (1 + ratio)).abs().max())
    others = eigenvalues("longhorn", ratio).max(-1).values
    far, middle = float(implicit[-1]), float(factor("midpoint", ratio)[-1])
    small = torch.logspace(-3, -1.5, 9, dtype=torch.float64)
    flow = factor("efla", small)
    rows += [
        below("DeltaNet, factor against eigenvalues of the write", gap, 1e-12),
        below("Longhorn, factor against eigenvalues of the write", gap2, 1e-12),
        near("largest eigenvalue of any write, Longhorn", float(others.max()), 1.0, 1e-12),
        near("A-stability boundary of the explicit step", boundary(), 2.0, 1e-9),
        claim("Longhorn at |k|^2 / alpha = 1e4", far, "-> 0, as backward Euler's", abs(far) < 1e-3),
        claim("implicit midpoint at the same", middle, "-> -1", middle < -0.99),
    ]
    for name, order in (("deltanet", 2.0), ("longhorn", 2.0), ("midpoint", 3.0)):
        found = slope(small, (factor(name, small) - flow).abs())
        rows.append(near(f"order of one step's error against the flow, {name}", found, order, 0.05))
    notes = [
        "The source calls Longhorn's step the implicit midpoint rule; it is backward Euler. Its factor goes to 0 as "
        "|k|^2 / alpha grows, so it is not only A-stable but L-stable; the midpoint rule's goes to -1, an error that "
        "changes sign and stays.",
        "|1 - beta |k|^2| is the factor along the key. The spectral radius of I - beta k k^T is never below 1: what is "
        "orthogonal to the key stays as it is.",
        "Being stable is not being accurate: both Euler steps differ from the flow by z^2 / 2 when z is small.",
    ]
    return Outcome(rows, {"stability": Picture(paint_stability, (9.0, 4.2))}, notes)


def boundary() -> float:
    """The z beyond which `stability` calls the explicit step unstable, by bisection."""
    low, high = 0.5, 4.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        stable = abs(float(factor("deltanet", torch.tensor([middle], dtype=torch.float64)))) <= 1
        low, high = (middle, high) if stable else (low, middle)
    return low


def paint_stability(figure: Any, palette: Palette) -> None:
    """Factors along the key: the explicit step near its border, and all of them at large steps."""
    left, right = figure.subplots(1, 2)
    z = torch.linspace(0, 3, 121, dtype=torch.float64)
    left.axvspan(2, 3, color=palette.lines[4], alpha=0.15, lw=0)
    left.text(2.5, 0.65, "unstable", color=palette.soft, ha="center")
    names = (
        ("deltanet", "explicit Euler: DeltaNet", 4),
        ("longhorn", "backward Euler: Longhorn", 0),
        ("efla", "the flow: EFLA", 2),
    )
    for name, label, colour in names:
        left.plot(z, factor(name, z).abs(), color=palette.lines[colour], label=label)
    left.axhline(1, color=palette.soft, lw=0.9, ls="--")
    left.set(xlim=(0, 3), ylim=(0, 2.05), xlabel="z = beta |k|^2", title="|factor| of an error along the key")
    left.legend(loc="upper left")
    wide = torch.logspace(-2, 4, 121, dtype=torch.float64)
    for name, label, colour in (*names[1:], ("midpoint", "implicit midpoint", 3)):
        right.plot(wide, factor(name, wide), color=palette.lines[colour], label=label, ls="--" if colour == 3 else "-")
    right.set(xscale="log", xlim=(1e-2, 1e4), ylim=(-1.05, 1.05), xlabel="z = |k|^2 / alpha", title="the factor itself")
    right.xaxis.set_major_formatter("{x:g}")
    right.legend(loc="upper right")
