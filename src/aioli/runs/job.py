"""A job: a run together with everything else that decides its result, under one hash.

In: a recipe and the runs of a method's plan. Out: keys by which results are found again, and orders that a worker can
carry out anywhere: plain JSON. Where data and results lie, how many threads there are and who is told of it are no part
of a key.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioli.config import content_hash, to_config
from aioli.data.store import TokenStore, sha256_of
from aioli.policies import Static, fork_steps
from aioli.registry import loaded
from aioli.runs.machine import gpus
from aioli.runs.spec import Problem, Run
from aioli.train.presets import check_preset
from aioli.train.problem import groups_and_targets, problem_of
from aioli.train.recipe import ModelChoice, TrainRecipe

if TYPE_CHECKING:
    from aioli.runs.store import RunStore

RESULTS = 2
"""Raised whenever the same job would give other numbers than before: what was stored is then not found again."""


@dataclass(frozen=True)
class Setup:
    """What all runs of one kind have in common: data, model, optimization, validation."""

    recipe: TrainRecipe
    """With groups and targets by name, and an absolute path of the data."""
    content: dict[str, Any]
    """What of it decides results."""

    @classmethod
    def of(cls, recipe: TrainRecipe, proxy: bool = False, gpu: bool | None = None) -> Setup:
        """The setup of final runs, or of extra ones; `gpu`: whether they are trained on one (None: if there is one)."""
        if recipe.parent is not None or recipe.method.reference is not None:
            name = "parent" if recipe.parent is not None else "method.reference"
            raise ValueError(f"{name} is for aioli train; methods plan their own runs, so leave it out here")
        store = TokenStore(recipe.data.store)
        groups, targets = groups_and_targets(store, recipe)
        problem_of(recipe, store, groups, targets)  # refused, if it must be, before anything is trained
        choice = recipe.proxy if proxy else None
        model = recipe.model if choice is None or choice.model is None else choice.model
        if model.preset is not None:
            check_preset(model.preset, "proxy.model" if proxy and recipe.proxy.model is not None else "model.preset")
        elif model.name is not None and Path(model.name).is_dir():  # workers may be elsewhere
            model = model.model_copy(update={"name": str(Path(model.name).resolve())})
        train = recipe.train
        if choice is not None and choice.lr is not None:
            train = train.model_copy(update={"lr": choice.lr})
        precision: str = train.precision
        if precision == "auto":
            precision = "auto on a GPU" if (bool(gpus()) if gpu is None else gpu) else "fp32"
        where = {"store": str(store.path.resolve()), "groups": groups, "targets": targets}
        data = recipe.data.model_copy(update=where)
        plain = {
            "results": {"aioli": RESULTS, **{name: _version(name) for name in ("torch", "transformers")}},
            "data": {
                "fingerprint": store.fingerprint,
                "vocabulary": store.vocabulary,
                **data.model_dump(mode="json", exclude={"store", "weights", "verify"}),
            },
            "model": _model(model),
            "train": {**train.model_dump(mode="json", exclude={"steps", "threads"}), "precision": precision},
            "val": recipe.val.model_dump(mode="json", exclude={"every"}),
        }
        return cls(recipe.model_copy(update={"data": data, "model": model, "train": train}), plain)

    @cached_property
    def store(self) -> TokenStore:
        """The data."""
        return TokenStore(self.recipe.data.store)

    def problem(self, seed: int) -> Problem:
        """What methods are asked."""
        data = self.recipe.data
        found = self.recipe.model_copy(update={"seed": seed})
        return problem_of(found, self.store, data.groups, data.targets)


def _version(package: str) -> str:
    """A package's version, without what it was built for."""
    return version(package).partition("+")[0]


def _model(choice: ModelChoice) -> dict[str, Any]:
    """A model by what it is; a directory by what is in it."""
    plain = choice.model_dump(mode="json")
    folder = None if choice.name is None else Path(choice.name)
    if folder is not None and folder.is_dir():
        files = {}
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                about = file.stat()
                files[file.relative_to(folder).as_posix()] = _digest(file, about.st_size, about.st_mtime_ns)
        plain["name"] = content_hash(files)
    return plain


@lru_cache(1000)
def _digest(file: Path, size: int, changed: int) -> str:
    """SHA-256 of a file, once for as long as it does not change."""
    return sha256_of(file)


def _foreign(rules: Any) -> bool:
    """Whether rules, or what they are made of, are the user's."""
    if not is_dataclass(rules):
        return False
    mine = type(rules).__module__.partition(".")[0] == "aioli"
    return not mine or any(_foreign(getattr(rules, f.name)) for f in fields(rules))


