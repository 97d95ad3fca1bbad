"""RunStore: a directory of runs, each under the hash of its content.

    store/  runs.json   start/…   ab/ab12…/  job.json  claim-….json  log.txt  error.json  start.json  run/

`run/` is what `aioli train` makes. A run is finished when its result.json is there, which is written last; who works on
it says so in a claim. Many processes, users and machines may share a store.
"""

from __future__ import annotations

import math
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aioli.files import explained, read_json, take_away, write_json
from aioli.runs.claim import Claim, owner_of
from aioli.runs.job import Job
from aioli.runs.spec import Result
from aioli.train.layout import CHECKPOINTS, MODEL, RESULT, STATUS
from aioli.train.lines import check_result

MARK, JOB, LOG, ERROR, START, RUN = "runs.json", "job.json", "log.txt", "error.json", "start.json", "run"
STATES = ("finished", "running", "failed", "unfinished")
DIGITS = frozenset("0123456789abcdef")
TAIL = 1 << 16
"""Bytes of a log that are looked at, from its end."""


@dataclass(frozen=True)
class Entry:
    """A run in a store."""

    key: str
    state: str
    about: dict[str, Any]
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    owner: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    """How far a run that is being trained has got."""


class RunStore:
    """Runs by the hash of their content."""

    def __init__(self, path: str | Path, make: bool = True) -> None:
        """Open a store; `make` it if there is nothing yet."""
        self.path = Path(path)
        mark = self.path / MARK
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"--store {self.path} is a file; give a directory for runs")
        if mark.is_file():
            found = read_json(mark)
            if not isinstance(found, dict) or found.get("schema") != 1:
                raise ValueError(f"{mark} is not of a run store that this version of aioli knows")
            return
        if not make:
            raise ValueError(f"{self.path} is not a run store; aioli mix and aioli compare make one (--store)")
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            others = [found.name for found in self.path.iterdir() if not found.name.startswith(".")]
            if others and not mark.is_file():
                raise ValueError(f"{self.path} holds something else ({others[0]}); choose another place with --store")
            write_json(mark, {"schema": 1, "what": "runs of aioli, each under the hash of its content"})

    def folder(self, key: str) -> Path:
        """Where a run is."""
        if not key or not set(key) <= DIGITS:
            raise ValueError(f"{key!r} is not the key of a run")
        return self.path / key[:2] / key

    def run_folder(self, key: str) -> Path:
        """Where its training is: what `aioli watch` shows."""
        return self.folder(key) / RUN

    def start_file(self, key: str) -> Path:
        """Where the losses before the first step are, which many runs share."""
        return self.path / "start" / f"{key}.json"

    # ------------------------------------------------------------------ jobs and results

    def add(self, job: Job) -> None:
        """Make a place for a job, unless it has one."""
        folder = self.folder(job.key)
        if isinstance(read_json(folder / JOB, "it is written again"), dict):
            return
        with explained(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            self.start_file("0").parent.mkdir(exist_ok=True)
            write_json(folder / JOB, {"schema": 1, "key": job.key, "about": job.about(), "content": job.content})

    def result(self, key: str) -> dict[str, Any] | None:
        """What came of a run; None while it is not finished, or if the file is damaged."""
        return sound_result(self.folder(key))

    def has(self, key: str, what: str) -> bool:
        """Whether a run still has its `model` or `checkpoints`, whole."""
        folder = self.run_folder(key) / what
        return any(folder.glob("*.safetensors" if what == MODEL else "step-*/state.json"))

    def outcome(self, job: Job) -> Result | None:
        """What a finished run tells the method that planned it."""
        result, start = self.result(job.key), sound_start(self.folder(job.key))
        if result is None or start is None:
            return None
        with suppress(ValueError):  # a store that may only be read serves as well
            self.add(job)  # if what it says of itself was damaged
        data = job.setup.recipe.data
        return Result(
            np.array([result["val"]["loss"][name] for name in data.targets]),
            np.array([start[name] for name in data.targets]),
            np.array([result["mean_proportions"][name] for name in data.groups]),
            np.array([result["test"]["loss"][name] for name in data.targets]) if "test" in result else None,
        )

    def seconds(self, keys: Iterable[str]) -> dict[str, float]:
        """Time that these runs took, each once: training, looking on the way, judging at the end."""
        total = dict.fromkeys(("train", "probe", "evaluation"), 0.0)
        for key in dict.fromkeys(keys):
            taken = (self.result(key) or {}).get("seconds", {})
            total = {name: value + taken.get(name, 0.0) for name, value in total.items()}
        return total

    def error(self, key: str) -> dict[str, Any] | None:
        """Why a run failed."""
        found = read_json(self.folder(key) / ERROR)
        return found if isinstance(found, dict) else None

    # ------------------------------------------------------------------ looking and removing

    def keys(self) -> Iterator[str]:
        """All runs."""
        for shelf in sorted(self.path.iterdir()):
            if len(shelf.name) == 2 and set(shelf.name) <= DIGITS:
                yield from sorted(name for name in os.listdir(shelf) if set(name) <= DIGITS)

    def find(self, prefix: str) -> str:
        """The one run whose key begins so."""
        found = [key for key in self.keys() if prefix and key.startswith(prefix)]
        if len(found) != 1:
            what = "no run" if not found else f"{len(found)} runs"
            raise ValueError(f"{what} in {self.path} with a key that begins with {prefix!r}; `aioli runs` lists them")
        return found[0]

    def entry(self, key: str) -> Entry:
        """A run as it is now."""
        folder = self.folder(key)
        about = sound_about(read_json(folder / JOB, "what it says of the run is written again when the run is needed"))
        result = sound_result(folder, about)
        if result is not None:
            return Entry(key, "finished", about, result)
        owner = owner_of(folder)
        if owner is not None:
            return Entry(key, "running", about, owner=owner, status=read_json(folder / RUN / STATUS))
        error = self.error(key)
        return Entry(key, "unfinished" if error is None else "failed", about, error=error)

    def entries(self) -> list[Entry]:
        """All runs as they are now."""
        return [self.entry(key) for key in self.keys()]

    def remove(self, key: str) -> None:
        """Remove a run and everything of it; one that is being trained is refused."""
        folder = self.folder(key)
        claim = Claim.make(folder)
        if claim is None:
            raise ValueError(f"{key} is being trained by {words(owner_of(folder))}; stop that first")
        with claim, explained(folder):
            gone = folder.with_name(f".{key}.{uuid.uuid4().hex[:8]}")
            os.replace(folder, gone)  # at once: nobody sees half of it
        shutil.rmtree(gone, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()

    def remove_model(self, key: str) -> int:
        """Remove the model and the checkpoints of a finished run, not its result; returns the bytes that are free."""
        free = 0
        if self.result(key) is not None:
            for name in (MODEL, CHECKPOINTS):
                place = self.run_folder(key) / name
                free += size(place)
                take_away(place)
        return free

    def forget_result(self, key: str) -> None:
        """Have a run trained again, because its model is needed and gone; not while somebody works on it."""
        claim = Claim.make(self.folder(key))
        if claim is not None:
            with claim:
                (self.run_folder(key) / RESULT).unlink(missing_ok=True)

    def log(self, key: str, lines: int = 20) -> str:
        """The end of what a run printed."""
        try:
            with (self.folder(key) / LOG).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
                text = file.read(TAIL).decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def sound_about(job: Any) -> dict[str, Any]:
    """What a job says of itself to people, without what is of another kind than it should be."""
    about = job.get("about") if isinstance(job, dict) else None
    if not isinstance(about, dict):
        return {}
    kinds = {"kind": str, "steps": int, "seed": int, "model": str, "data": str, "parent": str}
    found = {name: about[name] for name, kind in kinds.items() if isinstance(about.get(name), kind)}
    for name in ("groups", "targets"):
        if isinstance(about.get(name), list) and all(isinstance(each, str) for each in about[name]):
            found[name] = about[name]
    p = about.get("proportions")
    if isinstance(p, list) and len(p) == len(found.get("groups", ())) and all(isinstance(v, float) for v in p):
        found["proportions"] = p
    return found


def sound_result(folder: Path, about: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The result of a run; None if it is not there, or not whole. `about` is what its job says, where it is known."""
    found = read_json(folder / RUN / RESULT, "the run counts as unfinished, and is finished again when it is needed")
    try:
        check_result(found)
        told = sound_about(read_json(folder / JOB)) if about is None else about
        names = {"groups": found["realised"], "targets": found["targets"]}
        if any(part in told and set(told[part]) != set(some) for part, some in names.items()):
            return None
        numbers = [*found["val"]["loss"].values(), *found["mean_proportions"].values(), found["val"]["mean_loss"]]
        return dict(found) if numbers and np.isfinite(np.array(numbers, dtype=np.float64)).all() else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def sound_start(folder: Path) -> dict[str, float] | None:
    """The losses of a run before its first step; None if they are not there, or not whole."""
    found = read_json(folder / START, "it is made again when the run is needed")
    if not isinstance(found, dict) or not all(isinstance(v, float) and math.isfinite(v) for v in found.values()):
        return None
    told = sound_about(read_json(folder / JOB))
    if "targets" in told and set(told["targets"]) != set(found):
        return None
    return found


def words(owner: dict[str, Any] | None) -> str:
    """Who works on a run."""
    return "somebody" if not owner else f"process {owner.get('process')} on {owner.get('host')}"


def size(path: Path) -> int:
    """Bytes of all files in a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else 0
