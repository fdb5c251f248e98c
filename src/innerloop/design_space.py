"""The design space as a table: every memory in words, on Miras' four axes and those of test-time regression.

    Miras (arXiv 2504.13173)             architecture, objective (attentional bias), retention, learner
    test-time regression (2501.12352)    weights of past pairs, class of functions, solver

The words come from the memory's value, not from its name: a memory of one's own is described as well.
"""

from __future__ import annotations

from .core.architecture import MLP, Architecture, Exemplars, Matrix, SwiGLU
from .core.explain import explain
from .core.features import Features
from .core.learner import GradientLearner, GradientStep, Learner, Momentum
from .core.memory import Memory
from .core.objective import L2, Dot, Huber, Lp, Objective, Robust
from .core.preconditioned import AdaGrad, Adam, Diagonal, Muon, Shampoo
from .core.registry import get, names
from .core.retention import KL, Decay, ElasticNet, Keep, Lq, Retention, RowNorm
from .core.solvers import Append, GradientFlow, Kalman, Proximal, Ridge

COLUMNS = (
    "name", "architecture", "objective", "retention", "learner", "weights", "class", "solver", "state", "cost",
    "executor", "reference", "departs",
)  # fmt: skip


def rows() -> list[dict[str, str]]:
    """One row per registered memory, by name; the keys are `COLUMNS`, and `what` and `equation`."""
    out: list[dict[str, str]] = []
    for name in names():
        it = explain(name)
        out.append({
            "name": name, **axes(get(name)), "state": it.state_floats, "cost": it.flops, "executor": it.executor,
            "reference": " ".join(it.reference.split()), "departs": " ".join(it.departs.split()), "what": it.summary,
            "equation": it.equation,
        })  # fmt: skip
    return out


def axes(memory: Memory) -> dict[str, str]:
    """A memory on both sets of axes, in words."""
    return {
        "architecture": _architecture(memory.architecture),
        "objective": _objective(memory),
        "retention": _retention(memory.retention, memory.learner),
        "learner": _learner(memory),
        "weights": _weights(memory),
        "class": _class(memory.architecture),
        "solver": _solver(memory),
    }


def markdown(table: list[dict[str, str]], columns: tuple[str, ...] = COLUMNS) -> str:
    """The table as GitHub-flavoured Markdown."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(row[c].replace("|", "\\|") for c in columns) + " |" for row in table]
    return "\n".join(lines) + "\n"


def _architecture(it: Architecture) -> str:
    if isinstance(it, Features):
        return f"{_architecture(it.inner)} of {type(it.map).__name__.lower()} features"
    if isinstance(it, Matrix):
        return "matrix"
    if isinstance(it, MLP):
        base = "MLP" if it.depth > 1 else "matrix"
        more = [word for word, has in (("a norm", it.norm), ("a residual", it.residual)) if has]
        return base + (f" behind {' and '.join(more)}" if more else "")
    if isinstance(it, SwiGLU):
        return "gated MLP"
    assert isinstance(it, Exemplars)
    return "all pairs" if it.capacity is None else f"the last {it.capacity} pairs"


def _objective(memory: Memory) -> str:
    it: Objective = memory.objective
    words = {Dot: "dot product", L2: "squared loss", Lp: "l_p loss", Huber: "Huber loss", Robust: "robust squared loss"}
    word = words[type(it)]
    return word if memory.window == 1 else f"{word}, over the last {memory.window} tokens"


def _retention(it: Retention, learner: Learner) -> str:
    if isinstance(learner, Kalman):
        return "random walk of the weights"
    if isinstance(it, Decay):
        what = "decay of evidence" if isinstance(learner, Ridge) else "fixed decay" if it.schedule else "decay"
        return f"{what} per {it.per}" + (", toward the start" if it.toward == "init" else "")
    return {
        Keep: "none", ElasticNet: "shrinkage and threshold", RowNorm: "rows keep their norms", Lq: "l_q regulariser",
        KL: "KL divergence",
    }[type(it)]  # fmt: skip


def _learner(memory: Memory) -> str:
    it = memory.learner
    if isinstance(it, Momentum):
        word = "momentum"
    elif isinstance(it, GradientStep):
        word = "mean gradient of a segment" if it.average else "gradient descent"
    else:
        word = {
            Muon: "Muon", Diagonal: "preconditioned gradient",
            AdaGrad: "AdaGrad", Adam: "Adam", Shampoo: "Shampoo",
            Proximal: "implicit step", GradientFlow: "exact gradient flow", Ridge: "exact least squares",
            Kalman: "Kalman filter", Append: "keeps the pairs",
        }[type(it)]  # fmt: skip
    return word


def _weights(memory: Memory) -> str:
    it, architecture = memory.retention, memory.architecture
    if isinstance(architecture, Exemplars):
        kind = "dot-product kernel" if architecture.kernel == "exp" else "Gaussian kernel"
        return f"{kind} around the query"
    if isinstance(memory.learner, Kalman):
        return "fading, by the noise"
    if isinstance(it, Decay):
        return "geometric, fixed" if it.schedule else "geometric"
    return "uniform" if isinstance(it, Keep) else "fading, by the norm"


def _class(it: Architecture) -> str:
    if isinstance(it, Features):
        return f"{_class(it.inner)} in features"
    if isinstance(it, Exemplars):
        return "local constant" if it.order == 0 else "local linear"
    if isinstance(it, Matrix):
        return "linear"
    return "linear, normalised" if isinstance(it, MLP) and it.depth == 1 else "network"


def _solver(memory: Memory) -> str:
    it = memory.learner
    if isinstance(it, Ridge | Kalman):
        return "exact, recursive"
    if isinstance(it, Append):
        return "exact, at the query"
    if isinstance(it, GradientFlow):
        return "one exact flow"
    if isinstance(it, Proximal):
        return "one implicit step"
    assert isinstance(it, GradientLearner)
    if memory.apply == "segment":
        return "one step per segment"
    if isinstance(it, GradientStep) and it.num_steps > 1:
        return f"{it.num_steps} explicit steps"
    return "one explicit step" + (", from the segment's start" if memory.segment > 1 else "")
