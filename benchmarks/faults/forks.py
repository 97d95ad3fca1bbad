"""A command of aioli in a forked child of this process, which has imported everything already but computed nothing."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Setup = Callable[[], object]
LIBRARIES = ("aioli", "torch", "transformers", "accelerate", "safetensors", "tokenizers", "yaml", "pydantic", "scipy")
PATIENCE = 300.0
"""Seconds after which a child counts as hanging."""


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int
    """Its exit code; minus the signal that killed it."""
    out: str
    error: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def refused(self, *words: str) -> list[str]:
        """What is wrong with it as a refusal: exit code 2, one line that holds all words."""
        wrong = [] if self.code == 2 else [f"exit code {self.code}, not 2"]
        said = [line for line in self.error.splitlines() if line.startswith("aioli ")]
        if "Traceback" in self.error:
            wrong.append("a traceback: " + self.error.strip().splitlines()[-1])
        elif len(said) != 1:
            wrong.append(f"{len(said)} lines of error, not one")
        return wrong + [f"the message does not say {word!r}" for word in words if word not in self.error]


class Child:
    """A command on its way."""

    def __init__(self, place: Path, arguments: Sequence[str], setup: Setup | None = None) -> None:
        """Run `aioli ARGUMENTS` in a directory, after `setup` has done its mischief there."""
        self.files = place.with_name(f".{place.name}.out"), place.with_name(f".{place.name}.error")
        sys.stdout.flush()
        sys.stderr.flush()
        self.process = os.fork()
        if self.process == 0:
            _become(place, list(arguments), setup, self.files)
        self._code: int | None = None

    def over(self) -> bool:
        """Whether it has ended."""
        if self._code is None:
            found, status = os.waitpid(self.process, os.WNOHANG)
            if found:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if not self.over():
            os.kill(self.process, number)

    def wait(self, seconds: float = PATIENCE) -> Ended:
        """Its end; one that hangs is killed and counts as wrong by its code."""
        deadline = time.monotonic() + seconds
        while not self.over():
            if time.monotonic() > deadline:
                os.kill(self.process, signal.SIGABRT)
                deadline = float("inf")
            time.sleep(0.003)
        assert self._code is not None
        out, error = (file.read_text(errors="replace") if file.exists() else "" for file in self.files)
        return Ended(self._code, out, error)


def run(place: Path, arguments: Sequence[str], setup: Setup | None = None) -> Ended:
    """A command, to its end."""
    return Child(place, arguments, setup).wait()


def _become(place: Path, arguments: list[str], setup: Setup | None, files: Sequence[Path]) -> None:
    """Be the command; never returns."""
    code = 1
    try:
        for number, file in zip((1, 2), files, strict=True):
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(handle, number)
        os.chdir(place)
        sys.argv = ["aioli", *arguments]
        from aioli.cli import main

        if setup is not None:
            setup()
        code = main(arguments)
        sys.stdout.flush()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def preload(place: Path, commands: Sequence[Sequence[str]]) -> None:
    """Import here whatever these commands import, so that children need not; nothing is computed here."""
    for number, arguments in enumerate(commands):
        listing = place.with_name(f".modules{number}.json")

        def note(listing: Path = listing) -> None:
            real = os._exit

            def leave(code: int) -> None:
                listing.write_text(json.dumps(list(sys.modules)))
                real(code)

            os._exit = leave  # type: ignore[assignment]

        done = run(place, arguments, note)
        if done.code:
            raise RuntimeError(f"aioli {' '.join(arguments)} does not work here:\n{done.error}")
        for name in (name for name in json.loads(listing.read_text()) if name.partition(".")[0] in LIBRARIES):
            try:
                importlib.import_module(name)
            except Exception:  # made up by somebody, or for another system
                continue
