"""A policy inside a trainer that owns the loop: what the adapters of Hugging Face's Trainer and of Lightning share.

    mixing = Mixing(policy, store, batch=16, look=validation_losses)
    mixing.begin(state)                   # None: from the start. Looks, if the policy wants to before the first step
    for batch in mixing.batches(read):    # as long as the policy goes on
        ...
        mixing.step()                     # after every optimizer step
    mixing.finish()

`state_dict()` is plain JSON, for the trainer's own checkpoint. With a journal, `aioli report` can show the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from aioli import __version__
from aioli.adapters.looking import target_names
from aioli.adapters.pytorch import MixtureDataset
from aioli.config import to_plain
from aioli.cursor import Cursor
from aioli.data.sampler import Indices, MixtureSampler
from aioli.data.store import TokenStore
from aioli.policies import RulePolicy
from aioli.protocol import Observation, Segment
from aioli.simplex import Array
from aioli.train.journal import Journal
from aioli.train.records import finite, probe_share, verdict

Read = Callable[[Any], Any]
"""What a batch of `MixtureDataset` becomes, in the workers: what the model takes."""


class Mixing:
    """One run of a policy."""

    def __init__(
        self,
        policy: RulePolicy,
        data: TokenStore | Indices,
        batch: int,
        look: Callable[[], Array],
        per_step: int = 1,
        journal: Path | None = None,
        about: Mapping[str, Any] | None = None,
        same: Mapping[str, Any] | None = None,
        **drawing: Any,
    ) -> None:
        """`batch` sequences of all ranks together, `per_step` such batches in an optimizer step; `about`: what the
        journal should know; `same`: what a run that goes on must have been begun with; `drawing`: settings of the
        sampler."""
        self.policy, self.per_step, self.look = policy, per_step, look
        self.groups, self.targets = policy.groups, target_names(policy)
        named: dict[str, Any] = {} if isinstance(data, Indices) else {"groups": self.groups}
        self.sampler = MixtureSampler(data, batch, **named, **drawing)
        self.cursor = Cursor(policy, {"val_loss": self._look}, record=self._record)
        self.steps = 0
        """Optimizer steps so far."""
        self.used: list[float] = []
        """The mixture of the last one."""
        self.val_loss: list[float] | None = None
        """What was seen last."""
        self.seconds = {"train": 0.0, "probe": 0.0}
        self._place, self._about = journal, dict(about or {})
        self._same = {"gradient accumulation": per_step, **(same or {})}
        self._journal: Journal | None = None
        """Open on the first rank."""
        self._begin, self._began, self._probed = 0, time.monotonic(), 0.0
        """Of the segment in force: its first step, when it began, and seconds of looking in it."""

    # ------------------------------------------------------------------ the run

    def begin(self, state: Mapping[str, Any] | None = None) -> None:
        """From the start, or from a `state_dict`."""
        if state is None:
            self._open(0)
        else:
            for what, before in state.get("same", {}).items():
                if what in self._same and self._same[what] != before:
                    raise ValueError(
                        f"the checkpoint was made with {what} {before} and this run has {self._same[what]}; a run goes "
                        "on with what it was begun with: give the same, or begin a new run"
                    )
            self.cursor.load_state_dict(state["cursor"])
            self.sampler.load_state_dict(state["sampler"])
            self.steps, self.val_loss = int(state["steps"]), state["val_loss"]
            self.seconds, self.used = dict(state["seconds"]), list(state["used"])
            self._begin = self.steps - int(state["cursor"]["steps"])
            self._open(int(state["journal"]))
        self._began = time.monotonic()
        self._meter = self.sampler.copy(quiet=True)
        self.data = MixtureDataset(self.sampler, self.cursor, self.per_step)

    def batches(self, read: Read, most: int | None = None, **loading: Any) -> Iterator[Any]:
        """The batches that come next, at most so many; `loading`: settings of torch's DataLoader.

        It has a generator of its own: a loop that is begun again must not draw from the model's random numbers.
        """
        own = torch.Generator().manual_seed(self.sampler.seed)
        loader = DataLoader(self.data, batch_size=None, collate_fn=read, generator=own, **loading)
        for k, batch in enumerate(loader):
            yield batch
            if most is not None and k + 1 >= most:
                return

    def step(self) -> None:
        """An optimizer step was done: tell the policy what was really used; it looks where a segment is over."""
        p, before = self.cursor.proportions, self._meter.drawn.copy()
        self._meter.skip(p, self.per_step)
        self.steps, self.used = self.steps + 1, p.tolist()
        self.cursor.step((self._meter.drawn - before) * max(1, self.sampler.context))

    def finish(self) -> None:
        """The run is over: look once more, for the journal. All ranks call it."""
        if self._place is None:
            return
        losses = self._look()
        self.seconds["probe"] += self._probed
        result = {
            "kind": "result",
            "steps": self.steps,
            "targets": list(self.targets),
            "val": verdict(list(self.targets), losses),
            "realised": dict(zip(self.sampler.groups, self.realised.tolist(), strict=True)),
            "seconds": self.seconds,
        }
        if self._journal is not None:
            self._journal.append(finite(result))
            self._journal.sync()
            self._journal.close()
            self._journal = None

    @property
    def realised(self) -> Array:
        """The mixture that was really used so far."""
        return self._meter.realised

    def logs(self) -> dict[str, float]:
        """The mixture of the last step and what was seen last, as trackers take them."""
        found = {f"proportions/{name}": share for name, share in zip(self.sampler.groups, self.used, strict=False)}
        return found | {f"val_loss/{k}": v for k, v in zip(self.targets, self.val_loss or (), strict=False)}

    # ------------------------------------------------------------------ what is seen and written down

    def _look(self) -> Array:
        began = time.monotonic()
        found = self.look()
        if not np.isfinite(found).all():
            named = dict(zip(self.targets, found.tolist(), strict=True))
            raise ValueError(f"step {self.steps}: the validation loss is {named}; the run has diverged")
        self.val_loss = found.tolist()
        self._probed += time.monotonic() - began
        return found

    def _record(self, segment: Segment, observation: Observation) -> None:
        """A segment is over."""
        begin, end = self._begin, self._begin + segment.steps
        train = max(0.0, time.monotonic() - self._began - self._probed)
        self.seconds["train"] += train
        self.seconds["probe"] += self._probed
        seconds = {"train": train, "probe": self._probed, "probe_share": probe_share(self.seconds)}
        self._begin, self._began, self._probed = end, time.monotonic(), 0.0
        if self._journal is not None:
            tokens, values = observation.tokens, vars(observation)
            line = {
                "kind": "segment",
                "begin": begin,
                "end": end,
                "tag": segment.tag,
                "proportions": segment.proportions.tolist(),
                "realised": (tokens / tokens.sum()).tolist() if tokens.sum() else None,
                "tokens": tokens.tolist(),
                "values": {k: to_plain(v) for k, v in values.items() if k != "tokens" and v is not None},
                "report": self.policy.news(),
                "seconds": seconds,
            }
            self._journal.append(finite(line))

    def _open(self, size: int) -> None:
        """Go on with the first bytes of the journal; where they are not there, begin anew."""
        if self._place is None or self.sampler.rank > 0:
            return
        self._place.parent.mkdir(parents=True, exist_ok=True)
        there = self._place.is_file() and self._place.stat().st_size >= size
        self._journal = Journal(self._place, size if there else 0)
        if size == 0 or not there:
            self._journal.append(
                {
                    "kind": "run",
                    "groups": list(self.sampler.groups),
                    "targets": list(self.targets),
                    "steps": self.policy.task.steps,
                    "first": 0,
                    "batch": self.sampler.batch * self.per_step,
                    "context": self.sampler.context,
                    "method": self.policy.method or type(self.policy.rules).__name__,
                    "seed": self.sampler.seed,
                    "aioli": __version__,
                    **self._about,
                }
            )

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what follows, as plain JSON."""
        return {
            "steps": self.steps,
            "same": self._same,
            "cursor": self.cursor.state_dict(),
            "sampler": self.data.state_dict(),
            "used": self.used,
            "val_loss": self.val_loss,
            "seconds": self.seconds,
            "journal": 0 if self._journal is None else self._journal.sync(),
        }
