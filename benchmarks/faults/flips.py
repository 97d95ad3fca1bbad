"""Damage: one bit of a file is turned over, and the file is used as its owner would.

Either the command refuses in one line that names the file, or what comes of it is what would have come of the sound
file, to the bit. Anything else is missed. A journal whose last line was cut short is mended and said to be.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults import Bench
from faults.events import Events
from faults.forks import Ended, run
from faults.jobs import of_comparison, of_run, of_store, timeless
from faults.kills import here, touches

Outcome = Callable[[Path, Ended], Any]


@dataclass(frozen=True)
class Kind:
    """Files of one kind, in a directory that is whole, and what they are used for."""

    name: str
    place: Path
    files: tuple[Path, ...]
    arguments: tuple[str, ...]
    outcome: Outcome
    times: int
    share: bool = False
    """Whether runs are trained in the process of the command."""


def printed(place: Path, end: Ended) -> Any:
    """What was printed, as JSON if it is."""
    try:
        return end.code, timeless(json.loads(end.out))
    except ValueError:
        return end.code, end.out


def damage(bench: Bench, seconds: float) -> list[dict[str, Any]]:
    """A row for each kind of file; on a busy machine with less of them, at least one."""
    kinds, rows, began = _kinds(bench), [], time.monotonic()
    for number, kind in enumerate(kinds, 1):
        rows.append(_flipped(bench, kind, began + seconds * number / len(kinds)))
    return [*rows, _torn(bench)]


def _flipped(bench: Bench, kind: Kind, until: float) -> dict[str, Any]:
    setup = here if kind.share else None
    row: dict[str, Any] = {"file": kind.name, "flips": 0, "detected": 0, "harmless": 0, "missed": 0, "wrong": []}
    row["where"] = []
    sound, end = _used(bench, kind, setup, lambda place: None)
    if end.code:
        raise RuntimeError(f"aioli {' '.join(kind.arguments)} ended with {end.code}, without damage: {end.error}")
    for _ in range(bench.times(kind.times, 4)):
        file = bench.random.choices(kind.files, [max(200, f.stat().st_size) ** 0.5 for f in kind.files])[0]
        name, at = str(file.relative_to(kind.place)), bench.random.randrange(file.stat().st_size)
        bit = 1 << bench.random.randrange(8)

        def flip(place: Path, name: str = name, at: int = at, bit: int = bit) -> None:
            content = bytearray((place / name).read_bytes())
            content[at] ^= bit
            (place / name).write_bytes(content)

        found, end = _used(bench, kind, setup, flip)
        named = any(part in end.error for part in (Path(name).name, f"{Path(name).parent} is damaged"))
        told = named and (not end.refused() or found == sound)  # refused, or said and made good
        verdict = "detected" if told else "harmless" if found == sound else "missed"
        row["flips"] += 1
        row[verdict] += 1
        if verdict == "harmless":
            row["where"] = [*row["where"], _change(file.read_bytes(), name, at, bit)][:40]
        if verdict == "missed":
            row["wrong"] = [*row["wrong"], f"{name}, byte {at}: exit {end.code}, {end.error.strip()[-160:]!r}"][:10]
            print(f"{kind.name}: {row['wrong'][-1]}", flush=True)
        if time.monotonic() > until:
            break
    return row


def _change(content: bytes, name: str, at: int, bit: int) -> str:
    """A bit that made no difference, with what stands around it, so that one can see why."""
    after = content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]
    pieces = (some[max(0, at - 12) : at + 8].decode("utf-8", "backslashreplace") for some in (content, after))
    return f"{name}, byte {at}: " + " to ".join(map(repr, pieces))


def _used(bench: Bench, kind: Kind, setup: Any, change: Callable[[Path], None]) -> tuple[Any, Ended]:
    """A copy is changed and used; what came of it, and how the command ended."""
    place = bench.fresh()
    shutil.copytree(kind.place, place, dirs_exist_ok=True)
    change(place)
    end = run(place, kind.arguments, setup)
    try:
        return kind.outcome(place, end), end
    except (OSError, ValueError, KeyError, IndexError) as error:
        return repr(error), end
    finally:
        shutil.rmtree(place)


def _kinds(bench: Bench) -> list[Kind]:
    """Everything that is damaged."""
    jobs, ready = bench.jobs, bench.fresh()
    names = ("store", "half", "done", "runs", "tables", "part")
    store, half, done, runs, tables, part = (ready / name for name in names)
    for place in (store, half, done, runs, tables, part):
        place.mkdir()
    train = jobs["train"].arguments
    shutil.copytree(bench.place / "data", store / "data")
    short = (
        "train",
        "data=data",
        "train.steps=2",
        "method=stratified",
        *[word for word in train[3:-2] if "every" not in word],
    )
    run(half, train, Events(_middle(bench)))
    run(done, train)
    run(runs, jobs["compare"].arguments, here)
    _tables(tables)
    _interrupted(bench, part)
    arrays = tuple(file for file in (store / "data").iterdir())
    saved = tuple(sorted(half.glob("run/checkpoints/step-*"))[-1].iterdir())
    results = tuple(file for name in ("run/result", "start", "job") for file in runs.glob(f"runs/??/*/{name}.json"))
    solve = ("solve", "fit.json", "--bootstrap", "0", "--json")
    watch = ("watch", "run", "--json")
    export = ("export", "mixture.json", "--to", "megatron", "--paths", "a=x,b=y,c=z")
    journal, fit, mixture = done / "run" / "journal.jsonl", tables / "fit.json", tables / "mixture.json"

    building = part / ".store.building"
    saved_log = [*building.iterdir(), *(building / "tokenizer").iterdir()]
    logged = tuple(file for file in sorted(saved_log) if file.is_file() and file.name != "lock")

    def of_final(place: Path, end: Ended) -> Any:
        return of_run(place)

    def of_table(place: Path, end: Ended) -> Any:
        return of_comparison(place)

    def of_tokens(place: Path, end: Ended) -> Any:
        return of_store(place)

    return [
        Kind("journal, to watch", done, (journal,), watch, printed, 110),
        Kind("journal, to go on", half, (half / "run" / "journal.jsonl",), train, of_final, 15),
        Kind("checkpoint", half, saved, train, of_final, 40),
        Kind("token store", store, arrays, (*short, "-o", "run", "--json"), printed, 40),
        Kind("results of a run store", runs, results, jobs["compare"].arguments, of_table, 15, share=True),
        Kind("log of a prepare", part, logged, jobs["prepare"].arguments, of_tokens, 30),
        Kind("mixture", tables, (mixture,), export, printed, 110),
        Kind("fit", tables, (fit,), solve, printed, 170),  # most of all, in the time that the others left
    ]


def _interrupted(bench: Bench, place: Path) -> None:
    """A `prepare` that was killed when all was tokenized and nothing packed."""
    job = bench.jobs["prepare"]
    last = max(n for n, kind in enumerate(touches(bench, job), 1) if kind == "mkdir")
    run(place, job.arguments, Events(last))
    if not (place / ".store.building" / "progress.json").is_file():
        raise RuntimeError("the prepare that was to be killed half-way has left no log")


def _middle(bench: Bench) -> int:
    """A touch of the disk in the middle of a run, after its first checkpoints."""
    return 90


def _tables(place: Path) -> None:
    """A fit, and the mixture that it recommends."""
    rows = ["p_a,p_b,p_c,loss_x,loss_y"]
    for k in range(12):
        a, b = 0.1 + 0.05 * k, 0.05 + 0.03 * ((5 * k) % 8)
        c = 1 - a - b
        rows.append(f"{a:.4f},{b:.4f},{c:.4f},{3 - a + 0.3 * b * b + 0.01 * (k % 3):.4f},{2.5 - b + c * c:.4f}")
    (place / "runs.csv").write_text("\n".join(rows) + "\n")
    fit = ("fit", "runs.csv", "--proportions", "p_*", "--losses", "loss_*", "-o", "fit.json")
    for arguments in (fit, ("solve", "fit.json", "--bootstrap", "0", "-o", "mixture.json")):
        end = run(place, arguments)
        if end.code:
            raise RuntimeError(f"aioli {arguments[0]}: {end.error}")


def _torn(bench: Bench) -> dict[str, Any]:
    """The last line of a journal, cut short anywhere, is mended when the run goes on, and this is said."""
    job = bench.jobs["train"]
    whole = bench.fresh()
    run(whole, job.arguments)
    sound = of_run(whole)
    row: dict[str, Any] = {"file": "journal, cut short", "flips": 0, "detected": 0, "harmless": 0, "missed": 0}
    row["wrong"] = row["where"] = []
    for _ in range(bench.times(10, 2)):
        place = bench.fresh()
        run(place, job.arguments, Events(_middle(bench)))
        journal = place / "run" / "journal.jsonl"
        with journal.open("ab") as out:
            out.write(journal.read_bytes().splitlines()[-1][: bench.random.randint(1, 60)])
        end = run(place, job.arguments)
        said = "cut short" in end.error and end.code == 0
        verdict = "detected" if said and of_run(place) == sound else "missed"
        row["flips"] += 1
        row[verdict] += 1
    return row
