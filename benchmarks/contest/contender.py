"""The process of a contestant, as benchmarks/peers.py sees it: orders go in, answers come out."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np


class FailedError(Exception):
    """A contestant that cannot go on, with the reason."""


class Contender:
    """The process of a contestant."""

    def __init__(self, name: str, python: str, file: Path, place: Path) -> None:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.name, self.place = name, place
        command = [python, str(Path(__file__).with_name("worker.py")), name, str(file), str(place)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environ,
        )

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise FailedError(f"its process ended with {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        if "failed" in found:
            raise FailedError(found["failed"])
        return found

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise FailedError(f"its process ended with {self.process.wait()}") from None

    def order(self, name: str, timed: bool = False, job: Any = (), die: int | None = None, **options: Any) -> None:
        """A timed run, or one in a process of its own."""
        order = {"name": name, "run": options, "job": dict(job), "timed": timed, "fork": not timed, "die": die}
        self.say(json.dumps(order))

    def alone(self, name: str, **order: Any) -> Any:
        """A run that nobody waits for: what was recorded."""
        self.order(name, **order)
        found = self.answer()
        if found["problem"] is not None:
            raise FailedError(found["problem"])
        return np.load(found["record"])

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
