"""The n-th touch of the disk: writes, syncs, renames and removals of a child are counted, and one of them goes wrong.

A write that is hit leaves half of its bytes behind, a file of tensors half of itself. Patched are the names that
Python code calls; what libraries write in C or Rust is seen where we call them.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("replace", "rename", "fsync", "unlink", "truncate", "ftruncate", "mkdir", "rmdir", "pwrite", "utime")
REFUSED = {"full": errno.ENOSPC, "broken": errno.EIO}


class Events:
    """Counts touches in this process; at number `at` it is killed, or the disk refuses from then on."""

    def __init__(self, at: int | None = None, how: str = "kill", listing: Path | None = None) -> None:
        self.at, self.how, self.listing = at, how, listing
        self.count = 0
        self.kinds: list[str] = []
        self.owner = 0

    def __call__(self) -> None:
        """Patch this process."""
        self.owner = os.getpid()
        for name in CALLS:
            setattr(os, name, self._counted(name, getattr(os, name)))
        import builtins

        opened = io.open
        io.open = builtins.open = lambda *a, **k: self._watched(opened(*a, **k), a, k)  # type: ignore[assignment]
        self._tensors()
        if self.listing is not None:
            leave = os._exit

            def listed(code: int) -> None:
                with opened(self.listing, "w") as out:
                    json.dump(self.kinds, out)
                leave(code)

            os._exit = listed  # type: ignore[assignment]

    def _hit(self, kind: str, half: Callable[[], object] = lambda: None) -> None:
        """A touch; `half` leaves behind what a crash in the middle of it would."""
        if os.getpid() != self.owner:
            return
        self.count += 1
        self.kinds.append(kind)
        if self.at is None or self.count < self.at or (self.how == "kill" and self.count > self.at):
            return
        if self.how == "kill":
            half()
            os.kill(os.getpid(), signal.SIGKILL)
        if kind not in ("unlink", "rmdir", "ftruncate", "truncate"):  # removing works on a full disk
            half()
            raise OSError(REFUSED[self.how], os.strerror(REFUSED[self.how]))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._hit(name)
            return real(*arguments, **named)

        return call

    def _watched(self, file: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        mode = named.get("mode", arguments[1] if len(arguments) > 1 else "r")
        where = arguments[0]
        if not set(mode) & set("wax+") or file.fileno() <= 2 or str(where).startswith(("/dev", "/proc")):
            return file
        return _File(file, self, "journal append" if str(where).endswith("journal.jsonl") else "write")

    def _tensors(self) -> None:
        """Files of tensors are written by safetensors, in Rust."""
        from aioli.train import checkpoint

        real = checkpoint.save_file

        def save_file(tensors: Any, path: Any, *more: Any, **named: Any) -> None:
            def half() -> None:
                real(tensors, path, *more, **named)
                handle = os.open(path, os.O_RDWR)
                os.posix_fallocate(handle, 0, 1)
                size = os.fstat(handle).st_size
                os.close(handle)
                _truncate(path, size // 2)

            self._hit("checkpoint write", half)
            real(tensors, path, *more, **named)

        checkpoint.save_file = save_file


_truncate = os.truncate


class _File:
    """An open file whose writes are touches."""

    def __init__(self, file: Any, events: Events, kind: str) -> None:
        self._file, self._events, self._kind = file, events, kind

    def write(self, content: Any) -> Any:
        def half() -> None:
            self._file.write(content[: len(content) // 2])
            self._file.flush()

        self._events._hit(self._kind, half)
        return self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *why: Any) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)
