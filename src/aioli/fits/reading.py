"""Tables as files: CSV, TSV (also gzipped) and Parquet, as columns of text or numbers."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-"})
MOST, COLUMNS, CELLS = 1 << 28, 20_000, 10_000_000
"""Bytes, columns and cells of the largest table that is read, unpacked: a table of runs is small."""


@dataclass(frozen=True)
class Sheet:
    """A file as it stands: named columns, and rows of text, numbers or None."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    lines: tuple[int, ...] = ()
    """The line of each row, for files with lines: blank ones are not counted as rows but as lines."""
    numbers: tuple[int, ...] = ()
    """The number of each row in the file, if some have been left out."""

    def place(self, row: int) -> str:
        """Where a row stands, for people."""
        line = f", line {self.lines[row]} of {self.path.name}" if self.lines else f" of {self.path.name}"
        return f"row {self.numbers[row] if self.numbers else row + 1}{line}"

    @cached_property
    def where(self) -> dict[str, int]:
        """The place of each column."""
        return {name: place for place, name in enumerate(self.columns)}

    def values(self, column: str) -> list[Any]:
        """One column."""
        place = self.where[column]
        return [row[place] for row in self.rows]

    def number(self, row: int, column: str) -> float:
        """One cell; nan where it is missing."""
        cell = self.rows[row][self.where[column]]
        found = as_number(cell)
        if found is None:
            comma = isinstance(cell, str) and cell.count(",") == 1
            hint = "; write decimals with a point" if comma else ""
            raise ValueError(f"{self.place(row)}: {column} is {str(cell)[:60]!r}, which is not a number{hint}")
        return found

    def keep(self, rows: Sequence[int]) -> Sheet:
        """Some of the rows."""
        lines = tuple(self.lines[r] for r in rows) if self.lines else ()
        numbers = tuple(self.numbers[r] if self.numbers else r + 1 for r in rows)
        return Sheet(self.path, self.columns, tuple(self.rows[r] for r in rows), lines, numbers)


def as_number(cell: Any) -> float | None:
    """A cell as a number: nan where nothing stands, None where something else does."""
    if cell is None or (isinstance(cell, str) and cell.strip().lower() in MISSING):
        return math.nan
    if isinstance(cell, bool):
        return None
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return None


def read_sheet(path: str | Path) -> Sheet:
    """Read a file by its ending."""
    file = Path(path)
    if not file.is_file():
        what = "is a directory; name the table in it" if file.is_dir() else "there is no such file"
        raise ValueError(f"{file}: {what}")
    name = file.name.lower().removesuffix(".gz")
    if not name.endswith((".csv", ".tsv", ".txt", ".parquet", ".pq")):
        raise ValueError(f"{file} is not a table this reads; give .csv, .tsv (also .gz) or .parquet")
    if file.stat().st_size > MOST:
        raise _too_much(file, f"{file.stat().st_size / 1e6:,.0f} MB")
    sheet = _parquet(file) if name.endswith((".parquet", ".pq")) else _text(file, file.suffix.lower() == ".gz")
    if len(sheet.where) < len(sheet.columns):
        twice = next(name for place, name in enumerate(sheet.columns) if sheet.where[name] != place)
        raise ValueError(f"{file} has two columns named {twice!r}; rename one")
    if not sheet.rows:
        raise ValueError(f"{file} has no rows")
    return sheet


def _too_much(file: Path, what: str) -> ValueError:
    return ValueError(f"{file} has {what}, too much for a table of runs; keep the columns and rows that are needed")


def _text(file: Path, packed: bool) -> Sheet:
    try:
        with gzip.open(file) if packed else file.open("rb") as stream:
            raw = stream.read(MOST + 1)
        if len(raw) > MOST:
            raise _too_much(file, f"more than {MOST / 1e6:,.0f} MB, unpacked")
        text = raw.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ValueError(f"{file} cannot be read as text ({error}); save it as UTF-8 CSV") from None
    del raw
    head = text.split("\n", 1)[0]
    delimiter = max(",\t;", key=head.count)
    if head.count(delimiter) >= COLUMNS:
        raise _too_much(file, f"{head.count(delimiter) + 1:,} columns")
    reader = csv.reader(text.splitlines(keepends=True), delimiter=delimiter)
    columns: tuple[str, ...] | None = None
    rows, lines = [], []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if columns is None:
                columns = tuple(cell.strip() for cell in cells)
            elif len(cells) != len(columns):
                raise ValueError(
                    f"{file}, line {reader.line_num}: {len(cells)} cells where the header has {len(columns)} columns"
                )
            else:
                rows.append(tuple(cells))
                lines.append(reader.line_num)
                if len(rows) * len(columns) > CELLS:
                    raise _too_much(file, f"more than {CELLS:,} cells")
    except csv.Error as error:
        raise ValueError(f"{file}, line {reader.line_num}: {error}") from None
    if columns is None:
        raise ValueError(f"{file} is empty")
    return Sheet(file, columns, tuple(rows), tuple(lines))


def _parquet(file: Path) -> Sheet:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"{file}: Parquet needs pyarrow: pip install 'aioli-mix[data]'; or save it as CSV") from None
    try:
        with pyarrow.parquet.ParquetFile(file) as found:
            # a few bytes can claim any number of rows, and repeat one long text in all of them
            names, count = found.schema_arrow.names, found.metadata.num_rows
            if len(names) > COLUMNS or count * len(names) > CELLS:
                raise _too_much(file, f"{count:,} rows and {len(names):,} columns")
            rows: list[tuple[Any, ...]] = []
            size = 0
            for batch in found.iter_batches(batch_size=64):
                cells = [column.to_pylist() for column in batch.columns]
                size += batch.nbytes + sum(len(v) for column in cells for v in column if isinstance(v, str | bytes))
                if size > MOST:
                    raise _too_much(file, f"more than {MOST / 1e6:,.0f} MB, unpacked")
                rows += zip(*cells, strict=True)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{file} is not a Parquet file that can be read: {reason}") from None
    return Sheet(file, tuple(names), tuple(rows))
