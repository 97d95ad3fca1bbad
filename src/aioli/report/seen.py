"""Runs as a report sees them: found by path or key, named so that they can be told apart, sorted by problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aioli.config import content_hash
from aioli.files import check_text, read_json, read_text
from aioli.recipe import parse
from aioli.report.trace import Trace
from aioli.runs.store import JOB, MARK, RUN, RunStore, sound_about
from aioli.train.layout import JOURNAL, RECIPE
from aioli.train.records import flat

LEARNED = "graph"
"""A setting that extra runs have found, another for each seed, unless it is known."""
UNSAID = (None, "None")
"""Settings that are left to a method need not be named."""


@dataclass
class Seen:
    """One run."""

    name: str
    """Its place among those that were asked for."""
    path: Path
    trace: Trace
    recipe: dict[str, Any]
    text: str
    """The recipe as it was written."""
    kind: str
    """The method, or what drives the run."""
    label: str = ""
    """The method with what tells it apart from others; equal for runs that differ in their seeds only."""

    @property
    def about(self) -> dict[str, Any]:
        """The first line of its journal."""
        return self.trace.about

    @property
    def groups(self) -> list[str]:
        """What it was trained on."""
        return [str(name) for name in self.about["groups"]]

    @property
    def targets(self) -> list[str]:
        """What it is judged on."""
        return [str(name) for name in self.about["targets"]]

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.about.get("seed", 0))

    @property
    def proxy(self) -> bool:
        """Whether it was trained on behalf of another run."""
        return self.kind.endswith("proxy")

    @property
    def mixture(self) -> list[float] | None:
        """The fixed mixture it was trained on; None: it changes, or the run goes on from another."""
        method = self.recipe.get("method")
        rules = method.get("rules") if isinstance(method, Mapping) else None
        if isinstance(rules, Mapping):
            fixed = rules.get("proportions") if rules.get("type") == "Static" else None
            if not isinstance(fixed, list) or len(fixed) != len(self.groups) or not all(map(_is_number, fixed)):
                fixed = None
        else:
            values = self.trace.mixed.values
            fixed = values[0] if values and all(value == values[0] for value in values) else None
        return None if fixed is None or self.recipe.get("parent") else [float(v) for v in fixed]

    @property
    def weights(self) -> dict[str, float]:
        """How much targets count, where they differ; a fixed mixture does not depend on it."""
        data = self.recipe.get("data")
        told = data.get("weights") if isinstance(data, Mapping) else None
        if not isinstance(told, Mapping) or not all(_is_number(v) and v >= 0 for v in told.values()):
            return {}
        return {str(k): float(v) for k, v in told.items()} if any(told.values()) else {}

    def losses(self) -> dict[str, float] | None:
        """Where it ended, on test data if there is any."""
        result = self.trace.result
        if result is None:
            return None
        return {str(k): float(v) for k, v in result["test" if "test" in result else "val"]["loss"].items()}


@dataclass
class Problem:
    """Runs that can be compared: the same data, targets, model and length."""

    groups: list[str]
    targets: list[str]
    steps: int
    model: str
    runs: list[Seen] = field(default_factory=list)

    @property
    def weights(self) -> dict[str, float]:
        """How much targets count for methods that were told; nothing if they were told different things."""
        told = [run.weights for run in self.runs if run.mixture is None]
        return told[0] if told and all(each == told[0] for each in told) else {}

    @property
    def moving(self) -> int:
        """How many runs are of methods that change the mixture, and not on behalf of another run."""
        return sum(run.mixture is None and not run.proxy for run in self.runs)

    @property
    def title(self) -> str:
        """In a line."""
        towards = "" if self.targets == self.groups else f" → {', '.join(self.targets)}"
        names = ", ".join(self.groups) if len(self.groups) <= 8 else f"{len(self.groups)} groups"
        return f"{names}{towards}"

    def labels(self) -> dict[str, list[Seen]]:
        """Runs by label."""
        found: dict[str, list[Seen]] = {}
        for run in self.runs:
            found.setdefault(run.label, []).append(run)
        return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def find(arguments: Sequence[str], store: str | None = None) -> list[tuple[str, Path]]:
    """Directories of runs: themselves, all of a run store or a folder, or keys in a store."""
    found: dict[Path, str] = {}
    for text in arguments:
        path = Path(text)
        if (path / JOURNAL).is_file():
            found.setdefault(path, text)
        elif (path / MARK).is_file():
            found |= _stored(path)
        elif path.is_dir():
            inside = sorted(each for each in path.iterdir() if (each / JOURNAL).is_file())
            stores = sorted(each for each in path.iterdir() if (each / MARK).is_file())
            if not inside and not stores:
                raise ValueError(f"{text} holds no runs: neither it nor a folder in it has a {JOURNAL}")
            found |= {each: each.name for each in inside}
            for each in stores:
                found |= {folder: key for folder, key in _inside(each).items() if key not in found.values()}
        elif store is not None and Path(store).is_dir():
            found |= _by_key(store, text)
        else:
            raise ValueError(f"{text} is not there; give the directory of a run, a run store, or a key with --store")
    if not found:
        raise ValueError(f"{', '.join(arguments)}: no run has begun there")
    return [(name, path) for path, name in found.items()]


def _stored(path: Path) -> dict[Path, str]:
    """All runs of a run store that have begun."""
    runs = RunStore(path, make=False)
    folders = {key: runs.run_folder(key) for key in list(runs.keys())}
    return {folder: key[:10] for key, folder in folders.items() if (folder / JOURNAL).is_file()}


def _inside(path: Path) -> dict[Path, str]:
    """Runs of a store beside others; one that cannot be opened stands for itself, and is told about later."""
    try:
        return _stored(path)
    except (OSError, ValueError):
        return {path: path.name}


def _by_key(store: str, text: str) -> dict[Path, str]:
    runs = RunStore(store, make=False)
    try:
        key = runs.find(text)
    except ValueError as error:
        raise ValueError(f"{text} is no directory, and as a key: {error}") from None
    return {runs.run_folder(key): key[:10]}


def look(name: str, path: Path, known: Seen | None = None) -> Seen | None:
    """A run as it is now; None if it has not begun. A damaged one is refused; one that is known is read on."""
    for file in (JOURNAL, RECIPE):  # a link could show what is none of the run's
        if (path / file).exists() and (path / file).resolve() != path.resolve() / file:
            raise ValueError(f"{path / file} is a link that leads out of the run")
    try:
        if known is None:
            return _look(name, path)
        known.trace.read()
        return known if known.trace.about else None
    except (KeyError, TypeError, AttributeError, RecursionError, IndexError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error})") from None


def look_all(
    found: Iterable[tuple[str, Path]], known: Mapping[Path, Seen] | None = None
) -> tuple[list[Seen], list[str]]:
    """Runs that have begun, and why some could not be read."""
    seen, troubles = [], []
    for name, path in found:
        try:
            if (run := look(name, path, (known or {}).get(path))) is not None:
                seen.append(run)
        except (OSError, ValueError) as error:
            troubles.append(f"{name}: {error}")
    return seen, troubles


def _look(name: str, path: Path) -> Seen | None:
    trace = Trace(path).read()
    if not trace.about:
        return None
    try:
        text = read_text(path / RECIPE)
        recipe = parse(text, str(path / RECIPE))
    except OSError:
        text, recipe = "", {}
    check_text(text, path / RECIPE)
    about = sound_about(read_json(path.parent / JOB)) if path.name == RUN else {}
    return Seen(
        name,
        path,
        trace,
        recipe if isinstance(recipe, dict) else {},
        text,
        str(about.get("kind") or trace.about["method"]),
    )


def sort(runs: Iterable[Seen]) -> list[Problem]:
    """Runs by problem, each with a label."""
    found: dict[tuple[Any, ...], Problem] = {}
    for run in runs:
        about = run.about
        given = [str(run.recipe.get(part)) for part in ("model", "train", "parent")]
        key = (*run.groups, "→", *run.targets, about["steps"], str(about["model"]), about["data"], *given)
        problem = Problem(run.groups, run.targets, int(about["steps"]), str(about["model"]))
        found.setdefault(key, problem).runs.append(run)
    for problem in found.values():
        _label(problem.runs)
        problem.runs.sort(key=lambda run: (run.mixture is not None, run.label, run.seed, run.name))
    return sorted(found.values(), key=lambda problem: (-problem.moving, -len(problem.runs)))


def _label(runs: Sequence[Seen]) -> None:
    """Name runs by their method and, where several share one, by the settings in which they differ."""
    by_kind: dict[str, list[Seen]] = {}
    for run in runs:
        if run.mixture is not None:
            even = max(run.mixture) - min(run.mixture) < 1e-9
            run.label = "stratified" if even else "static " + " ".join(f"{p:.3g}" for p in run.mixture)
        else:
            by_kind.setdefault(run.kind, []).append(run)
    for kind, some in by_kind.items():
        settings = [flat({k: v for k, v in _told(run).items() if v is not None}) for run in some]
        differ = _differing(some, settings)
        for run, each in zip(some, settings, strict=True):
            words = ", ".join(_setting(key, each[key]) for key in differ if each.get(key) not in UNSAID)
            run.label = f"{kind} ({words})" if words else kind
    taken: set[tuple[str, int]] = set()
    for run in runs:  # what cannot be told apart otherwise is told apart by name
        if (run.label, run.seed) in taken:
            run.label = f"{run.label} [{run.name}]"
        taken.add((run.label, run.seed))


def _differing(runs: Sequence[Seen], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings in which runs of a method differ; what they have learned is none of them, if each seed has one."""
    keys = sorted({key for each in settings for key in each})
    differ = [key for key in keys if len({str(each.get(key)) for each in settings}) > 1]
    rest = [key for key in differ if key.rpartition(".")[2] != LEARNED]
    told = [(run.seed, *(str(each.get(key)) for key in rest)) for run, each in zip(runs, settings, strict=True)]
    return rest if len(set(told)) == len(told) else differ


def _setting(key: str, value: Any) -> str:
    name = key.rpartition(".")[2]
    return f"{name}={content_hash(value)[:6] if name == LEARNED else value}"


def _told(run: Seen) -> dict[str, Any]:
    method = run.recipe.get("method", {})
    if not isinstance(method, Mapping):
        return {}
    told = method.get("rules") or method.get("settings") or {}
    weights = {"weights": run.weights} if run.weights else {}
    return {**told, **weights} if isinstance(told, Mapping) else {}
