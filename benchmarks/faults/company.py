"""Others at the same work: two processes on one directory, and workers that are killed, here and in Ray."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from faults import Bench, Trial
from faults.forks import Child
from faults.jobs import Job, State, judged
from faults.kills import finish, last_line, setup_of


def two_at_once(bench: Bench, job: Job, whole: State, seconds: float) -> Iterator[Trial]:
    """The same command twice: one does the work, the other is told so, or waits and finds it done."""
    for _ in range(bench.times(3)):
        place, other = bench.fresh(), bench.fresh()
        other.rmdir()
        other.symlink_to(place)  # the same directory, with a place of its own for what is printed
        first = Child(place, job.arguments, setup_of(job))
        time.sleep(bench.random.uniform(0.0, 0.7) * seconds)
        second = Child(other, job.arguments, setup_of(job))
        ends = [first.wait(), second.wait()]
        wrong = [] if any(end.code == 0 for end in ends) else ["neither was finished"]
        for end in ends:
            if end.code:
                wrong += end.refused("is being written by") if job.name != "compare" else [last_line(end)]
        yield Trial("two processes at once", job.name, 1, (*wrong, *judged(job, place, whole)))


def children(process: int) -> list[int]:
    """Processes that a process has started, and they in turn."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == process:
            found += [int(stat.parent.name), *children(int(stat.parent.name))]
    return found


def _training(place: Path, child: Child) -> list[int]:
    """Wait until a worker has claimed a run; returns whoever has."""
    from aioli.runs.claim import owner_of

    while not child.over():
        owners = [owner_of(folder) for folder in place.glob("runs/??/*")]
        if found := [owner["process"] for owner in owners if owner]:
            return found
        time.sleep(0.01)
    return []


def killed_workers(bench: Bench, job: Job, whole: State, ray: bool = False) -> Iterator[Trial]:
    """A worker of a comparison is killed while it trains: another takes its place."""
    arguments = (*job.arguments, *(("--executor", "ray") if ray else ()))
    for _ in range(bench.times(1 if ray else 2)):
        place, hits = bench.fresh(), 0
        child = Child(place, arguments)
        for owner in _training(place, child)[:1]:
            time.sleep(bench.random.uniform(0.0, 0.3))
            try:
                os.kill(owner, signal.SIGKILL)
                hits += 1
            except ProcessLookupError:
                pass
        end = child.wait()
        wrong = [] if end.code == 0 else [f"exit code {end.code}: {last_line(end)}"]
        fault = f"a worker killed in {'Ray' if ray else 'the local pool'}"
        yield Trial(fault, job.name, hits, (*wrong, *judged(job, place, whole)))


def killed_conductor(bench: Bench, job: Job, whole: State) -> Iterator[Trial]:
    """The command is killed, its workers are not: they save themselves and end, and nothing stays claimed."""
    for _ in range(bench.times(2)):
        place = bench.fresh()
        child = Child(place, job.arguments)
        _training(place, child)
        time.sleep(bench.random.uniform(0.0, 0.5))
        workers = [] if child.over() else children(child.process)
        child.send(signal.SIGKILL)
        hits = int(child.wait().killed)
        wrong, deadline = [], time.monotonic() + 60
        while any(Path(f"/proc/{worker}").exists() and worker for worker in workers):
            if time.monotonic() > deadline:
                wrong.append("a worker outlived its command by a minute")
                break
            time.sleep(0.05)
        yield Trial("kill -9 of the command, not its workers", job.name, hits, (*wrong, *finish(job, place, whole)))
