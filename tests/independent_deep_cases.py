"""What the deep memories are compared under: options of the rows, and memories that are no row.

The latter meet what the rows leave out: forms of Huber's loss, step sizes per channel, biases under Muon and Shampoo,
links, proxes and norms with other learners.
"""

from __future__ import annotations

from typing import Any

import independent_deep_parts as parts
import innerloop as il
from independent_deep import adagrad, adam, momentum, muon, shampoo
from independent_deep_parts import LOSSES, Network, SwiGlu, kl, lq

BARE = {"norm": False, "residual": False}

# options beyond the registered cases
MORE: dict[str, list[dict[str, Any]]] = {
    "ttt_linear": [{"segment": 1}, {"segment": 5, "average": False}],
    "ttt_mlp": [{"segment": 4, "average": False, "expansion": 2}],
    "titans": [
        {"segment": 1, "expansion": 2},
        {"segment": 6, "expansion": 2},
        {"segment": 3, "depth": 1, "residual": True},
        {"segment": 5, "norm": True, "toward": "init"},
    ],
    "moneta": [
        {"segment": 1},
        {"segment": 4, "variant": "corrected", "apply": "segment", "p": 2.5, "q": 3.0, "norm": False},
    ],
    "yaad": [{"segment": 3, "delta": 0.5, **BARE}, {"segment": 1, "toward": "init"}],
    "memora": [{"segment": 1, "total": 2.5}, {"segment": 4, "variant": "corrected", "total": 2.0, **BARE}],
    "omeganet": [{"segment": 1, "degree": 3, "norm": True}, {"segment": 3, "window": 6}],
    "atlas": [
        {"segment": 1, "window": 1, "norm": True},
        {"segment": 4, "toward": "init"},
        {"segment": 5, "apply": "segment", "toward": "init", "norm": True, "num_steps": 3},
    ],
    "lact": [{"segment": 1}, {"segment": 4, "num_steps": 3, "expansion": 2}],
    "preconditioned_deltanet": [{"center": 0.3, "span": 2.0}],
    "adagrad_memory": [],
    "adam_memory": [],
    "shampoo_memory": [],
}
NET, SMALL = Network(), il.MLP(2, bias=True)
DECAY, STEP = il.Decay("head"), il.GradientStep()


# memories that are no row: the value, and what `descend` makes of the same equation
OTHERS: dict[str, tuple[il.Memory, dict[str, Any]]] = {
    "norm": (
        il.Memory(SMALL, il.Huber(0.7, "norm"), DECAY, STEP, segment=3),
        {"net": NET, "loss": LOSSES["norm"], "segment": 3},
    ),
    "coordinate, window": (
        il.Memory(il.MLP(2, norm=True, residual=True), il.Huber(), DECAY, STEP, window=3, segment=4),
        {"net": Network(residual=True), "loss": LOSSES["coordinate"], "window": 3, "segment": 4},
    ),
    "switch, window": (
        il.Memory(SMALL, il.Huber(form="switch"), DECAY, il.Momentum(), window=3, segment=2),
        {"net": NET, "loss": LOSSES["switch"], "learner": momentum, "window": 3, "segment": 2},
    ),
    "robust": (
        il.Memory(il.MLP(2, activation="silu"), il.Robust(0.4), il.Keep(), STEP),
        {"net": Network("silu"), "loss": parts.robust(0.4)},
    ),
    "channel": (
        il.Memory(SMALL, il.Lp(2.5), DECAY, il.GradientStep(per="channel"), segment=3),
        {"net": NET, "loss": parts.lp(2.5), "channel": True, "segment": 3},
    ),
    "channel, window, momentum": (
        il.Memory(il.MLP(2, norm=True), il.L2(), DECAY, il.Momentum(per="channel"), window=2, segment=4),
        {"net": NET, "loss": LOSSES["l2"], "learner": momentum, "channel": True, "window": 2, "segment": 4},
    ),
    "lq, momentum": (
        il.Memory(SMALL, il.L2(), il.Lq(3.0, "corrected"), il.Momentum(), segment=3, apply="segment"),
        {
            "net": NET, "loss": LOSSES["l2"], "learner": momentum, "link": lq(3.0, "corrected"),
            "segment": 3, "apply": "segment",
        },
    ),
    "kl, momentum, window": (
        il.Memory(SMALL, il.L2(), il.KL(2.0), il.Momentum(), window=2, segment=3),
        {"net": NET, "loss": LOSSES["l2"], "learner": momentum, "link": kl(2.0), "window": 2, "segment": 3},
    ),
    "kl, muon": (
        il.Memory(SMALL, il.L2(), il.KL(), il.Muon(), segment=4, apply="segment"),
        {"net": NET, "loss": LOSSES["l2"], "learner": muon(5), "link": kl(1.0), "segment": 4, "apply": "segment"},
    ),
    "muon": (
        il.Memory(SMALL, il.L2(), il.Decay("head", "init"), il.Muon(4, "lact", lr="inside"), segment=2),
        {
            "net": NET, "loss": LOSSES["l2"], "learner": muon(4, parts.LACT), "toward": "init",
            "inside": True, "segment": 2,
        },
    ),
    "shampoo": (
        il.Memory(SMALL, il.L2(), DECAY, il.Shampoo(), segment=3, apply="segment"),
        {"net": NET, "loss": LOSSES["l2"], "learner": shampoo, "segment": 3, "apply": "segment"},
    ),
    "adagrad": (
        il.Memory(SMALL, il.L2(), il.Decay("head", "init"), il.AdaGrad(), segment=4, apply="segment"),
        {"net": NET, "loss": LOSSES["l2"], "learner": adagrad, "toward": "init", "segment": 4, "apply": "segment"},
    ),
    "adam": (
        il.Memory(SMALL, il.L2(), DECAY, il.Adam(), segment=2),
        {"net": NET, "loss": LOSSES["l2"], "learner": adam, "segment": 2},
    ),
    "elastic net": (
        il.Memory(il.MLP(2), il.L2(), il.ElasticNet(0.02, 0.1), STEP, segment=3),
        {"net": NET, "loss": LOSSES["l2"], "settle": parts.elastic(0.02, 0.1), "segment": 3},
    ),
    "elastic net, segment": (
        il.Memory(il.MLP(2), il.L2(), il.ElasticNet(0.02, 0.1), il.Momentum(), segment=3, apply="segment"),
        {
            "net": NET, "loss": LOSSES["l2"], "learner": momentum, "settle": parts.elastic(0.02, 0.1),
            "segment": 3, "apply": "segment",
        },
    ),
    "row norm": (
        il.Memory(SMALL, il.L2(), il.RowNorm(), il.Momentum(), segment=2),
        {"net": NET, "loss": LOSSES["l2"], "learner": momentum, "settle": parts.row_norm, "segment": 2},
    ),
    "row norm, segment": (
        il.Memory(SMALL, il.Dot(), il.RowNorm(), STEP, segment=4, apply="segment"),
        {"net": NET, "loss": LOSSES["dot"], "settle": parts.row_norm, "segment": 4, "apply": "segment"},
    ),
    "swiglu": (
        il.Memory(il.SwiGLU(2), il.L2(), DECAY, il.Momentum(), segment=3),
        {"net": SwiGlu(), "loss": LOSSES["l2"], "learner": momentum, "segment": 3},
    ),
    "features": (
        il.Memory(il.Features(il.polynomial(3), il.MLP(2, 1, bias=True)), il.L2(), DECAY, STEP, window=2, segment=4),
        {"net": Network(degree=3), "loss": LOSSES["l2"], "window": 2, "segment": 4},
    ),
}  # fmt: skip
