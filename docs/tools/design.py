"""The design space, as the pages show it: families, and every memory's place on the axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import innerloop as il
from innerloop import design_space

FAMILIES = {
    "Accumulate": "A matrix to which pairs are added; what it answered before is not looked at.",
    "Correct": "A matrix whose answer is moved toward the value, one step a token.",
    "Exact": "A matrix that is the solution of the whole past's regression, at every token.",
    "Networks": "A network trained by the tokens it reads.",
    "All pairs": "The pairs themselves; the regression is solved around each query.",
}
MIRAS = {"architecture": "Memory", "objective": "Attentional bias", "retention": "Retention", "learner": "Learner"}
REGRESSION = {"weights": "Weights", "class": "Function class", "solver": "Solver"}


def family(memory: il.Memory) -> str:
    """Which of the families a memory belongs to."""
    if isinstance(memory.architecture, il.Exemplars):
        return "All pairs"
    if not isinstance(memory.architecture, il.Matrix):
        return "Networks"
    if isinstance(memory.learner, il.Ridge | il.Kalman):
        return "Exact"
    return "Accumulate" if isinstance(memory.objective, il.Dot) else "Correct"


@dataclass(frozen=True)
class Place:
    """A memory's place in the design space. axes: by the names of MIRAS and REGRESSION."""

    name: str
    family: str
    axes: dict[str, str]
    explanation: il.Explanation

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        it = self.explanation
        return {
            "name": self.name,
            "family": self.family,
            "summary": it.summary,
            **self.axes,
            "executor": it.executor,
            "state": it.state_floats,
            "cost": it.flops,
            "equation": it.equation,
            "gradient": it.gradient,
            "parallel": it.parallel,
            "paper": " ".join(it.reference.split()),
            "departs": " ".join(it.departs.split()),
            "gates": [{"name": g.name, "letter": g.letter, "meaning": g.meaning} for g in it.gates],
        }


def place(name: str) -> Place:
    """Where a registered memory stands."""
    memory = il.get(name)
    return Place(name, family(memory), design_space.axes(memory), il.explain(name))


def places() -> list[Place]:
    """All registered memories, family by family."""
    order = list(FAMILIES)
    return sorted(map(place, il.names()), key=lambda p: (order.index(p.family), p.name))
