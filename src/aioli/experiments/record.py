"""Results of experiments as JSON files: one for each experiment, setting by setting, with what they were made with."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aioli import __version__
from aioli.data.store import TokenStore
from aioli.experiments.catalogue import EXPERIMENTS, Experiment
from aioli.experiments.profiles import Profile
from aioli.experiments.settings import Setting
from aioli.experiments.stores import tokens
from aioli.files import locked, read_json, write_json
from aioli.train.records import finite

KIND, SCHEMA = "aioli experiment", 1
REMARKS = "remarks.md"


def add(folder: Path, experiment: Experiment, profile: Profile, setting: Setting, found: Mapping[str, Any]) -> Path:
    """Put what was found in a setting into the experiment's file, in place of what was found there before."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{experiment.name}.json"
    with locked(folder, str(folder)):
        before = load(file) if file.exists() else {"settings": {}}
        settings = {**before["settings"], setting.name: finite(dict(found))}
        known = [each.name for each in experiment.settings]
        order = sorted(settings, key=lambda name: known.index(name) if name in known else len(known))
        whole = {
            "kind": KIND,
            "schema": SCHEMA,
            "experiment": experiment.name,
            "about": experiment.about,
            "shows": experiment.shows,
            "profile": profile.name,
            "settings": {name: settings[name] for name in order},
        }
        write_json(file, whole)
    return file


def load(file: Path) -> dict[str, Any]:
    """A file of results."""
    found = read_json(file)
    if not isinstance(found, dict) or found.get("kind") != KIND or not isinstance(found.get("settings"), dict):
        raise ValueError(f"{file} is not a file of results of aioli reproduce; remove it, or choose another folder")
    if found.get("schema") != SCHEMA or found.get("experiment") not in EXPERIMENTS:
        raise ValueError(f"{file} was written by another version of aioli (schema {found.get('schema')})")
    for name, each in found["settings"].items():
        sound = isinstance(each, dict) and {"groups", "seeds", "made"} <= set(each)
        if not sound or not ({"comparison"} <= set(each) or {"analysis", "tables", "words"} <= set(each)):
            raise ValueError(f"{file}: what it says of {name} is damaged; remove the file, or measure it again")
    return found


def known(folder: Path, experiment: Experiment, setting: Setting, asked: str) -> dict[str, Any] | None:
    """What is recorded of a setting, if it is what would be measured now and nothing failed."""
    found = recorded(folder, experiment, setting)
    return found if found is not None and found.get("asked") == asked and not failures(found) else None


def recorded(folder: Path, experiment: Experiment, setting: Setting) -> dict[str, Any] | None:
    """What the folder has of a setting."""
    file = folder / f"{experiment.name}.json"
    return load(file)["settings"].get(setting.name) if file.exists() else None


def failures(found: Mapping[str, Any]) -> int:
    """How much of what was to be measured could not be."""
    scores = found.get("comparison", {}).get("scores", ())
    longer = len(found["seeds"]) - len(found["longer"]["losses"]) if "longer" in found else 0
    return sum(bool(score["failed"]) for score in scores) + int(found.get("room_failed", 0)) + longer


def seeds(folder: Path, experiment: Experiment, setting: Setting) -> int:
    """The seeds of what is recorded of a setting."""
    found = recorded(folder, experiment, setting)
    return 0 if found is None else len(found["seeds"])


def check(folder: Path, names: Iterable[str], profile: str) -> None:
    """Refuse, before anything is trained, a folder whose files cannot be added to."""
    if folder.exists() and not os.access(folder, os.W_OK):
        raise ValueError(f"{folder} cannot be written to; choose another place with -o")
    for name in names:
        file = folder / f"{name}.json"
        if file.exists() and (found := load(file).get("profile")) != profile:
            raise ValueError(f"{file} has results of --profile {found}; choose another folder for {profile} with -o")


def load_all(folder: Path) -> dict[str, dict[str, Any]]:
    """All results in a folder, in the order of the catalogue."""
    there = [(name, folder / f"{name}.json") for name in EXPERIMENTS]
    found = {name: load(file) for name, file in there if file.is_file()}
    if not found:
        raise ValueError(f"there are no results in {folder}; make some with aioli reproduce NAME -o {folder}")
    return found


def remarks(folder: Path) -> dict[str, str]:
    """What `remarks.md` in the folder says of experiments, under a heading for each; none if there is no such file."""
    file = folder / REMARKS
    if not file.is_file():
        return {}
    parts = re.split(r"^## +(.+?) *$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))
    for name in found:
        if name != "overview" and name not in EXPERIMENTS:
            raise ValueError(f"{file} has a heading {name!r}, which is no experiment; use overview or one of --list")
    return found


def made(data: TokenStore, seconds: float) -> dict[str, Any]:
    """With what, on what, when and for how long."""
    versions = {name: version(name).partition("+")[0] for name in ("torch", "transformers", "numpy", "scipy")}
    return {
        "aioli": __version__,
        "python": platform.python_version(),
        **versions,
        "machine": {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count()},
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": round(seconds, 1),
        "data": {
            "fingerprint": data.fingerprint,
            "vocabulary": data.vocabulary,
            "context": data.context,
            "tokens": tokens(data),
        },
    }


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
