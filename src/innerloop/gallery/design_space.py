"""M: the design-space table, generated: every registered memory is a choice of the same few things.

Miras            architecture, attentional bias (objective), retention gate, memory algorithm (learner)
test-time        weights of the pairs, class of functions, solver
regression
"""

from __future__ import annotations

import innerloop as il

from ..design_space import rows
from .experiment import Outcome, Tick, claim, experiment

SOURCE = "Miras (arXiv 2504.13173), table 1; test-time regression (arXiv 2501.12352)"
# What Miras' table and the papers say of some rows, by their own words: (architecture, objective, retention, learner)
MIRAS = "MLP behind a norm and a residual"  # the memory of Miras' own three, section 5
PAPERS = {
    "linear_attention": ("matrix", "dot product", "none", "gradient descent"),
    "retnet": ("matrix", "dot product", "fixed decay per head", "gradient descent"),
    "mamba2": ("matrix", "dot product", "decay per head", "gradient descent"),
    "gla": ("matrix", "dot product", "decay per channel", "gradient descent"),
    "deltanet": ("matrix", "squared loss", "none", "gradient descent"),
    "gated_deltanet": ("matrix", "squared loss", "decay per head", "gradient descent"),
    "longhorn": ("matrix", "squared loss", "none", "implicit step"),
    "titans": ("MLP", "squared loss", "decay per head", "momentum"),
    "moneta": (MIRAS, "l_p loss", "l_q regulariser", "gradient descent"),
    "yaad": (MIRAS, "Huber loss", "decay per head", "gradient descent"),
    "memora": (MIRAS, "squared loss", "KL divergence", "gradient descent"),
    "preconditioned_deltanet": ("matrix", "squared loss", "decay per head", "preconditioned gradient"),
}


@experiment("M", "The design space", source=SOURCE)
def design_space(tick: Tick) -> Outcome:
    """Every memory on the four axes of Miras and the three of test-time regression, generated from the registry.

    The rows that the papers tabulate come out as they are printed there; the row that they leave empty, a
    preconditioned (second-order) optimiser as a sequence memory, is filled.
    """
    tick("registry")
    table = {row["name"]: row for row in rows()}
    found = [claim("memories in the table", float(len(table)), "every registered one", set(table) == set(il.names()))]
    for name, axes in PAPERS.items():
        got = tuple(table[name][axis] for axis in ("architecture", "objective", "retention", "learner"))
        found.append(claim(name, "; ".join(got), "; ".join(axes), got == axes))
    filled = [n for n, row in table.items() if row["learner"] in ("AdaGrad", "Adam", "Shampoo")]
    found.append(
        claim("memories that Adam, AdaGrad, Shampoo train", ", ".join(filled), "no paper has one", len(filled) == 3)
    )
    combinations = {
        tuple(row[a] for a in ("architecture", "objective", "retention", "learner")) for row in table.values()
    }
    note = (
        f"{len(table)} memories take {len(combinations)} places. Where two share one they differ in what the table "
        "does not say: the order of decay and gradient, the segment, or how a gate is made. `innerloop list --table` "
        "prints it."
    )
    return Outcome(found, notes=[note])
