"""`MixtureDataset`: a mixture inside your own PyTorch loop, through `torch.utils.data.DataLoader`, with any workers.

    data = MixtureDataset(sampler, cursor)
    for batch in DataLoader(data, batch_size=None, num_workers=2):
        ...                                  # one optimizer step
        cursor.step()                        # the next batch follows the policy's next mixture

Workers read ahead, but never beyond the segment in force: a new mixture holds from the first batch after it was set.
The batches are those of `MixtureSampler.next`, whatever the number of workers. How it works: the segment in force lies
in shared memory; every worker plans all of its batches and reads its own; where the segment ends it waits for the next.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike

from aioli.adapters import lacking
from aioli.cursor import Cursor
from aioli.data.sampler import Batch, MixtureSampler
from aioli.protocol import Segment

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise lacking(error, "train") from error

_HEADER = 3  # words before the message: version, length, checksum
IGNORED = -100
_WAITING = (
    "waited {:g} s for the next mixture; is something fetching batches ahead of the loop, or was cursor.step() not "
    "called after a batch?"
)
_IN_USE: WeakKeyDictionary[MixtureSampler, MixtureDataset] = WeakKeyDictionary()
"""The data set that moves each sampler."""


class MixtureDataset(IterableDataset[dict[str, torch.Tensor]]):
    """Whole batches of a `MixtureSampler`: use it with `batch_size=None`."""

    patience = float("inf")
    """Seconds after which a worker that waits for the next mixture gives up; it says that it waits after a minute."""

    def __init__(self, sampler: MixtureSampler, cursor: Cursor | None = None, batches_per_step: int = 1) -> None:
        """Follow a cursor's segments, or call `set` before each. `batches_per_step` is for gradient accumulation."""
        if batches_per_step < 1:
            raise ValueError(f"batches_per_step={batches_per_step} must be at least 1")
        super().__init__()
        self.sampler, self.batches_per_step = sampler, batches_per_step
        size = len(json.dumps(sampler.state_dict())) + 160 * sampler.m + 4096  # numbers grow, names do not
        memory: Any = torch.zeros(_HEADER + size // 8, dtype=torch.int64)
        self._shared: torch.Tensor = memory.share_memory_()
        self._view: np.ndarray[Any, Any] | None = None
        self._number = self._start = self._batches = self._used = self._remaining = 0
        self._p: np.ndarray[Any, np.dtype[np.float64]] | None = None
        self._iterated, self._stepped, self._cursor = False, False, cursor
        before = _IN_USE.get(sampler)
        if before is not None:
            before._retire()
        _IN_USE[sampler] = self
        if cursor is not None:
            segment = cursor.segment
            names = getattr(cursor.policy, "groups", None)
            if segment is not None and segment.proportions.size != sampler.m:
                raise ValueError(
                    f"the policy mixes {segment.proportions.size} groups and the sampler {sampler.m} "
                    f"({', '.join(sampler.groups)}); give both the same: MixtureSampler(..., groups=[...])"
                )
            if names is not None and tuple(names) != sampler.groups:
                raise ValueError(
                    f"the policy mixes {', '.join(names)} and the sampler {', '.join(sampler.groups)}; give both the "
                    "same groups in the same order: MixtureSampler(..., groups=[...])"
                )
            cursor.listeners.append(self._follow)
            self._follow(segment, cursor.remaining, anew=True)

    # ------------------------------------------------------------------ the side of the training loop

    def set(self, p: ArrayLike, batches: int) -> None:
        """The next so many batches are drawn from p. Call it when the batches of the last segment have been used, and
        `step` after each of them if you want to save or leave the loop in the middle."""
        if batches < 1:
            raise ValueError(f"batches={batches} must be at least 1")
        if self._stepped and self._used < self._batches:
            raise ValueError(f"only {self._used} of the {self._batches} batches of the last segment have been used")
        self._settle()
        self._p, self._batches = np.array(p, dtype=np.float64), int(batches)
        self._publish(ended=False)

    @property
    def remaining(self) -> int:
        """Batches of the segment that have not been used yet, by the cursor's or your own `step`."""
        return self._batches - self._used

    def step(self) -> None:
        """Say that a batch of the segment was used; without a cursor only, which does that itself."""
        if self._cursor is not None or self._used >= self._batches:
            raise ValueError("step() is for batches of a segment that was given with set()")
        self._used, self._stepped = self._used + 1, True

    def end(self) -> None:
        """There is no further segment: loops over the data come to their end."""
        self._settle()
        self._publish(ended=True)

    def _settle(self) -> None:
        """The segment in force is over, and all of it has been used."""
        if self._p is not None:
            self.sampler.skip(self._p, self._batches)
            self._start += self._batches
        self._p, self._batches, self._used, self._stepped = None, 0, 0, False

    def _retire(self) -> None:
        """Another data set takes over the sampler, from the batches that were used."""
        if self._cursor is not None:
            self._cursor.listeners.remove(self._follow)
        if self._p is not None:
            self.sampler.skip(self._p, self._used)
        self._p, self._batches, self._used = None, 0, 0
        self._publish(ended=True)

    def _follow(self, segment: Segment | None, remaining: int, anew: bool = False) -> None:
        """Called by the cursor after every step, and `anew` when its state was loaded."""
        if anew:
            self._p, self._batches, self._used = None, 0, 0
        if segment is not None and not anew and remaining == self._remaining - 1:  # within the segment in force
            self._used += self.batches_per_step
        elif segment is None:
            self.end()
        else:
            self.set(segment.proportions, remaining * self.batches_per_step)
        self._remaining = remaining

    def _publish(self, ended: bool) -> None:
        """Put the segment where all workers see it."""
        message = {
            "number": self._number + 1,
            "start": self._start,
            "state": self.sampler.state_dict(),
            "p": None if self._p is None else self._p.tobytes().hex(),
            "batches": self._batches,
            "ended": ended,
        }
        content = json.dumps(message).encode()
        words, size = self._words, len(content)
        room = (words.size - _HEADER) * 8
        if size > room:
            raise ValueError(f"the state of {self.sampler.m} groups takes {size} bytes, more than the {room} set aside")
        words[0] += 1  # odd: being written
        words[_HEADER:].view(np.uint8)[:size] = np.frombuffer(content, dtype=np.uint8)
        words[1], words[2] = size, zlib.crc32(content)
        words[0] += 1
        self._number += 1

    @property
    def _words(self) -> np.ndarray[Any, Any]:
        if self._view is None:
            self._view = self._shared.numpy()
        return self._view

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state after the batches that were used, as plain JSON; save the cursor's beside it."""
        if self._cursor is None and self._p is not None and not self._stepped:
            raise ValueError("how many batches of this segment were used? Call data.step() after each of them")
        at = self.sampler.copy()
        if self._p is not None:
            at.skip(self._p, self._used)
        return at.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, before iterating; load the cursor's state as well."""
        self.sampler.load_state_dict(state)
        self._p, self._batches, self._used = None, 0, 0
        if self._cursor is not None:
            self._follow(self._cursor.segment, self._cursor.remaining, anew=True)

    def __getstate__(self) -> dict[str, Any]:
        """What a worker needs: not the cursor, whose measuring functions stay where they are."""
        return {**self.__dict__, "_cursor": None, "_view": None}

    # ------------------------------------------------------------------ the side of the workers

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if info is not None and self._iterated:
            raise ValueError(
                "workers that stay (persistent_workers=True) serve one loop over the data; make a new loader"
            )
        if _collated():
            raise ValueError("its batches are whole: DataLoader(data, batch_size=None, num_workers=...)")
        self._iterated = True
        if info is None:
            return self._read(worker, workers, None)
        threading.Thread(target=_die_with_parent, name="aioli-parent", daemon=True).start()
        return self._read(worker, workers, _left())

    def _read(self, worker: int, workers: int, left: Callable[[], bool] | None) -> Iterator[dict[str, torch.Tensor]]:
        """The batches of one of the workers; which has left, if it is one, to learn that nobody waits for them."""
        first = self._start + self._used  # what this loop begins with; batches are counted from the very first
        sampler = self.sampler.copy(quiet=True)  # the loop's own says what there is to say
        due, number = first + worker, -1
        while True:
            message = self._next_segment(number, left)
            if message is None or message["ended"]:
                return
            sampler.load_state_dict(message["state"])
            p, number, start = np.frombuffer(bytes.fromhex(message["p"])), message["number"], message["start"]
            if due < start:
                raise ValueError("a new mixture was set before the batches of the last one were used")
            before = max(0, first - start)  # a loop may begin in the middle of a segment
            sampler.skip(p, before)
            for planned in sampler.plan(p, message["batches"] - before):
                for t in range(due - start - before, len(planned.group), workers):
                    yield _tensors(sampler.read(planned, t))
                    due += workers
                before += len(planned.group)

    def _next_segment(self, number: int, left: Callable[[], bool] | None) -> dict[str, Any] | None:
        """The segment after the one with this number, as soon as there is one; None if the loop has gone."""
        began, pause, told = time.monotonic(), 1e-4, False
        while True:
            message = self._message()
            if message is not None and message["number"] != number:
                return message
            if left is None:
                raise ValueError(
                    "no batch is due: call cursor.step() after every batch (no cursor: data.set or data.end)"
                )
            if left():
                return None
            waited = time.monotonic() - began
            if waited > 60 and not told:
                told = True
                print(_WAITING.format(60), file=sys.stderr, flush=True)
            if waited > self.patience:
                raise ValueError(_WAITING.format(self.patience))
            time.sleep(pause)
            pause = min(2 * pause, 0.001)

    def _message(self) -> dict[str, Any] | None:
        """What was published last; None while it is being written."""
        words = self._words
        version = int(words[0])
        if version % 2 or version == 0:
            return None
        content = words[_HEADER:].view(np.uint8)[: int(words[1])].tobytes()
        if int(words[0]) != version or zlib.crc32(content) != int(words[2]):
            return None
        found: dict[str, Any] = json.loads(content)
        return found


def _callers(name: str) -> Any:
    """What the nearest caller that has a variable of this name knows by it; None where there is none."""
    frame, found = sys._getframe(), None
    while found is None and frame.f_back is not None:
        frame = frame.f_back
        found = frame.f_locals.get(name)
    return found


def _collated() -> bool:
    """Whether torch's loader would make batches of these batches, as it does unless batch_size is None."""
    return _callers("auto_collation") is True


def _left() -> Callable[[], bool]:
    """In a worker: whether the loop that it works for has been left. If its process dies, so does the worker.

    Torch tells its workers by an event that it does not show to data sets; where it is not found among the callers'
    variables, a worker that waits is stopped by torch some seconds later.
    """
    event = _callers("done_event")
    return lambda: event is not None and bool(event.is_set())


def _die_with_parent() -> None:
    """End this worker when its parent has died, wherever it is.

    Torch compares the parent's number with the one it saw when the worker began: a worker whose parent died before that
    would wait for ever, and with it those that were forked before, whose pipes it holds."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _tensors(batch: Batch) -> dict[str, torch.Tensor]:
    """A batch as models take it: where there is no loss, labels are ignored."""
    inputs = torch.from_numpy(batch.ids)
    labels = inputs.clone() if batch.mask is None else inputs.masked_fill(torch.from_numpy(batch.mask) == 0, IGNORED)
    return {
        "input_ids": inputs,
        "labels": labels,
        "group": torch.from_numpy(batch.group),
        "positions": torch.from_numpy(batch.positions),
    }