@dataclass(frozen=True)
class Job:
    """A run with its setup."""

    run: Run
    setup: Setup

    @cached_property
    def reference(self) -> Job | None:
        """The job whose model is the reference."""
        return None if self.run.reference is None else Job(self.run.reference, self.setup)

    @cached_property
    def parent(self) -> Job | None:
        """The job that it goes on from."""
        return None if self.run.parent is None else Job(self.run.parent, self.setup)

    @property
    def end(self) -> int:
        """The step it ends at, its parents' steps included."""
        return self.run.task.steps + (0 if self.parent is None else self.parent.end)

    @cached_property
    def tried(self) -> int:
        """Steps on copies of the model, at most but for rounding, which are forgotten."""
        return fork_steps(self.run.policy())

    @cached_property
    def content(self) -> dict[str, Any]:
        """Everything that decides its result, as plain JSON."""
        reference = None if self.reference is None else self.reference.key
        parent = None if self.parent is None else self.parent.key
        plain: dict[str, Any] = {
            "run": {**self.run.config, "reference": reference, "parent": parent},
            "setup": self.setup.content,
        }
        train = self.setup.content["train"]
        if train["horizon"] == self.end:  # that is what it is if nothing is said
            plain["setup"] = {**self.setup.content, "train": {**train, "horizon": None}}
        if _foreign(self.run.rules):
            plain["code"] = sorted(loaded())  # what the user's rules do is in their file
        return plain

    @cached_property
    def key(self) -> str:
        """The hash of its content."""
        return content_hash(self.content)[:32]

    @cached_property
    def start_key(self) -> str:
        """The hash of what decides the losses before the first step, which many jobs share."""
        setup = self.setup.content
        parts = {name: setup[name] for name in ("results", "data", "model")}
        parts |= {"precision": setup["train"]["precision"], "val": {k: setup["val"][k] for k in ("batch", "final")}}
        parent = None if self.parent is None else self.parent.key
        return content_hash({**parts, "seed": self.run.task.seed, "parent": parent})[:32]

    def recipe(self, reference: Path | None = None, parent: Path | None = None) -> TrainRecipe:
        """The recipe that trains it."""
        task, base = self.run.task, self.setup.recipe
        plain = base.model_dump(mode="json", include={"data", "model", "train", "val"})
        plain["train"]["steps"] = task.steps
        plain["method"] = {
            "name": kind(self.run.rules),
            "rules": to_config(self.run.rules),
            "reference": None if reference is None else str(reference),
        }
        plain["checkpoint"] = {**base.checkpoint.model_dump(mode="json"), "keep": 1}
        plain["seed"] = task.seed
        plain["parent"] = None if parent is None else str(parent)
        return TrainRecipe.model_validate(plain)

    def order(self, store: RunStore, keep: bool = False) -> dict[str, Any]:
        """What a worker needs to know, as plain JSON; `keep` its last checkpoint, for runs that go on from it."""
        reference, parent = (
            None if job is None else store.run_folder(job.key).resolve() for job in (self.reference, self.parent)
        )
        return {
            "key": self.key,
            "folder": str(store.folder(self.key).resolve()),
            "start": str(store.start_file(self.start_key).resolve()),
            "recipe": self.recipe(reference, parent).model_dump(mode="json"),
            "keep": keep,
            "stack": None if keep else self._stack(),  # stacks save nothing that others could go on from
        }

    def _stack(self) -> str | None:
        """What jobs must have in common to be trained in one process with stacked parameters; None: this one cannot."""
        train, precision = self.setup.recipe.train, self.setup.content["train"]["precision"]
        plain = type(self.run.rules) is Static and self.run.parent is None
        if not plain or train.accumulate > 1 or train.compile or precision != "fp32":
            return None
        return content_hash([self.setup.content, self.run.task.steps])

    def about(self) -> dict[str, Any]:
        """What people want to know of it."""
        task, recipe = self.run.task, self.setup.recipe
        return {
            "kind": kind(self.run.rules),
            "proportions": getattr(self.run.rules, "proportions", None),
            "steps": task.steps,
            "seed": task.seed,
            "groups": recipe.data.groups,
            "targets": recipe.data.targets,
            "model": recipe.model.preset or recipe.model.name,
            "data": recipe.data.store,
            "parent": None if self.parent is None else self.parent.key,
        }


KINDS = {
    "Static": "static",
    "Bandit": "odm",
    "InterleavedSweep": "aioli",
    "PooledSweep": "aioli-pooled",
    "ForkedSweep": "aioli-fork",
    "SkillGraph": "skill-it",
    "ExcessLoss": "doremi proxy",
    "GradientInner": "doge proxy",
    "ScalingSlope": "ado",
}
"""What rules, or their estimators, are called when people look."""


def kind(rules: Any) -> str:
    """What drives a run, in a word or two."""
    if hasattr(rules, "first") and hasattr(rules, "second"):
        return f"{kind(rules.first)}, then {kind(rules.second)}"
    name = type(getattr(rules, "estimator", rules)).__name__
    return KINDS.get(name, name)
