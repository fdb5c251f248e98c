"""The contract that every memory keeps, as checks that a memory of your own inherits.

    from innerloop.testing import check_memory
    check_memory(my_memory)                 # raises AssertionError, naming the check that failed

Each check is a small function `check(memory, draw)`; `draw` makes its inputs. `CHECKS` holds them by name, `SLOW` names
those that a plain `check_memory` leaves out. `assert_close` and `TOLERANCES` are the one table of tolerances.
"""

from __future__ import annotations

from . import arguments, continuing, forms, gates, masks, precision, states
from .check import CHECKS, SLOW, check_memory
from .inputs import Draw, Inputs
from .tolerance import TOLERANCES, assert_close

__all__ = ["CHECKS", "SLOW", "TOLERANCES", "Draw", "Inputs", "assert_close", "check_memory"]

_FAMILIES = (forms, continuing, masks, gates, precision, states, arguments)  # importing them filled CHECKS
