"""One job, in this process: claim it, train it, keep its result or its error and its log.

The same for every executor. An order is plain JSON (`Job.order`).
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Literal

from aioli import __version__
from aioli.files import read_json, write_json
from aioli.runs.claim import BEAT, Claim, LostError
from aioli.runs.store import ERROR, LOG, RUN, START
from aioli.train.layout import CHECKPOINTS, RESULT

Ending = Literal["done", "busy", "stopped", "failed"]


def work(order: Mapping[str, Any], stop: threading.Event) -> Ending:
    """Carry out an order. `busy`: somebody else has it; `failed`: why is in error.json."""
    folder = Path(order["folder"])
    if _finished(folder):
        return "done"
    claim = Claim.make(folder)
    if claim is None:
        return "busy"
    with claim, _logged(folder / LOG):
        try:
            return _train(order, folder, claim, stop)
        except LostError as lost:
            print(f"aioli: {lost}", file=sys.stderr)
            return "busy"
        except Exception as error:
            traceback.print_exc()
            with suppress(OSError):  # the disk may be full, which is why
                write_json(folder / ERROR, _failure(error))
            return "failed"


def _train(order: Mapping[str, Any], folder: Path, claim: Claim, stop: threading.Event) -> Ending:
    from aioli.train import Run, StoppedError, TrainRecipe

    if _finished(folder):  # finished between looking and claiming
        return "done"
    checked = time.monotonic()

    def after_step(run: Run) -> None:
        nonlocal checked
        if time.monotonic() - checked > BEAT:
            checked = time.monotonic()
            claim.check()

    print(f"aioli {__version__}, Python {platform.python_version()}, process {os.getpid()} on {os.uname().nodename}")
    run = Run(TrainRecipe.model_validate(order["recipe"]), folder / RUN, after_step, stop, known=True)
    _start_losses(run, Path(order["start"]), folder)
    try:
        run.train()
    except StoppedError as stopped:
        print(f"aioli: {stopped}")
        return "stopped"
    shutil.rmtree(folder / RUN / CHECKPOINTS, ignore_errors=True)
    (folder / ERROR).unlink(missing_ok=True)
    return "done"


def _finished(folder: Path) -> bool:
    return (folder / RUN / RESULT).is_file() and (folder / START).is_file()


def _start_losses(run: Any, shared: Path, folder: Path) -> None:
    """Losses before the first step, which runs from one beginning share."""
    if (folder / START).is_file():
        return
    found = read_json(shared)
    if not isinstance(found, dict):
        found = run.start_losses()
        shared.parent.mkdir(exist_ok=True)
        write_json(shared, found)
    write_json(folder / START, found)


def _failure(error: BaseException) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "error": str(error) or type(error).__name__,
        "time": time.time(),
        "host": os.uname().nodename,
    }


def died(order: Mapping[str, Any], how: str) -> None:
    """Write down that the process of a job has died again and again."""
    folder = Path(order["folder"])
    if not (folder / RUN / RESULT).is_file():
        error = ChildProcessError(f"its process {how}, more than once; if memory is short, use fewer workers")
        with suppress(OSError):
            write_json(folder / ERROR, _failure(error))


@contextmanager
def _logged(file: Path) -> Iterator[None]:
    """Everything that is printed, also by libraries, goes to the log of the job."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(1), os.dup(2)]
    with file.open("a", encoding="utf-8", buffering=1) as log:
        try:
            for number in (1, 2):
                os.dup2(log.fileno(), number)
            with redirect_stdout(log), redirect_stderr(log):
                yield
        finally:
            for number, handle in zip((1, 2), before, strict=True):
                os.dup2(handle, number)
                os.close(handle)
