"""The options of a streaming regressor: which memory reads which, their ranges, the settings of an automatic bank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..core.memory import Memory
from ..core.registry import get

MEMORIES = ("rls", "kalman", "deltanet", "longhorn", "titans_linear", "titans", "nadaraya_watson")
RULES = ("regularized", "static", "exponential", "directional")
BANK = 16
"""Settings of an automatic bank."""


@dataclass(frozen=True)
class Setting:
    """The options of one regressor; see `StreamingRegressor`."""

    forgetting: float = 1.0
    forgetting_rule: str = "regularized"
    penalty: float = 1.0
    process_noise: float | None = None
    lr: float | None = None
    momentum: float | None = None
    bandwidth: float | None = None
    window: int | None = None
    fit_intercept: bool = True


# Which options a memory reads, beside fit_intercept; any other must keep its default.
_READS: dict[str, tuple[str, ...]] = {
    "rls": ("forgetting", "forgetting_rule", "penalty"),
    "kalman": ("process_noise", "penalty"),
    "deltanet": ("lr",),
    "longhorn": ("lr", "forgetting"),
    "titans_linear": ("lr", "forgetting", "momentum"),
    "titans": ("lr", "forgetting", "momentum"),
    "nadaraya_watson": ("bandwidth", "window"),
}
_GATES = {"lr": "lr", "forgetting": "log_decay", "momentum": "momentum"}


def reads(memory: str | Memory) -> tuple[str, ...]:
    """The options that a memory reads, by its name or, of a `Memory`, by its gates."""
    if isinstance(memory, Memory):
        return tuple(option for option, gate in _GATES.items() if gate in memory.reads)
    return _READS[memory]


def label(memory: str | Memory) -> str:
    """How messages call a memory."""
    return memory if isinstance(memory, str) else "this memory"


def check_memory_option(memory: Any) -> None:
    """Refuse what names no memory."""
    if not isinstance(memory, Memory) and memory not in MEMORIES:
        raise ValueError(f"memory={memory!r}: pass one of {', '.join(map(repr, MEMORIES))}, or a Memory")


def check_setting(memory: str | Memory, setting: Setting) -> None:
    """Refuse an unknown memory, an option out of range, or one that the memory does not read."""
    check_memory_option(memory)
    default, read = Setting(), reads(memory)
    ignored = ("fit_intercept", "forgetting_rule", "penalty")  # of consequence for some memories only, and harmless
    for option, value in vars(setting).items():
        if option not in (*read, *ignored) and value != getattr(default, option):
            raise ValueError(f"{option}={value!r}: {label(memory)} does not read it; it reads {', '.join(read)}")
    if setting.forgetting_rule not in RULES:
        raise ValueError(f"forgetting_rule={setting.forgetting_rule!r}: pass one of {', '.join(map(repr, RULES))}")
    number("forgetting", setting.forgetting, 0.0, 1.0, open_low=True)
    number("penalty", setting.penalty, 0.0, math.inf, open_low=True)
    for option in ("process_noise", "lr", "momentum", "bandwidth"):
        value = getattr(setting, option)
        if value is not None:
            high = 1.0 if option == "momentum" else math.inf
            number(option, value, 0.0, high, open_low=option in ("lr", "bandwidth"))
    window = setting.window
    if window is not None and (isinstance(window, bool) or not isinstance(window, int | np.integer) or window < 1):
        raise ValueError(f"window={window!r}: pass None (all rows) or an int >= 1")
    if not isinstance(setting.fit_intercept, bool | np.bool_):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"fit_intercept={setting.fit_intercept!r}: pass True or False")


def number(option: str, value: Any, low: float, high: float, *, open_low: bool) -> None:
    """Refuse what is no finite number in the interval."""
    real = isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)
    if not (real and (low < value if open_low else low <= value) and value <= high and math.isfinite(value)):
        left = "(" if open_low else "["
        right = "inf)" if high == math.inf else f"{high:g}]"
        raise ValueError(f"{option}={value!r}: pass a number in {left}{low:g}, {right}")


def usual_lr(memory: str | Memory, width: int) -> float:
    """The step size that stands for lr=None, for rows of `width` standardised columns (the intercept included)."""
    named = {"deltanet": 0.5 / width, "longhorn": 1.0, "titans_linear": 0.05 / width}
    if isinstance(memory, str) and memory in named:
        return named[memory]
    from ..core.memory import typical_lr

    return typical_lr(value(memory, Setting()))[0](width)


def value(memory: str | Memory, setting: Setting, *, forgets: bool = True) -> Memory:
    """The memory value that runs a setting, order "read-write": test, then train."""
    if isinstance(memory, Memory):
        return replace(memory, order="read-write")
    options: dict[str, Any] = {}
    if memory == "rls":
        # with forgetting 1 all rules are one regression, and "exponential" needs no solve per row
        options = {"rule": setting.forgetting_rule if forgets else "exponential"}
    elif memory == "longhorn":
        options = {"decay": forgets}
    elif memory == "titans":
        # short segments follow a stream closely; toward its start, as rows without surprise would wipe it out
        options = {"segment": 8, "toward": "init"}
    elif memory == "nadaraya_watson":
        options = {"capacity": None if setting.window is None else int(setting.window)}
    return replace(get(memory, **options), order="read-write")


def bank_settings(memory: str | Memory, base: Setting, bank: Any, width: int) -> list[Setting]:
    """The settings of `forgetting="auto"`: log-spaced, from keeping everything to following the last few rows.

    bank: None (16), how many, or a list of dicts of options. rls: forgetting 1 and 1 - 10^-4 to 1 - 10^-0.5; kalman:
    process noise 0 and 10^-8 to 1; gradient memories: step sizes from a thousandth of the usual one to twice it
    (longhorn, which is stable at any: to a hundred times); nadaraya_watson: bandwidths from a tenth to three times the
    usual one.
    """
    if isinstance(bank, Sequence) and not isinstance(bank, str):
        return _listed(bank, base)
    count = BANK if bank is None else bank
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 2:
        raise ValueError(f"bank={bank!r}: pass None (16 settings), an int >= 2, or a list of dicts of options")
    if memory == "rls":
        factors = [1.0, *(1 - 10.0 ** np.linspace(-4, -0.5, count - 1))]
        return [replace(base, forgetting=float(f)) for f in factors]
    if memory == "kalman":
        return [replace(base, process_noise=float(q)) for q in (0.0, *(10.0 ** np.linspace(-8, 0, count - 1)))]
    if memory == "nadaraya_watson":
        usual = math.sqrt(width)
        return [replace(base, bandwidth=float(usual * h)) for h in 10.0 ** np.linspace(-1, 0.5, count)]
    if "lr" not in reads(memory):
        raise ValueError(f"forgetting='auto': {label(memory)} has no step size to try; pass bank=[{{...}}, ...]")
    low, high = (-3.0, 2.0) if memory == "longhorn" else (-3.0, math.log10(2))
    usual = usual_lr(memory, width)
    return [replace(base, lr=float(usual * r)) for r in 10.0 ** np.linspace(low, high, count)]


def _listed(bank: Sequence[Any], base: Setting) -> list[Setting]:
    known = {f.name for f in fields(Setting)}
    made: list[Setting] = []
    for entry in bank:
        if not isinstance(entry, Mapping):
            raise TypeError(f"bank: holds {type(entry).__name__}: pass a list of dicts of options")
        unknown = sorted(set(map(str, entry)) - known)
        if unknown:
            raise ValueError(f"bank: {unknown[0]!r} is no option of a setting: pass any of {sorted(known)}")
        made.append(replace(base, **entry))
    if not made:
        raise ValueError("bank=[]: pass at least one dict of options")
    return made
