"""Where a mixture can come from: a run or a key of a run store, a fit, a solution, what `aioli mix -o` wrote, a table.

In: what the user named. Out: a Schedule, with what is worth knowing about it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aioli.export.schedule import Path as Way
from aioli.export.schedule import Phase, Schedule, moving, shares_of, static
from aioli.files import read_text, unsealed

TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".gz")


def read(source: str, store: str | None = None, columns: str | None = None, row: int | None = None) -> Schedule:
    """The mixture of what is named; `columns` and `row` are for tables."""
    place = Path(source)
    table = place.is_file() and place.suffix.lower() in TABLES
    if not table and (columns is not None or row is not None):
        raise ValueError(f"--columns and --row are for tables, and {source} is none")
    if table:
        return from_table(place, columns, row)
    if place.is_file() and place.suffix.lower() in (".json", ".yaml", ".yml"):
        return from_file(place)
    if place.is_file():
        raise ValueError(f"{source} is neither JSON, YAML nor a table (.csv, .tsv, .parquet)")
    if place.suffix.lower() in (".json", ".yaml", ".yml", *TABLES):
        raise ValueError(f"{source} is not there; `aioli solve FIT -o solution.json` writes a solution to a file")
    return from_run(source, store)


# ---------------------------------------------------------------------- runs


def from_run(source: str, store: str | None = None) -> Schedule:
    """A run by its directory, or by its key in a run store."""
    from aioli.report.seen import find

    found = find([source], store)
    if len(found) > 1:
        some = ", ".join(name for name, _ in found[:4])
        raise ValueError(f"{source} holds {len(found)} runs; name one of them, such as {some}")
    return of_run(found[0][1])


def of_run(folder: Path) -> Schedule:
    """The segments that a run was trained on, from its journal."""
    from aioli.train.journal import read as lines
    from aioli.train.journal import torn
    from aioli.train.layout import JOURNAL, RESULT

    groups: list[str] = []
    way, first, total, finished = Way(), 0, 0, False
    try:
        for line, _ in lines(folder / JOURNAL):
            if line["kind"] == "run":
                groups, first = [str(g) for g in line["groups"]], int(line.get("first", 0))
                total = int(line["steps"]) - first
            elif line["kind"] == "segment" and line["end"] > line["begin"]:
                begin, end = int(line["begin"]) - first, int(line["end"]) - first
                way.add(Phase(begin, end, tuple(map(float, line["proportions"])), str(line["tag"])))
            finished = finished or line["kind"] == "result"
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / JOURNAL} is damaged ({type(error).__name__}: {error})") from None
    if not way.phases:
        raise ValueError(f"{folder} has not trained anything yet, so there is no mixture to export")
    notes = []
    if cut := torn(folder / JOURNAL):
        if (folder / RESULT).is_file() and not finished:
            raise ValueError(f"{cut}, but the run is finished: the journal is damaged")
        notes.append(cut)
    if not finished:
        done = f"step {way.phases[-1].end:,} of {total:,}"
        notes.append(f"the run is not finished: this is what it was trained on up to {done}")
    if way.thinned:
        notes.append(f"the run has very many segments; neighbours are put together, {len(way.phases):,} are left")
    return moving(groups, way.phases, notes)


# ---------------------------------------------------------------------- files


def from_file(file: Path) -> Schedule:
    """A fit, a solution, what `aioli mix` or `aioli export` wrote, or names with shares; JSON or YAML."""
    if file.suffix.lower() == ".json":
        try:
            plain = unsealed(json.loads(read_text(file)), file)
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
            plain = None
        if not isinstance(plain, dict):
            raise ValueError(f"{file} is not a JSON object")
    else:
        from aioli.recipe import read as read_yaml

        plain = read_yaml(file)
    if plain.get("kind") == "aioli fit":
        return _solved(file)
    for name in ("schedule", "path"):
        if plain.get(name) and isinstance(plain.get("proportions"), Mapping):
            return _with_phases(plain, name, file)
    for name in ("proportions", "mean_proportions"):
        if isinstance(plain.get(name), Mapping):
            return static(_named(plain[name]), str(file))
    if "kind" in plain or not all(isinstance(v, int | float) for v in plain.values()):
        raise ValueError(
            f"{file} holds no mixture; give a run, what aioli fit, solve, mix or export wrote, or names with shares"
        )
    return static(_named(plain), str(file))


def _named(shares: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): share for name, share in shares.items()}


def _solved(file: Path) -> Schedule:
    """The optimum of a fitted law, with all targets counting alike and no bounds."""
    from aioli.fits import Fit, Wish, solve

    fit = Fit.load(file)
    best = solve(fit, Wish.of(fit.runs), 0).best
    note = (
        f"the optimum of {file} for the mean loss of all targets, without bounds; aioli solve takes weights and bounds"
    )
    return static(dict(zip(fit.runs.groups, best.proportions.tolist(), strict=True)), str(file), [note])


def _with_phases(plain: Mapping[str, Any], name: str, file: Path) -> Schedule:
    """A mixture that moves: phases by name with begin and end, or vectors until a step as `aioli mix` writes them."""
    mean = shares_of(_named(plain["proportions"]), str(file))
    groups, phases, begin = list(mean), [], 0
    try:
        for each in plain[name]:
            shares = each["proportions"]
            if not isinstance(shares, Mapping):
                shares = dict(zip(plain["groups"], shares, strict=True))
            end = int(each["end"] if "end" in each else each["until"])
            if int(each.get("begin", begin)) != begin or end <= begin:
                raise ValueError(f"{file}: the phase that ends with step {end} does not begin where the last one ended")
            checked = shares_of(_named(shares), f"{file}, steps {begin} to {end}")
            if set(checked) != set(groups):
                raise ValueError(f"{file}, steps {begin} to {end}: its groups are not {', '.join(groups)}")
            phases.append(Phase(begin, end, tuple(checked[g] for g in groups), str(each.get("tag", ""))))
            begin = end
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{file}: {name} is not a list of phases with begin, end and proportions") from None
    found = moving(groups, phases)
    return Schedule(found.groups, tuple(mean.values()), found.phases)


# ---------------------------------------------------------------------- tables


def from_table(file: Path, columns: str | None, row: int | None) -> Schedule:
    """One mixture of a table: a row with a column for each group, or a row for each group."""
    from aioli.fits.reading import as_number, read_sheet
    from aioli.fits.table import matching, mixtures

    sheet = read_sheet(file)
    if columns is None and row is None and len(sheet.columns) == 2 and len(sheet.rows) > 1:
        numbers = [as_number(value) for value in sheet.values(sheet.columns[1])]
        names = [str(value).strip() for value in sheet.values(sheet.columns[0])]
        if None not in numbers and all(as_number(name) is None for name in names):
            if len(set(names)) < len(names):
                raise ValueError(f"{file} names a group twice")
            return static({n: float(v or 0.0) for n, v in zip(names, numbers, strict=True)}, str(file))
    named = matching(sheet, columns, set(), "--columns")
    if row is None and len(sheet.rows) > 1:
        raise ValueError(f"{file} has {len(sheet.rows)} rows; say which with --row N (1 is the first)")
    if row is not None and not 1 <= row <= len(sheet.rows):
        raise ValueError(f"--row {row}: {file} has rows 1 to {len(sheet.rows)}")
    P, _, _ = mixtures(sheet, list(named.values()), [(row or 1) - 1], [])
    return static(dict(zip(named, P[0].tolist(), strict=True)), str(file))
