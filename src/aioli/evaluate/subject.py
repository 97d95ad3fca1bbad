"""What is evaluated: a run, of a directory or of a run store, or any model that transformers loads, with its tokenizer.

In: what a person writes. Out: the directories of model and tokenizer. Nothing heavy is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aioli.data.store import TokenStore
from aioli.recipe import build, read
from aioli.runs.store import DIGITS, MARK, RunStore
from aioli.train.layout import JOURNAL, MODEL, RECIPE, RESULT
from aioli.train.recipe import TrainRecipe

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
"""A directory with one of these files holds a tokenizer."""


@dataclass(frozen=True)
class Subject:
    """A model with its tokenizer."""

    name: str
    """As people see it."""
    model: Path
    tokenizer: Path
    key: str | None = None
    """Of a run in a run store."""


def find(name: str, store: str | Path, tokenizer: str | Path | None = None) -> Subject:
    """The directory of a run or of a model, or the one run in a store whose key begins so."""
    folder = Path(name)
    if folder.is_dir():
        return Subject(name, model := _model(folder), _tokenizer(folder, model, tokenizer))
    if not name or not set(name) <= DIGITS:
        raise ValueError(
            f"there is no directory {name}; give that of a run or a model, or the beginning of a run's key in {store}"
        )
    runs = RunStore(store, make=False)
    entry = runs.entry(runs.find(name))
    if entry.state != "finished":
        raise ValueError(f"run {entry.key[:10]} is {entry.state}; `aioli runs show {entry.key[:10]}` says more")
    folder = runs.run_folder(entry.key)
    model = _model(folder)
    label = f"{entry.key[:10]} {entry.about.get('kind', '')}".strip()
    return Subject(label, model, _tokenizer(folder, model, tokenizer), entry.key)


def _model(folder: Path) -> Path:
    """The directory of the model."""
    if (folder / MARK).is_file():
        raise ValueError(f"{folder} is a run store; give the beginning of a run's key, and --store {folder}")
    if not any((folder / file).is_file() for file in (RECIPE, JOURNAL, RESULT)):
        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder} holds neither a run (no {RECIPE}) nor a model (no config.json)")
        return folder
    if not (folder / RESULT).is_file():
        raise ValueError(f"run {folder} is not finished; `aioli watch {folder}` shows how it stands")
    if not any((folder / MODEL).glob("*.safetensors")):
        raise ValueError(f"run {folder} has no model any more; train it again in another directory")
    return folder / MODEL


def _tokenizer(folder: Path, model: Path, asked: str | Path | None) -> Path:
    """The directory of the tokenizer: the one asked for, the model's own, or that of the tokens it was trained on."""
    if asked is not None:
        if not _has_tokenizer(Path(asked)):
            raise ValueError(f"--tokenizer {asked} is not a directory with a tokenizer (no {TOKENIZER[0]})")
        return Path(asked)
    if _has_tokenizer(model):
        return model
    if not (folder / RECIPE).is_file():
        raise ValueError(f"{folder} has no tokenizer; give the directory of one with --tokenizer")
    data = build(TrainRecipe, read(folder / RECIPE), str(folder / RECIPE)).data.store
    try:
        found = TokenStore(data).tokenizer
    except ValueError as error:
        raise ValueError(
            f"the tokenizer of {folder} is that of its token store, but {error}, or give --tokenizer"
        ) from None
    if not _has_tokenizer(found):
        raise ValueError(
            f"the token store {data} of {folder} has no tokenizer; give the directory of one with --tokenizer"
        )
    return found


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / file).is_file() for file in TOKENIZER)
