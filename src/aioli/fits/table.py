"""A table of finished runs, by whatever trainer: the proportions of each, and the losses it ended with.

In: one file, or one of mixtures and one of losses. Out: `Runs`, with what was made good (rounding) and left out
(missing cells) counted, and everything else refused by row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from aioli.fits.reading import MISSING, Sheet, as_number, read_sheet
from aioli.lmo.design import ROUNDING
from aioli.simplex import Array

INDEX = ("index", "run", "run_id", "id", "name", "experiment", "step")
"""Names that a common column goes by, the likeliest first."""
IDLE = frozenset({*INDEX, "seed", "steps", "tokens", "epoch"})
"""Columns of numbers that are no losses unless they are named."""
LARGEST = 1e30
"""No loss is as large as that."""
MOST_ROUNDING = 0.03
"""Beyond this a sum is not a matter of rounding, however few decimals there are."""


@dataclass(frozen=True)
class Runs:
    """Mixtures P (runs, m) of named groups and losses L (runs, n) of named targets; a missing loss is nan."""

    groups: tuple[str, ...]
    targets: tuple[str, ...]
    P: Array
    L: Array
    renormalised: int = 0
    """Rows whose shares were rounded and are made to sum to 1."""
    missing: int = 0
    """Losses that are not there."""
    notes: tuple[str, ...] = field(default=())
    """What else was done to the table."""
    columns: tuple[str, ...] = field(default=())
    """The columns that the proportions stood in, so that other tables of the kind are read alike."""

    def __post_init__(self) -> None:
        if self.P.shape[1:] != (len(self.groups),) or self.L.shape != (len(self.P), len(self.targets)):
            raise ValueError(
                f"P {self.P.shape} and L {self.L.shape} do not fit {len(self.groups)} groups and "
                f"{len(self.targets)} targets"
            )

    @property
    def weights(self) -> Array:
        """1 where there is a loss, 0 where it is missing, (runs, n)."""
        return np.isfinite(self.L).astype(np.float64)


def read_runs(
    paths: Sequence[str | Path],
    proportions: str | None = None,
    losses: str | None = None,
    index: str | None = None,
    targets_in: str | None = None,
    where: Mapping[str, str] | None = None,
) -> Runs:
    """Read a table of runs: one file with both, or mixtures and losses joined by a common column.

    `proportions` and `losses` name columns by patterns such as `train_*`, several with commas; the part under the star
    is the name. `targets_in` is the column that names the target in a table with one row for each run and target.
    `where` keeps rows with a value, such as {"step": "30000"}.
    """
    if len(paths) not in (1, 2):
        raise ValueError(f"{len(paths)} tables are given; give one, or mixtures and losses")
    if len(paths) == 2 and Path(paths[0]).resolve() == Path(paths[1]).resolve():
        raise ValueError(f"{paths[0]} is given twice; one table with both needs --proportions and --losses")
    sheets = [read_sheet(path) for path in paths]
    sheets = [_filtered(sheet, where or {}, sheets) for sheet in sheets]
    first, last = sheets[0], sheets[-1]
    if len(sheets) == 1 and (proportions is None or losses is None):
        raise ValueError(
            f"say which columns of {first.path.name} are proportions and which are losses, such as --proportions "
            f"'p_*' --losses 'loss_*'; it has {', '.join(first.columns)}"
        )
    key = _index(first, last, index) if len(sheets) == 2 else None
    idle = {key, targets_in, index, *(where or {})}
    shares = matching(first, proportions, idle, "--proportions")
    values = matching(last, losses, idle | (set(shares.values()) if len(sheets) == 1 else set()), "--losses")
    if targets_in is not None:
        last, values, key = _spread(last, values, targets_in, key or index, shares if len(sheets) == 1 else {})
        first = last if len(sheets) == 1 else first
    notes: list[str] = []
    if losses is None:
        notes.append(f"losses: {', '.join(values)} (all columns of numbers; --losses names others)")
    if len(sheets) == 1 and targets_in is None:
        notes += _repeated(first, set(shares.values()) | set(values.values()))
    pairs = [(r, r) for r in range(len(first.rows))] if first is last else _joined(first, last, str(key), notes)
    P, kept, renormalised = mixtures(first, list(shares.values()), [a for a, _ in pairs], notes)
    rows = [pairs[k][1] for k in kept]
    L = np.array([[_loss(last, r, column) for column in values.values()] for r in rows]).reshape(len(rows), -1)
    found = Runs(tuple(shares), tuple(values), P, L, renormalised, columns=tuple(shares.values()))
    return _checked(found, notes)


def _checked(runs: Runs, notes: list[str]) -> Runs:
    """Without rows that have no loss; a target without any is refused."""
    there = np.isfinite(runs.L)
    for i, target in enumerate(runs.targets):
        if not there[:, i].any():
            raise ValueError(f"target {target} has no loss in any run; leave it out with --losses")
    useful = there.any(1)
    if not useful.all():
        notes.append(f"{int((~useful).sum())} rows without any loss are left out")
    missing = int((~there[useful]).sum())
    return replace(runs, P=runs.P[useful], L=runs.L[useful], missing=missing, notes=tuple(notes))


def read_mixtures(
    path: str | Path, groups: Sequence[str], proportions: str | None = None, columns: Sequence[str] = ()
) -> tuple[Array, int]:
    """Mixtures of known groups from a file, in its order; returns how many rows were renormalised as well.

    `proportions` is a pattern; without one, groups stand in `columns` or in columns named after them.
    """
    sheet = read_sheet(path)
    if proportions is not None:
        names = matching(sheet, proportions, set(), "--proportions")
    elif columns and all(column in sheet.columns for column in columns):
        names = dict(zip(groups, columns, strict=True))
    else:
        names = {group: column for group in groups for column in _ending(sheet.columns, group)}
    missing = [group for group in groups if group not in names]
    if missing:
        raise ValueError(
            f"{sheet.path.name} has no column for group {missing[0]!r}; it has {', '.join(sheet.columns)} (a pattern "
            "such as --proportions 'train_*' says how columns are named)"
        )
    notes: list[str] = []
    P, kept, count = mixtures(sheet, [names[group] for group in groups], list(range(len(sheet.rows))), notes)
    if len(kept) < len(sheet.rows):
        raise ValueError(f"{sheet.path.name}: {notes[0]}")
    return P, count


def _ending(columns: Sequence[str], group: str) -> list[str]:
    """The column of a group: of its name, or the only one that ends with it."""
    if group in columns:
        return [group]
    found = [column for column in columns if column.endswith(group)]
    return found if len(found) == 1 else []


# ---------------------------------------------------------------- columns


def matching(sheet: Sheet, patterns: str | None, used: set[str | None], option: str) -> dict[str, str]:
    """Columns by name. The part under a single star is the name; without a pattern every numeric column counts."""
    if patterns is None:
        free = [c for c in sheet.columns if c not in used and c.lower() not in IDLE and _numeric(sheet, c)]
        if not free:
            raise ValueError(f"{sheet.path.name} has no columns of numbers left for {option}")
        return {c: c for c in free}
    found: dict[str, str] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        all_ = [pattern] if pattern in sheet.columns else [c for c in sheet.columns if fnmatchcase(c, pattern)]
        some = [c for c in all_ if c not in used]
        if all_ and not some:
            raise ValueError(f"{option} {pattern!r} matches only columns that are taken already: {', '.join(all_)}")
        if not some:
            raise ValueError(
                f"{option} {pattern!r} matches no column of {sheet.path.name}; it has {', '.join(sheet.columns)}"
            )
        head, star, tail = pattern.partition("*")
        plain = star and not set("*?[") & set(tail) and not set("?[") & set(head)
        for column in some:
            name = column[len(head) : len(column) - len(tail)] if plain and column not in pattern else column
            found[name or column] = column
    if len(found) < len(set(found.values())):
        raise ValueError(f"{option} {patterns!r} gives two columns one name; name the columns one by one")
    return found


def _numeric(sheet: Sheet, column: str) -> bool:
    return all(as_number(value) is not None for value in sheet.values(column))


def _index(first: Sheet, last: Sheet, index: str | None) -> str:
    """The column that both tables have."""
    common = [c for c in first.columns if c in last.columns]
    if index is not None:
        for sheet in (first, last):
            if index not in sheet.columns:
                raise ValueError(
                    f"--index {index}: {sheet.path.name} has no such column, but {', '.join(sheet.columns)}"
                )
        return index
    likely = [c for name in INDEX for c in common if c.lower() == name]
    if not likely and len(common) != 1:
        raise ValueError(
            f"{first.path.name} and {last.path.name} have {', '.join(common) or 'no column'} in common; both need a "
            "column of one name that tells runs apart (--index NAME if it is not called index or run)"
        )
    return likely[0] if likely else common[0]


# ---------------------------------------------------------------- rows


def _filtered(sheet: Sheet, where: Mapping[str, str], sheets: Sequence[Sheet]) -> Sheet:
    for column, wanted in where.items():
        if all(column not in each.columns for each in sheets):
            raise ValueError(f"--where {column}={wanted}: no such column; there are {', '.join(sheet.columns)}")
        if column not in sheet.columns:
            continue
        number = as_number(wanted)
        values = sheet.values(column)
        rows = [r for r, v in enumerate(values) if str(v).strip() == wanted or (number is not None and v == number)]
        if not rows and number is not None:
            rows = [r for r, v in enumerate(values) if as_number(v) == number]
        if not rows:
            some = ", ".join(list(dict.fromkeys(str(v) for v in values))[:8])
            raise ValueError(f"--where {column}={wanted} leaves no row of {sheet.path.name}; it has {some}…")
        sheet = sheet.keep(rows)
    return sheet


def _key(cell: Any) -> Any:
    """What two cells are compared by: 7, 7.0 and "7" are one, 007 and 7 are not, and nothing equals nothing."""
    text = str(cell).strip()
    if text.lower() in MISSING or cell is None:
        return object()
    if re.fullmatch(r"-?(0|[1-9]\d*)(\.0*)?", text):
        return int(text.partition(".")[0])
    return text


def _joined(first: Sheet, last: Sheet, key: str, notes: list[str]) -> list[tuple[int, int]]:
    """Rows of losses with the row of their mixture."""
    place: dict[Any, int] = {}
    for row, cell in enumerate(first.values(key)):
        if _key(cell) in place:
            raise ValueError(f"{first.place(row)}: {key}={cell} stands there twice; every mixture needs its own")
        place[_key(cell)] = row
    pairs = [(place[_key(c)], row) for row, c in enumerate(last.values(key)) if _key(c) in place]
    if not pairs:
        raise ValueError(f"no {key} of {last.path.name} occurs in {first.path.name}; is {key} what joins them?")
    for sheet, lost in ((last, len(last.rows) - len(pairs)), (first, len(place) - len({a for a, _ in pairs}))):
        if lost:
            notes.append(f"{lost} rows of {sheet.path.name} have no partner by {key} and are left out")
    return pairs


def _spread(
    sheet: Sheet, values: dict[str, str], targets_in: str, key: str | None, shares: dict[str, str]
) -> tuple[Sheet, dict[str, str], str | None]:
    """A table with one row for each run and target as one with a row for each run."""
    if targets_in not in sheet.columns:
        raise ValueError(f"{sheet.path.name} has no column {targets_in!r}; it has {', '.join(sheet.columns)}")
    if len(values) != 1:
        raise ValueError(f"with a column of targets there must be one column of losses, not {', '.join(values)}")
    if key is None:
        key = next((c for name in INDEX[:-1] for c in sheet.columns if c.lower() == name and c != targets_in), None)
    by = [key] if key is not None and key in sheet.columns else list(shares.values())
    loss = next(iter(values.values()))
    first_row: dict[Any, int] = {}
    cells: dict[tuple[Any, str], Any] = {}
    columns = [sheet.columns.index(c) for c in by]
    losses, targets = sheet.values(loss), [str(t) for t in sheet.values(targets_in)]
    for row, content in enumerate(sheet.rows):
        run = tuple(_key(content[c]) for c in columns)
        first_row.setdefault(run, row)
        if (run, targets[row]) in cells:
            raise ValueError(
                f"{sheet.place(row)}: {' '.join(map(str, run))} has a second loss for {targets[row]}; choose rows with "
                f"--where, such as --where step=…, or name the column that tells runs apart with --index"
            )
        cells[run, targets[row]] = losses[row]
    names = list(dict.fromkeys(targets))
    clash = [name for name in names if name in sheet.columns]
    labels = {name: f"{targets_in}={name}" if clash else name for name in names}
    rows = tuple((*sheet.rows[row], *(cells.get((run, name)) for name in names)) for run, row in first_row.items())
    kept = sheet.keep(list(first_row.values()))
    wide = Sheet(sheet.path, (*sheet.columns, *labels.values()), rows, kept.lines, kept.numbers)
    return wide, labels, key


def _loss(sheet: Sheet, row: int, column: str) -> float:
    value = sheet.number(row, column)
    if abs(value) > LARGEST:
        raise ValueError(f"{sheet.place(row)}: {column} is {value}; leave the cell empty if the run diverged")
    return value


def mixtures(sheet: Sheet, columns: list[str], rows: list[int], notes: list[str]) -> tuple[Array, list[int], int]:
    """Shares that sum to 1, the places of the rows that have any, and how many had to be renormalised."""
    found, kept, count, empty = [], [], 0, 0
    for k, row in enumerate(rows):
        shares = np.array([sheet.number(row, column) for column in columns])
        if np.isnan(shares).all():
            empty += 1
            continue
        if not np.isfinite(shares).all() or (shares < 0).any():
            bad = columns[int(np.argmax(~np.isfinite(shares) | (shares < 0)))]
            raise ValueError(
                f"{sheet.place(row)}: the share {bad} is {shares[columns.index(bad)]:g}; shares must be 0 or more"
            )
        total = float(shares.sum())
        if abs(total - 1.0) > _tolerance(shares):
            raise ValueError(f"{sheet.place(row)}: its shares sum to {total:.6g}, not 1{_remedy(total)}")
        count += abs(total - 1.0) > 1e-9
        found.append(shares / total)
        kept.append(k)
    if not found:
        raise ValueError(f"{sheet.path.name} has no row with shares in {', '.join(columns)}")
    if empty:
        notes.append(f"{empty} rows without proportions are left out")
    return np.stack(found), kept, count


def _tolerance(shares: Array) -> float:
    """How far rounding can move the sum: half a unit of the last decimal for each share, and a little more."""
    decimals = max(len(repr(round(float(v), 10)).partition(".")[2]) for v in shares)
    least = ROUNDING if decimals <= 3 else 1e-3
    return min(max(least, 0.5 * int((shares > 0).sum()) * 10.0**-decimals + 1e-12), MOST_ROUNDING)


def _repeated(sheet: Sheet, used: set[str]) -> list[str]:
    """A hint where the same run stands in several rows that a column of words tells apart."""
    run = next((c for name in INDEX[:-1] for c in sheet.columns if c.lower() == name and c not in used), None)
    words = [c for c in sheet.columns if c not in used and c != run and not _numeric(sheet, c)]
    if run is None or not words or len(set(map(str, sheet.values(run)))) == len(sheet.rows):
        return []
    return [f"{run} repeats; if {words[0]} names what each loss is of, add --targets-in {words[0]}"]


def _remedy(total: float) -> str:
    if abs(total - 100.0) < 1.0:
        return "; they look like percent: divide by 100"
    if total > 2.0:
        return "; are there columns among them that are not shares? Numbers of tokens must be divided by their sum"
    return "; is a group missing, or is a column among them that is no share?"
