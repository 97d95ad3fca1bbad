"""A corpus as it is read again and again: documents one at a time, and a sample of bounded size."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aioli.data.documents import LEFT_OUT, Document, documents
from aioli.data.reading import Input, Raw, inputs
from aioli.data.recipe import DataRecipe
from aioli.recipe import build

SEEN = 8_000
"""Characters of a document that are looked at."""
LINE = 100
"""Characters of an example."""
MOST = 1000
"""Groups that a recipe can have."""

Progress = Callable[[int, int, str], None]
"""Called with bytes read, bytes in all, and a few words."""


@dataclass(frozen=True)
class Corpus:
    """Some files and how they are read: a source of a recipe, with the group of every document."""

    source: dict[str, Any]
    """As it stands in a recipe."""
    recipe: DataRecipe
    entries: list[Input]
    progress: Progress

    @classmethod
    def of(cls, source: dict[str, Any], bad_records: str, progress: Progress | None = None) -> Corpus:
        """Find the files of a source."""
        recipe = build(DataRecipe, {"sources": [source], "bad_records": bad_records}, "groups")
        try:
            entries = inputs(recipe)
        except ValueError as error:  # the user named files, not a field of a recipe
            raise ValueError(str(error).removeprefix("sources.0.files: ")) from None
        return cls(source, recipe, entries, progress or (lambda done, total, words: None))

    def documents(self, notes: Counter[str], words: str) -> Iterator[tuple[Input, Raw, Document]]:
        """All documents with the record each stands in; `notes` counts what was left out or mended."""
        total, before, count = sum(entry.bytes for entry in self.entries), 0, 0
        for entry in self.entries:
            for found in documents(self.recipe, entry, whole=True):
                notes.update(found.notes)
                if entry.kind == "text" and isinstance(found.raw, bytes) and b"\0" in found.raw[:SEEN]:
                    self._binary(entry, notes)
                    continue
                for document in found.documents:
                    assert found.raw is not None
                    count += 1
                    yield entry, found.raw, document
                self.progress(before + found.read, total, f"{words} {count:,} documents")
            before += entry.bytes

    def _binary(self, entry: Input, notes: Counter[str]) -> None:
        if self.recipe.bad_records == "error":
            raise ValueError(f"{entry.name} is binary, not text; leave it out, or add --bad-records skip")
        notes[f"{LEFT_OUT}: binary files"] += 1


@dataclass
class Sample:
    """A fair sample of a stream of unknown length (reservoir sampling): beginnings of texts and their groups."""

    size: int
    seed: int
    texts: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    seen: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311  a sample, to be drawn again

    def add(self, text: str, group: str) -> None:
        """One more of the stream."""
        self.seen += 1
        if len(self.texts) < self.size:
            self.texts.append(text[:SEEN])
            self.groups.append(group)
            return
        place = self._random.randrange(self.seen)
        if place < self.size:
            self.texts[place], self.groups[place] = text[:SEEN], group


@dataclass
class Tally:
    """What there is of one group."""

    documents: int = 0
    characters: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """One more document."""
        self.documents += 1
        self.characters += len(text)
        if len(self.examples) < 2:
            line = first_line(text)
            if line and line not in self.examples:
                self.examples.append(line)


@dataclass
class Survey:
    """A corpus that was gone through once: its groups, a sample, and what is worth knowing."""

    tallies: dict[str, Tally]
    sample: Sample
    notes: Counter[str]


def survey(corpus: Corpus, size: int, seed: int) -> Survey:
    """Go through a corpus, counting its groups."""
    found = Survey({}, Sample(size, seed), Counter())
    for _, _, document in corpus.documents(found.notes, "read"):
        tally = found.tallies.get(document.group)
        if tally is None:
            if len(found.tallies) >= 100 * MOST:
                raise ValueError(f"there are more than {100 * MOST:,} groups by this rule; it does not name groups")
            tally = found.tallies[document.group] = Tally()
        tally.add(document.text)
        found.sample.add(document.text, document.group)
    if not found.tallies:
        raise ValueError(f"there are no documents in {names(corpus.entries)}")
    return found


def first_line(text: str) -> str:
    """The first line that says something, cut short."""
    for line in text[:SEEN].splitlines():
        words = " ".join(line.split())
        if sum(c.isalnum() for c in words) >= 3:
            return words if len(words) <= LINE else words[: LINE - 1] + "…"
    return ""


def names(entries: Sequence[Input]) -> str:
    """Files in a few words."""
    some = ", ".join(entry.name for entry in entries[:2])
    return some if len(entries) <= 2 else f"{some} and {len(entries) - 2} more"
