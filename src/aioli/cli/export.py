"""`aioli export`: a mixture, or how it moved, in the configuration form of another system."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aioli.cli.jobs import STORE
from aioli.cli.show import plain, say, table
from aioli.export.schedule import Schedule, rounded, static
from aioli.export.systems import SYSTEMS, System, system
from aioli.files import explained, new_directory, put_directory, write_text

EXAMPLES = """examples:
  aioli export --proportions code=0.4,books=0.6 --to megatron         the words after --data-path
  aioli export solution.json --to olmo-core -o mixture.yaml           what aioli solve -o wrote
  aioli export run --to nemo --paths code=/data/code_text_document,books=/data/books_text_document
  aioli export 3f2a --store aioli-runs --to hf                        a run of a store, by the beginning of its key
  aioli export runs.csv --columns 'p_*' --row 3 --to json             a row of a table
  aioli export run --to json                                          every segment of a mixture that moved
  aioli export run --to megatron-file --phases 8 -o blends            one file for each of 8 phases, with step ranges
  aioli export run --to mosaicml --phases 8 --tokens-per-step 524288 -o curriculum.yaml
  aioli export --list                                                 the systems

From a mixture that moved, a system that takes one mixture only is given its mean over the run, unless --phases asks for
a file for each phase. Groups without a path get a place to be filled in.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "export",
        help="write a mixture or a schedule for Megatron, NeMo, MosaicML, torchtitan, OLMo-core …",
        description="Write a mixture, or how it moved, in the configuration form of another system.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("source", nargs="?", help="a run, a key of a store, a fit, a solution, JSON, YAML or a table")
    command.add_argument("--proportions", metavar="NAME=SHARE,…", action="append", help="instead: the mixture itself")
    command.add_argument("--to", metavar="SYSTEM", help=f"one of {', '.join(SYSTEMS)}")
    command.add_argument(
        "--paths", metavar="NAME=PATH,…", action="append", default=[], help="where the data of each group is"
    )
    command.add_argument("--phases", type=int, metavar="N", help="follow a mixture that moved in at most N phases")
    command.add_argument("--steps", type=int, metavar="N", help="stretch a mixture that moved to a run of N steps")
    command.add_argument("--tokens-per-step", type=int, metavar="N", help="global batch × sequence length, in tokens")
    command.add_argument("--columns", metavar="GLOB", help="columns of a table with shares, such as 'p_*'")
    command.add_argument("--row", type=int, metavar="N", help="which row of a table (1 is the first)")
    command.add_argument("--store", default=STORE, metavar="DIR", help=f"where keys are looked up (default {STORE})")
    command.add_argument("-o", "--out", metavar="FILE", help="write a file; with --phases, a directory of files")
    command.add_argument("--replace", action="store_true", help="replace what is there already")
    command.add_argument("--list", action="store_true", help="list the systems")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Export."""
    if options.list:
        return _list(options.json)
    if options.to is None:
        raise ValueError(f"for which system? Give one with --to: {', '.join(SYSTEMS)}")
    to = system(options.to)
    for name in ("phases", "steps", "tokens_per_step"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} {value} must be at least 1")
    schedule = _read(options)
    given = paths_of(options.paths, schedule.groups)
    moves = bool(schedule.phases)
    if not moves and options.phases is not None:
        raise ValueError("--phases is for a mixture that moves; this one is the same for all steps")
    whole = moves and to.schedule is not None and (options.phases is not None or to.full)
    if options.phases is not None:
        schedule = schedule.merged(options.phases)
    if options.steps is not None:
        schedule = schedule.stretched(options.steps)
    split = moves and options.phases is not None and not whole
    place = _place(options, to, split)
    if whole:
        assert to.schedule is not None
        files = {"": to.schedule(schedule, to.paths(schedule.groups, given), options.tokens_per_step)}
    elif split:
        files = phase_files(schedule, to, given)
    else:
        files = {"": to.text(schedule.mean, given)}
    notes = [*schedule.notes, *_notes(schedule, to, given, moves and not whole and not split)]
    if place is not None:
        _write(place, files)
    if options.json:
        print(json.dumps(_plain(schedule, to, given, files, place, notes), indent=2, ensure_ascii=False))
        return 0
    for note in notes:
        print(f"worth knowing: {plain(note)}", file=sys.stderr)
    if place is None:
        text = "\n\n".join(f"# {name}\n{text}" if name else text for name, text in files.items())
        show = say if sys.stdout.isatty() else print  # names do not steer a terminal; a file gets them as they are
        show(text)
    else:
        say(_summary(schedule, to, place, list(files)))
    return 0


def _read(options: argparse.Namespace) -> Schedule:
    """What was named, as a schedule."""
    if (options.source is None) == (options.proportions is None):
        raise ValueError("give either a run, a fit, a solution or a table, or --proportions code=0.4,books=0.6")
    if options.proportions is not None:
        return static(_shares(options.proportions), "--proportions")
    from aioli.export.reading import read

    return read(options.source, options.store, options.columns, options.row)


def _shares(texts: Sequence[str]) -> dict[str, float]:
    """`code=0.4,books=0.6`, also several times."""
    found: dict[str, float] = {}
    for part in (part for text in texts for part in text.split(",") if part.strip()):
        name, equals, value = part.strip().rpartition("=")
        if not equals or not name:
            raise ValueError(f"--proportions {part!r} is not NAME=SHARE, such as code=0.4")
        if name in found:
            raise ValueError(f"--proportions names {name} twice")
        try:
            found[name] = float(value)
        except ValueError:
            hint = "0.2, not 20%" if value.endswith("%") else f"{name}=0.1"
            raise ValueError(f"--proportions {part}: {value!r} is not a number; write {hint}") from None
    return found


def paths_of(texts: Sequence[str], groups: Sequence[str]) -> dict[str, str]:
    """`code=/data/code,books=/data/books`, also several times; a path may hold commas."""
    names = "|".join(re.escape(name) for name in sorted(groups, key=len, reverse=True))
    found: dict[str, str] = {}
    for text in texts:
        parts = re.split(rf"(?:^|,)({names})=", text)
        unknown = parts[0] or next((m[1] for p in parts[2::2] if (m := re.search(r",([^,=/]+=)", p))), "")
        if unknown:
            name = unknown.partition("=")[0]
            raise ValueError(f"--paths {text}: there is no group {name!r}; there are {', '.join(groups)}")
        for name, path in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"--paths names {name} twice")
            if not path or path.startswith("-"):
                raise ValueError(f"--paths {name}={path} is not a path{'; write ./' + path if path else ''}")
            found[name] = path
    return found


def phase_files(schedule: Schedule, to: System, given: Mapping[str, str]) -> dict[str, str]:
    """A file for each phase, named by its steps, and one that says which comes when."""
    digits = len(str(schedule.steps))
    keep = [name for name, share in schedule.mean.items() if share > 0] if to.steady else []
    files = {
        f"steps-{a.begin:0{digits}d}-{a.end:0{digits}d}{to.suffix}": to.text(schedule.shares(a), given, keep)
        for a in schedule.phases
    }
    about = [
        {"begin": phase.begin, "end": phase.end, "file": name, "proportions": rounded(schedule.shares(phase))}
        for phase, name in zip(schedule.phases, files, strict=True)
    ]
    files["phases.json"] = json.dumps({"to": to.name, "steps": schedule.steps, "phases": about}, indent=1)
    return files


def _notes(schedule: Schedule, to: System, given: Mapping[str, str], averaged: bool) -> list[str]:
    """What a reader of the result should know."""
    notes = []
    if averaged:
        which = f"{to.name} takes one mixture for the whole run" if to.schedule is None else "the mixture moved"
        notes.append(f"{which}; this is its mean over the run (--phases 8 follows it in 8 phases)")
    small = [name for name, share in schedule.mean.items() if share > 0 and rounded(schedule.mean)[name] == 0]
    if small:
        notes.append(f"too small a share to be written: {', '.join(small)}")
    missing = [name for name, share in rounded(schedule.mean).items() if share > 0 and name not in given]
    if to.place and missing:
        notes.append(f"fill in where the data of {', '.join(missing)} is, or give --paths {missing[0]}=…")
    return notes


def _place(options: argparse.Namespace, to: System, split: bool) -> Path | None:
    """Where it goes; refused before anything is done if it cannot be."""
    if options.out is None:
        return None
    place = Path(options.out)
    endings = (".yaml", ".yml") if to.suffix == ".yaml" else (to.suffix,)
    if split and place.suffix in (".yaml", ".yml", ".json", ".txt", ".py"):
        raise ValueError(f"-o {options.out}: {to.name} needs a file for each phase; give a directory to make")
    if not split and place.suffix not in endings:
        raise ValueError(f"-o {options.out} must end with {' or '.join(endings)} for {to.name}")
    if not place.parent.is_dir():
        raise ValueError(f"-o {options.out}: there is no directory {place.parent}")
    if place.is_dir() != split and place.exists():
        raise ValueError(f"-o {options.out} is a {'directory' if place.is_dir() else 'file'}; choose another place")
    if split and place.exists() and not (place / "phases.json").is_file():
        raise ValueError(f"-o {options.out} is a directory with something else in it; choose another place")
    if place.exists() and not options.replace:
        raise ValueError(f"-o {options.out} is there already; --replace overwrites it")
    return place


def _write(place: Path, files: Mapping[str, str]) -> None:
    """A file, or a directory of files; whole or not at all."""
    with explained(place):
        if list(files) == [""]:
            write_text(place, files[""] + "\n")
            return
        made = new_directory(place)
        try:
            for name, text in files.items():
                write_text(made / name, text + "\n")
            put_directory(made, place)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise


def _plain(
    schedule: Schedule,
    to: System,
    given: Mapping[str, str],
    files: Mapping[str, str],
    place: Path | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    phases = [
        {"begin": phase.begin, "end": phase.end, "proportions": rounded(schedule.shares(phase))}
        for phase in schedule.phases
    ]
    return {
        "to": to.name,
        "proportions": rounded(schedule.mean),
        "paths": {name: path for name, path in to.paths(schedule.groups, given).items() if path},
        "steps": schedule.steps,
        "phases": phases,
        "out": None if place is None else str(place),
        "files": [{"name": name or None, "text": text} for name, text in files.items()],
        "notes": list(notes),
    }


def _summary(schedule: Schedule, to: System, place: Path, files: Sequence[str]) -> str:
    """What was written, for people."""
    if files == [""]:
        return f"written: {place} ({to.about})"
    rows = [
        [f"{phase.begin:,} – {phase.end:,}", *(f"{share:.1%}" for share in phase.proportions), name]
        for phase, name in zip(schedule.phases, files, strict=False)
    ]
    return f"{table(['steps', *schedule.groups, 'file'], rows)}\nwritten: {place}; phases.json there says which is when"


def _list(as_json: bool) -> int:
    about = {each.name: each.about for each in SYSTEMS.values()}
    if as_json:
        print(json.dumps(about, indent=2))
    else:
        rows = [[each.name, each.about, "yes" if each.schedule else "in files by phase"] for each in SYSTEMS.values()]
        print(table(["system", "what is written", "schedules"], rows, 3))
    return 0
