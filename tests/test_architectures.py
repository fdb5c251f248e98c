"""Architectures against plain torch modules, features against enumerated monomials and the kernel they approximate."""

from __future__ import annotations

import math
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import innerloop as il
from innerloop.core.architecture import plainly
from innerloop.testing import assert_close

torch.set_num_threads(1)

B, H = 2, 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(architecture: Any, key_dim: int, value_dim: int) -> dict[str, Tensor]:
    """Random values of everything that the architecture holds."""
    shapes = architecture.shapes(key_dim, value_dim) | architecture.constants(key_dim, value_dim)
    return {name: normal(B, H, *shape, seed=i) / 2 for i, (name, shape) in enumerate(shapes.items())}


def parameter(module: Any, name: str, value: Tensor) -> None:
    """Set a parameter of a module, whose shape it must have."""
    assert getattr(module, name).shape == value.shape
    setattr(module, name, nn.Parameter(value))


class Network(nn.Module):
    """The MLP of TTT, as one would write it: out x in weights, a norm, the input added where wanted."""

    def __init__(self, model: il.MLP, key_dim: int, value_dim: int) -> None:
        super().__init__()
        gelu = {"gelu": nn.GELU(), "gelu_tanh": nn.GELU(approximate="tanh"), "silu": nn.SiLU()}[model.activation]
        hidden = model.expansion * key_dim
        sizes = [key_dim, *[hidden] * (model.depth - 1), value_dim]
        self.linears = nn.ModuleList(nn.Linear(i, o, bias=model.bias) for i, o in pairwise(sizes))
        self.body = nn.Sequential()
        for i, linear in enumerate(self.linears):
            self.body.append(linear)
            if i < model.depth - 1:
                self.body.append(gelu)
        if model.norm:
            self.norm = nn.LayerNorm(value_dim, eps=1e-6)
            self.body.append(self.norm)
        self.residual, self.out = model.residual, value_dim
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if not self.residual:
            return y
        missing = self.out - x.shape[-1]
        return y + (F.pad(x, (0, missing)) if missing > 0 else x[..., : self.out])


def network(model: il.MLP, weights: dict[str, Tensor], b: int, h: int) -> Network:
    """The module with one batch row and head's weights."""
    key_dim, value_dim = weights["weight_0"].shape[-2], weights[f"weight_{model.depth - 1}"].shape[-1]
    module = Network(model, key_dim, value_dim)
    for i, linear in enumerate(module.linears):
        parameter(linear, "weight", weights[f"weight_{i}"][b, h].mT)
        if model.bias:
            parameter(linear, "bias", weights[f"bias_{i}"][b, h])
    if model.norm:
        parameter(module.norm, "weight", weights["norm_weight"][b, h])
        parameter(module.norm, "bias", weights["norm_bias"][b, h])
    return module


@pytest.mark.parametrize(("key_dim", "value_dim"), [(4, 4), (5, 3), (3, 5)])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_mlp_is_its_module(activation: Any, depth: int, key_dim: int, value_dim: int) -> None:
    """With and without bias, norm and residual (cut or padded where K is not V), two expansions."""
    x = normal(B, H, 6, key_dim, seed=9)
    for bias, norm, residual, expansion in product([False, True], [False, True], [False, True], [1, 3]):
        model = il.MLP(expansion, depth, activation, bias=bias, norm=norm, residual=residual)
        weights = drawn(model, key_dim, value_dim)
        answer = model.apply(weights, x)
        assert answer.shape == (B, H, 6, value_dim)
        for b, h in ((0, 0), (1, 2)):
            assert_close(answer[b, h], network(model, weights, b, h)(x[b, h]), f"{model}")


def test_mlp_shapes() -> None:
    wanted = {"weight_0": (5, 20), "bias_0": (20,), "weight_1": (20, 20), "bias_1": (20,)}
    wanted |= {"weight_2": (20, 3), "bias_2": (3,)}
    assert il.MLP(4, 3, bias=True).shapes(5, 3) == wanted
    assert il.MLP(4, 3).shapes(5, 3) == {n: s for n, s in wanted.items() if "weight" in n}
    assert il.MLP(depth=1).shapes(5, 3) == {"weight_0": (5, 3)}
    assert il.MLP(norm=True).constants(5, 3) == {"norm_weight": (3,), "norm_bias": (3,)}
    assert il.MLP().constants(5, 3) == {}


