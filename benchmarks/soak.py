"""Faults on purpose: python benchmarks/soak.py [-o results/soak.json] [--seed 0] [--share 0.1]

`aioli train`, `prepare` and `compare` are killed at hundreds of moments, some of them inside a write of a checkpoint or
a journal, stopped, run on full, failing and read-only disks, under a clock that jumps, in company, with workers that
die; then the same command is run again, and what it leaves must be what an undisturbed one leaves, to the bit, and
nothing else. Files of every kind are damaged by a byte and used: the damage is told with the name of the file, or
changes nothing. `--share` makes it shorter, `--show results/soak.json` makes docs/reliability.md of a result. Exit code
1: something was not as promised.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # children are forked; threads would not be
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from faults import Bench, Trial, company, disks, flips, forks, kills
from faults.jobs import Job, jobs
from faults.page import page

ROOT = Path(__file__).resolve().parent.parent
BUDGET = {"train": 0.25, "prepare": 0.15, "compare": 0.35, "flips": 0.2}
"""Shares of the time; what is left is for beginning."""


def faults(bench: Bench, job: Job, ray: bool) -> Iterator[Trial]:
    """Everything that is done to one command."""
    place = bench.fresh()
    began = time.monotonic()
    end = forks.run(place, job.arguments, kills.setup_of(job))
    if end.code:
        raise RuntimeError(f"aioli {job.name} ended with {end.code}, without any fault:\n{end.error}")
    seconds, whole = time.monotonic() - began, job.state(place)
    parts = [
        (30, kills.killed_at_touches(bench, job, whole)),
        (25, kills.killed_at_moments(bench, job, whole, seconds)),
        (5, kills.terminated(bench, job, whole, seconds)),
        (8, disks.refused_at_touches(bench, job, whole, "full", 6)),
        (4, disks.refused_at_touches(bench, job, whole, "broken", 3)),
        (4, disks.small_disk(bench, job, whole)),
        (4, disks.read_only(bench, job, whole)),
        (4, disks.clock_jumps(bench, job, whole)),
        (4, company.two_at_once(bench, job, whole, seconds)),
    ]
    if job.name == "compare":
        parts += [(6, company.killed_workers(bench, job, whole)), (6, company.killed_conductor(bench, job, whole))]
        parts += [(6, company.killed_workers(bench, job, whole, ray=True))] if ray else []
    yield from in_time(parts, bench.seconds * BUDGET[job.name])


def in_time(parts: list[tuple[int, Iterator[Trial]]], seconds: float) -> Iterator[Trial]:
    """Trials of all parts, at least one of each; a part ends early when its share of the time is over."""
    began, whole, before = time.monotonic(), sum(weight for weight, _ in parts), 0
    for weight, part in parts:
        before += weight
        for trial in part:
            yield trial
            if time.monotonic() - began > seconds * before / whole:
                break


def summed(trials: list[Trial]) -> list[dict[str, Any]]:
    """A row for each fault and command."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for trial in trials:
        new = {
            "fault": trial.fault,
            "command": trial.job,
            "faults": 0,
            "trials": 0,
            "failed": 0,
            "wrong": [],
            "note": "",
        }
        row = rows.setdefault((trial.fault, trial.job), new)
        row["faults"] += trial.hits
        row["trials"] += 1
        row["failed"] += bool(trial.wrong)
        row["wrong"] = [*row["wrong"], *trial.wrong][:10]
        row["note"] = row["note"] or trial.note
    return list(rows.values())


def show(rows: list[dict[str, Any]], head: tuple[str, ...]) -> None:
    """A table on the screen."""
    cells = [list(head), *([str(row[name]) for name in head] for row in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(flush=True)


def soak(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """All of it."""
    began = time.monotonic()
    bench = Bench(place, jobs(place), random.Random(options.seed), options.share, 60 * options.minutes)
    forks.preload(bench.fresh(), [bench.jobs["train"].arguments])
    forks.preload(bench.fresh(), [bench.jobs["prepare"].arguments])
    trials: list[Trial] = []
    for job in bench.jobs.values():
        if job.name in options.only:
            for trial in faults(bench, job, options.ray):
                trials.append(trial)
                if trial.wrong:
                    print(f"{trial.job}, {trial.fault}: {'; '.join(trial.wrong)}", file=sys.stderr, flush=True)
    rows = summed(trials)
    show(rows, ("fault", "command", "faults", "trials", "failed"))
    damage = flips.damage(bench, bench.seconds * BUDGET["flips"]) if "flips" in options.only else []
    show(damage, ("file", "flips", "detected", "harmless", "missed"))
    return {
        "seed": options.seed,
        "share": options.share,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "kills": sum(row["faults"] for row in rows if "kill" in row["fault"]),
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()},
        "faults": rows,
        "damage": damage,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, help="write the result as JSON, or the page with --show")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is random (default 0)")
    parser.add_argument("--share", type=float, default=1.0, help="of the full number of faults (default 1)")
    parser.add_argument("--minutes", type=float, default=19.0, help="on a busy machine less is tried (default 19)")
    parser.add_argument("--only", nargs="+", default=["train", "prepare", "compare", "flips"], help="some parts")
    parser.add_argument("--no-ray", dest="ray", action="store_false", help="leave out Ray")
    parser.add_argument("--show", type=Path, metavar="JSON", help="make the page of a result")
    options = parser.parse_args()
    if options.show is not None:
        options.out.write_text(page(json.loads(options.show.read_text()), options.show.with_name("load.json")))
        return 0
    print(f"seed {options.seed}, {options.share:g} of the full soak", flush=True)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a sync of a disk would take most of the time
    place = Path(tempfile.mkdtemp(prefix="aioli-soak-", dir=memory)).resolve()
    try:
        found = soak(options, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    bad = sum(row["failed"] for row in found["faults"]) + sum(row["missed"] for row in found["damage"])
    print(f"{found['kills']} kills, {found['minutes']} minutes; not as promised: {bad}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
