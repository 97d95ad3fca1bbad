"""What the disk and the clock can do: it is full, may not be written, refuses; the time of day jumps."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults import Bench, Trial
from faults.events import Events
from faults.forks import run
from faults.jobs import Job, State
from faults.kills import finish, setup_of, touches, with_setup

ROOM = {"train": (16, 400), "prepare": (16, 120), "compare": (60, 900)}
"""Smallest and largest size of the disk, in kB, that is too small for each command."""


def refused_at_touches(bench: Bench, job: Job, whole: State, how: str, full: int) -> Iterator[Trial]:
    """From the n-th touch on, every write fails: one line, and once there is room the run goes on."""
    kinds = touches(bench, job)
    for _ in range(bench.times(full)):
        place, at = bench.fresh(), bench.random.randint(1, len(kinds))
        end = run(place, job.arguments, with_setup(setup_of(job), Events(at, how)))
        fault = {"full": "disk full from a touch on", "broken": "disk fails from a touch on"}[how]
        wrong = [] if end.code == 0 else end.refused() if job.name != "compare" else _compared(end.code, end.error)
        yield Trial(fault, job.name, 1, (*(f"{w} (touch {at})" for w in wrong), *finish(job, place, whole)))


def _compared(code: int, error: str) -> list[str]:
    """A comparison whose runs failed says so in its table, and ends with 1; one that cannot begin is refused."""
    wrong = [] if code in (1, 2) else [f"exit code {code}, not 1 or 2"]
    return wrong + (["a traceback: " + error.strip().splitlines()[-1]] if "Traceback" in error else [])


def small_disk(bench: Bench, job: Job, whole: State) -> Iterator[Trial]:
    """A real file system that is too small; then it is made larger."""
    for _ in range(bench.times(3)):
        place, size = bench.fresh(), bench.random.randint(*ROOM[job.name])
        with _mounted(place, f"size={size}k") as mounted:
            if not mounted:
                yield Trial("disk of a few kB", job.name, 0, note="no right to mount a file system here")
                return
            end = run(place, job.arguments, setup_of(job))
            wrong = end.refused("no space left") if job.name != "compare" else _compared(end.code, end.error)
            subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
            yield Trial("disk of a few kB", job.name, 1, (*wrong, *finish(job, place, whole)))


@contextmanager
def _mounted(place: Path, options: str) -> Iterator[bool]:
    """A file system in memory at `place`, if we may."""
    tool = shutil.which("mount")
    done = tool and subprocess.run([tool, "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True)
    mounted = bool(done) and done.returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)


def without_privileges() -> None:
    """Give up root's right to write what it may not: bits 1 and 2 of the effective capabilities."""
    if os.geteuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, data):
        raise OSError(ctypes.get_errno(), "capget")
    data[0] &= ~0b1110
    if libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


def read_only(bench: Bench, job: Job, whole: State) -> Iterator[Trial]:
    """A directory that may not be written, before the beginning and half way; nothing in it changes."""
    kinds = touches(bench, job)
    for at in [1, *(bench.random.randint(len(kinds) // 3, len(kinds)) for _ in range(bench.times(2)))]:
        place = bench.fresh()
        if at > 1:
            run(place, job.arguments, with_setup(setup_of(job), Events(at)))
        everything = [(file, file.stat().st_mode) for file in [place, *place.rglob("*")]]
        before = _listing(place)
        for file, mode in everything:
            file.chmod(mode & 0o555)
        end = run(place, job.arguments, with_setup(without_privileges, setup_of(job)))
        over = end.code == 0 and at > 1  # it was killed when nothing was left to write
        wrong = [] if over else end.refused() if job.name != "compare" else _compared(end.code, end.error)
        wrong += [] if over or _listing(place) == before else ["something was written"]
        for file, mode in everything:
            if file.exists():
                file.chmod(mode)
        yield Trial("read-only directory", job.name, 1, (*wrong, *finish(job, place, whole)))


def _listing(place: Path) -> list[tuple[str, int, int]]:
    files = (file for file in sorted(place.rglob("*")) if file.is_file() and file.name not in ("log.txt", "lock"))
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def mad_clock(seed: int) -> None:
    """Have the time of day jump by up to two years, back and forth, with every look at it."""
    chance, real = random.Random(seed), time.time
    time.time = lambda: real() + chance.uniform(-6e7, 6e7)


def clock_jumps(bench: Bench, job: Job, whole: State) -> Iterator[Trial]:
    """The clock jumps while the command runs, and again after it was killed; files are from the future."""
    kinds = touches(bench, job)
    for _ in range(bench.times(2)):
        place, seed = bench.fresh(), bench.random.randrange(1 << 30)

        def mad(seed: int = seed) -> None:
            mad_clock(seed)

        run(place, job.arguments, with_setup(mad, setup_of(job), Events(bench.random.randint(1, len(kinds)))))
        for file in place.rglob("*"):
            when = time.time() + bench.random.uniform(-6e7, 6e7)
            os.utime(file, (when, when))
        end = run(place, job.arguments, with_setup(mad, setup_of(job)))
        wrong = [] if end.code == 0 else [f"exit code {end.code}: {end.error.strip()[-300:]}"]
        yield Trial("clock jumps, after a kill", job.name, 1, (*wrong, *finish(job, place, whole)))
