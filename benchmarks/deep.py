"""Deep memories on one thread: `titans` against titans-pytorch's `NeuralMemory`; `ttt_mlp` and how it grows.

    python benchmarks/deep.py

"op" is `innerloop.chunked` alone on [1, T, 4, 64]; "layer" puts before and after it what the other module has: a norm,
projections to queries, keys, values and gates, and an output projection, [1, T, 256] to [1, T, 256]. The other module
updates its weights once for each chunk of 64 and answers from the chunk's start; ours are exact for every token.
Correctness is checked first, against the token-by-token oracle in float64, outputs and gradients. Times are the best of
interleaved repeats; memory is what a fresh process grows by in one training step.
"""

from __future__ import annotations

import multiprocessing
import re
import resource
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.gated_deltanet import best, sgemm_rate
from torch import Tensor, nn

import innerloop as il

NAME = "deep"

Row = dict[str, Any]
B, H, K = 1, 4, 64
DIM, SEGMENT, EXPANSION = H * K, 64, 4
T, LONG, LONGEST = 2048, 8192, 16384


class Layer(nn.Module):
    """Titans as a layer: the norm and the projections that `NeuralMemory` has, around `innerloop.chunked`."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = il.get("titans", segment=SEGMENT, expansion=EXPANSION)
        self.norm = nn.RMSNorm(DIM)
        self.project = nn.Linear(DIM, 3 * DIM, bias=False)
        self.gates = nn.Linear(DIM, 3 * H)
        self.out = nn.Linear(DIM, DIM, bias=False)
        start = il.init_state(self.memory, 1, H, K, K).initial
        self.initial = nn.ParameterDict({n: nn.Parameter(x.clone()) for n, x in start.items()})

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        q, k, v = (y.unflatten(-1, (H, K)) for y in self.project(x).chunk(3, -1))
        lr, decay, momentum = self.gates(x).chunk(3, -1)
        gates = il.Gates(0.001 * lr.sigmoid(), nn.functional.logsigmoid(decay + 4), momentum.sigmoid())
        state = il.init_state(self.memory, x.shape[0], H, K, K, initial=dict(self.initial))
        return self.out(il.chunked(self.memory, q, k, v, gates, state).output.flatten(2))


def theirs() -> nn.Module:
    """The other module, as its authors would set it for these sizes; its step size must be bounded to stay finite."""
    from titans_pytorch import MemoryMLP, NeuralMemory

    torch.manual_seed(0)
    return NeuralMemory(
        dim=DIM, dim_head=K, heads=H, chunk_size=SEGMENT, batch_size=SEGMENT,
        model=MemoryMLP(K, depth=2, expansion_factor=float(EXPANSION)), per_head_learned_parameters=False,
        default_step_transform_max_lr=0.1,
    )  # fmt: skip


def op(
    name: str, tokens: int, checkpoint: bool | None = None, **options: Any
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward, and forward and backward with gradients of everything, of one row's `chunked`."""
    memory = il.get(name, **options)
    gen = torch.Generator().manual_seed(0)
    leaves = [torch.randn(B, tokens, H, K, generator=gen).requires_grad_() for _ in range(3)]
    upstream = torch.randn(B, tokens, H, K, generator=gen)
    gates = il.Gates(*(None if g is None else g.requires_grad_() for g in il.default_gates(memory, B, tokens, H, K)))
    initial = {n: x.clone().requires_grad_() for n, x in il.init_state(memory, 1, H, K, K).initial.items()}

    def output() -> Tensor:
        state = il.init_state(memory, B, H, K, K, initial=initial)
        return il.chunked(memory, *leaves, gates, state, checkpoint=checkpoint).output

    def forward() -> object:
        with torch.no_grad():
            return output()

    inputs = [*leaves, *(g for g in gates if g is not None), *initial.values()]
    return forward, lambda: torch.autograd.grad(output(), inputs, upstream)


