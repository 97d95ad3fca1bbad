"""One run from recipe to result: everything in one directory, resumable at any moment.

    run/   recipe.yaml   journal.jsonl   checkpoints/   model/   result.json

`train` builds data, model, policy and engine, drives them, writes one line per segment into the journal, saves
checkpoints, and at the end judges the model on all validation and test data.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from accelerate import Accelerator

from aioli import __version__
from aioli.config import to_plain
from aioli.data.sampler import MixtureSampler
from aioli.data.store import TokenStore
from aioli.files import explained, locked, read_json, write_json
from aioli.policies import RulePolicy
from aioli.protocol import Observation, Segment, check_supported
from aioli.registry import create
from aioli.train import checkpoint
from aioli.train.engine import Engine, Settings
from aioli.train.journal import NAME, Journal
from aioli.train.models import build_model, load_model
from aioli.train.optimizer import Schedule
from aioli.train.recipe import TrainRecipe
from aioli.train.validation import budget, subset

RECIPE, RESULT = "recipe.yaml", "result.json"
Report = Callable[["Run"], None]


class StoppedError(Exception):
    """The run was asked to stop, and has saved itself."""


def groups_and_targets(store: TokenStore, recipe: TrainRecipe) -> tuple[list[str], list[str]]:
    """What is trained on and what is validated on."""
    sizes = dict(zip(store.groups, store.sequences("train").tolist(), strict=True))
    chosen = recipe.data.groups or [g for g in store.groups if sizes[g] > 0 and g not in recipe.data.targets]
    targets = recipe.data.targets or chosen
    for kind, names in (("data.groups", chosen), ("data.targets", targets)):
        unknown = [name for name in names if name not in store.groups]
        if unknown:
            raise ValueError(f"{kind} names {unknown[0]!r}, but {store.path} has {', '.join(store.groups)}")
    if "val" not in store.parts:
        raise ValueError(f"{store.path} has no validation split; prepare it with splits.val above 0")
    return list(chosen), list(targets)


class Run:
    """A run that is being trained."""

    def __init__(self, recipe: TrainRecipe, path: str | Path, report: Report | None = None) -> None:
        self.recipe, self.path, self.report = recipe, Path(path), report
        self.stop = threading.Event()
        """Set it to have the run save itself and stop after the current step."""
        if recipe.train.threads:
            torch.set_num_threads(recipe.train.threads)
        self.store = TokenStore(recipe.data.store)
        self.groups, self.targets = groups_and_targets(self.store, recipe)
        precision = _precision(recipe.train.precision)
        self.accelerator = Accelerator(
            mixed_precision=precision, log_with=recipe.trackers or None, project_dir=str(path)
        )
        self.policy = self._policy()
        self.engine = self._engine()
        check_supported(self.policy, self.engine.supports, self.engine.weightings)
        self.segment: Segment | None = None
        self.saved = 0

    # ------------------------------------------------------------------ building

    def _policy(self) -> RulePolicy:
        method = self.recipe.method
        sizes = dict(zip(self.store.groups, self.store.sequences("train").tolist(), strict=True))
        targets = None if self.targets == self.groups else self.targets
        made = create(method.name, **method.settings)
        found = made.policy(
            groups=self.groups,
            steps=self.recipe.train.steps,
            targets=targets,
            sizes=[sizes[g] for g in self.groups],
            seed=self.recipe.seed,
        )
        return found

    def _engine(self) -> Engine:
        recipe, store = self.recipe, self.store
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        sampler = MixtureSampler(
            store,
            recipe.train.batch,
            recipe.seed,
            groups=self.groups,
            on_exhausted=recipe.data.on_exhausted,
            max_epochs=recipe.data.max_epochs,
            rank=rank,
            world=world,
        )
        n, tokens = len(self.targets), recipe.train.batch * store.context
        wanted = recipe.val.tokens
        each = (
            budget(self.policy, recipe.train.steps, tokens, store.context, n)
            if wanted is None
            else max(1, wanted // (n * store.context))
        )
        validation = subset(store, self.targets, "val", each, recipe.seed, recipe.val.batch)
        model = build_model(
            recipe.model.preset,
            recipe.model.name,
            vocabulary=store.vocabulary,
            context=store.context,
            seed=recipe.seed,
            revision=recipe.model.revision,
            scratch=recipe.model.scratch,
            overrides=recipe.model.config,
        )
        val_sampler = None
        if {"grad_inner", "grad_norm"} & self.policy.needs:
            val_sampler = MixtureSampler(store, max(n, recipe.train.batch // 2), recipe.seed, "val", self.targets)
        reference = _reference(recipe.method.reference) if recipe.method.reference else None
        if recipe.train.compile:
            model.compile()
        return Engine(
            model, sampler, validation, _settings(recipe), self.accelerator, reference, val_sampler, self._stepped
        )

    # ------------------------------------------------------------------ running

    def train(self) -> dict[str, Any]:
        """Train to the end, from the last checkpoint if there is one; returns the result."""
        if (done := read_json(self.path / RESULT)) is not None:
            return dict(done)
        self.path.mkdir(parents=True, exist_ok=True)
        with explained(self.path), locked(self.path, str(self.path)):
            self._same_recipe(self.recipe.model_dump(mode="json"))
            self.journal = self._resume()
            try:
                while (segment := self.policy.ask()) is not None:
                    self.segment, begin = segment, self.engine.begun
                    observation = self.engine.advance(segment)
                    self.policy.tell(observation)
                    self.journal.append(self._line(segment, observation, begin))
                    self._tell()
                return self._finish()
            finally:
                self.journal.close()

    def _resume(self) -> Journal:
        """Load the last checkpoint, or begin; returns the journal as it was then."""
        found = checkpoint.latest(self.path)
        if found is None:
            journal = Journal(self.path / NAME, 0)
            journal.append(self._opening())
            return journal
        state = checkpoint.load(found, self.engine)
        self.policy.load_state_dict(state["policy"])
        self.saved = self.engine.step
        return Journal(self.path / NAME, state["journal"])

    def _same_recipe(self, plain: dict[str, Any]) -> None:
        """A directory belongs to one recipe."""
        file = self.path / RECIPE
        if file.is_file():
            before = yaml.safe_load(file.read_text(encoding="utf-8"))
            changed = [key for key in plain if before.get(key) != plain[key] and key not in ("trackers", "checkpoint")]
            if changed:
                raise ValueError(
                    f"{self.path} holds a run with another {changed[0]}: {before.get(changed[0])}, not "
                    f"{plain[changed[0]]}; resume it with its own recipe ({file}) or choose another directory"
                )
        else:
            file.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")

    def _stepped(self, engine: Engine) -> None:
        """After every step: save when it is time, stop when asked to."""
        stop = self.stop.is_set()
        if stop or engine.step - self.saved >= self.recipe.checkpoint.every:
            self._save()
        self._tell()
        if stop:
            raise StoppedError

    def _save(self) -> None:
        state = {"policy": self.policy.state_dict(), "journal": self.journal.sync(), "aioli": __version__}
        checkpoint.save(self.path, self.engine, state, self.recipe.checkpoint.keep)
        self.saved = self.engine.step

    def _tell(self) -> None:
        if self.report is not None and self.accelerator.is_main_process:
            self.report(self)

    # ------------------------------------------------------------------ the journal and the result

    def _opening(self) -> dict[str, Any]:
        return {
            "kind": "run",
            "groups": self.groups,
            "targets": self.targets,
            "steps": self.recipe.train.steps,
            "batch": self.recipe.train.batch,
            "context": self.store.context,
            "method": self.recipe.method.name,
            "model": self.recipe.model.preset or self.recipe.model.name,
            "parameters": sum(p.numel() for p in self.engine.plain.parameters()),
            "data": self.store.fingerprint,
            "val_tokens": self.engine.validation.tokens,
            "seed": self.recipe.seed,
            "aioli": __version__,
        }

    def _line(self, segment: Segment, observation: Observation, begin: int) -> dict[str, Any]:
        """One line of the journal."""
        measures = self.engine.finished
        assert measures is not None
        used = observation.tokens
        values = {k: to_plain(v) for k, v in vars(observation).items() if k != "tokens" and v is not None}
        return {
            "kind": "segment",
            "begin": begin,
            "end": self.engine.step,
            "tag": segment.tag,
            "proportions": segment.proportions.tolist(),
            "realised": (used / used.sum()).tolist() if used.sum() else None,
            "tokens": used.tolist(),
            "loss": measures.loss / measures.steps if measures.steps else None,
            "values": _finite(values),
            "report": _finite(self.policy.report()),
            "lr": self.engine.settings.schedule.rate(max(0, self.engine.step - 1)),
            "epochs": self.engine.sampler.epochs.tolist(),
            "seconds": {"train": measures.train_seconds, "probe": measures.probe_seconds},
        }

    def _finish(self) -> dict[str, Any]:
        """Judge the model on all validation and test data, and keep it."""
        result: dict[str, Any] = {"targets": self.targets, "groups": self.groups, "steps": self.engine.step}
        for split in ("val", "test"):
            if split in self.store.parts:
                everything = subset(self.store, self.targets, split, None, 0, self.recipe.val.batch)
                losses = self.engine.val_losses(everything)
                result[split] = {
                    "loss": dict(zip(self.targets, losses.tolist(), strict=True)),
                    "mean_loss": float(losses.mean()),
                    "mean_perplexity": float(np.exp(losses).mean()),
                }
        sampler = self.engine.sampler
        result["realised"] = dict(zip(self.groups, sampler.realised.tolist(), strict=True))
        result["epochs"] = dict(zip(self.groups, sampler.epochs.tolist(), strict=True))
        if self.accelerator.is_main_process:
            self.journal.append({"kind": "result", **result})
            self.journal.sync()
            model: Any = self.engine.plain
            model.save_pretrained(self.path / "model")
            write_json(self.path / RESULT, result)
        return result


def _finite(value: Any) -> Any:
    """JSON has no NaN: what is not a number becomes null."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _precision(choice: str) -> str:
    able = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return "bf16" if choice == "bf16" or (choice == "auto" and able) else "no"


def _settings(recipe: TrainRecipe) -> Settings:
    train = recipe.train
    warmup = round(train.warmup * train.steps) if train.warmup < 1 else int(train.warmup)
    schedule = Schedule(train.lr, train.steps, warmup, train.floor)
    return Settings(schedule, train.betas, train.eps, train.decay, train.clip, train.accumulate)


def _reference(path: str) -> torch.nn.Module:
    """The model of a finished run."""
    folder = Path(path) / "model"
    if not folder.is_dir():
        raise ValueError(f"method.reference={path} is not a finished run: it has no model/")
    return load_model(str(folder))
