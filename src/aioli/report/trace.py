"""A run as seen in its journal: the path of its mixture and losses, in bounded memory however long it was."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aioli.train.journal import read, torn
from aioli.train.layout import JOURNAL, RESULT
from aioli.train.lines import check

POINTS, FRAMES, NUMBERS = 1000, 30, 60_000
"""How many points of a curve, and how many matrices A, are kept at least; where there are many groups, fewer: about so
many numbers."""


@dataclass
class Curve:
    """Vectors over steps, thinned out evenly when there are too many; the last point is always there."""

    steps: list[int] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)
    points: int = POINTS
    """How many are kept at least; beyond twice as many, every second one goes."""
    _count: int = 0
    _every: int = 1
    _loose: bool = False
    """Whether the last point is only there because it is the last."""

    def add(self, step: int, values: list[float]) -> None:
        """One more point."""
        if self._loose:
            self.steps.pop()
            self.values.pop()
        self.steps.append(step)
        self.values.append(values)
        self.points = min(self.points, max(2, NUMBERS // max(1, len(values))))
        self._loose = self._count % self._every != 0
        if len(self.steps) > 2 * self.points and not self._loose:
            self._every *= 2
            self._loose = self._count % self._every != 0
            self.steps = self.steps[::2] + ([step] if self._loose else [])
            self.values = self.values[::2] + ([values] if self._loose else [])
        self._count += 1

    def at(self, step: float) -> list[float] | None:
        """The values in force at a step: those of the first point that is not before it."""
        for there, values in zip(self.steps, self.values, strict=True):
            if there >= step:
                return values
        return self.values[-1] if self.values else None


@dataclass
class Trace:
    """What a journal says so far; `read` again to go on from where it ended."""

    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    proportions: Curve = field(default_factory=Curve)
    """The mixture in force up to each step, sweeps left out."""
    loss: Curve = field(default_factory=Curve)
    val_loss: Curve = field(default_factory=Curve)
    """All that was seen of it, for the policy and for the journal."""
    looks: Curve = field(default_factory=Curve)
    """What was seen of it for the journal, at the same steps whatever the method."""
    mixed: Curve = field(default_factory=Curve)
    """The mixture in force up to each step, sweeps and all."""
    A: Curve = field(default_factory=lambda: Curve(points=FRAMES))
    """A^t, row by row, when a round has found it."""
    step: int = 0
    segments: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "probe": 0.0})
    result: dict[str, Any] | None = None
    torn: str | None = None
    """What is wrong with the end of the journal."""
    _offset: int = 0
    _last: bytes = b""
    _found: Any = None

    @property
    def way(self) -> Curve:
        """The validation loss on the way. Looks of the journal and of the method see other data: a curve of both would
        jump, so it is of the first alone as soon as there are some."""
        return self.looks if len(self.looks.steps) > 1 else self.val_loss

    def read(self) -> Trace:
        """Take in what has been written since; a journal that was cut back by a resumed run is read anew."""
        file = self.path / JOURNAL
        if not file.is_file():
            raise ValueError(f"{self.path} is not the directory of a run: it has no {JOURNAL}")
        if not self._goes_on(file):
            vars(self).update(vars(Trace(self.path)))
        for line, text in read(file, self._offset):
            try:
                check(line, self.about)
            except ValueError as error:
                raise ValueError(f"{file}: the line at byte {self._offset} is damaged: {error}") from None
            self._take(line)
            self._offset, self._last = self._offset + len(text), text
        self.torn = torn(file)
        if self.torn and (self.path / RESULT).is_file() and self.result is None:
            raise ValueError(f"{self.torn}, but the run is finished: the journal is damaged")
        return self

    def _goes_on(self, file: Path) -> bool:
        """Whether what was read is still there: a run that is resumed goes on from its checkpoint."""
        with file.open("rb") as lines:
            lines.seek(self._offset - len(self._last))
            return lines.read(len(self._last)) == self._last

    def _take_A(self, step: int, report: dict[str, Any]) -> None:
        A = report.get("A")
        if A is not None and self._found != A:
            self._found = A
            self.A.add(step, [value for row in A for value in row])

    def _take(self, line: dict[str, Any]) -> None:
        kind = line["kind"]
        if kind == "run":
            self.about = line
        elif kind == "segment":
            self.segments, self.step = self.segments + 1, line["end"]
            if line["end"] > line["begin"]:
                self.mixed.add(line["end"], line["proportions"])
                if not line["tag"].startswith("sweep"):
                    self.proportions.add(line["end"], line["proportions"])
            if "val_loss" in line["values"]:
                self.val_loss.add(line["end"], _known(line["values"]["val_loss"]))
            for name in self.seconds:
                self.seconds[name] += line["seconds"][name]
            self._take_A(line["end"], line["report"])
        elif kind == "look":
            self.step = line["step"]
            self.loss.add(line["step"], _known([line.get("loss")]))
            self.val_loss.add(line["step"], _known(line["val_loss"]))
            self.looks.add(line["step"], _known(line["val_loss"]))
        elif kind == "result":
            self.result, self.step = line, line["steps"]


def _known(values: list[float | None]) -> list[float]:
    """What a journal writes as null was no number."""
    return [math.nan if value is None else value for value in values]
