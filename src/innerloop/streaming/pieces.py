"""Tables read in pieces: a CSV file, a Parquet file or a frame in memory, `PIECE` rows at a time.

A file is never held whole, whatever its size, and every file is read this way: one code path.  A piece's index counts
the rows of the file below the header, from 0.  Whatever is wrong with a file raises ``ValueError`` (or ``OSError``)
with one readable sentence.
"""

from __future__ import annotations

import codecs
import csv
import io
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

PIECE = 32_768  # rows
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}
SNIFFED_LINES = 50
HEAD = 1 << 16  # characters
PARQUET_MAGIC = b"PAR1"


class Source(Protocol):
    """Where rows come from.  ``size`` is in the unit that ``tell`` counts (bytes of a file, rows of a frame)."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def unit(self) -> str: ...

    def pieces(self, tell: Callable[[int], None] | None = None) -> Iterator[pd.DataFrame]:
        """Frames of at most ``PIECE`` rows in file order; ``tell(done)`` is called before each is handed over."""
        ...


def open_source(path: str | Path) -> Source:
    """The file as a source: Parquet if it starts like one, else CSV.

    Raises:
        OSError: a file that cannot be read.
        ValueError: an empty or binary file, a header with repeated names, or Parquet without ``pyarrow``.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(f"{path} is not a regular file: the data are read twice, so save them to a file first")
    with path.open("rb") as file:
        magic = file.read(4)
    return ParquetSource(path) if magic == PARQUET_MAGIC else CsvSource(path)


class FrameSource:
    """A table that is in memory already."""

    unit = "rows"

    def __init__(self, frame: pd.DataFrame, name: str = "the table") -> None:
        self.frame = frame.reset_index(drop=True)
        self.name = name
        self.size = len(frame)

    def pieces(self, tell: Callable[[int], None] | None = None) -> Iterator[pd.DataFrame]:
        for first in range(0, max(1, len(self.frame)), PIECE):
            piece = self.frame.iloc[first : first + PIECE]
            if tell:
                tell(first + len(piece))
            yield piece


# ---------------------------------------------------------------------------------------------- CSV


class CsvSource:
    """A CSV file whose separator is a comma, a semicolon or a tab, with or without a byte order mark.

    The header decides the names (surrounding blanks are ignored); blank lines are skipped.
    """

    unit = "bytes"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.size = path.stat().st_size
        head = _head(path)
        lines = [line for line in head.splitlines() if line.strip()]
        if not lines:
            raise ValueError(f"{path} is empty")
        self.separator = _sniff(path, lines[: SNIFFED_LINES + 1])
        self.header = _header(path, head, self.separator)

    def pieces(self, tell: Callable[[int], None] | None = None) -> Iterator[pd.DataFrame]:
        rows = 0
        with _Text(self.path) as text:
            reader = pd.read_csv(
                text,
                sep=self.separator,
                header=0,
                names=self.header,
                index_col=False,
                skipinitialspace=True,
                low_memory=False,
                chunksize=PIECE,
            )
            while (piece := self._next(reader, text)) is not None:
                if piece.empty:
                    continue
                rows += len(piece)
                if tell:
                    tell(text.done)
                yield piece
        if not rows:
            raise ValueError(f"{self.path} has a header but no rows")

    def _next(self, reader: Iterator[pd.DataFrame], text: _Text) -> pd.DataFrame | None:
        try:
            with warnings.catch_warnings():
                # pandas only warns where it throws fields away; a table that loses data is a broken table.
                warnings.simplefilter("error", pd.errors.ParserWarning)
                return next(reader, None)
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            if text.interrupted:
                raise KeyboardInterrupt from None
            raise ValueError(
                f"{self.path} is not a table with {len(self.header)} columns "
                f"separated by a {SEPARATORS[self.separator]}: {error}"
            ) from None


