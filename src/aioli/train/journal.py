"""The journal of a run: append-only JSON lines, one per segment. Everything that is shown to people is read from it.

Every line ends with a checksum of what stands before it (`"crc"`); lines without one, of older versions, are read and
said to be unchecked.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aioli.files import is_locked, unchecked

_END = b', "crc": "00000000"}\n'
"""How a line ends, with its checksum for the zeros."""
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
        self.torn = path.stat().st_size - sound
        """Bytes of a last line that was cut short, by a crash or a full disk."""
        os.truncate(path, sound if size is None else size)
        self._file = path.open("ab")

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line; it is on disk when a checkpoint is (`sync`)."""
        text = json.dumps(line, ensure_ascii=False, allow_nan=False).encode()
        self._file.write(text[:-1] + _crc(text[:-1]))
        self._file.flush()

    def sync(self) -> int:
        """Make it durable; returns its size."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _crc(text: bytes) -> bytes:
    """The end of a line that begins so."""
    return b', "crc": "%08x"}\n' % zlib.crc32(text)


def _checked(line: bytes, path: Path) -> bool:
    """Whether a line has its checksum; one that does not even resemble a line with one was written without."""
    end = line[-len(_END) :]
    alike = sum(a == b or b == ord("0") for a, b in zip(end, _END, strict=False))
    if alike < len(_END) - 1:
        unchecked(path, "journal")
        return True
    return end == _crc(line[: -len(_END)])


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
                sound = _checked(line, path)
                found.pop("crc", None)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                raise ValueError(f"{path}: byte {begin} is not a line of a journal; it is damaged") from None
            if not sound:
                raise ValueError(f"{path}: the line at byte {begin} does not match its checksum; it is damaged")
            begin += len(line)
            yield found, line


def torn(path: Path) -> str | None:
    """What is wrong with the end of a journal that nobody writes; None: nothing."""
    whole, sound = path.stat().st_size, _sound_bytes(path)
    if whole == sound or is_locked(path.parent):
        return None
    return f"the last line of {path} is cut short ({whole - sound} bytes) and is left out"


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
