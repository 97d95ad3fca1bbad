"""One run from recipe to result: everything in one directory, resumable at any moment.

    run/   recipe.yaml   journal.jsonl   checkpoints/   model/   result.json

`train` builds data, model, policy and engine, drives them, writes one line per segment into the journal, saves
checkpoints, and at the end judges the model on all validation and test data.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate.utils import broadcast_object_list

from aioli import __version__
from aioli.data.store import TokenStore
from aioli.files import LockedError, check_text, explained, locked, read_json, sealed_text, write_json, write_text
from aioli.policies import fork_steps
from aioli.protocol import Segment, check_supported
from aioli.recipe import build, read
from aioli.train import checkpoint, journal, records
from aioli.train.building import (
    build_accelerator,
    build_engine,
    build_overview,
    build_policy,
    every_steps,
    parent_checkpoint,
    worth_knowing,
)
from aioli.train.engine import DivergedError, Engine
from aioli.train.journal import Journal
from aioli.train.layout import JOURNAL, MODEL, RECIPE, RESULT, tidy
from aioli.train.models import save_model
from aioli.train.probes import Validation
from aioli.train.problem import groups_and_targets
from aioli.train.recipe import TrainRecipe
from aioli.train.validation import subset

Report = Callable[["Run"], None]
FREE = ("trackers", "checkpoint.", "data.verify")
"""Settings that may be others when a run goes on."""


class StoppedError(Exception):
    """The run was asked to stop, and has saved itself."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step = step


