"""Faults on purpose: what benchmarks/soak.py does to aioli's commands, and how it judges what is left.

forks.py runs a command in a forked child, so that torch is imported once and a fault costs a second; events.py makes
the child fail at its n-th touch of the disk; jobs.py has the three commands at work, and the final state of each as
plain data; kills.py, disks.py and company.py are the faults, flips.py damages files one byte at a time; page.py makes
docs/reliability.md of the results. A fault is a function that takes a `Bench` and yields `Trial`s.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from faults.jobs import Job


@dataclass(frozen=True)
class Trial:
    """One fault and what came of it."""

    fault: str
    job: str
    hits: int = 1
    """How many faults it took, such as the kills of one run until its end."""
    wrong: tuple[str, ...] = ()
    """What was not as promised; nothing is as it should be."""
    note: str = ""


@dataclass
class Bench:
    """Where faults happen, and how many."""

    place: Path
    jobs: dict[str, Job]
    random: random.Random
    share: float = 1.0
    """Of the full soak."""
    seconds: float = 1200.0
    """How long all of it may take."""
    made: int = field(default=0)

    def times(self, full: int, least: int = 1) -> int:
        """How often something is tried."""
        return max(least, round(full * self.share))

    def fresh(self) -> Path:
        """An empty directory."""
        self.made += 1
        found = self.place / f"trial{self.made}"
        found.mkdir()
        return found
