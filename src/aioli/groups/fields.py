"""Fields of records that look like the name of a group: few different values, in nearly every record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aioli.data.documents import as_record
from aioli.groups.corpus import Corpus, names

LOOKED, DEEP, LONG = 20_000, 3, 80
"""Documents that are looked at, records inside records, characters of a name."""
VALUES = 1000
"""Different values of a field that can still be names of groups."""


@dataclass
class Candidate:
    """A field, and how often it has which value."""

    field: str
    values: Counter[str]
    documents: int
    """That were looked at."""

    @property
    def coverage(self) -> float:
        """Share of documents that have it."""
        return self.values.total() / self.documents

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        most = dict(self.values.most_common(20))
        return {"field": self.field, "groups": len(self.values), "coverage": self.coverage, "documents": most}


def candidates(corpus: Corpus, text_field: str) -> list[Candidate]:
    """The fields that may name groups, the likeliest first, from the first documents."""
    values: dict[str, Counter[str]] = {}
    refused, seen, notes = set[str](), 0, Counter[str]()
    for entry, raw, _ in corpus.documents(notes, "looked at"):
        if entry.kind == "text":
            raise ValueError(f"{entry.name} is plain text and has no fields; use --by source or --by cluster")
        seen += 1
        for path, value in _fields(as_record(raw, entry.name, notes), "", DEEP):
            if path == text_field or path in refused:
                continue
            found = values.setdefault(path, Counter())
            found[value] += 1
            if len(value) > LONG or len(found) > VALUES:
                refused.add(path)
                del values[path]
        if seen >= LOOKED:
            break
    if not seen:
        raise ValueError(f"there are no documents in {names(corpus.entries)}")
    likely = [Candidate(path, found, seen) for path, found in values.items()]
    likely = [each for each in likely if each.coverage >= 0.5 and 2 <= len(each.values) <= max(2, seen // 5)]
    return sorted(likely, key=lambda each: (-round(each.coverage, 2), len(each.values), each.field))


def _fields(record: dict[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    """Fields whose values can name a group, also of records inside, and of records that are JSON in a string."""
    for name, value in list(record.items())[:100]:
        if isinstance(value, str) and value.startswith("{") and depth > 1:
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                continue
        if isinstance(value, dict) and depth > 1:
            yield from _fields(value, f"{prefix}{name}.", depth - 1)
        elif isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            yield f"{prefix}{name}", str(value)
