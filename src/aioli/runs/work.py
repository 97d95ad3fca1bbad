"""One job, in this process: claim it, train it, keep its result or its error and its log.

The same for every executor. An order is plain JSON (`Job.order`).
"""

from __future__ import annotations

import gc
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aioli import __version__
from aioli.files import LockedError, read_json, sweep, take_away, write_json
from aioli.runs.claim import BEAT, Claim, LostError
from aioli.runs.store import ERROR, LOG, RUN, START, sound_result, sound_start
from aioli.train.layout import CHECKPOINTS, RESULT

if TYPE_CHECKING:
    from aioli.train import Run

Ending = Literal["done", "busy", "stopped", "failed"]


def work(order: Mapping[str, Any], stop: threading.Event) -> Ending:
    """Carry out an order. `busy`: somebody else has it; `failed`: why is in error.json."""
    folder = Path(order["folder"])
    if finished(folder):
        return "done"
    try:
        claim = Claim.make(folder)
        if claim is None:
            return "busy"
        with claim, logged(folder / LOG):
            return _guarded(order, folder, claim, stop)
    except OSError as error:  # nothing can be written
        failed(folder, error)
        return "failed"
    finally:
        gc.collect()  # engine, hooks and mapped files are a cycle, which a worker would keep for many runs


def _guarded(order: Mapping[str, Any], folder: Path, claim: Claim, stop: threading.Event) -> Ending:
    try:
        return _train(order, folder, claim, stop)
    except (LostError, LockedError) as lost:
        print(f"aioli: {lost}", file=sys.stderr)
        return "busy"
    except Exception as error:
        traceback.print_exc()
        if claim.held:
            failed(folder, error)
        return "failed"


def _train(order: Mapping[str, Any], folder: Path, claim: Claim, stop: threading.Event) -> Ending:
    from aioli.train import StoppedError

    if finished(folder):  # finished between looking and claiming
        return "done"
    try:
        begin(order, claim, stop).train()
    except StoppedError as stopped:
        print(f"aioli: {stopped}")
        return "stopped"
    completed(order)
    return "done"


def begin(order: Mapping[str, Any], claim: Claim, stop: threading.Event) -> Run:
    """The run of an order, ready to train for as long as the claim is held, with the losses at its start on record."""
    from aioli.train import Run, TrainRecipe

    checked = time.monotonic()

    def after_step(run: Run) -> None:
        nonlocal checked
        if time.monotonic() - checked > BEAT:
            checked = time.monotonic()
            claim.check()

    folder = Path(order["folder"])
    (folder / ERROR).unlink(missing_ok=True)  # it is tried again
    if sound_result(folder) is None:
        (folder / RUN / RESULT).unlink(missing_ok=True)  # damaged
    print(f"aioli {__version__}, Python {platform.python_version()}, process {os.getpid()} on {os.uname().nodename}")
    run = Run(TrainRecipe.model_validate(order["recipe"]), folder / RUN, after_step, stop, known=True)
    run.check = claim.check
    _start_losses(run, Path(order["start"]), folder)
    return run


def completed(order: Mapping[str, Any]) -> None:
    """Tidy up after a run that is finished."""
    folder = Path(order["folder"])
    if not order["keep"]:
        take_away(folder / RUN / CHECKPOINTS)
    (folder / ERROR).unlink(missing_ok=True)
    sweep(folder / ERROR)


def failed(folder: Path, error: BaseException) -> None:
    """Write down why a run failed."""
    about = {
        "kind": type(error).__name__,
        "error": str(error) or type(error).__name__,
        "time": time.time(),
        "host": os.uname().nodename,
    }
    with suppress(OSError):  # the disk may be full, which is why
        write_json(folder / ERROR, about)


def finished(folder: Path) -> bool:
    """Whether there is nothing left to do."""
    return sound_result(folder) is not None and sound_start(folder) is not None


def _start_losses(run: Any, shared: Path, folder: Path) -> None:
    """Losses before the first step, which runs from one beginning share."""
    if sound_start(folder) is not None:
        return
    found = read_json(shared)
    if not isinstance(found, dict):
        found = run.start_losses()
        shared.parent.mkdir(exist_ok=True)
        write_json(shared, found)
    write_json(folder / START, found)


def died(order: Mapping[str, Any], how: str) -> None:
    """Write down that the process of a job has died again and again."""
    folder = Path(order["folder"])
    if not finished(folder):
        error = ChildProcessError(f"its process {how}, more than once; if memory is short, use fewer workers")
        failed(folder, error)


@contextmanager
def logged(file: Path) -> Iterator[None]:
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