class Run:
    """A run that is being trained."""

    def __init__(
        self,
        recipe: TrainRecipe,
        path: str | Path,
        report: Report | None = None,
        stop: threading.Event | None = None,
        known: bool = False,
    ) -> None:
        """`known`: the directory is known to be this run's, however its recipe is written: a run store says so."""
        self.recipe, self.path, self.report, self.known = recipe, Path(path), report, known
        self.stop = threading.Event() if stop is None else stop
        """Set it to have the run save itself and stop after the current step."""
        if recipe.train.threads:
            torch.set_num_threads(recipe.train.threads)
        self.store = TokenStore(recipe.data.store)
        self.groups, self.targets = groups_and_targets(self.store, recipe)
        self.accelerator = build_accelerator(recipe, self.path)
        self.policy = build_policy(recipe, self.store, self.groups, self.targets)
        parent = parent_checkpoint(recipe)
        self.first = 0 if parent is None else checkpoint.step_of(parent)
        """Where it begins: at the end of its parent."""
        self.last = self.first + recipe.train.steps
        self.engine = build_engine(
            recipe, self.store, self.groups, self.targets, self.policy, self.accelerator, self._stepped, self.first
        )
        self.engine.between, self.engine.alive = self._between, self._trying
        if parent is not None:
            checkpoint.load(parent, self.engine)
            self.engine.seconds = dict.fromkeys(self.engine.seconds, 0.0)
        check_supported(self.policy, self.engine.supports, self.engine.weightings)
        self.notes = worth_knowing(recipe, self.policy, self.engine.validation)
        """What a person should know before the run begins."""
        self.segment: Segment | None = None
        self.journal: Journal | None = None
        """On the first rank, which alone writes."""
        self.overview = build_overview(recipe, self.store, self.targets)
        """What is looked at for the journal."""
        self.status = records.Status(self.path)
        self.saved, self.used = self.first, False
        self.check: Callable[[], None] = lambda: None
        """Called before anything is saved: raises if this process may not write here any more."""
        self.together = 1
        """How many runs are trained at once with stacked parameters, this one among them."""
        self.every = recipe.train.steps if recipe.val.every == 0 else every_steps(recipe)
        self.recent = (0.0, 0)
        """Sum of the losses since the last look, and the steps."""
        self.tried = 0
        """Steps on copies of the model so far."""
        self._to_try = 0

    @property
    def step(self) -> int:
        """How many steps are done; those of forks are not the run's."""
        return self.engine.step if self.engine.forked is None else self.engine.forked

    @property
    def left(self) -> int:
        """How many steps are to be done, at most: the run's, and those on copies of the model."""
        return self.last - self.step + max(0, self._to_try - self.tried)

    # ------------------------------------------------------------------ running

    def train(self) -> dict[str, Any]:
        """Train to the end, from the last checkpoint if there is one; returns the result."""
        if (done := read_json(self.path / RESULT, "the run is finished again")) is not None:
            self._same_recipe()
            tidy(self.path)
            return dict(done)
        if self.used:
            raise ValueError("a Run is trained once; make another one with the same directory, and it goes on")
        self.used = True
        if self.recipe.data.verify and self.accelerator.is_main_process:
            self.store.verify([*self.groups, *self.targets])
        with self.alone():
            self.resume()
            self._may_stop()
            try:
                while (segment := self.policy.ask()) is not None:
                    self.segment, begin = segment, self.engine.begun
                    with suppress(ValueError):  # others' rules may dislike made-up values, and no run stops for this
                        self._to_try = self.tried + fork_steps(self.policy, onward=True)
                    observation = self.engine.advance(segment)
                    self.policy.tell(observation)
                    self.write(records.segment_line(self, segment, observation, begin))
                    self.tell()
                if self.saved != self.engine.step:
                    self._save()
                return self.finish()
            except DivergedError as error:
                raise DivergedError(f"{error}; {self._remedy()}") from None

    def start_losses(self) -> dict[str, float]:
        """Loss of each target on all validation data before the first step; to be asked before `train`."""
        if self.used:
            raise ValueError("the losses at the start can only be seen before the run begins")
        found = self.engine.val_losses(self._judged("val"))
        return dict(zip(self.targets, found.tolist(), strict=True))

    def _judged(self, split: str) -> Validation:
        """What a finished model is judged on: the same whatever the seed."""
        val = self.recipe.val
        return subset(self.store, self.targets, split, val.final, 0, val.batch)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """The first rank holds the directory and writes the recipe; if it cannot, no rank goes on."""
        with ExitStack() as held:
            problem: list[str | None] = [None]
            if self.accelerator.is_main_process:
                try:
                    with explained(self.path):
                        held.enter_context(locked(self.path, str(self.path)))
                        self._same_recipe()
                        self._start_trackers()
                except LockedError:
                    if self.engine.world == 1:
                        raise
                    problem = [f"{self.path} is being written by another process"]
                except ValueError as error:
                    problem = [str(error)]
            if self.engine.world > 1:
                broadcast_object_list(problem)
            if problem[0] is not None:
                raise ValueError(problem[0])
            try:
                with explained(self.path):
                    yield
            finally:
                if self.journal is not None:
                    self.journal.close()
                    self.status.clear()
                if self.recipe.trackers:
                    self.accelerator.end_training()

    def resume(self) -> None:
        """Load the last checkpoint, or begin; the journal goes on as it was then."""
        chosen = [None if (found := checkpoint.latest(self.path)) is None else str(found)]
        if self.engine.world > 1:
            broadcast_object_list(chosen)
        size = 0
        torch.manual_seed(self.recipe.seed + 1_000_003 * self.accelerator.process_index)  # for dropout
        if chosen[0] is not None:
            state = checkpoint.load(Path(chosen[0]), self.engine)
            self.policy.load_state_dict(state["policy"])
            self.saved, size = self.engine.step, state["journal"]
            self.recent = (float(state["recent"][0]), int(state["recent"][1]))
        if self.accelerator.is_main_process:
            checkpoint.tidy(self.path, self.recipe.checkpoint.keep)
            self.journal = Journal(self.path / JOURNAL, size)
            if self.journal.torn:
                print(f"{self.path / JOURNAL}: its last line was cut short, and is removed", file=sys.stderr)
            if size == 0:
                self.journal.append(records.opening(self))

    def _same_recipe(self) -> None:
        """A directory belongs to one recipe; where trackers report and how often it is saved may change."""
        file, mine = self.path / RECIPE, self.recipe.model_dump(mode="json")
        if self.known:
            if not (self.path / RESULT).exists():
                write_text(file, sealed_text(yaml.safe_dump(mine, sort_keys=False)))
            return
        if not file.is_file():
            others = [found.name for found in self.path.iterdir() if found.name != "lock" and found.name[0] != "."]
            if others:
                raise ValueError(
                    f"{self.path} holds something else ({others[0]}); choose another directory for the run"
                )
            write_text(file, sealed_text(yaml.safe_dump(mine, sort_keys=False)))
            return
        plain = read(file)
        check_text(file.read_text(encoding="utf-8"), file)
        before = records.flat(build(TrainRecipe, plain, str(file)).model_dump(mode="json"))
        now = records.flat(mine)
        for key in {**now, **before}:
            if before.get(key) != now.get(key) and not key.startswith(FREE):
                raise ValueError(
                    f"{self.path} holds a run with another {key}: {before.get(key)}, not {now.get(key)}; resume it "
                    f"with its own recipe ({file}) or choose another directory"
                )

    def _stepped(self, engine: Engine) -> None:
        """After every step: look and save when it is time, stop when asked to."""
        self.recent = (self.recent[0] + engine.loss, self.recent[1] + 1)
        if engine.step % self.every == 0 and engine.step < self.last:
            self._look()
        stop = self._asked_to_stop()
        if stop or engine.step - self.saved >= self.recipe.checkpoint.every:
            self._save()
        self.tell()
        if stop:
            raise StoppedError(self.engine.step)

    def _trying(self) -> None:
        """Within a fork, whose steps are not the run's: those who watch are told that it is alive."""
        self.tried += 1
        self.tell()

    def _between(self) -> None:
        """Between forks, where nothing has changed: stop when asked to, without saving what is saved already."""
        self.tell()
        if self._asked_to_stop():
            if self.saved != self.engine.step:
                self._save()
            raise StoppedError(self.engine.step)

    def _look(self) -> None:
        """See how things stand, for the journal alone."""
        measures = self.engine.measures
        assert measures is not None
        with measures.probing():
            found = self.engine.val_losses(self.overview)
        self.write(records.look_line(self, self.recent[0] / self.recent[1], found.tolist()))
        self.recent = (0.0, 0)

    def _asked_to_stop(self) -> bool:
        """Whether any rank was."""
        stop = self.stop.is_set()
        if self.engine.world > 1:
            flag = torch.tensor(float(stop), device=self.engine.device)
            stop = float(self.accelerator.reduce(flag, "sum")) > 0
        return stop

    def _may_stop(self) -> None:
        """Where everything is saved already."""
        if self._asked_to_stop():
            raise StoppedError(self.engine.step)

    def _save(self) -> None:
        self.check()
        size = 0 if self.journal is None else self.journal.sync()
        state = {
            "policy": self.policy.state_dict(),
            "journal": size,
            "recent": list(self.recent),
            "aioli": __version__,
        }
        checkpoint.save(self.path, self.engine, state, self.recipe.checkpoint.keep)
        self.saved = self.engine.step

    def _remedy(self) -> str:
        """What to do when a run has diverged."""
        last = checkpoint.latest(self.path)
        where = "there is no checkpoint yet" if last is None else f"the last good checkpoint is {last}"
        place = "" if self.known else " in a new directory"
        return f"{where}; lower train.lr (now {self.recipe.train.lr:g}) or train.clip{place}"

    def tell(self) -> None:
        if self.accelerator.is_main_process:
            self.status.show(self)
            if self.report is not None:
                self.report(self)

    def write(self, line: dict[str, Any]) -> None:
        if self.journal is None:
            return
        self.journal.append(line)
        if self.recipe.trackers:
            self.accelerator.log(records.scalars(line, self.groups, self.targets), step=self.engine.step)

    def _start_trackers(self) -> None:
        if self.recipe.trackers:
            self.accelerator.init_trackers("aioli", config=records.flat(self.recipe.model_dump(mode="json")))

    # ------------------------------------------------------------------ the result

    def finish(self) -> dict[str, Any]:
        """Judge the model on validation and test data, and keep it."""
        began = time.perf_counter()
        result: dict[str, Any] = {"targets": self.targets, "groups": self.groups, "steps": self.engine.step}
        for split in ("val", "test"):
            self._may_stop()
            if split in self.store.parts:
                result[split] = records.verdict(self.targets, self.engine.val_losses(self._judged(split)))
        sampler, seconds = self.engine.sampler, self.engine.seconds
        result["realised"] = dict(zip(self.groups, sampler.realised.tolist(), strict=True))
        result["epochs"] = dict(zip(self.groups, sampler.epochs.tolist(), strict=True))
        if self.together > 1:
            result["stacked"] = self.together
        weights = checkpoint.full_weights(self.engine)
        if self.journal is not None:
            mean = journal.mean_proportions(self.journal.path)
            result["mean_proportions"] = dict(zip(self.groups, mean, strict=True))
            took = time.perf_counter() - began
            result["seconds"] = {**seconds, "probe_share": records.probe_share(seconds), "evaluation": took}
            self.write({"kind": "result", **result})
            self.journal.sync()
            self.check()
            save_model(self.engine.plain, weights, self.path / MODEL)
            write_json(self.path / RESULT, result)
        return result