def module(build: Callable[[], nn.Module], tokens: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """The same of a module on [1, tokens, 256]."""
    layer = build()
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(B, tokens, DIM, generator=gen).requires_grad_()
    upstream = torch.randn(B, tokens, DIM, generator=gen)
    parameters = [p for p in layer.parameters() if p.requires_grad]

    def output() -> Tensor:
        found = layer(x)
        return found if isinstance(found, Tensor) else found[0]

    def forward() -> object:
        with torch.no_grad():
            return output()

    def training() -> object:
        return torch.autograd.grad(output(), [x, *parameters], upstream, allow_unused=True)

    return forward, training


def check(name: str, **options: Any) -> Row:
    """Largest difference of `chunked` to `scan`, in outputs and all gradients, relative to their size."""
    memory = il.get(name, **options)
    gen = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, 40, 2, 8, generator=gen, dtype=torch.float64) for _ in range(3)]
    given = il.default_gates(memory, 1, 40, 2, 8, dtype=torch.float64)
    found: list[list[Tensor]] = []
    for run in (il.scan, il.chunked):
        leaves = [x.clone().requires_grad_() for x in inputs]
        gates = il.Gates(*(None if g is None else g.clone().requires_grad_() for g in given))
        start = il.init_state(memory, 1, 2, 8, 8, dtype=torch.float64).initial
        initial = {n: x.clone().requires_grad_() for n, x in start.items()}
        output = run(memory, *leaves, gates, il.init_state(memory, 1, 2, 8, 8, initial=initial)).output
        wanted = [*leaves, *(g for g in gates if g is not None), *initial.values()]
        upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        found.append([output.detach(), *torch.autograd.grad(output, wanted, upstream)])
    worst = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*found, strict=True))
    if not worst < 1e-9:
        raise AssertionError(f"{name}: chunked and scan differ by {worst:.1e}")
    return {"what": f"{name}: largest relative difference to scan", "value": worst}


def forward_flops(c: int, tokens: int, momentum: bool) -> float:
    """Products of a two-layer memory's forward pass: the keys', the reads', the tile's end."""
    d, h = K, EXPANSION * K
    return ((22 if momentum else 14) * d * h + 4 * c * (d + h)) * H * tokens


def speed(repeats: int = 7) -> list[Row]:
    """Titans against the other module, and both rows against the machine."""
    rate = sgemm_rate()
    ours, layer, other = op("titans", T, segment=SEGMENT), module(Layer, T), module(theirs, T)
    ttt = op("ttt_mlp", T)
    rows: list[Row] = []
    for i, what in enumerate(("forward", "forward+backward")):
        times = best({"op": ours[i], "layer": layer[i], "other": other[i], "ttt": ttt[i]}, repeats)
        for mine in ("op", "layer"):
            row = {"what": f"titans {what}, T {T}, {mine}", "ms": 1e3 * times[mine], "other ms": 1e3 * times["other"]}
            row["ratio"] = times["other"] / times[mine]
            if (mine, i) == ("op", 0):
                row["of sgemm"] = forward_flops(SEGMENT, T, True) / times[mine] / rate
            rows.append(row)
        row = {"what": f"ttt_mlp {what}, T {T}, op", "ms": 1e3 * times["ttt"]}
        row["ms at 90 GFLOP/s"] = row["ms"] * rate / 90e9
        rows.append(row)
    rows.append({"what": "sgemm 1024, GFLOP/s", "value": rate / 1e9})
    return rows


def scaling(repeats: int = 3) -> list[Row]:
    """Training time at T = 16,384 over that at T = 2,048, both recomputing; 8 is linear."""
    times = best({str(n): op("ttt_mlp", n, checkpoint=True)[1] for n in (LONGEST, T)}, repeats)
    return [{"what": f"ttt_mlp forward+backward, T x {LONGEST // T}", "ratio": times[str(LONGEST)] / times[str(T)]}]


def _grown(which: str) -> float:
    """Bytes by which this fresh process grows in one training step at T = 8,192."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    builds: dict[str, Callable[[], Any]] = {
        "op": lambda: op("titans", LONG, segment=SEGMENT),
        "layer": lambda: module(Layer, LONG),
        "other": lambda: module(theirs, LONG),
    }
    run = builds[which]()[1]
    before = _peak()
    run()
    return _peak() - before


def _peak() -> float:
    """The most bytes that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():  # where there is none, getrusage: on Linux it would start from the parent's peak
        return 1024.0 * int(re.findall(r"VmHWM:\s*(\d+) kB", status.read_text())[0])
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def memory() -> list[Row]:
    """Peak memory of training, in MB."""
    grown: dict[str, float] = {}
    for which in ("op", "layer", "other"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            grown[which] = pool.apply(_grown, (which,))
    return [
        {
            "what": f"titans training, T {LONG}, {mine}: MB", "MB": grown[mine] / 1e6, "other MB": grown["other"] / 1e6,
            "ratio": grown["other"] / grown[mine],
        }
        for mine in ("op", "layer")
    ]  # fmt: skip


def run() -> list[Row]:
    """Correctness, speed against the other module, peak memory, growth with T; one thread."""
    import titans_pytorch  # noqa: F401  (missing: said before anything is measured)

    warnings.filterwarnings("ignore", module="torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = [check("titans", segment=7), check("ttt_mlp"), *speed(), *scaling(), *memory()]
    finally:
        torch.set_num_threads(threads)
    columns = list(dict.fromkeys(name for row in found for name in row))
    show = dict.fromkeys(columns, "")
    return [show | {k: f"{x:.3g}" if isinstance(x, float) else x for k, x in row.items()} for row in found]


if __name__ == "__main__":
    for row in run():
        print("   ".join(f"{name} {value}" for name, value in row.items() if value != ""))
