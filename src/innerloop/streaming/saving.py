"""A fitted regressor as arrays and JSON: for its own files (safetensors) and for pickles."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from ..core.files import write_atomic
from ..core.memory import Memory
from ..core.state import State
from .engine import Engine, Learned
from .mixture import MixtureState
from .online import Online
from .running import Noise

FORMAT = "regressor 1"
Packed = dict[str, Any]


def pack(fit: Learned) -> Packed:
    """{"arrays": {name: array}, "meta": JSON values}."""
    arrays: dict[str, np.ndarray] = {"noise/squares": fit.noise.squares, "noise/evidence": fit.noise.evidence}
    if fit.center is not None:
        arrays["center"] = fit.center
    if fit.path is not None:
        arrays["path"] = fit.path
    if fit.pending is not None:
        arrays["pending"] = fit.pending
    if fit.mixture is not None:
        arrays |= {f"mixture/{name}": np.asarray(x) for name, x in fit.mixture._asdict().items()}
    if fit.online is not None:  # beside the state, so that the copy goes on to the last digit
        arrays |= {"online/w": fit.online.w, "online/matrix": fit.online.matrix}
    if fit.state is not None:
        arrays |= {f"state/{name}": t.numpy() for name, t in fit.state.tensors().items()}
    counts = {"rows": fit.rows, "skipped": fit.skipped, "warned": fit.warned, "flat": fit.flat}
    meta = {**counts, "outputs": fit.engine.bank.outputs, "fresh": fit.state is None}
    return {"arrays": {n: np.ascontiguousarray(x) for n, x in arrays.items()}, "meta": meta}


def unpack(model: Any, packed: Mapping[str, Any]) -> Learned:
    """The inverse, for a regressor of the same options."""
    arrays, meta = packed["arrays"], packed["meta"]
    engine = Engine.made(model, model.n_features_in_, int(meta["outputs"]))
    state = None if meta["fresh"] else _state(engine.bank.memory, _group(arrays, "state/"))
    mixture = MixtureState(**_group(arrays, "mixture/")) if any(n.startswith("mixture/") for n in arrays) else None
    online = Online(**_group(arrays, "online/")) if "online/w" in arrays else None
    return Learned(
        engine, state, arrays.get("center"), Noise(**_group(arrays, "noise/")), mixture, bool(meta["flat"]),
        int(meta["rows"]), int(meta["skipped"]), bool(meta["warned"]), arrays.get("path"), arrays.get("pending"),
        online,
    )  # fmt: skip


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a regressor, fitted or not, to one file, atomically."""
    options = {name: _plain(name, value) for name, value in model.get_params(deep=False).items()}
    fit = vars(model).get("_fit")
    packed: Packed = {"arrays": {"none": np.zeros(1)}, "meta": {}} if fit is None else pack(fit)
    names = getattr(model, "feature_names_in_", None)
    meta = {
        "options": options, "learned": packed["meta"], "columns": getattr(model, "n_features_in_", None),
        "names": None if names is None else [str(n) for n in names],
    }  # fmt: skip
    data = safetensors.numpy.save(packed["arrays"], metadata={"innerloop": FORMAT, "regressor": json.dumps(meta)})
    write_atomic(path, data)


def load(kind: Any, path: str | os.PathLike[str]) -> Any:
    """What `save` wrote; ValueError for any other file."""
    try:
        with safetensors.safe_open(str(path), framework="numpy") as file:
            header: dict[str, str] = file.metadata() or {}
            if header.get("innerloop") != FORMAT:
                raise ValueError(f"{path}: is no saved StreamingRegressor")
            meta = json.loads(header["regressor"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    except (safetensors.SafetensorError, json.JSONDecodeError) as error:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(f"{path}: is no saved StreamingRegressor ({error})") from None
    options = dict(meta["options"])
    if isinstance(options["memory"], dict):
        options["memory"] = Memory.from_json(options["memory"]["memory"])
    model = kind(**options)
    if meta["columns"] is not None:
        model.n_features_in_ = int(meta["columns"])
    if meta["names"] is not None:
        model.feature_names_in_ = np.array(meta["names"], dtype=object)
    if meta["learned"]:
        model._fit = unpack(model, {"arrays": arrays, "meta": meta["learned"]})
    return model


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Memory):
        return {"memory": value.to_json()}
    if isinstance(value, np.generic):
        return value.item()
    try:
        json.dumps(value)
    except TypeError:
        raise ValueError(
            f"{name}={value!r}: cannot be written to a safetensors file; pickle the estimator instead"
        ) from None
    return value


def _group(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {n.removeprefix(prefix): x for n, x in arrays.items() if n.startswith(prefix)}


def _state(memory: Memory, flat: Mapping[str, np.ndarray]) -> State:
    return State.from_tensors(memory, {n: torch.from_numpy(np.array(x)) for n, x in flat.items()})


__all__ = ["load", "pack", "save", "unpack"]