@pytest.mark.parametrize("value_dim", [4, 3, 6])
def test_swiglu_is_its_formula(value_dim: int) -> None:
    """(silu(x gate) * (x up)) down, each a layer of its own."""
    model = il.SwiGLU(3)
    assert model.shapes(4, value_dim) == {"gate": (4, 12), "up": (4, 12), "down": (12, value_dim)}
    weights, x = drawn(model, 4, value_dim), normal(B, H, 6, 4, seed=9)
    for b, h in ((0, 1), (1, 2)):
        layers = {name: nn.Linear(*w.shape[-2:], bias=False).double() for name, w in weights.items()}
        for name, layer in layers.items():
            parameter(layer, "weight", weights[name][b, h].mT)
        y = x[b, h]
        wanted = layers["down"](nn.SiLU()(layers["gate"](y)) * layers["up"](y))
        assert_close(model.apply(weights, x)[b, h], wanted, "swiglu")


def test_matrix_reads_by_its_transpose() -> None:
    S, x = normal(B, H, 4, 3), normal(B, H, 5, 4, seed=1)
    assert_close(il.Matrix().apply({"S": S}, x), torch.einsum("bhkv,bhnk->bhnv", S, x), "S^T x")
    assert il.Matrix().shapes(4, 3) == {"S": (4, 3)}


def test_kernels_by_hand() -> None:
    q, k, h = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 1.0]]]), torch.tensor(2.0)
    assert float(il.Exemplars("exp").log_weights(q, k, h)) == pytest.approx(5 / 4)
    assert float(il.Exemplars("gaussian").log_weights(q, k, h)) == pytest.approx(-5 / 8)  # -(4 + 1) / (2 * 4)


LAYERED = [il.Matrix(), il.MLP(2, 3, bias=True, norm=True, residual=True), il.SwiGLU(2), il.Features(il.polynomial(2))]


@pytest.mark.parametrize("architecture", LAYERED, ids=lambda a: type(a).__name__)
def test_layers_run_by_whoever_asks(architecture: Any) -> None:
    """`apply` calls `linear` once for each layer, in order, with the layer's own inputs, and uses what it returns."""
    weights, x = drawn(architecture, 4, 3), normal(B, H, 6, 4, seed=9)
    seen: list[Any] = []

    def linear(layer: Any, inputs: Tensor) -> Tensor:
        seen.append(layer)
        assert inputs.shape[-1] == weights[layer[0]].shape[-2]
        return plainly(weights)(layer, inputs)

    assert_close(architecture.apply(weights, x, linear), architecture.apply(weights, x), "the same layers")
    assert tuple(seen) == architecture.layers
    zeros = architecture.apply(weights, x, lambda layer, i: 0 * plainly(weights)(layer, i))
    assert bool((zeros - architecture.apply(weights, x)).abs().max() > 0.1)


# starting weights


def memory(architecture: Any) -> il.Memory:
    return il.Memory(architecture, il.L2(), il.Keep(), il.GradientStep())


def test_starting_weights() -> None:
    """N(0, 1 / fan in), or N(0, std^2); biases 0, the norm the identity; heads differ, batch rows do not."""
    K, V = 40, 30
    for std in (None, 0.02, 0.0):
        model = il.MLP(2, 2, bias=True, norm=True, std=std)
        start = il.init_state(memory(model), 2, 3, K, V, dtype=torch.float64).memory
        for name, fan_in in (("weight_0", K), ("weight_1", 2 * K)):
            wanted = fan_in**-0.5 if std is None else std
            for h in range(3):
                w = start[name][0, h]
                assert float(w.std()) == pytest.approx(wanted, rel=0.05, abs=0)
                assert abs(float(w.mean())) <= 4 * wanted / w.numel() ** 0.5
                assert torch.equal(start[name][1, h], w)
            assert std == 0 or not torch.equal(start[name][0, 0], start[name][0, 1])
            assert not start[name.replace("weight", "bias")].any()
        assert bool((start["norm_weight"] == 1).all())
        assert not start["norm_bias"].any()


