"""The data of experiments: a token store of seven groups, or of what every machine has; and what is derived from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aioli.config import content_hash
from aioli.data.preparing import prepare
from aioli.data.reading import matches
from aioli.data.recipe import find
from aioli.data.store import MANIFEST, TokenStore, write_store

SCARCE = 0.02
PIECES: dict[str, Any] = {"cut": 2000, "splits": {"val": 0.1, "test": 0.1}}
"""How text in SlimPajama's schema is split here: in pieces of some fifteen sequences, a tenth of them for validation
and a tenth for test. Else a few long and odd documents decide what is best on validation data, but not on test data."""
Progress = Callable[[int, int, str], None]


def corpus(data: Sequence[str], place: Path, progress: Progress | None = None) -> TokenStore:
    """A token store as it is; files in SlimPajama's schema, prepared; nothing: text that is on every machine."""
    if len(data) == 1 and (Path(data[0]) / MANIFEST).is_file():
        return TokenStore(data[0])
    if not data:
        return prepare("local", place / "local", progress=progress)
    return _prepared("slimpajama-local", data, place, progress, PIECES)


def instructions(
    data: Sequence[str], tokenizer: TokenStore, place: Path, progress: Progress | None = None
) -> TokenStore:
    """Tasks as a token store, with the tokenizer of another one; a token store as it is."""
    if len(data) == 1 and (Path(data[0]) / MANIFEST).is_file():
        return TokenStore(data[0])
    settings = {"tokenizer": {"name": str(tokenizer.tokenizer)}, "context": tokenizer.context}
    return _prepared("instructions", data, place, progress, settings)


def _prepared(
    name: str, data: Sequence[str], place: Path, progress: Progress | None, settings: dict[str, Any] | None = None
) -> TokenStore:
    recipe, files = find(name), patterns(data)
    recipe = {**recipe, **(settings or {}), "sources": [{**recipe["sources"][0], "files": files}]}
    stats = [(file, Path(file).stat()) for each in files for file in matches(each, "--data")]
    seen = [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]
    return prepare(recipe, place / f"{name}-{content_hash([files, settings, seen])[:8]}", progress=progress)


def patterns(data: Sequence[str]) -> list[str]:
    """Where files are looked for."""
    return [f"{Path(each).resolve()}/*.jsonl*" if Path(each).is_dir() else str(Path(each).resolve()) for each in data]


def check(data: Sequence[str]) -> None:
    """That there is something, without preparing it."""
    if len(data) == 1 and (Path(data[0]) / MANIFEST).is_file():
        return
    for pattern in patterns(data):
        matches(pattern, "--data")


def scarce(store: TokenStore, groups: Sequence[str], group: str, place: Path) -> TokenStore:
    """The store with so little of one group that it makes up 2% of the training tokens of these groups."""
    target = place / f"little-{content_hash([store.fingerprint, list(groups), group])[:8]}"
    if (target / MANIFEST).is_file():
        return TokenStore(target)
    kept = [name for name in store.groups if name in groups]
    arrays = {split: {name: store.rows(name, split).reshape(-1) for name in kept} for split in store.parts}
    others = sum(tokens.size for name, tokens in arrays["train"].items() if name != group)
    little = max(1, int(SCARCE / (1 - SCARCE) * others) // store.context) * store.context
    arrays["train"][group] = arrays["train"][group][:little]
    return write_store(target, arrays, store.context, store.vocabulary)


def tokens(store: TokenStore) -> dict[str, int]:
    """Training tokens of each group."""
    return dict(zip(store.groups, (part.tokens for part in store.parts["train"]), strict=True))
