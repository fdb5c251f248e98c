"""Files that appear whole or not at all, and checkpoints: where a long run stood, so that it can go on.

A checkpoint is one safetensors file: arrays, opaque parts as bytes, and a key in the metadata that says which run it
belongs to.  It is replaced whole after each piece of the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from innerloop.core.files import write_atomic

FORMAT = "innerloop checkpoint 1"


class Bundle(NamedTuple):
    """Named arrays, named lists of bytes, and JSON values."""

    arrays: dict[str, np.ndarray]
    parts: dict[str, list[bytes]]
    meta: dict[str, Any]


def pack(form: str, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Sequence[bytes]], meta: Any) -> bytes:
    """One safetensors file of a named form."""
    tensors = {f"array/{name}": np.ascontiguousarray(array) for name, array in arrays.items()}
    for name, pieces in parts.items():
        tensors |= {f"part/{i:04d}/{name}": np.frombuffer(piece, dtype=np.uint8) for i, piece in enumerate(pieces)}
    return safetensors.numpy.save(tensors, metadata={"form": form, "meta": json.dumps(meta)})


def unpack(form: str, path: str | Path) -> Bundle:
    """What `pack` made, read from a file; anything else raises ``ValueError``."""
    data = Path(path).read_bytes()
    try:
        tensors = safetensors.numpy.load(data)
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])["__metadata__"]
        if header["form"] != form:
            raise ValueError(f"it is a {header['form']}")
        bundle = Bundle({}, {}, json.loads(header["meta"]))
        for name in sorted(tensors):
            kind, _, rest = name.partition("/")
            if kind == "array":
                bundle.arrays[rest] = tensors[name]
                continue
            bundle.parts.setdefault(rest.partition("/")[2], []).append(tensors[name].tobytes())
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no {form.rpartition(' ')[0]}: {error}") from None
    return bundle


class Checkpoint:
    """A place where a run of one ``key`` (data, options) leaves what it has done, or nowhere when ``path`` is None."""

    def __init__(self, path: str | Path | None, key: Mapping[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.key = json.loads(json.dumps(key))

    def load(self) -> Bundle | None:
        """What an earlier run left, if it did; a checkpoint of another run raises ``ValueError``."""
        if self.path is None or not self.path.exists():
            return None
        bundle = unpack(FORMAT, self.path)
        if bundle.meta["key"] != self.key:
            other = [name for name, value in self.key.items() if bundle.meta["key"].get(name) != value]
            raise ValueError(
                f"the checkpoint {self.path} belongs to a run with another {' and '.join(other) or 'purpose'}; "
                f"name another file, or remove it"
            )
        return bundle

    def save(
        self, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Sequence[bytes]], meta: Mapping[str, Any]
    ) -> None:
        if self.path is not None:
            write_atomic(self.path, pack(FORMAT, arrays, parts, {**meta, "key": self.key}))

    def remove(self) -> None:
        """The run is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
