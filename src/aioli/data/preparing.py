"""Documents to a token store: read, tokenize on all cores, log, and at the end split and pack.

Tokens are appended to one log per group, with one record per document, in a hidden directory beside the store. How far
the logs are sound is saved every few seconds: an interrupted prepare goes on from there, and the result is the same.
Splits are made from the logs at the end (`assemble`): where that refuses them, others need not tokenize again, unless
the tokenizer is trained on what is not held out.
"""

from __future__ import annotations

import heapq
import os
import platform
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from aioli import __version__
from aioli.config import content_hash
from aioli.data.assemble import assemble
from aioli.data.documents import BY_RULE, CODES, LEFT_OUT, Chunk, Document, chunks
from aioli.data.log import ANEW, Encoded, Log, empty
from aioli.data.reading import Input, inputs
from aioli.data.recipe import DataRecipe, TokenizerChoice, find
from aioli.data.store import MANIFEST, TokenStore, read_manifest
from aioli.data.tokenizer import Encoder, load, train
from aioli.files import damaged, explained, locked, read_json, sync_directory, sync_tree, write_json
from aioli.recipe import build, override

_SAVE_SECONDS = 5.0
_SEARCH = 100
"""How many times the sample of a tokenizer is read from a source of several groups, in search of all of them."""

Progress = Callable[[int, int, str], None]
"""Called with bytes read, bytes in all (0: unknown), and a few words."""


def prepare(
    recipe: str | Path | Mapping[str, Any] | DataRecipe,
    out: str | Path,
    overrides: Sequence[str] = (),
    replace: bool = False,
    progress: Progress | None = None,
) -> TokenStore:
    """Make the token store of a recipe (a file, a ready one's name, or plain data) at `out`; go on where an interrupted
    prepare stopped; open it if it is there. `overrides` are settings such as "context=128"."""
    if not isinstance(recipe, DataRecipe):
        plain = recipe if isinstance(recipe, Mapping) else find(recipe)
        where = "recipe" if isinstance(recipe, Mapping) else str(recipe)
        recipe = build(DataRecipe, override(dict(plain), overrides, DataRecipe), where)
    target = Path(out)
    entries = inputs(recipe)
    origin = _origin(recipe, entries)
    building = target.parent / f".{target.name}.building"
    _put_back(building, target)
    if target.exists():
        store = _present(target, origin, replace)
        if store is not None:
            _sweep(building)
            return store

    def kept() -> str:
        begun = (building / "progress.json").is_file()
        return f"; what was done is kept in {building}: mend that and run the same command again" if begun else ""

    with explained(target, kept), locked(building, str(target)):
        if target.exists() and (store := _present(target, origin, replace)) is not None:  # another has just finished it
            shutil.rmtree(building, ignore_errors=True)
            return store
        log = Log.open(building, content_hash({"log": 1, **origin["log"]}))
        try:
            _make(recipe, entries, log, origin, progress or _silent)
        except ValueError as error:
            shutil.rmtree(building / "store", ignore_errors=True)
            if log.tokens == 0:  # there is nothing to go on with
                shutil.rmtree(building, ignore_errors=True)
                raise
            raise ValueError(f"{error} (what was tokenized is kept in {building} for the next try)") from None
        _publish(building, target)
    return TokenStore(target)


def _make(recipe: DataRecipe, entries: Sequence[Input], log: Log, origin: dict[str, Any], progress: Progress) -> None:
    """Everything of a store, in the building directory."""
    if recipe.bad_records == "error" and any(note.startswith(LEFT_OUT) for note in log.notes):
        empty(log.directory)
        log.reset()
    progress(0, sum(entry.bytes for entry in entries), "getting the tokenizer ready")
    encoder = _tokenizer(recipe, entries, log)
    _write_log(log, recipe, entries, encoder, progress)
    final = log.directory / "store"
    shutil.rmtree(final, ignore_errors=True)
    manifest = assemble(recipe, log.directory, log.groups, encoder, final)
    manifest["notes"] = dict(sorted({**log.notes, **manifest["notes"]}.items()))
    sync_tree(final)
    write_json(final / MANIFEST, {**manifest, "origin": origin, "versions": _versions()})


