"""What a contestant tells while it trains: its step, what was asked for, and, from the model itself, what was consumed.

In timed runs a contestant trains only when it is its turn: after each piece it says how long it took and waits. In
other runs nobody waits, and it may be killed in the middle.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from contest.job import Job, marks

Wait = Callable[[dict[str, float]], None]


class Turns:
    """One run of a contestant."""

    def __init__(
        self, job: Job, wait: Callable[[dict[str, float]], None] | None = None, die: int | None = None
    ) -> None:
        """`wait` is called after every piece with its seconds, and returns when the next turn has come."""
        self.job, self.wait, self.die = job, wait, die
        self.done, self.asked, self.consumed = 0, [], []
        self._seen: list[np.ndarray] = []
        self._model: torch.nn.Module | None = None
        self._began = (0.0, 0.0)

    def begin(self, model: torch.nn.Module, done: int = 0) -> None:
        """Everything is built; the next thing is a step, number `done` counted from 0."""
        self._model, self.done = model, done
        self._hook = model.register_forward_pre_hook(self._see, with_kwargs=True)
        if self.wait is not None:
            self.wait({})
        self._began = (time.perf_counter(), time.process_time())

    def _see(self, model: torch.nn.Module, given: tuple, named: dict) -> None:
        """What the model is trained on; looks have no gradients, and held-out sequences other marks."""
        if torch.is_grad_enabled() and model.training:
            ids = named["input_ids"] if "input_ids" in named else given[0]
            self._seen.append(ids[:, :3].numpy().astype(np.int64))

    def step(self, asked: Sequence[float]) -> None:
        """An optimizer step was made on a batch that was to be drawn from `asked`."""
        seen, self._seen = self._seen, []
        self.consumed.append(marks(np.concatenate(seen), len(self.job.groups)))
        self.asked.append(np.array(asked, dtype=np.float64))
        self.done += 1
        if self.die == self.done:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.wait is not None and self.done % self.job.piece == 0:
            now = (time.perf_counter(), time.process_time())
            self.wait({"wall": now[0] - self._began[0], "cpu": now[1] - self._began[1]})
            self._began = (time.perf_counter(), time.process_time())

    def save(self, file: Path) -> None:
        """What was recorded, and the weights at the end."""
        assert self._model is not None
        self._hook.remove()
        weights = np.concatenate([p.detach().numpy().ravel() for p in self._model.parameters()])
        np.savez(file, consumed=np.stack(self.consumed), asked=np.stack(self.asked), weights=weights)