class _Text(io.TextIOBase):
    """A file's text, decoded as it is read; ``done`` counts the bytes that were."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        mark = self._file.read(2)
        self._file.seek(0)
        wide = mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        self._decoder = codecs.getincrementaldecoder("utf-16" if wide else "utf-8-sig")()
        self.done = 0
        self.interrupted = False

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> str:
        try:
            return self._read(size)
        except KeyboardInterrupt:
            self.interrupted = True  # pandas would make a parser's error of it
            raise

    def _read(self, size: int | None) -> str:
        text = ""
        while not text:  # an undecided byte or a byte order mark alone decodes to nothing, which would mean the end
            data = self._file.read(-1 if size is None or size < 0 else size)
            pending = len(self._decoder.getstate()[0])
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                byte = self.done - pending + error.start + 1
                raise ValueError(f"{self._path} is not UTF-8 text (byte {byte}); save it as UTF-8") from None
            self.done += len(data)
            if not data:
                break
        if "\0" in text:
            raise ValueError(f"{self._path} is a binary file, not a CSV table")
        return text

    def close(self) -> None:
        self._file.close()
        super().close()


def _head(path: Path) -> str:
    """The file's first lines: enough of them to see how fields are separated."""
    head = ""
    with _Text(path) as text:
        while more := text.read(HEAD):
            head += more
            if sum(1 for line in head.splitlines() if line.strip()) > SNIFFED_LINES + 1:
                return head[: max(head.rfind("\n"), head.rfind("\r")) + 1]  # the last line may be cut
    return head


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
    return _distinct(path, [cell.strip() or f"Unnamed: {index}" for index, cell in enumerate(cells)])


def _distinct(path: Path, names: list[str]) -> list[str]:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        what = f"column{'s' if len(twice) > 1 else ''} {', '.join(map(repr, twice))}"
        raise ValueError(f"{path} has {what} more than once; its columns are {', '.join(names)}")
    return names


# ---------------------------------------------------------------------------------------------- Parquet


class ParquetSource:
    """A Parquet file, read by row groups; needs ``pyarrow``."""

    unit = "bytes"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.size = path.stat().st_size
        with self._open() as file:
            _distinct(path, list(file.schema_arrow.names))
            if not file.metadata.num_rows:
                raise ValueError(f"{path} has no rows")

    def _open(self) -> Any:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise ValueError(
                f"{self.path} is a Parquet file, and pyarrow is not installed: pip install 'innerloop[parquet]'"
            ) from None
        try:
            return pyarrow.parquet.ParquetFile(self.path, buffer_size=1 << 20, pre_buffer=False)
        except pyarrow.ArrowException as error:
            raise self._broken(error) from None

    def pieces(self, tell: Callable[[int], None] | None = None) -> Iterator[pd.DataFrame]:
        with self._open() as file:
            total, rows = file.metadata.num_rows, 0
            batches = file.iter_batches(batch_size=PIECE)
            while True:
                try:
                    batch = next(batches, None)
                except (OSError, ValueError, RuntimeError) as error:  # pyarrow's own are among these
                    raise self._broken(error) from None
                if batch is None:
                    return
                # ignore_metadata: an index that pandas stored is a column, as in a CSV file
                piece = batch.to_pandas(ignore_metadata=True)
                piece.index = pd.RangeIndex(rows, rows + len(piece))
                rows += len(piece)
                if tell:
                    tell(int(self.size * (rows / total)))
                if len(piece):
                    yield piece

    def _broken(self, error: Exception) -> ValueError:
        return ValueError(f"{self.path} is no readable Parquet file: {error}")


# ---------------------------------------------------------------------------------------------- values