def test_swiglu_starts_by_fan_in() -> None:
    start = il.init_state(memory(il.SwiGLU(2)), 1, 2, 40, 30).memory
    for name, fan_in in (("gate", 40), ("up", 40), ("down", 80)):
        assert float(start[name].std()) == pytest.approx(fan_in**-0.5, rel=0.05)
    assert not torch.equal(start["gate"], start["up"])


def test_given_weights_leave_the_other_draws_alone() -> None:
    """Default weights do not depend on the batch, on the dtype's draws or on which entries are given."""
    model = memory(il.MLP(2, 2, norm=True))
    plain = il.init_state(model, 1, 2, 4, 3, dtype=torch.float64).memory
    given = il.init_state(model, 5, 2, 4, 3, initial={"weight_0": normal(1, 2, 4, 8)}, dtype=torch.float64).memory
    assert_close(given["weight_1"][4:], plain["weight_1"], "the layer that was not given")
    assert_close(given["weight_0"], normal(1, 2, 4, 8).expand(5, 2, 4, 8), "the layer that was")
    single = il.init_state(model, 1, 2, 4, 3, dtype=torch.float32).memory["weight_1"]
    assert_close(single.double(), plain["weight_1"], "float32", dtype=torch.float32)


# features


@pytest.mark.parametrize(("key_dim", "degree"), [(1, 3), (2, 1), (3, 2), (4, 3), (2, 5)])
def test_polynomial_features_are_all_monomials(key_dim: int, degree: int) -> None:
    """Each exponent tuple of total order <= degree once, times the coefficient of its order."""
    poly = il.polynomial(degree)
    x, c = normal(B, H, 4, key_dim), normal(B, H, degree + 1, seed=1)
    phi = poly.features({"feature_coefficients": c}, x)
    exponents = [e for e in product(range(degree + 1), repeat=key_dim) if sum(e) <= degree]
    assert poly.size(key_dim) == len(exponents) == math.comb(key_dim + degree, degree) == phi.shape[-1]
    wanted = []
    for order in range(degree + 1):
        for e in sorted((e for e in exponents if sum(e) == order), reverse=True):  # x_1^2, x_1 x_2, ..., x_2^2, ...
            term = torch.ones(B, H, 4, dtype=torch.float64)
            for i, power in enumerate(e):
                term = term * x[..., i] ** power
            wanted.append(c[:, :, None, order] * term)
    assert_close(phi, torch.stack(wanted, -1), "monomials")


def test_polynomial_coefficients_start_at_the_exponentials() -> None:
    start = il.init_state(memory(il.Features(il.polynomial(4))), 1, 2, 3, 2, dtype=torch.float64).memory
    assert start["feature_coefficients"].tolist() == [[[1.0, 1.0, 1 / 2, 1 / 6, 1 / 24]] * 2]
    assert not start["S"].any()
    assert start["S"].shape == (1, 2, 35, 2)


@pytest.mark.parametrize("bandwidth", [0.7, 1.0, 2.5])
def test_fourier_features_approximate_the_gaussian_kernel(bandwidth: float) -> None:
    """<phi(x), phi(y)> against exp(-|x - y|^2 / 2 h^2), within five standard errors of that many cosines."""
    num = 20_000
    cosines, generator = il.fourier(num, bandwidth), np.random.default_rng(1)
    begun = cosines.start(lambda shape: generator.standard_normal((1, 1, *shape)), cosines.constants(3))
    start = {
        name: torch.as_tensor(w, dtype=torch.float64).expand(1, 1, *cosines.constants(3)[name])
        for name, w in begun.items()
    }
    x = normal(1, 1, 12, 3)
    phi = cosines.features(start, x)
    assert phi.shape == (1, 1, 12, num)
    squares = torch.cdist(x, x).square()
    assert float((phi @ phi.mT - torch.exp(-squares / (2 * bandwidth**2))).abs().max()) < 5 / num**0.5
    phases = start["feature_phases"]
    assert 0 <= float(phases.min()) < 0.01
    assert 2 * math.pi - 0.01 < float(phases.max()) <= 2 * math.pi
    assert float(phases.mean()) == pytest.approx(math.pi, abs=5 * math.pi / (3 * num) ** 0.5)