def _publish(building: Path, target: Path) -> None:
    """Put the store in its place; if this is interrupted, the old one is put back by the next prepare."""
    if target.exists():
        os.replace(target, building / "old")
    os.replace(building / "store", target)
    sync_directory(target.parent)
    shutil.rmtree(building, ignore_errors=True)


def _sweep(building: Path) -> None:
    """Remove what a prepare left behind that was killed when its store was in place already."""
    if building.exists():
        with suppress(ValueError, OSError), locked(building, str(building)):
            shutil.rmtree(building, ignore_errors=True)


def _put_back(building: Path, target: Path) -> None:
    if (building / "old").is_dir() and not target.exists():
        os.replace(building / "old", target)


def _silent(done: int, total: int, words: str) -> None:
    pass


def _origin(recipe: DataRecipe, entries: Sequence[Input]) -> dict[str, Any]:
    """What a store is made from: `log` is what the tokens depend on, `rest` what is decided at the end."""
    plain = recipe.model_dump(mode="json")
    own = Path(recipe.tokenizer.name or "").expanduser()
    stamps = [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in (own, own / "tokenizer.json") if f.is_file()]
    log = {
        "recipe": {
            "sources": [{k: v for k, v in source.items() if k != "files"} for source in plain["sources"]],
            "tokenizer": plain["tokenizer"],
            "cut": plain["cut"],
            "seed": recipe.splits.seed,
            "held_out": None if recipe.tokenizer.train is None else [recipe.splits.val, recipe.splits.test],
        },
        "inputs": [entry.identity for entry in entries] + stamps,
    }
    rest = {"context": recipe.context, "splits": plain["splits"], "bad_records": recipe.bad_records}
    return {"log": log, "rest": rest}


def _present(target: Path, origin: dict[str, Any], replace: bool) -> TokenStore | None:
    """The store that is already there, if it is what would be made; None: it is to be replaced. Nothing but a token
    store is ever replaced."""
    if target.is_dir() and not any(target.iterdir()):
        target.rmdir()
        return None
    if not (target / MANIFEST).is_file():
        raise ValueError(f"{target} exists and is not a token store; choose another place")
    made = read_manifest(target).get("origin")
    if replace:
        return None
    if made != origin:
        what = "from something else"
        if isinstance(made, dict) and made.get("log", {}).get("recipe") == origin["log"]["recipe"]:
            same = made.get("rest") == origin["rest"]
            what = "from files that have changed since" if same else f"with {made.get('rest')}"
        raise ValueError(f"{target} exists already, made {what}; choose another place, or --replace it")
    return TokenStore(target)


def _versions() -> dict[str, str]:
    found = {"aioli": __version__, "python": platform.python_version()}
    for name in ("numpy", "tokenizers", "transformers", "datasets", "pyarrow"):
        if name in sys.modules:
            found[name] = str(getattr(sys.modules[name], "__version__", "?"))
    return found


# ---------------------------------------------------------------------- tokenizer


def _tokenizer(recipe: DataRecipe, entries: Sequence[Input], log: Log) -> Encoder:
    """The recipe's tokenizer; kept beside the log, so that an interrupted prepare goes on with the same."""
    choice, directory = recipe.tokenizer, log.directory / "tokenizer"
    if log.tokenizer:
        try:
            about = dict(read_json(directory / "about.json"))
            found = load(TokenizerChoice(name=str(directory), eos=about["eos"]))
            if found.fingerprint == log.tokenizer:
                return Encoder(found.backend, about["eos"], about["name"], found.slow)
        except (ValueError, TypeError, KeyError):
            pass
        damaged(directory, ANEW)  # or lost in a crash
        empty(log.directory)
        log.reset()
    encoder = load(choice) if choice.train is None else train(choice, _sample(recipe, entries, choice.train.sample_mb))
    shutil.rmtree(directory, ignore_errors=True)
    encoder.save(directory)
    write_json(directory / "about.json", {"eos": encoder.eos_token, "name": encoder.name})
    sync_tree(directory)
    log.tokenizer = encoder.fingerprint
    log.mark()
    log.save()
    return encoder


