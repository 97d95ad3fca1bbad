"""Jobs in processes of this machine, one for each core or, where there are any, each GPU; one thread each unless told.

A worker trains one job after another. One that dies, because memory ran out or somebody killed it, is replaced, and its
job goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from aioli.runs.machine import cores, gpus
from aioli.runs.work import died

TRIES = 3
"""Processes that may die of one job before it counts as failed."""
PATIENCE = 60.0
"""Seconds that workers have to save themselves when they are told to stop."""


class LocalExecutor:
    """Worker processes."""

    def __init__(self, workers: int | None = None, threads: int = 1, load: Sequence[str] = (), stack: int = 1) -> None:
        """`load`: Python files of the user's that workers must know, because they define rules. `stack`: how many runs
        with fixed mixtures a worker trains at once, with stacked parameters."""
        self.gpus = gpus()
        found = (len(self.gpus) or cores()) if workers is None else workers
        if min(found, threads, stack) < 1:
            raise ValueError(f"workers={found}, threads={threads} and stack={stack} must be at least 1")
        self.workers, self.threads, self.stack = found, threads, stack
        self.load = [os.path.abspath(file) for file in load]
        self.closing = threading.Event()
        self._orders: list[tuple[dict[str, Any], Future[str]]] = []
        self._changed = threading.Condition()
        self._busy = 0
        self._slots: list[_Slot] = []

    def submit(self, orders: Sequence[Mapping[str, Any]]) -> list[Future[str]]:
        """Have jobs done, known all at once so that they can be stacked; what comes of each is an `Ending`."""
        some: list[tuple[dict[str, Any], Future[str]]] = [(dict(order), Future()) for order in orders]
        with self._changed:
            self._orders += some
            self._changed.notify(len(some))
        for _ in range(min(len(some), self.workers - len(self._slots))):
            self._slots.append(_Slot(self, len(self._slots)))
        return [future for _, future in some]

    def take(self) -> list[tuple[dict[str, Any], Future[str]]]:
        """The next job, with others that can be stacked on it, shared out fairly among idle workers; none: the end."""
        with self._changed:
            while not self._orders and not self.closing.is_set():
                self._changed.wait()
            if not self._orders:
                return []
            kind = self._orders[0][0].get("stack")
            alike = [each for each in self._orders if kind is not None and each[0].get("stack") == kind]
            share = -(-len(alike) // max(1, self.workers - self._busy))
            chosen = alike[: min(self.stack, share)] if alike and self.stack > 1 else self._orders[:1]
            self._orders = [each for each in self._orders if each not in chosen]
            self._busy += 1
            return chosen

    def gave(self) -> None:
        """A worker has nothing to do."""
        with self._changed:
            self._busy -= 1

    def close(self) -> None:
        """Have runs that are being trained save themselves and stop, and end all workers."""
        with self._changed:
            self.closing.set()
            self._changed.notify_all()
        for slot in self._slots:
            slot.stop()
        for slot in self._slots:
            slot.thread.join()


class _Slot:
    """One worker process after another, and the thread that talks to it."""

    def __init__(self, executor: LocalExecutor, number: int) -> None:
        self.executor, self.number = executor, number
        self.process: subprocess.Popen[str] | None = None
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while some := self.executor.take():
            try:
                endings = self._carry_out([order for order, _ in some])
                for (_, future), ending in zip(some, endings, strict=True):
                    future.set_result(ending)
            except BaseException as error:
                for _, future in some:
                    future.set_exception(error)
            self.executor.gave()
        self.stop()
        self._reap()

    def _carry_out(self, orders: list[dict[str, Any]]) -> list[str]:
        stopped = ["stopped"] * len(orders)
        for _ in range(TRIES):
            process = self._alive()
            if process is None:
                return stopped
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(orders) + "\n")
                process.stdin.flush()
                endings: list[str] = json.loads(process.stdout.readline() or "[]")
            except (OSError, ValueError):
                endings = []
            if endings:
                return endings
            code = self._reap()
            if self.executor.closing.is_set():
                return stopped
        for order in orders:
            died(order, f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}")
        return ["failed"] * len(orders)

    def _alive(self) -> subprocess.Popen[str] | None:
        """The worker, started if need be; None when it is too late for that."""
        with self.lock:
            if self.executor.closing.is_set():
                return None
            if self.process is None:
                threads = str(self.executor.threads)
                known = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)
                if self.executor.gpus:
                    known["CUDA_VISIBLE_DEVICES"] = self.executor.gpus[self.number % len(self.executor.gpus)]
                self.process = subprocess.Popen(  # noqa: S603  a list of words, no shell
                    [sys.executable, "-m", "aioli.runs.worker", json.dumps(self.executor.load)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, **known, "TOKENIZERS_PARALLELISM": "false", "PYTHONSAFEPATH": "1"},
                    start_new_session=True,  # Ctrl-C is for us; we tell the workers
                )
            return self.process

    def stop(self) -> None:
        """Tell the worker that there is nothing more to come."""
        with self.lock:
            if self.process is not None and self.process.stdin is not None:
                with suppress(OSError):
                    self.process.stdin.close()

    def _reap(self) -> int:
        """Wait for the end of the worker, but not for ever."""
        process = self.process
        if process is None:
            return 0
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        with self.lock, suppress(OSError):
            self.process = None
            for pipe in (process.stdout, process.stdin):
                if pipe is not None:
                    pipe.close()
        return code
