"""From a CSV file to a stream: the data side of ``innerloop compare``.

The protocol, so that another program can recompute it:

1. Rows are taken in file order.  Lag L is the target L rows earlier *in the file*.
2. Features are the named columns, or every numeric column but the target (and the time axis); then the lags.
3. Rows missing the target, a feature or a lag are dropped and counted.
4. Each column of X is standardised by the first ``burn_in`` kept rows: mean and deviation (ddof 0), and a
   deviation of zero counts as 1.  The target is left as it is.
5. A time column is the axis of the pictures and never a feature.

Whatever is wrong with the file or the request raises ``ValueError`` (or ``OSError``) with one readable sentence;
a row number counts the rows below the header, from 1.
"""

from __future__ import annotations

import codecs
import csv
import io
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}
SNIFFED_LINES = 50

DEFAULT_TARGET = "co2"
DEFAULT_TIME = "date"
DEFAULT_LAGS = (1, 2, 52)
DEFAULT_BURN_IN = 50


@dataclass(frozen=True, eq=False)
class Stream:
    """The rows that every memory and baseline sees, in order.

    ``X`` is ``[rows, len(names)]`` and standardised, ``y`` is ``[rows]`` in the target's own unit.  ``time`` is the
    axis of the pictures (dates or numbers) or None, which means row numbers.  ``skipped`` are the columns that were
    left out because they do not hold numbers.
    """

    source: str
    target: str
    names: tuple[str, ...]
    X: np.ndarray
    y: np.ndarray
    time: np.ndarray | None
    rows: int
    dropped: int
    burn_in: int
    skipped: tuple[str, ...] = ()


def default_table() -> pd.DataFrame:
    """The weekly CO2 record of Mauna Loa that ships with statsmodels, with its dates; 59 weeks are missing."""
    from statsmodels.datasets import co2

    data = co2.load_pandas().data
    return pd.DataFrame({DEFAULT_TIME: data.index.to_numpy(), DEFAULT_TARGET: data["co2"].to_numpy()})


def default_stream(burn_in: int = DEFAULT_BURN_IN) -> Stream:
    """The stream of ``innerloop compare`` without a file: weekly CO2 from its lags 1, 2 and 52."""
    return build_stream(
        default_table(),
        DEFAULT_TARGET,
        lags=DEFAULT_LAGS,
        burn_in=burn_in,
        time=DEFAULT_TIME,
        source="weekly CO2 at Mauna Loa",
    )