def test_fourier_features_by_hand() -> None:
    """sqrt(2 / n) cos(w^T x / h + b), each batch row and head with its own bandwidth."""
    x, w, b = normal(B, H, 4, 3), normal(B, H, 3, 5, seed=1), normal(B, H, 5, seed=2)
    h = 0.5 + torch.rand(B, H, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    phi = il.fourier(5).features({"feature_frequencies": w, "feature_phases": b, "bandwidth": h}, x)
    for i, j in product(range(B), range(H)):
        for n, m in product(range(4), range(5)):
            angle = float(x[i, j, n] @ w[i, j, :, m]) / float(h[i, j]) + float(b[i, j, m])
            assert float(phi[i, j, n, m]) == pytest.approx(math.sqrt(2 / 5) * math.cos(angle), abs=1e-14)


@pytest.mark.parametrize("inner", [il.Matrix(), il.MLP(2, 2, bias=True, norm=True), il.SwiGLU(2)], ids=str)
@pytest.mark.parametrize("features", [il.polynomial(2), il.fourier(7, 1.5)], ids=str)
def test_features_stand_in_front(features: Any, inner: Any) -> None:
    """inner(map(x)); hidden layers are counted in the key's channels, not in the features'."""
    architecture = il.Features(features, inner)
    weights, x = drawn(architecture, 4, 3), normal(B, H, 5, 4, seed=9)
    phi = features.features(weights, x)
    assert architecture.inputs(4) == phi.shape[-1] == features.size(4)
    assert_close(architecture.apply(weights, x), inner.apply(weights, phi), "inner(map(x))")
    shapes = architecture.shapes(4, 3)
    first, _ = architecture.layers[0]
    assert shapes[first] == (features.size(4), 3 if inner == il.Matrix() else 8)
    assert architecture.rates == inner.rates
    assert architecture.parametric is inner


def test_gradients_reach_the_maps_own_parameters() -> None:
    """A loss of what is read, differentiated by every outer parameter: against differences."""
    q, k, v = (normal(1, 4, 1, n, seed=i) / 2 for i, n in enumerate((3, 3, 2)))
    for architecture in (il.Features(il.polynomial(2)), il.Features(il.fourier(6)), il.MLP(2, 2, norm=True)):
        kind = memory(architecture)
        names = list(architecture.constants(3, 2))
        start = il.init_state(kind, 1, 1, 3, 2, dtype=torch.float64)
        given = {n: (start.memory[n] + 0.1).requires_grad_() for n in names}

        def cost(
            given: dict[str, Tensor], kind: il.Memory = kind, q: Tensor = q, k: Tensor = k, v: Tensor = v
        ) -> Tensor:
            state = il.init_state(kind, 1, 1, 3, 2, initial=given, dtype=torch.float64)
            lr = torch.full((1, 4, 1), 0.1, dtype=torch.float64)
            return (il.scan(kind, q, k, v, il.Gates(lr=lr), state).output - v).square().sum()

        gradients = torch.autograd.grad(cost(given), list(given.values()))
        for name, gradient in zip(names, gradients, strict=True):
            assert bool(gradient.abs().max() > 1e-4), f"{architecture}: {name}"
            direction = normal(*gradient.shape, seed=7)
            with torch.no_grad():
                high, low = (cost({**given, name: given[name] + s * direction}) for s in (1e-5, -1e-5))
            slope = float((high - low) / 2e-5)
            assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-6), f"{architecture}: {name}"


def test_outer_parameters_are_never_written() -> None:
    q, k, v = (normal(2, 4, 3, n, seed=i) / 2 for i, n in enumerate((3, 3, 2)))
    for architecture in (il.Features(il.polynomial(2)), il.Features(il.fourier(6)), il.MLP(norm=True, residual=True)):
        kind = memory(architecture)
        start = il.init_state(kind, 2, 3, 3, 2, dtype=torch.float64)
        after = il.scan(kind, q, k, v, state=start).state
        for name in architecture.constants(3, 2):
            assert torch.equal(after.memory[name], start.memory[name]), name
        for name in architecture.shapes(3, 2):
            assert not torch.equal(after.memory[name], start.memory[name]), name
