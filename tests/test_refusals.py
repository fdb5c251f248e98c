"""What means nothing is refused when it is built; the message names the argument, what came and what is wanted."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import innerloop as il

torch.set_num_threads(1)

INF, NAN = float("inf"), float("nan")

# class, argument, a value that is refused for its own sake
SCALARS: list[tuple[Any, str, Any]] = [
    *((il.MLP, name, x) for name in ("expansion", "depth") for x in (0, -1, 1.5, True, "2", None)),
    *((il.MLP, "std", x) for x in (-0.1, INF, NAN, True, "1")),
    (il.MLP, "activation", "relu"),
    (il.MLP, "activation", None),
    *((il.SwiGLU, "expansion", x) for x in (0, 2.0, True)),
    *((il.Polynomial, "degree", x) for x in (0, -2, 1.0, True)),
    *((il.Fourier, "num", x) for x in (0, 8.0, True)),
    *((il.Fourier, "bandwidth", x) for x in (0.0, -1.0, INF, NAN)),
    (il.Exemplars, "kernel", "box"),
    (il.Exemplars, "order", 2),
    (il.Exemplars, "bandwidth", 0.0),
    *((il.Exemplars, "capacity", x) for x in (0, 2.5)),
    (il.Exemplars, "penalty", -1.0),
    *((il.Lp, "p", x) for x in (0.99, 0.0, -1.0, INF, NAN, True)),
    *((il.Huber, "delta", x) for x in (0.0, -1.0, INF, NAN)),
    (il.Huber, "form", "pseudo"),
    *((il.Robust, "radius", x) for x in (-0.1, INF, NAN)),
    (il.Decay, "per", "token"),
    (il.Decay, "toward", "mean"),
    (il.Decay, "schedule", "cosine"),
    *((il.ElasticNet, name, x) for name in ("l1", "l2") for x in (-0.1, INF, NAN)),
    *((il.Lq, "q", x) for x in (0.5, 0.0, INF, NAN)),
    (il.Lq, "form", "printed"),
    *((il.KL, "total", x) for x in (0.0, -1.0, INF)),
    *((il.GradientStep, "num_steps", x) for x in (0, 1.0, True)),
    *((kind, "per", "token") for kind in (il.GradientStep, il.Momentum)),
    *((kind, "max_norm", x) for kind in (il.GradientStep, il.Momentum) for x in (0.0, -1.0, INF, NAN)),
    *((kind, "coefficient", x) for kind in (il.Momentum, il.Muon, il.Adam) for x in (-0.1, 1.5, NAN)),
    *((il.Muon, "num_steps", x) for x in (0, 5.0, True)),
    (il.Muon, "coefficients", "jordan"),
    (il.Muon, "lr", "both"),
    *((il.Diagonal, "center", x) for x in (INF, -INF, NAN, "0")),
    *((il.Diagonal, "span", x) for x in (0.9, 0.0, INF, NAN)),
    *((kind, "eps", x) for kind in (il.AdaGrad, il.Adam, il.Shampoo) for x in (0.0, -1e-8, INF)),
    *((il.Adam, "second", x) for x in (1.0, 1.5, -0.1, NAN)),
    *((il.Ridge, "penalty", x) for x in (-1.0, INF, NAN, True, "1")),
    (il.Ridge, "rule", "sliding"),
    (il.Kalman, "process_noise", -1.0),
    *((il.Kalman, name, 0.0) for name in ("observation_noise", "prior_variance")),
]


@pytest.mark.parametrize(("kind", "name", "value"), SCALARS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_scalars_and_words_out_of_range(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{kind.__name__}({name}={value!r}): pass ")):
        kind(**{name: value})


def test_options_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match=r"Decay\(schedule='retnet'\).*pass per='head'"):
        il.Decay("channel", schedule="retnet")
    with pytest.raises(ValueError, match=r"GradientStep\(num_steps=2\).*one gradient per token"):
        il.GradientStep(2, average=True)
    with pytest.raises(ValueError, match=r"Features\(inner=MLP\(residual=True\)\)"):
        il.Features(il.polynomial(2), il.MLP(residual=True))


@pytest.mark.parametrize("inner", [il.Exemplars(), il.Features(il.polynomial(2)), "Matrix", None], ids=str)
def test_features_stand_before_a_parametric_memory(inner: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"Features(inner={inner!r}): pass Matrix(), MLP(...)")):
        il.Features(il.polynomial(2), inner)


@pytest.mark.parametrize("wrong", [il.Matrix(), "polynomial", None], ids=str)
def test_features_need_a_feature_map(wrong: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"Features(map={wrong!r}): pass a feature map")):
        il.Features(wrong)


M, X, NET, GLU = il.Matrix(), il.Exemplars(), il.MLP(), il.SwiGLU()
L2, KEEP, D, DC, STEP = il.L2(), il.Keep(), il.Decay(), il.Decay("channel"), il.GradientStep()
FEATURES, AVERAGE = il.Features(il.polynomial(2)), il.GradientStep(average=True)
EXACT = [il.Proximal(), il.GradientFlow(), il.Ridge(), il.Kalman()]
NO_GRADIENT = [*EXACT, il.Append()]
END, BACK = {"segment": 4, "apply": "segment"}, {"anchor": "retained"}


def home(learner: Any) -> Any:
    return X if learner == il.Append() else M


MEANINGLESS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((X, L2, KEEP, STEP), {}, r"Exemplars are written by Append\(\)"),
    ((M, L2, KEEP, il.Append()), {}, r"Append\(\) writes nothing else"),
    ((X, L2, D, il.Append()), {}, r"Append keeps the past its own way: pass retention=Keep\(\)"),
    ((M, L2, D, il.Kalman()), {}, r"Kalman keeps the past its own way: pass retention=Keep\(\)"),
    ((X, il.Dot(), KEEP, il.Append()), {}, r"pass objective=L2\(\)"),
    ((X, il.Huber(), KEEP, il.Append()), {}, r"pass objective=L2\(\)"),
    *(
        ((architecture, loss, KEEP, learner), {}, rf"{type(learner).__name__} is exact for Matrix\(\) under L2\(\)")
        for learner in EXACT
        for architecture, loss in ((M, il.Dot()), (M, il.Lp(2.0)), (M, il.Robust()), (NET, L2), (GLU, L2))
    ),
    *(((M, L2, KEEP, x), BACK, rf"{type(x).__name__} takes no gradient.*anchor='previous'") for x in EXACT),
    ((M, L2, DC, il.Ridge()), {}, r"per head.*pass Decay\('head'\)"),
    ((M, L2, il.Decay(toward="init"), il.Ridge()), {}, r"per head.*pass Decay\('head'\)"),
    ((M, L2, il.Decay(schedule="retnet"), il.Ridge()), {}, r"per head.*pass Decay\('head'\)"),
    *(
        (
            (M, L2, retention, learner),
            {},
            rf"{type(retention).__name__} follows gradient steps, not {type(learner).__name__}",
        )
        for retention in (il.ElasticNet(), il.RowNorm(), il.Lq(), il.KL())
        for learner in (il.Proximal(), il.GradientFlow())
    ),
    ((M, L2, il.KL(), il.Ridge()), {}, "retention=KL follows gradient steps, not Ridge"),
    *(((home(x), L2, KEEP, x), {"window": 2}, rf"window.*not {type(x).__name__}") for x in NO_GRADIENT),
    *(((home(x), L2, KEEP, x), {"segment": 4}, rf"segment.*not {type(x).__name__}") for x in NO_GRADIENT),
    ((M, L2, D, STEP), {"segment": 2, **BACK}, r"segment > 1.*anchor='previous'"),
    *(((a, L2, DC, STEP), {}, r"Decay\('channel'\).*Matrix\(\): pass Decay\('head'\)") for a in (NET, GLU, FEATURES)),
    *(((a, L2, KEEP, il.Diagonal()), {}, r"Diagonal preconditions the keys of a Matrix\(\)") for a in (NET, GLU)),
    ((il.Features(il.polynomial(2), NET), L2, KEEP, il.Diagonal()), {}, "Diagonal preconditions the keys"),
    *(((NET, L2, r, x), END, "apply='segment' needs") for r in (KEEP, D) for x in (STEP, il.Momentum())),
    ((M, L2, KEEP, il.Proximal()), {"apply": "segment"}, "apply='segment' needs"),
    *(((M, L2, r, il.Diagonal()), END, "Diagonal preconditions each token's key") for r in (KEEP, il.Lq())),
    *(
        ((NET, L2, r, AVERAGE), {"segment": 4}, r"pass retention=Keep\(\) with average=True")
        for r in (D, il.ElasticNet(), il.RowNorm(), il.Lq(), il.KL())
    ),
    ((NET, L2, KEEP, il.GradientStep(2)), {"segment": 4}, "num_steps > 1.*segment=1 and apply='token'"),
    ((NET, L2, il.Lq(), il.GradientStep(2)), {"apply": "segment"}, "num_steps > 1.*segment=1 and apply='token'"),
    *(
        ((a, L2, r, x), {}, "step size per value channel.*SwiGLU's three or in a prox")
        for a, r in ((GLU, KEEP), (NET, il.ElasticNet()), (M, il.ElasticNet()))
        for x in (il.GradientStep(per="channel"), il.Momentum(per="channel"))
    ),
]


@pytest.mark.parametrize(("axes", "options", "named"), MEANINGLESS, ids=lambda x: re.sub(r"\W+", " ", str(x))[:70])
def test_combinations_that_mean_nothing(axes: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match="^Memory: .*(" + named + ")"):
        il.Memory(*axes, **options)


MEANT: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((FEATURES, L2, D, il.Ridge()), {}),
    ((FEATURES, L2, KEEP, il.Diagonal()), {}),
    ((M, L2, DC, il.Diagonal()), BACK),
    ((M, L2, D, il.Proximal()), {}),
    ((NET, il.Huber(), il.Lq(), STEP), {**END, "window": 3}),
    ((NET, il.Lp(), il.KL(), STEP), {"apply": "segment"}),
    ((NET, L2, KEEP, AVERAGE), {"segment": 4}),
    ((NET, L2, il.Decay(toward="init"), il.GradientStep(3)), BACK),
    ((NET, L2, il.RowNorm(), il.Momentum(per="channel")), END),
    ((GLU, il.Dot(), D, il.Adam()), {**END, "order": "read-write"}),
]


@pytest.mark.parametrize(("axes", "options"), MEANT, ids=lambda x: re.sub(r"\W+", " ", str(x))[:70])
def test_their_neighbours_are_not_refused(axes: Any, options: dict[str, Any]) -> None:
    memory = il.Memory(*axes, **options)
    assert il.Memory.from_json(memory.to_json()) == memory


@pytest.mark.parametrize("name", ["architecture", "objective", "retention", "learner"])
@pytest.mark.parametrize("wrong", ["Matrix", None, il.Gates()], ids=["word", "None", "gates"])
def test_an_axis_is_a_value(name: str, wrong: Any) -> None:
    axes: dict[str, Any] = {"architecture": M, "objective": L2, "retention": KEEP, "learner": STEP}
    with pytest.raises(TypeError, match=re.escape(f"Memory({name}={wrong!r}): pass ")):
        il.Memory(**{**axes, name: wrong})


def test_axes_are_not_exchanged() -> None:
    with pytest.raises(TypeError, match=r"Memory\(architecture=L2\(\)\): pass Architecture"):
        il.Memory(L2, M, KEEP, STEP)  # pyright: ignore


OPTIONS = [
    *(("window", x) for x in (0, -1, 2.0, True, "2", None)),
    *(("segment", x) for x in (0, -1, 2.0, True, "2", None)),
    ("apply", "chunk"),
    ("anchor", "start"),
    ("order", "read"),
]


@pytest.mark.parametrize(("name", "value"), OPTIONS, ids=str)
def test_options_of_a_memory(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"Memory({name}={value!r}): pass ")):
        il.Memory(NET, L2, KEEP, il.Adam(), **{name: value})


def gate(*shape: int, value: float = 0.5) -> torch.Tensor:
    return torch.full(shape, value)


SWI, CHANNEL = il.Memory(GLU, L2, KEEP, STEP), il.Memory(NET, L2, KEEP, il.GradientStep(per="channel"))
GATED: list[tuple[il.Memory, dict[str, torch.Tensor], str]] = [
    (SWI, {"lr": gate(2, 5, 1)}, r"gates\.lr: shape \[2, 5, 1\]: wanted \[2, 5, 1, 3\], \[B, T, H, 3\]"),
    (CHANNEL, {"lr": gate(2, 5, 1)}, r"gates\.lr: shape \[2, 5, 1\]: wanted \[2, 5, 1, 2\], \[B, T, H, V\]"),
    (il.Memory(NET, L2, KEEP, STEP), {"lr": gate(2, 5, 1, 3)}, r"gates\.lr: shape .* wanted \[2, 5, 1\]"),
    (il.Memory(NET, L2, KEEP, STEP), {"lr": gate(2, 5, 1, value=-0.1)}, r"gates\.lr: holds -0.1: wanted values in"),
    (il.Memory(NET, L2, KEEP, STEP), {"log_decay": gate(2, 5, 1)}, r"gates\.log_decay: .* does not read it"),
    (il.Memory(NET, L2, KEEP, STEP), {"scale": gate(2, 5, 1)}, r"gates\.scale: .* does not read it"),
    (il.Memory(NET, L2, KEEP, STEP), {"window": gate(2, 5, 1, 1)}, r"gates\.window: .* does not read it"),
    (il.Memory(NET, L2, KEEP, il.AdaGrad()), {"momentum": gate(2, 5, 1)}, r"gates\.momentum: .* does not read it"),
    (il.Memory(NET, L2, KEEP, il.Adam()), {"momentum": gate(2, 5, 1, value=1.5)}, r"gates\.momentum: holds 1.5"),
    (il.Memory(NET, L2, KEEP, STEP, window=3), {"window": gate(2, 5, 1, 2)}, r"wanted \[2, 5, 1, 3\], \[B, T, H, W\]"),
    (il.Memory(NET, L2, KEEP, STEP), {"delta": gate(2, 5, 1)}, r"gates\.delta: .* does not read it"),
    (il.Memory(NET, il.Huber(), KEEP, STEP), {"delta": gate(2, 5, 1, value=-1.0)}, r"gates\.delta: holds -1"),
    (il.Memory(M, L2, KEEP, il.Diagonal()), {"precond_log_decay": gate(2, 5, 1)}, r"gates\.precond_log_decay: holds"),
    (il.Memory(NET, L2, KEEP, il.Adam()), {"precond_lr": gate(2, 5, 1)}, r"gates\.precond_lr: .* does not read it"),
]


@pytest.mark.parametrize(("memory", "gates", "named"), GATED, ids=lambda x: re.sub(r"\W+", " ", str(x))[:50])
def test_gates_that_do_not_fit(memory: il.Memory, gates: dict[str, torch.Tensor], named: str) -> None:
    q, v = torch.zeros(2, 5, 1, 4), torch.zeros(2, 5, 1, 2)
    with pytest.raises(ValueError, match=named):
        il.scan(memory, q, q, v, il.Gates(**gates))


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [("weight_0", (1, 1, 16, 4), [2, 1, 4, 16]), ("norm_weight", (1, 1, 3), [2, 1, 2]), ("p", (3, 1), [2, 1])],
)
def test_initial_entries_that_do_not_fit(name: str, shape: tuple[int, ...], wanted: list[int]) -> None:
    memory = il.Memory(il.MLP(norm=True), il.Lp(), KEEP, STEP)
    message = f"initial[{name!r}]: shape {list(shape)}: wanted {wanted}"
    with pytest.raises(ValueError, match=re.escape(message)):
        il.init_state(memory, 2, 1, 4, 2, initial={name: torch.zeros(shape)})
    with pytest.raises(ValueError, match=r"'S'.*pass any of.*weight_0"):
        il.init_state(memory, 2, 1, 4, 2, initial={"S": torch.zeros(2, 1, 4, 2)})


def test_text_that_is_no_memory() -> None:
    for text, named in (("{", "not JSON"), ("[]", "list"), ('{"architecture": {"axis": "Cube"}}', "Cube")):
        with pytest.raises(ValueError, match=named):
            il.Memory.from_json(text)
    data = json.loads(il.Memory(FEATURES, L2, KEEP, STEP).to_json())
    data["architecture"]["map"] = il.Matrix().to_dict()
    with pytest.raises(ValueError, match=r"Features\(map=Matrix\(\)\): pass a feature map"):
        il.Memory.from_json(json.dumps(data))


@dataclass(frozen=True)
class Cubic(il.L2):
    """An objective of the user's own."""


def test_executors_refuse_what_they_do_not_know() -> None:
    """A subclass may change the mathematics, so the fast forms of its parent decline it, and say so."""
    memory = il.Memory(M, Cubic(), KEEP, STEP)
    explained = il.explain(memory)
    assert explained.executor != "affine"
    assert any("Dot or L2" in reason for reason in explained.declined["affine"])
    q, k, v = (torch.ones(1, 3, 1, 2) for _ in range(3))
    with pytest.raises(ValueError, match="affine"):
        il.chunked(memory, q, k, v, executor="affine")