def is_numeric(column: pd.Series) -> bool:
    """Whether a column holds numbers; True and False are none."""
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def numbers(column: pd.Series, role: str) -> np.ndarray:
    """The column as float64 with NaN where it is missing; a word or an infinity is refused with its row."""
    textual = column.dtype == object or pd.api.types.is_string_dtype(column)
    if is_numeric(column) or textual or bool(column.isna().all()):
        values = pd.to_numeric(column, errors="coerce").astype("float64").to_numpy(na_value=np.nan)
    else:  # True/False and dates would convert to numbers that nobody meant
        values = np.full(len(column), np.nan)
    wrong = np.flatnonzero(np.isnan(values) & column.notna().to_numpy())
    if wrong.size:
        value = str(column.iloc[wrong[0]])
        comma = value.count(",") == 1 and value.replace(",", "").lstrip("+-").isdigit()
        hint = "; write decimals with a point" if comma else ""
        raise ValueError(f"{role} {column.name!r} is not a number in row {column.index[wrong[0]] + 1}: {value!r}{hint}")
    endless = np.flatnonzero(np.isinf(values))
    if endless.size:
        row = column.index[endless[0]] + 1
        raise ValueError(f"{role} {column.name!r} is infinite in row {row}: {values[endless[0]]}")
    return values


class Clock:
    """A time column, piece by piece: dates as seconds since 1970 (UTC), numbers as they are, NaN where it is missing.

    The first piece decides whether the column holds numbers or dates, and the dates' format, for the whole file.  A
    time that is unreadable or earlier than one before it is refused with its row.
    """

    def __init__(self, kind: str | None = None, last: float = -np.inf) -> None:
        self.kind = kind  # "number", a format of dates, or None before the first piece
        self.last = last

    @property
    def dates(self) -> bool:
        return self.kind not in (None, "number")

    def read(self, column: pd.Series) -> np.ndarray:
        times = self._seconds(column)
        known = np.flatnonzero(~np.isnan(times))
        before = np.concatenate([[self.last], times[known]])
        back = np.flatnonzero(np.diff(before) < 0)
        if back.size:
            at = known[back[0]]
            raise ValueError(
                f"the time {column.name!r} goes backwards in row {column.index[at] + 1}: {column.iloc[at]} comes after "
                f"a later time; sort the rows by time"
            )
        self.last = float(before[-1])
        return times

    def _seconds(self, column: pd.Series) -> np.ndarray:
        if is_numeric(column):
            if self.kind is None and column.notna().any():
                self.kind = "number"
            if self.kind in (None, "number"):
                return numbers(column, "the time")
        if self.kind == "number":
            return numbers(column, "the time")
        if pd.api.types.is_datetime64_any_dtype(column):
            self.kind = self.kind or "mixed"
            return _since_1970(pd.to_datetime(column, utc=True))
        for form in (self.kind,) if self.kind else _formats(column):
            dates = _dates(column, form)
            if not (dates.isna() & column.notna()).any():
                self.kind = form
                return _since_1970(dates)
        dates = _dates(column, "mixed")  # date by date: to name the first that is none
        wrong = np.flatnonzero((dates.isna() & column.notna()).to_numpy())
        if not wrong.size:
            self.kind = "mixed"
            return _since_1970(dates)
        row = column.index[wrong[0]] + 1
        raise ValueError(f"the time {column.name!r} is not a date in row {row}: {str(column.iloc[wrong[0]])!r}")


def _formats(column: pd.Series) -> list[str]:
    """Formats of the first date: 01/02 may begin with the month or with the day, and the column knows which."""
    known = column.dropna()
    if not len(known):
        return []
    first = str(known.iloc[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that only one of the two can be meant
        guesses = [pd.tseries.api.guess_datetime_format(first, dayfirst=day) for day in (False, True)]
    return list(dict.fromkeys([*(guess for guess in guesses if guess), "ISO8601"]))


def _dates(column: pd.Series, form: str | None) -> pd.Series:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pd.to_datetime(column, errors="coerce", format=form, utc=True)


def _since_1970(dates: pd.Series) -> np.ndarray:
    stamps = dates.dt.tz_localize(None).to_numpy().astype("datetime64[us]")
    return np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64) / 1e6)
