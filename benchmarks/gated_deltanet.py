"""Gated delta rule on one thread: `innerloop.chunked` against the chunked PyTorch code of transformers' Qwen3-Next.

    python benchmarks/gated_deltanet.py

Both take [B, T, H, K] inputs and return [B, T, H, V] outputs and the end state; every timing includes the tiling.
Correctness is checked first, in the same run. Times are the best of interleaved repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import innerloop as il

NAME = "gated_deltanet"
MEMORY = il.get("gated_deltanet")

Row = dict[str, Any]
CHUNKS = (16, 32, 64)
SHAPE = (1, 2048, 4, 64)  # B, T, H, K = V


def inputs(B: int, T: int, H: int, K: int, *, seed: int = 0) -> list[Tensor]:
    gen = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, T, H, K, generator=gen) for _ in range(3))
    k = torch.nn.functional.normalize(k, dim=-1)
    log_decay = -0.1 * torch.rand(B, T, H, generator=gen)
    lr = torch.rand(B, T, H, generator=gen)
    return [q, k, v, log_decay, lr]


def ours(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, lr: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """The public call, argument checks included."""
    gates = il.Gates(lr=lr, log_decay=log_decay)
    output, state, _ = il.chunked(MEMORY, q * q.shape[-1] ** -0.5, k, v, gates, chunk_size=chunk)
    return output, state.memory["S"]


def theirs() -> Callable[..., tuple[Tensor, Tensor]]:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    def run(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, lr: Tensor) -> tuple[Tensor, Tensor]:
        return torch_chunk_gated_delta_rule(
            q, k, v, g=log_decay, beta=lr, output_final_state=True, use_qk_l2norm_in_kernel=False
        )

    return run


def best(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds; the functions take turns, so a disturbance hits all of them."""
    for f in functions.values():
        f()
    times = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, f in functions.items():
            begin = time.perf_counter()
            f()
            times[name] = min(times[name], time.perf_counter() - begin)
    return times


def forward_only(f: Callable[..., Any], x: list[Tensor]) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return f(*x)

    return run


def training(f: Callable[..., Any], x: list[Tensor]) -> Callable[[], object]:
    leaves = [y.clone().requires_grad_() for y in x]
    upstream = torch.randn(x[2].shape, generator=torch.Generator().manual_seed(1))

    def run() -> object:
        o, end = f(*leaves)
        return torch.autograd.grad((o, end), leaves, (upstream, torch.ones_like(end)))

    return run


def useful_flops(B: int, T: int, H: int, K: int, V: int, c: int) -> float:
    """Two operations for each multiply-add of the forward products; the inverse as a triangular one."""
    gram = 2 * c * K
    inverse = c * c / 6
    apply = c * (K + V) / 2  # T is triangular: half of the full product is useful
    state = 3 * K * V
    read = c * V / 2
    return 2.0 * B * T * H * (gram / 2 + inverse + apply + state + read)


def executed_flops(B: int, T: int, H: int, K: int, V: int, c: int) -> float:
    """The same with the full squares that the dense products compute."""
    return 2.0 * B * T * H * (2 * c * K + c * c / 6 + c * (K + V) + 3 * K * V + c * V)


def sgemm_rate(n: int = 1024, repeats: int = 10) -> float:
    a, b = torch.randn(n, n), torch.randn(n, n)
    return 2.0 * n**3 / best({"mm": lambda: a @ b}, repeats)["mm"]


def check(chunk: int) -> Row:
    """Largest difference to the other code in outputs, end state and gradients, relative to their size."""
    x = inputs(*SHAPE)
    run = theirs()
    pairs = zip(
        (*ours(*x, chunk), *training(lambda *y: ours(*y, chunk), x)()),
        (*run(*x), *training(run, x)()),
        strict=True,
    )
    worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    if not worst < 1e-4:
        raise AssertionError(f"chunk {chunk}: results differ by {worst:.1e}")
    return {"what": "largest relative difference", "chunk": chunk, "value": worst}


def speed(repeats: int = 15, chunks: tuple[int, ...] = CHUNKS) -> list[Row]:
    B, T, H, K = SHAPE
    x = inputs(*SHAPE)
    run = theirs()
    rate = sgemm_rate()
    rows: list[Row] = []
    for what, mode in (("forward", forward_only), ("forward+backward", training)):
        functions = {"reference": mode(run, x)}
        for c in chunks:
            functions[f"{c}"] = mode(lambda *y, c=c: ours(*y, c), x)
        times = best(functions, repeats)
        for c in chunks:
            row = {"what": what, "chunk": c, "ms": 1e3 * times[f"{c}"], "reference ms": 1e3 * times["reference"]}
            row["ratio"] = row["reference ms"] / row["ms"]
            if mode is forward_only:
                row["of sgemm"] = executed_flops(B, T, H, K, K, c) / times[f"{c}"] / rate
                row["of sgemm, triangles halved"] = useful_flops(B, T, H, K, K, c) / times[f"{c}"] / rate
            rows.append(row)
    rows.append({"what": "sgemm 1024", "GFLOP/s": rate / 1e9})
    return rows


def scaling(chunk: int = 32, repeats: int = 5) -> list[Row]:
    """Time at T = 16,384 over time at T = 2,048; 8 is linear.

    Training first: once it has freed blocks of the largest size, the allocator keeps such blocks instead of fetching
    fresh pages in every call, which would cost the long forward more than its arithmetic does.
    """
    B, T, H, K = SHAPE
    rows: list[Row] = []
    for what, mode in (("forward+backward", training), ("forward", forward_only)):
        functions = {str(n): mode(lambda *y: ours(*y, chunk), inputs(B, n, H, K)) for n in (T, 8 * T)}
        times = best(functions, repeats)
        rows.append({"what": f"{what}, T x 8", "chunk": chunk, "ratio": times[str(8 * T)] / times[str(T)]})
    return rows


def run() -> list[Row]:
    """Correctness, speed against the reference, and growth with T, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = [check(c) for c in CHUNKS] + speed() + scaling()
    finally:
        torch.set_num_threads(threads)
    columns = list(dict.fromkeys(name for row in found for name in row))
    show = dict.fromkeys(columns, "")
    return [show | {k: f"{x:.3g}" if isinstance(x, float) else x for k, x in row.items()} for row in found]


if __name__ == "__main__":
    for row in run():
        print("   ".join(f"{name} {value}" for name, value in row.items() if value != ""))
