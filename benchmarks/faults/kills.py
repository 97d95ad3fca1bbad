"""Kills and stops: at random moments, at the n-th touch of the disk, by SIGTERM; each run goes on until it ends."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from faults import Bench, Trial
from faults.events import Events
from faults.forks import Child, Ended, Setup, run
from faults.jobs import Job, State, judged

KILLS = {"train": (50, 50), "prepare": (50, 45), "compare": (16, 10)}
"""How many kills of each command: at touches of the disk, at random moments."""
TORN = ("journal append", "checkpoint write")
"""Touches that are hit more often than their share."""


def here() -> None:
    """Have `compare` train in its own process, so that every touch is seen and no interpreter has to start."""
    import threading
    from concurrent.futures import Future

    from aioli.runs import local, work

    class Here:
        workers = 1

        def __init__(self, *options: object) -> None:
            self.stop = threading.Event()

        def submit(self, orders: list[dict[str, object]]) -> list[Future[str]]:
            found = []
            for order in orders:
                found.append(Future())
                found[-1].set_result(work.work(order, self.stop))
            return found

        def close(self) -> None:
            pass

    local.LocalExecutor = Here  # type: ignore[assignment, misc]


def with_setup(*some: Setup | None) -> Setup:
    """One after the other."""

    def setup() -> None:
        for each in some:
            if each is not None:
                each()

    return setup


def setup_of(job: Job) -> Setup | None:
    return here if job.name == "compare" else None


def finish(job: Job, place: Path, whole: State) -> list[str]:
    """Run the same command again, without faults; what is wrong then."""
    end = run(place, job.arguments, setup_of(job))
    wrong = [] if end.code == 0 else [f"going on ended with {end.code}: {last_line(end)}"]
    return wrong + judged(job, place, whole)


def last_line(end: Ended) -> str:
    return (end.error.strip().splitlines() or [""])[-1][:300]


def touches(bench: Bench, job: Job) -> list[str]:
    """What a whole run does to the disk, in order."""
    place = bench.fresh()
    listing = place.with_name(f".{place.name}.events")
    end = run(place, job.arguments, with_setup(setup_of(job), Events(listing=listing)))
    if end.code:
        raise RuntimeError(f"{job.name} with its touches counted ended with {end.code}: {end.error}")
    found: list[str] = json.loads(listing.read_text())
    return found


def spread(bench: Bench, kinds: list[str], count: int) -> list[int]:
    """Which touches are hit: evenly over all, and some more in the middle of a journal's or checkpoint's write."""
    torn = [n for n, kind in enumerate(kinds, 1) if kind in TORN]
    extra = bench.random.sample(torn, min(len(torn), count // 3))
    rest = count - len(extra)
    even = [1 + int((k + bench.random.random()) * len(kinds) / rest) for k in range(rest)]
    return sorted(extra + even)


def killed_at_touches(bench: Bench, job: Job, whole: State) -> Iterator[Trial]:
    """SIGKILL inside the n-th touch of the disk, half of a write done."""
    kinds = touches(bench, job)
    for at in spread(bench, kinds, bench.times(KILLS[job.name][0], 4)):
        place = bench.fresh()
        end = run(place, job.arguments, with_setup(setup_of(job), Events(at)))
        kind = kinds[min(at, len(kinds)) - 1]
        fault = f"kill -9 inside a {kind}" if kind in TORN else "kill -9 at a touch of the disk"
        if not end.killed:  # times differ, so runs may have a touch more or less
            yield Trial(fault, job.name, 0, tuple(judged(job, place, whole)))
            continue
        wrong = [f"{w} (touch {at}, {kind})" for w in finish(job, place, whole)]
        yield Trial(fault, job.name, 1, tuple(wrong))


def killed_at_moments(bench: Bench, job: Job, whole: State, seconds: float) -> Iterator[Trial]:
    """SIGKILL after a random while, again and again until the run ends in spite of it."""
    left, most = bench.times(KILLS[job.name][1], 3), 0.5 * seconds
    while left > 0:
        place, hits, patience = bench.fresh(), 0, most
        while hits < left:
            child = Child(place, job.arguments, setup_of(job))
            time.sleep(bench.random.uniform(0.05 * seconds, patience))
            child.send(signal.SIGKILL)
            if not child.wait().killed:
                break
            hits += 1
            patience = min(patience * 1.1, 1.5 * seconds)
        left -= hits
        yield Trial("kill -9 at a random moment", job.name, hits, tuple(finish(job, place, whole)))
        if hits == 0:
            most *= 0.8


def terminated(bench: Bench, job: Job, whole: State, seconds: float) -> Iterator[Trial]:
    """SIGTERM after a random while: what can be saved is saved."""
    for _ in range(bench.times(4)):
        place = bench.fresh()
        child = Child(place, job.arguments, setup_of(job))
        time.sleep(bench.random.uniform(0.1, 0.9) * seconds)
        child.send(signal.SIGTERM)
        end = child.wait()
        expected = (0, 143, -signal.SIGTERM)  # saved, or ended in time; cleaned up; before Python could notice
        wrong = [] if end.code in expected else [f"SIGTERM ended it with {end.code}: {last_line(end)}"]
        if "Traceback" in end.error:
            wrong.append(f"SIGTERM gave a traceback: {last_line(end)}")
        yield Trial("SIGTERM at a random moment", job.name, 1, (*wrong, *finish(job, place, whole)))
