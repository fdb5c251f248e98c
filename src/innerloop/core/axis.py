"""What every axis value shares: immutability, a readable form, a JSON round trip."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

# The arrays of the axes' mathematics belong to whichever framework runs them (PyTorch here, JAX elsewhere).
Array = Any
Weights = dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """One choice in the equation. A subclass owns its mathematics and nothing else."""

    _classes: ClassVar[dict[str, type[Axis]]] = {}

    #: Scalars of the axis that `initial` may override by a tensor: name -> "H" ([B, H]) or "HK" ([B, H] or [B, H, K]).
    parameters: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        Axis._classes[cls.__name__] = cls

    def to_dict(self) -> dict[str, Any]:
        """The value as plain JSON types: `{"axis": class name, field: value, ...}`."""
        out: dict[str, Any] = {"axis": type(self).__name__}
        for field in fields(self):
            value = getattr(self, field.name)
            out[field.name] = value.to_dict() if isinstance(value, Axis) else value
        return out

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Axis:
        """The inverse of `to_dict`; an unknown class or field raises ValueError."""
        rest = dict(data)
        name = rest.pop("axis", None)
        if name not in Axis._classes:
            raise ValueError(f"axis={name!r} is unknown: one of {sorted(Axis._classes)}")
        values = {key: Axis.from_dict(value) if isinstance(value, dict) else value for key, value in rest.items()}
        try:
            return Axis._classes[name](**values)
        except TypeError as error:
            raise ValueError(f"axis {name}: {error}") from None


def positive(owner: str, name: str, value: float, *, zero: bool = False) -> None:
    """Refuse a scalar that is not a finite number above zero (or at zero, when `zero`)."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and value < float("inf")
    if not (good and (value >= 0 if zero else value > 0)):
        raise ValueError(f"{owner}({name}={value!r}): pass a finite number {'>= 0' if zero else '> 0'}")


def boolean(owner: str, name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"{owner}({name}={value!r}): pass True or False")


def one_of(owner: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a word that is not among the choices."""
    if value not in choices:
        raise ValueError(f"{owner}({name}={value!r}): pass one of {', '.join(map(repr, choices))}")
