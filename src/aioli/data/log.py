"""The log of an unfinished prepare: per group the tokens of all documents in order, and a record of each document.

`progress.json` says how far the files are sound; whatever was written after it is cut off when work goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aioli.data.documents import Chunk, Document
from aioli.files import damaged, read_json, write_json

MOST_GROUPS = 1000
ANEW = "what was tokenized before is given up, and prepare begins anew"
DOCUMENT = np.dtype([("hash", "<u8"), ("tokens", "<i8"), ("prompt", "<i8"), ("bytes", "<i8"), ("split", "<u8")])


class Encoded(NamedTuple):
    """A document and its tokens, with its prompt in front and EOS at the end."""

    document: Document
    tokens: NDArray[Any]
    prompt: int
    """How many of the tokens are prompt; -1: plain text."""


@dataclass
class Log:
    """What has been tokenized so far."""

    directory: Path
    identity: str
    """A hash of everything that the log depends on."""
    input: int = 0
    record: int = 0
    """The next record to be read."""
    groups: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    """Sound bytes of each file."""
    sums: dict[str, int] = field(default_factory=dict)
    """CRC-32 of these."""
    notes: dict[str, int] = field(default_factory=dict)
    tokenizer: str = ""
    """Fingerprint of the tokenizer that the tokens are of."""
    tokens: int = 0
    finished: bool = False

    def __post_init__(self) -> None:
        self._unsaved: set[str] = set()
        self.mark()

    @classmethod
    def open(cls, directory: Path, identity: str) -> Log:
        """Go on with the log of an interrupted prepare of the same things, or begin a new one."""
        file = directory / "progress.json"
        saved = read_json(file, ANEW)
        if isinstance(saved, dict) and saved.get("identity") == identity:
            if not _plausible(saved):
                damaged(file, ANEW)
            else:
                log = cls(directory, **saved)
                bad = [name for name in log.sizes if not log._sound(name)]
                if not bad and (directory / "tokenizer").is_dir():
                    for name, size in log.sizes.items():
                        os.truncate(directory / name, size)
                    return log
                damaged(directory / (bad or ["tokenizer"])[0], ANEW)
        empty(directory)
        return cls(directory, identity)

    def _sound(self, name: str) -> bool:
        """Whether the sound bytes of a file are there, and are what was written."""
        left, total = self.sizes[name], 0
        if _size(self.directory / name) < left:
            return False
        with (self.directory / name).open("rb") as file:
            while piece := file.read(min(left, 1 << 20)):
                left, total = left - len(piece), zlib.crc32(piece, total)
        return total == self.sums.get(name)

    def reset(self) -> None:
        """Forget everything: begin anew."""
        fresh = Log(self.directory, self.identity)
        self.__dict__.update(fresh.__dict__)

    def append(self, documents: Sequence[Encoded], chunk: Chunk) -> None:
        """Add the documents of a chunk, each to the files of its group."""
        by_group: dict[str, list[Encoded]] = {}
        for encoded in documents:
            by_group.setdefault(encoded.document.group, []).append(encoded)
        for group, some in by_group.items():
            number = self._number(group)
            index = [(e.document.hash, len(e.tokens), e.prompt, e.document.bytes, e.document.split) for e in some]
            self._write(f"{number}.tokens", np.concatenate([e.tokens for e in some]).tobytes())
            self._write(f"{number}.documents", np.array(index, dtype=DOCUMENT).tobytes())
            self.tokens += sum(len(e.tokens) for e in some)
        self.input, self.record = chunk.input, chunk.record
        self.notes = dict(Counter(self.notes) + chunk.notes)
        self.mark()

    def mark(self) -> None:
        """What is here now is whole: this is what `save` saves, even if the next chunk is interrupted half-way."""
        plain = {key: value for key, value in vars(self).items() if key != "directory" and not key.startswith("_")}
        self._whole = json.dumps(plain)

    def _number(self, group: str) -> int:
        if group not in self.groups:
            if len(self.groups) == MOST_GROUPS:
                raise ValueError(f"more than {MOST_GROUPS} groups, {group!r} among them; is group_field right?")
            self.groups.append(group)
        return self.groups.index(group)

    def _write(self, name: str, content: bytes) -> None:
        path = self.directory / name
        with path.open("ab" if name in self.sizes else "wb") as file:
            file.write(content)
        self.sums[name] = zlib.crc32(content, self.sums.get(name, 0))
        self.sizes[name] = self.sizes.get(name, 0) + len(content)
        self._unsaved.add(name)

    def save(self) -> None:
        """Make everything that is whole durable."""
        for name in self._unsaved:
            with (self.directory / name).open("rb+") as file:
                os.fsync(file.fileno())
        self._unsaved.clear()
        write_json(self.directory / "progress.json", json.loads(self._whole))


def empty(directory: Path) -> None:
    """Remove everything but the lock."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()


def _plausible(saved: dict[str, Any]) -> bool:
    """Whether what was saved, perhaps by another version, holds what a log does, about files of its own."""
    kinds = {"identity": str, "input": int, "record": int, "groups": list, "sizes": dict, "sums": dict}
    kinds |= {"notes": dict, "tokenizer": str, "tokens": int, "finished": bool}
    if not set(saved) <= set(kinds) or not all(isinstance(value, kinds[key]) for key, value in saved.items()):
        return False
    sizes = saved.get("sizes", {})
    mine = {f"{k}.{part}" for k in range(len(saved.get("groups", ()))) for part in ("tokens", "documents")}
    return set(sizes) <= mine and all(isinstance(size, int) and size >= 0 for size in sizes.values())


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
