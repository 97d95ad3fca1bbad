"""Groups on disk: a recipe for `aioli prepare`, and for clusters a file of records for each group beside it.

The files come first and the recipe last, each whole or not at all: where there is a recipe, what it names is there.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

from aioli.data.reading import Input, Raw
from aioli.data.recipe import DataRecipe
from aioli.files import new_directory, put_directory, sync_tree, write_text
from aioli.recipe import build

HEADER = """# Proposed by aioli groups; then: aioli prepare {name} -o store
# What is not said here has its default (tokenizer, context, splits …): aioli prepare --help-recipe
"""
LENGTH = 40
"""Characters of a name."""


def safe_names(words: Sequence[Sequence[str]]) -> list[str]:
    """A name for each group from its telling words: letters, digits and dashes only, none twice."""
    found: list[str] = []
    for some in words:
        name = re.sub(r"[\W_]+", "-", "-".join(some[:3]).lower()).strip("-")[:LENGTH].strip("-") or "group"
        number = 1
        while (unique := name if number == 1 else f"{name}-{number}") in found:
            number += 1
        found.append(unique)
    return found


def folder_of(recipe: Path) -> Path:
    """Where the files of a recipe's groups are."""
    return recipe.with_name(f"{recipe.stem}-groups")


def check_place(out: Path, replace: bool, clustered: bool, entries: Sequence[Input]) -> None:
    """Refuse a place before anything is read, if it cannot be written."""
    if out.suffix not in (".yaml", ".yml"):
        raise ValueError(f"-o {out} must end with .yaml")
    if not out.parent.is_dir():
        raise ValueError(f"-o {out}: there is no directory {out.parent}")
    places = [out, *([folder_of(out)] if clustered else [])]
    for place in places:
        if place.exists() and not replace:
            raise ValueError(f"{place} is there already; --replace overwrites it")
    if clustered and folder_of(out).exists():
        own = all(file.name.endswith(".jsonl.gz") for file in folder_of(out).iterdir())
        if not folder_of(out).is_dir() or not own:
            raise ValueError(f"{folder_of(out)} holds something else; choose another name with -o")
        inside = [e.name for e in entries if folder_of(out).resolve() in Path(e.name).resolve().parents]
        if inside:
            raise ValueError(f"{inside[0]} is what an earlier proposal wrote, and would be replaced; choose another -o")


def write_recipe(out: Path, source: dict[str, Any], bad_records: str) -> dict[str, Any]:
    """Write the recipe, which `prepare` will accept."""
    import yaml

    plain: dict[str, Any] = {"sources": [source]}
    if bad_records != "error":
        plain["bad_records"] = bad_records
    build(DataRecipe, plain, str(out))
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=1 << 20)
    write_text(out, HEADER.format(name=json.dumps(out.name, ensure_ascii=False)) + text)
    return plain


class Shards:
    """Files by group, open for writing in a hidden directory; they appear together when all is written."""

    def __init__(self, place: Path, names: Sequence[str], text_field: str) -> None:
        self.place, self.text_field = place, text_field
        self.made = new_directory(place)
        self._open = ExitStack()
        self._files: list[BinaryIO] = []
        for name in names:
            raw = self._open.enter_context((self.made / f"{name}.jsonl.gz").open("wb"))
            packed = gzip.GzipFile("", "wb", compresslevel=4, fileobj=raw, mtime=0)  # the same bytes at any time
            self._files.append(cast(BinaryIO, self._open.enter_context(packed)))

    def add(self, group: int, entry: Input, raw: Raw, text: str) -> None:
        """One more record: as it stands in a file of records, or made of a text."""
        if entry.kind == "text":
            line = json.dumps({self.text_field: text}).encode()
        elif isinstance(raw, bytes):
            line = raw.strip()
        else:
            line = json.dumps(raw, default=_plain).encode()
        self._files[group].write(line + b"\n")

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        try:
            self._open.close()
            if kind is None:
                sync_tree(self.made)
                put_directory(self.made, self.place)
        finally:
            shutil.rmtree(self.made, ignore_errors=True)


def _plain(value: Any) -> str:
    """What JSON does not have: bytes, dates and the like."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