def _sample(recipe: DataRecipe, entries: Sequence[Input], megabytes: float) -> Iterator[str]:
    """Text of every group to train a tokenizer on, none of which is held out for validation or test."""
    most, taken, documents, notes = megabytes * 1e6, Counter[str](), 0, Counter[str]()
    held_out = _held_out(recipe, entries)
    for entry in entries:
        seen = 0
        for chunk in chunks(recipe, [entry]):
            documents += len(chunk.documents)
            notes += chunk.notes
            for document in chunk.documents:
                seen += document.bytes
                trained = document.hash >= held_out(document.group)
                if document.split != BY_RULE:
                    trained = document.split == CODES["train"]
                if trained and taken[document.group] < most:
                    taken[document.group] += document.bytes
                    yield (document.prompt or "") + document.text
            if seen > most * (1 if entry.source.group_field is None else _SEARCH):
                break
    if not taken:
        what = (
            "all documents are held out; add some, or set cut: 20000" if documents else "the sources hold no documents"
        )
        raise ValueError(f"there is no text to train a tokenizer on: {what}")


def _held_out(recipe: DataRecipe, entries: Sequence[Input]) -> Callable[[str], float]:
    """Below which hash the documents of a group are held out of training."""
    amounts = (recipe.splits.val, recipe.splits.test)
    share, count = sum(a for a in amounts if a < 1), int(sum(a for a in amounts if a >= 1))
    if count == 0:
        return lambda group: share * 2.0**64
    found: dict[str, set[int]] = {}
    for chunk in chunks(recipe, entries):
        for document in chunk.documents:
            if document.split == BY_RULE and document.hash >= share * 2.0**64:
                found.setdefault(document.group, set()).add(document.hash)
        found = {group: set(heapq.nsmallest(count + 1, hashes)) for group, hashes in found.items()}
    edges = {group: max(hashes) if len(hashes) > count else 2.0**64 for group, hashes in found.items()}
    return lambda group: edges.get(group, 2.0**64)


# ---------------------------------------------------------------------- the log


def _write_log(log: Log, recipe: DataRecipe, entries: Sequence[Input], encoder: Encoder, progress: Progress) -> None:
    """Tokenize everything that is not in the log yet."""
    if log.finished:
        return
    total = 0 if any(entry.file is None for entry in entries) else sum(entry.bytes for entry in entries)
    saved = time.monotonic()
    try:
        for chunk, documents in _encoded(chunks(recipe, entries, log.input, log.record), encoder):
            log.append(documents, chunk)
            progress(chunk.read, total, f"{log.tokens / 1e6:,.1f} M tokens")
            if time.monotonic() - saved > _SAVE_SECONDS:
                log.save()
                saved = time.monotonic()
    except BaseException:
        log.save()
        raise
    log.finished = True
    log.mark()
    log.save()


def _encoded(source: Iterable[Chunk], encoder: Encoder) -> Iterator[tuple[Chunk, list[Encoded]]]:
    """Chunks with their tokens, in order; while some are tokenized, the next are read."""
    waiting: deque[tuple[Chunk, Future[list[Encoded]]]] = deque()
    with ThreadPoolExecutor(2) as pool:
        for chunk in source:
            waiting.append((chunk, pool.submit(_encode, encoder, chunk.documents)))
            if len(waiting) > 3:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()


def _encode(encoder: Encoder, documents: Sequence[Document]) -> list[Encoded]:
    """Tokens of prompt and text, encoded apart so that no token is half of each, and the end of the document."""
    texts = encoder.encode([document.text for document in documents])
    if any(document.prompt for document in documents):
        prompts = encoder.encode([document.prompt or "" for document in documents])
    else:
        prompts = [np.zeros(0, dtype=encoder.dtype)] * len(documents)
    end = np.array([encoder.eos], dtype=encoder.dtype)
    return [
        Encoded(document, np.concatenate([prompt, text, end]), -1 if document.prompt is None else len(prompt))
        for document, prompt, text in zip(documents, prompts, texts, strict=True)
    ]
