"""The three commands at work, as small as they go, and what each leaves behind: its final state as plain data."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aioli.data import write_store
from aioli.files import unsealed
from aioli.runs.claim import owner_of

State = dict[str, Any]
WORDS = ["data", "of", "model", "is", "the", "a", "mixture", "law", "group", "token", "loss", "step", "run", "time"]
WORDS += ["to", "from", "with", "and", "in", "one"]
TIMES = ("seconds", "time", "versions", "train_seconds", "probe_seconds", "probing", "crc", "checksum")


@dataclass(frozen=True)
class Job:
    """A command, and how to look at what it has made."""

    name: str
    arguments: tuple[str, ...]
    state: Callable[[Path], State]


def jobs(place: Path) -> dict[str, Job]:
    """Data for all of them in `place`, and the commands."""
    data, texts = place / "data", place / "texts"
    if not data.exists():
        tiny_store(data)
        write_texts(texts)
    small = ["train.batch=4", "train.threads=1", "model.preset=tiny", "model.config={num_hidden_layers: 1}"]
    train = ("train", f"data={data}", "train.steps=24", "checkpoint.every=4", "val.every=6", *small, "-o", "run")
    recipe = place / "recipe.yaml"
    prepare = ("prepare", str(recipe), "-o", "store")
    methods = ("--methods", "grid-search:runs=2", "doremi", "--store", "runs", "--workers", "1", "--quiet")
    steps = ("train.steps=8", "checkpoint.every=3", "val.final=8")
    compare = ("compare", f"data={data}", *steps, *small, *methods, "-o", "table.json")
    made = (Job("train", train, of_run), Job("prepare", prepare, of_store), Job("compare", compare, of_comparison))
    return {job.name: job for job in made}


def tiny_store(path: Path) -> None:
    """Each group walks through its own letters."""
    rng = np.random.default_rng(0)
    groups = ("code", "books", "web")
    splits = {
        split: {g: (7 * j + np.cumsum(rng.integers(1, 3 + j, size))) % 40 for j, g in enumerate(groups)}
        for split, size in (("train", 4000), ("val", 320), ("test", 320))
    }
    write_store(path, splits, 16, 40)


def write_texts(place: Path) -> None:
    """Documents of three groups, and the recipe that reads them."""
    place.mkdir()
    chance = random.Random(0)
    for name in ("a", "b", "c"):
        lines = [
            json.dumps({"text": f"{name} {i} " + " ".join(chance.choices(WORDS, k=chance.randint(3, 60)))}) + "\n"
            for i in range(150)
        ]
        (place / f"{name}.jsonl").write_text("".join(lines))
    recipe = {
        "tokenizer": {"train": {"vocab_size": 300}},
        "context": 16,
        "splits": {"val": 0.1, "test": 0.1},
        "sources": [{"group_by": "file", "files": str(place / "*.jsonl")}],
    }
    (place.parent / "recipe.yaml").write_text(json.dumps(recipe))


# ---------------------------------------------------------------------- final states


def timeless(value: Any) -> Any:
    """Without what depends on clocks, and the checksums over it."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key not in TIMES}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def _json(path: Path) -> Any:
    return timeless(unsealed(json.loads(path.read_text()), path))


def _bytes(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def of_run(place: Path, name: str = "run") -> State:
    """A finished run: weights, optimizer, policy, journal and result."""
    run = place / name
    found: State = {
        "result": _json(run / "result.json"),
        "journal": [timeless(json.loads(line)) for line in (run / "journal.jsonl").read_text().splitlines()],
        "recipe": (run / "recipe.yaml").read_text().partition("# sha256")[0].replace(str(place), "."),
    }
    last = sorted(run.glob("checkpoints/step-*"))[-1:]  # those before it are where it was stopped
    for file in sorted(file for folder in [run / "model", *last] for file in folder.iterdir()):
        if file.name != "state.json":  # saved before the policy was told of the last segment, or after it
            found[str(file.relative_to(run))] = _bytes(file)
    return found


def of_store(place: Path) -> State:
    """A token store, to the last byte."""
    store = place / "store"
    found = {str(file.relative_to(store)): _bytes(file) for file in sorted(store.rglob("*")) if file.is_file()}
    return {**found, "manifest.json": _json(store / "manifest.json")}


def of_comparison(place: Path) -> State:
    """Every run of a run store, and the table that was made of them."""
    store = place / "runs"
    found: State = {"table": _json(place / "table.json")}
    for folder in sorted(store.glob("??/*")):
        state = of_run(folder)
        found[folder.name] = {k: v for k, v in state.items() if not k.startswith("checkpoints")}  # may be kept or not
        found[folder.name]["recipe"] = re.sub(r"\S*/runs/", "runs/", state["recipe"])
        found[f"{folder.name} start"] = _json(folder / "start.json")
        found[f"{folder.name} has failed"] = (folder / "error.json").exists()
    return found


def leftovers(place: Path) -> list[str]:
    """Temporary files, locks and claims that nobody should find after a command has ended."""
    wrong = []
    for file in sorted(place.rglob("*")):
        name = str(file.relative_to(place))
        if file.name.startswith(".") or file.name in ("lock", "status.json"):
            wrong.append(f"left behind: {name}")
        elif file.name.startswith("claim-") and owner_of(file.parent) is not None:
            wrong.append(f"still claimed: {name}")
    return wrong


def judged(job: Job, place: Path, whole: State) -> list[str]:
    """What differs from a run that nothing happened to."""
    try:
        found = job.state(place)
    except (OSError, ValueError, KeyError) as error:
        return [f"not finished: {type(error).__name__}: {error}"]
    keys = [key for key in {**whole, **found} if whole.get(key) != found.get(key)]
    return [f"differs: {key}" for key in keys] + leftovers(place)