# ---------------------------------------------------------------------------------------------- reading


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a CSV file whose separator is a comma, a semicolon or a tab, with or without a byte order mark.

    The header decides the names (surrounding blanks are ignored); blank lines are skipped.  Raises ``OSError`` for
    a file that cannot be read and ``ValueError`` for one that is not a table.
    """
    path = Path(path)
    text = _decode(path)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty")
    separator = _sniff(path, lines[: SNIFFED_LINES + 1])
    header = _header(path, text, separator)
    try:
        with warnings.catch_warnings():
            # pandas only warns where it throws fields away; a table that loses data is a broken table.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                io.StringIO(text),
                sep=separator,
                header=0,
                names=header,
                index_col=False,
                skipinitialspace=True,
                low_memory=False,
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise ValueError(
            f"{path} is not a table with {len(header)} columns separated by a {SEPARATORS[separator]}: {error}"
        ) from None
    if frame.empty:
        raise ValueError(f"{path} has a header but no rows")
    # A separator at the end of every line makes a nameless column without a value: nobody meant it.
    nameless = [name for name in header if name.startswith("Unnamed: ") and frame[name].isna().all()]
    return frame.drop(columns=nameless)


def _decode(path: Path) -> str:
    data = path.read_bytes()
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start + 1}); save it as UTF-8") from None
    if "\0" in text:
        raise ValueError(f"{path} is a binary file, not a CSV table")
    return text


def _sniff(path: Path, lines: Sequence[str]) -> str:
    """The separator that cuts the header and the rows below it into equally many fields, most of them if several do.

    A decimal comma in a file with semicolons cuts rows and header differently, which is how it is told apart.
    """
    widths = {sep: [len(row) for row in csv.reader(lines, delimiter=sep)] for sep in SEPARATORS}
    header = {sep: counts[0] for sep, counts in widths.items()}
    even = [sep for sep, counts in widths.items() if counts[0] > 1 and len(set(counts)) == 1]
    best = max(even or SEPARATORS, key=lambda sep: header[sep])
    if not even and len(lines) > 1 and header[best] > 1 and widths[best][1] == 1:
        for sep, name in SEPARATORS.items():
            if widths[sep][1] > 1:
                raise ValueError(
                    f"{path}: the header is separated by a {SEPARATORS[best]} but the first row by a {name}; use one"
                )
    return best


def _header(path: Path, text: str, separator: str) -> list[str]:
    rows = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    # The first line that is not blank, as pandas sees it; a nameless column gets pandas' own name for it.
    cells = next(row for row in rows if any(cell.strip() for cell in row))
    names = [cell.strip() or f"Unnamed: {index}" for index, cell in enumerate(cells)]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has {_listed('column', twice)} more than once; its columns are {_names(names)}")
    return names


# ---------------------------------------------------------------------------------------------- building


def build_stream(
    frame: pd.DataFrame,
    target: str | None,
    *,
    features: Sequence[str] | None = None,
    lags: Sequence[int] = (),
    burn_in: int = DEFAULT_BURN_IN,
    time: str | None = None,
    source: str = "the table",
) -> Stream:
    """Build the stream from a table by the protocol above; ``features=None`` means every other numeric column."""
    if burn_in < 1:
        raise ValueError(f"a burn-in of {burn_in} rows: it must be at least 1, since it sets the features' scale")
    for lag in lags:
        if lag < 1:
            what = "would be the target itself" if lag == 0 else "would look into the future"
            raise ValueError(f"lag {lag} {what}; lags start at 1")
    _once("lag", lags)
    _once("feature", features or ())
    if target is None:
        raise ValueError(f"no target: name the column to forecast with --target; the columns are {_names(frame)}")
    _present(frame, [target, *(features or ()), *([time] if time else [])])
    if target in (features or ()):
        raise ValueError(f"the target {target!r} cannot be a feature too; past values of it are --lags")
    if time is not None and (time == target or time in (features or ())):
        raise ValueError(f"the time column {time!r} is the axis only; it cannot be the target or a feature")

    skipped: tuple[str, ...] = ()
    if features is None:
        others = [name for name in frame.columns if name not in (target, time)]
        features = [name for name in others if _is_numeric(frame[name])]
        skipped = tuple(name for name in others if name not in features)
    if not features and not lags:
        raise ValueError("nothing to forecast from: name columns with --features or past values with --lags 1")

    y = _numbers(frame[target], "the target")
    columns = {name: _numbers(frame[name], "the feature") for name in features}
    columns |= {_lag_name(target, lag, columns): y.shift(lag) for lag in lags}
    axis = _axis(frame[time]) if time is not None else None

    table = pd.DataFrame(columns)
    kept = (table.notna().all(axis=1) & y.notna()).to_numpy()
    rows, dropped = int(kept.sum()), int((~kept).sum())
    if rows <= burn_in:
        raise ValueError(_too_few(frame, [target, *features], rows, dropped, burn_in))
    target_values = y.to_numpy(dtype=np.float64)[kept]
    if np.ptp(target_values) == 0:
        raise ValueError(f"the target {target!r} is constant ({target_values[0]:g} in every row): nothing to forecast")
    return Stream(
        source=source,
        target=target,
        names=tuple(table.columns),
        X=_standardise(table.to_numpy(dtype=np.float64)[kept], burn_in, list(table.columns)),
        y=target_values,
        time=axis[kept] if axis is not None else None,
        rows=rows,
        dropped=dropped,
        burn_in=burn_in,
        skipped=skipped,
    )


def _standardise(X: np.ndarray, burn_in: int, names: Sequence[str]) -> np.ndarray:
    head = X[:burn_in]
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = head.std(axis=0)
        # A constant column has a deviation of exactly zero; rounding in the mean may say 1e-17, which is not a scale.
        deviation[head.min(axis=0) == head.max(axis=0)] = 0.0
        deviation[deviation == 0.0] = 1.0
        X = (X - head.mean(axis=0)) / deviation
    bad = np.flatnonzero(~(np.isfinite(X).all(axis=0) & np.isfinite(deviation)))  # x / inf would be a silent 0
    if bad.size:
        raise ValueError(f"the values of {names[bad[0]]!r} are too large to be standardised")
    return X


def _is_numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _numbers(column: pd.Series, role: str) -> pd.Series:
    """The column as float64 with NaN where it is missing; a word or an infinity is refused with its row."""
    textual = column.dtype == object or pd.api.types.is_string_dtype(column)
    if _is_numeric(column) or textual:
        numbers = pd.to_numeric(column, errors="coerce").astype("float64")
    else:  # True/False and dates would convert to numbers that nobody meant
        numbers = pd.Series(np.nan, index=column.index)
    wrong = np.flatnonzero((numbers.isna() & column.notna()).to_numpy())
    if wrong.size:
        value = str(column.iloc[wrong[0]])
        comma = value.count(",") == 1 and value.replace(",", "").lstrip("+-").isdigit()
        hint = "; write decimals with a point" if comma else ""
        raise ValueError(f"{role} {column.name!r} is not a number in row {wrong[0] + 1}: {value!r}{hint}")
    endless = np.flatnonzero(np.isinf(numbers.to_numpy()))
    if endless.size:
        value = numbers.iloc[endless[0]]
        raise ValueError(f"{role} {column.name!r} is infinite in row {endless[0] + 1}: {value}")
    return numbers


def _axis(column: pd.Series) -> np.ndarray:
    """Dates as datetime64, or numbers as they are; a missing time stays missing, an unreadable one is refused."""
    if _is_numeric(column):
        return column.to_numpy(dtype=np.float64)
    if pd.api.types.is_datetime64_any_dtype(column):
        return column.to_numpy()
    for form in (None, "mixed"):  # one format for the whole column if it has one, else row by row
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            dates = pd.to_datetime(column, errors="coerce", format=form, utc=True)
        wrong = np.flatnonzero((dates.isna() & column.notna()).to_numpy())
        if not wrong.size:
            return dates.dt.tz_localize(None).to_numpy()
    raise ValueError(f"the time {column.name!r} is not a date in row {wrong[0] + 1}: {str(column.iloc[wrong[0]])!r}")


def _lag_name(target: str, lag: int, taken: Iterable[str]) -> str:
    name = f"{target}[t-{lag}]"
    while name in taken:
        name += "'"
    return name


def _too_few(frame: pd.DataFrame, used: Sequence[str], rows: int, dropped: int, burn_in: int) -> str:
    empty = [name for name in used if frame[name].isna().all()]
    if empty:
        return f"{_listed('column', empty)} has no values"
    gone = f" ({dropped} of {rows + dropped} miss the target, a feature or a lag)" if dropped else ""
    return f"too few rows: {rows} complete{gone}, and a burn-in of {burn_in} needs at least {burn_in + 1}"


def _present(frame: pd.DataFrame, wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in frame.columns]
    if not missing:
        return
    message = f"no {_listed('column', missing)}; the columns are {_names(frame)}"
    columns = [str(name) for name in frame.columns]
    if len(columns) == 1 and any(mark in columns[0] for mark in "|: \t"):
        message = f"no {_listed('column', missing)}: the file has one column, {columns[0]!r}"
        message += "; separate columns with commas, semicolons or tabs"
    elif all(_reads_as_number(name) for name in columns):
        message += "; the first line must name the columns"
    raise ValueError(message)


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _once(what: str, values: Sequence[object]) -> None:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ValueError(f"{what} {twice[0]!r} is named twice")


def _listed(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"


def _names(columns: Iterable[object]) -> str:
    return ", ".join(str(name) for name in columns)
