"""Small matrices are fastest on one thread: on a busy machine, waiting for the others takes longer than the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def _libraries() -> ThreadpoolController:
    """The linear algebra that NumPy has loaded; looking for it takes milliseconds."""
    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Linear algebra on one thread, within."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield
