"""Real series that come with statsmodels, scikit-learn and river: nothing is downloaded.

A `Series` is a table and what to forecast of it; `read` makes rows by the protocol of ``innerloop compare``: lags count
rows of the table, incomplete rows are left out, and columns are standardised by the burn-in's rows.

Sources: the `datasets` modules of statsmodels (https://www.statsmodels.org), scikit-learn (https://scikit-learn.org)
and river (https://riverml.xyz, optional).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .survey import build_stream

SEED = 0  # of the order that the rows of "diabetes" are read in


@dataclass(frozen=True, eq=False)
class Series:
    """A table in its order, the column to forecast, and what it is forecast from.

    Attributes:
        name, about: how it is called, and what it holds.
        table: the rows, as they are shipped.
        target: the column that is forecast, one row ahead.
        features: columns known when their row is forecast.
        lags: so many rows earlier the target is known, too.
        burn_in: the first rows, which set the scale and are not scored.
    """

    name: str
    about: str
    table: pd.DataFrame
    target: str
    features: tuple[str, ...] = ()
    lags: tuple[int, ...] = ()
    burn_in: int = 50

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """The complete rows: X [n, d], each column standardised by the first `burn_in` of them, and y [n] as it is."""
        return build_stream(
            self.table, self.target, features=self.features, lags=self.lags, burn_in=self.burn_in
        ).read()


def names(package: str | None = None) -> tuple[str, ...]:
    """All series, or those of one package: "statsmodels", "scikit-learn" or "river"."""
    packages = dict.fromkeys(where for where, _ in _SERIES.values())
    if package is not None and package not in packages:
        raise ValueError(f"package={package!r}: pass None, {' or '.join(map(repr, packages))}")
    return tuple(name for name, (where, _) in _SERIES.items() if package in (None, where))


def load(name: str) -> Series:
    """A series by name.

    Raises:
        ValueError: no such name.
        ImportError: the series ships with river, which is not installed.

    >>> X, y = load("sunspots").read()
    >>> X.shape, y.shape
    ((300, 3), (300,))
    """
    if name not in _SERIES:
        raise ValueError(f"name={name!r}: pass one of {', '.join(map(repr, _SERIES))}")
    return _SERIES[name][1](name)


def _statsmodels(name: str) -> pd.DataFrame:
    from statsmodels import datasets

    return getattr(datasets, name).load_pandas().data


def _river(name: str) -> list[tuple[dict[str, Any], Any]]:
    try:
        from river import datasets
    except ModuleNotFoundError:
        raise ImportError(f"river's {name} needs river: pip install river") from None
    return list(getattr(datasets, name)())


def _river_table(name: str, target: str) -> pd.DataFrame:
    """river's rows, with the target as one more column."""
    return pd.DataFrame([{**x, target: y} for x, y in _river(name)])


def _co2(name: str) -> Series:
    table = _statsmodels("co2").reset_index(drop=True)
    return Series(name, "weekly CO2 at Mauna Loa, 1958 to 2001, ppm", table, "co2", lags=(1, 2, 52), burn_in=200)


def _inflation(name: str) -> Series:
    about = "quarterly inflation of the United States, 1959 to 2009, % a year"
    return Series(name, about, _statsmodels("macrodata"), "infl", lags=(1, 2, 4), burn_in=40)


def _growth(name: str) -> Series:
    gdp = _statsmodels("macrodata")["realgdp"]
    table = pd.DataFrame({"growth": 400 * np.diff(np.log(gdp))})
    about = "quarterly growth of the United States' real GDP, 1959 to 2009, % a year"
    return Series(name, about, table, "growth", lags=(1, 2, 4), burn_in=40)


def _sunspots(name: str) -> Series:
    about = "yearly sunspots, 1700 to 2008"
    return Series(name, about, _statsmodels("sunspots"), "SUNACTIVITY", lags=(1, 2, 9), burn_in=50)


def _nile(name: str) -> Series:
    about = "yearly flow of the Nile at Aswan, 1871 to 1970, 10^8 cubic metres"
    return Series(name, about, _statsmodels("nile"), "volume", lags=(1, 2), burn_in=20)


def _elnino(name: str) -> Series:
    months = _statsmodels("elnino").drop(columns="YEAR").to_numpy(dtype=float)
    about = "monthly sea surface temperature off Peru, 1950 to 2010, degrees Celsius"
    return Series(name, about, pd.DataFrame({"sst": months.ravel()}), "sst", lags=(1, 2, 12), burn_in=72)


def _diabetes(name: str) -> Series:
    from sklearn.datasets import load_diabetes

    data: Any = load_diabetes(as_frame=True)
    order = np.random.default_rng(SEED).permutation(len(data.frame))
    about = "progression of diabetes in 442 patients, in shuffled order: nothing drifts"
    table = data.frame.iloc[order].reset_index(drop=True)
    return Series(name, about, table, "target", features=tuple(data.feature_names), burn_in=50)


def _airline(name: str) -> Series:
    table = _river_table("AirlinePassengers", "passengers")
    return Series(name, "monthly airline passengers, 1949 to 1960, thousands", table, "passengers", (), (1, 2, 12), 24)


def _chicks(name: str) -> Series:
    table = _river_table("ChickWeights", "weight")
    about = "weights of 50 chicks, by day and then by chick, grams"
    return Series(name, about, table, "weight", features=("time", "chick", "diet"), burn_in=100)


def _approval(name: str) -> Series:
    table = _river_table("TrumpApproval", "approval")
    polls = ("ordinal_date", "gallup", "ipsos", "morning_consult", "rasmussen", "you_gov")
    return Series(name, "daily approval rating from five polls, %", table, "approval", features=polls, burn_in=100)


def _stocks(name: str) -> Series:
    table = _river_table("SP500Stocks", "tomorrow")
    features = tuple(column for column in table.columns if column != "tomorrow")
    about = "mean return of ten stocks on the next day from their returns of the day, 2013 to 2018, %"
    return Series(name, about, table, "tomorrow", features=features, burn_in=100)


def _water(name: str) -> Series:
    table = _river_table("WaterFlow", "flow").drop(columns="Time")
    return Series(name, "hourly flow of water in a pipe, litres a second", table, "flow", lags=(1, 2, 24), burn_in=168)


def _flares(name: str) -> Series:
    rows = _river("SolarFlare")
    features = pd.get_dummies(pd.DataFrame([x for x, _ in rows]), dtype=float)
    table = features.assign(flares=[y["c-class-flares"] for _, y in rows])
    about = "C-class solar flares in a day, from the region's attributes (classes as columns of 0 and 1)"
    return Series(name, about, table, "flares", features=tuple(features.columns), burn_in=100)


_SERIES: dict[str, tuple[str, Callable[[str], Series]]] = {
    "co2": ("statsmodels", _co2),
    "inflation": ("statsmodels", _inflation),
    "growth": ("statsmodels", _growth),
    "sunspots": ("statsmodels", _sunspots),
    "nile": ("statsmodels", _nile),
    "elnino": ("statsmodels", _elnino),
    "diabetes": ("scikit-learn", _diabetes),
    "airline": ("river", _airline),
    "chicks": ("river", _chicks),
    "approval": ("river", _approval),
    "stocks": ("river", _stocks),
    "water": ("river", _water),
    "flares": ("river", _flares),
}
