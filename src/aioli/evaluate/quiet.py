"""lm-eval and the libraries below it talk a lot: within `quiet` nobody hears them, and nothing is left behind."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

ONE_PROCESS = "DISABLE_MULTIPROC"
"""Has lm-eval draw its bootstrap samples in this process, instead of in forks of one that holds a model."""


class _Nowhere(io.TextIOBase):
    """Takes what is written, and keeps none of it."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


@contextmanager
def quiet() -> Iterator[None]:
    """Without output, logs and warnings; what is to be seen must be written to a stream that was taken before."""
    before, processes = logging.root.manager.disable, os.environ.get(ONE_PROCESS)
    logging.disable(logging.CRITICAL)
    os.environ[ONE_PROCESS] = "1"
    try:
        with redirect_stdout(_Nowhere()), redirect_stderr(_Nowhere()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        if processes is None:
            del os.environ[ONE_PROCESS]
        else:
            os.environ[ONE_PROCESS] = processes


def reason(error: BaseException) -> str:
    """What went wrong, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kind = type(error).__name__
    return kind if not lines else lines[0] if isinstance(error, OSError | ValueError) else f"{kind}: {lines[0]}"
