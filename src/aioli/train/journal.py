"""The journal of a run: append-only JSON lines, one per segment. Everything that is shown to people is read from it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LONGEST = 1 << 26
"""Bytes of the longest line; one with the largest A that is told has a tenth of that."""


class Journal:
    """Opened for writing; lines are whole or absent."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        """Go on with the first `size` bytes of what is there; a last line that was cut short is removed."""
        self.path = path
        path.touch()
        sound = _sound_bytes(path)
        if size is not None and size > sound:
            raise ValueError(f"{path} has {sound} sound bytes, but its checkpoint was made after {size}; it is damaged")
        os.truncate(path, sound if size is None else size)
        self._file = path.open("ab")

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line; it is on disk when a checkpoint is (`sync`)."""
        self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Make it durable; returns its size."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _sound_bytes(path: Path) -> int:
    """Length up to the last complete line."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        end = file.tell()
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            at = file.read(end - start).rfind(b"\n")
            if at >= 0:
                return start + at + 1
            end = start
    return 0


def read(path: Path, begin: int = 0) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The lines of a journal and their bytes, in bounded memory; a last line that is not complete is left out."""
    with path.open("rb") as file:
        file.seek(begin)
        while line := file.readline(LONGEST + 1):
            if len(line) > LONGEST:
                raise ValueError(f"{path}: the line at byte {begin} is too long for a journal; it is damaged")
            if not line.endswith(b"\n"):
                return
            try:
                found = json.loads(line)
                if not isinstance(found["kind"], str):
                    raise TypeError
            except (ValueError, TypeError, KeyError, RecursionError):
                raise ValueError(f"{path}: byte {begin} is not a line of a journal; it is damaged") from None
            begin += len(line)
            yield found, line


def mean_proportions(path: Path) -> list[float]:
    """The mean over all steps of the mixture that was asked for."""
    total: list[float] = []
    steps = 0
    for line, _ in read(path):
        if line["kind"] == "segment":
            taken = line["end"] - line["begin"]
            total = [
                a + taken * p
                for a, p in zip(total or [0.0] * len(line["proportions"]), line["proportions"], strict=True)
            ]
            steps += taken
    return [value / steps for value in total]
