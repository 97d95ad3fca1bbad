"""Jobs in processes of this machine, one for each core or, where there are any, each GPU; one thread each unless told.

A worker trains one job after another. One that dies, because memory ran out or somebody killed it, is replaced, and its
job goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from aioli.runs.work import died

TRIES = 3
"""Processes that may die of one job before it counts as failed."""
PATIENCE = 60.0
"""Seconds that workers have to save themselves when they are told to stop."""


class LocalExecutor:
    """Worker processes."""

    def __init__(self, workers: int | None = None, threads: int = 1, load: Sequence[str] = ()) -> None:
        """`load`: Python files of the user's that workers must know, because they define rules."""
        self.gpus = gpus()
        found = (len(self.gpus) or os.cpu_count() or 1) if workers is None else workers
        if found < 1 or threads < 1:
            raise ValueError(f"workers={found} and threads={threads} must be at least 1")
        self.workers, self.threads, self.load = found, threads, [os.path.abspath(file) for file in load]
        self._orders: queue.SimpleQueue[tuple[dict[str, Any], Future[str]] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._slots: list[_Slot] = []

    def submit(self, order: Mapping[str, Any]) -> Future[str]:
        """Have a job done; what comes of it is an `Ending`."""
        found: Future[str] = Future()
        self._orders.put((dict(order), found))
        if len(self._slots) < self.workers:
            self._slots.append(_Slot(self, len(self._slots)))
        return found

    def close(self) -> None:
        """Have runs that are being trained save themselves and stop, and end all workers."""
        self._closing.set()
        for slot in self._slots:
            self._orders.put(None)
            slot.stop()
        for slot in self._slots:
            slot.thread.join()


def gpus() -> list[str]:
    """The GPUs that may be used here, without loading torch."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip() not in ("", "-1")]
    found = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return sorted((number for number in found if number.isdigit()), key=int)


class _Slot:
    """One worker process after another, and the thread that talks to it."""

    def __init__(self, executor: LocalExecutor, number: int) -> None:
        self.executor, self.number = executor, number
        self.process: subprocess.Popen[str] | None = None
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while (got := self.executor._orders.get()) is not None:
            order, future = got
            try:
                future.set_result("stopped" if self.executor._closing.is_set() else self._carry_out(order))
            except BaseException as error:
                future.set_exception(error)
        self.stop()
        self._reap()

    def _carry_out(self, order: dict[str, Any]) -> str:
        for _ in range(TRIES):
            process = self._alive()
            if process is None:
                return "stopped"
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(order) + "\n")
                process.stdin.flush()
                ending = process.stdout.readline().strip()
            except (OSError, ValueError):
                ending = ""
            if ending:
                return ending
            code = self._reap()
            if self.executor._closing.is_set():
                return "stopped"
        died(order, f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}")
        return "failed"

    def _alive(self) -> subprocess.Popen[str] | None:
        """The worker, started if need be; None when it is too late for that."""
        with self.lock:
            if self.executor._closing.is_set():
                return None
            if self.process is None:
                threads = str(self.executor.threads)
                known = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)
                if self.executor.gpus:
                    known["CUDA_VISIBLE_DEVICES"] = self.executor.gpus[self.number % len(self.executor.gpus)]
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "aioli.runs.worker", json.dumps(self.executor.load)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, **known, "TOKENIZERS_PARALLELISM": "false"},
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
