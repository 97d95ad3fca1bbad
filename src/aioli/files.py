"""Writing that survives crashes: whole files or none, one writer at a time, and errors that say what to do.

Documents carry a checksum of what they say. Those without one, which older versions wrote, are read and said to be
unchecked.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_UMASK = os.umask(0)
os.umask(_UMASK)
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TRIES = 5
CHECKSUM = "checksum"
_COMMENT = "# sha256 of the lines above: "
_LOG = logging.getLogger("aioli")
_SAID: set[str] = set()
MOST = 1 << 28
"""Bytes of the largest file of plain data that is read at once: manifests, results, fits and recipes are small."""


class LockedError(ValueError):
    """Somebody else holds a directory."""


def readable(path: Path) -> None:
    """Give files the rights that other new files have; some libraries write them for their owner alone."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            file.chmod(0o666 & ~_UMASK)


def new_directory(beside: Path) -> Path:
    """A new directory next to a path, with the rights that other new directories have."""
    made = Path(tempfile.mkdtemp(prefix=f".{beside.name}.", dir=beside.parent))
    made.chmod(0o777 & ~_UMASK)
    return made


def put_directory(made: Path, place: Path) -> None:
    """Put a finished directory in its place; one that was there is removed when the new one stands."""
    if not place.exists():
        os.replace(made, place)
    else:
        aside = new_directory(place)
        os.replace(place, aside / "old")
        os.replace(made, place)
        shutil.rmtree(aside, ignore_errors=True)
    sync_directory(place.parent)


def take_away(place: Path) -> None:
    """Remove a directory, at once: nobody takes half of it for the whole."""
    gone = place.with_name(f".{place.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    if place.is_dir():
        os.replace(place, gone)
        shutil.rmtree(gone, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """Make renames inside a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(path: Path) -> None:
    """Make everything in a directory durable."""
    for folder, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(folder, name), "rb+") as file:
                os.fsync(file.fileno())
        sync_directory(Path(folder))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, an object with its checksum: readers see the old one or the new one, also after a
    crash."""
    write_text(path, json.dumps(sealed(value) if isinstance(value, dict) else value, indent=1))


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """An object of JSON with its checksum."""
    return {**value, CHECKSUM: _digest(json.loads(json.dumps(value)))}


def unsealed(value: Any, path: Path, what: str | None = None) -> Any:
    """What was sealed; one that says something else by now is refused by its name. `what` is the kind of file that is
    said to be unchecked if it has no checksum; None: that is as it should be."""
    if isinstance(value, dict) and value and CHECKSUM not in value:
        last = next(reversed(value))
        rest = {key: inner for key, inner in value.items() if key != last}
        if value[last] == _digest(rest):
            damaged(path, "only the name of its checksum, and it is used: what it says is whole")
            return rest
    if not isinstance(value, dict) or CHECKSUM not in value:
        if what is not None:
            unchecked(path, what)
        return value
    rest = {key: inner for key, inner in value.items() if key != CHECKSUM}
    if _digest(rest) != value[CHECKSUM]:
        raise ValueError(
            f"{path} does not match its checksum: it is damaged, or was changed by hand (then remove its {CHECKSUM!r})"
        )
    return rest


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def unchecked(path: Path, what: str) -> None:
    """Say, once for each kind of file, that one has no checksum."""
    if what not in _SAID:
        _SAID.add(what)
        _LOG.warning("worth knowing: %s is unchecked: the %s has no checksum, as older versions wrote it", path, what)


def sealed_text(text: str) -> str:
    """A text with its checksum in a comment, as YAML has them."""
    return f"{text}{_COMMENT}{hashlib.sha256(text.encode()).hexdigest()}\n"


def check_text(text: str, path: Path) -> None:
    """Refuse a text that is not what was sealed."""
    body, comment, digest = text.rpartition(_COMMENT)
    if comment and hashlib.sha256(body.encode()).hexdigest() != digest.strip():
        raise ValueError(
            f"{path} does not match its checksum: it is damaged, or was changed by hand (then remove its last line)"
        )


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; what a process that was killed while it wrote the same file left is removed."""
    sweep(path)
    for left in range(_TRIES - 1, -1, -1):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                with suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_EX)  # says that its writer lives
                os.fchmod(handle, 0o666 & ~_UMASK)  # readable by whoever may read other new files
                out.write(text)
                out.flush()
                os.fsync(handle)
                os.replace(name, path)
            break
        except FileNotFoundError:  # swept by somebody before it was locked
            if not left or not path.parent.is_dir():
                raise
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
    sync_directory(path.parent)


def sweep(path: Path) -> None:
    """Remove temporary files of `write_text` for a path whose writers are dead."""
    for name in glob.glob(f".{glob.escape(path.name)}.{'?' * 8}", root_dir=path.parent):
        with suppress(OSError):
            handle = os.open(path.parent / name, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path.parent / name)
            finally:
                os.close(handle)


def read_text(path: Path, most: int | None = None) -> str:
    """The text of a file; one of more than `most` bytes is refused before it fills the memory."""
    most = MOST if most is None else most
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} has more than {most / 1e6:,.0f} MB, which is too much for a file of its kind")
    return content.decode("utf-8")


def read_json(path: Path, instead: str | None = None) -> Any:
    """The content of a JSON file, without its checksum; None if it is not there, not JSON, damaged or far too large.
    `instead` is what is done without it: said, once, of a file that is there and damaged."""
    try:
        return unsealed(json.loads(read_text(path)), path)
    except OSError:
        return None
    except (ValueError, RecursionError):
        if instead is not None:
            damaged(path, instead)
        return None


def damaged(path: Path, instead: str) -> None:
    """Say, once for each file, that one is damaged, and what is done instead of using it."""
    if str(path) not in _SAID:
        _SAID.add(str(path))
        _LOG.warning("worth knowing: %s is damaged: %s", path, instead)


@contextmanager
def locked(directory: Path, what: str) -> Iterator[None]:
    """Hold a directory for this process alone, making it if need be; a dead owner's lock is free again."""
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # its last owner has just finished and removed it
            continue
        try:
            try:
                _hold(handle)
            except BlockingIOError:
                owner = os.pread(handle, 100, 0).decode(errors="replace") or "another process"
                raise LockedError(f"{what} is being written by {owner}; wait for it, or choose another place") from None
            if _still_there(directory / "lock", handle):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
                try:
                    yield
                finally:
                    with suppress(OSError):
                        os.unlink(directory / "lock")
                return
        finally:
            os.close(handle)


def _hold(handle: int, tries: int = 5) -> None:
    """Lock a file; somebody who only asks whether it is locked (`is_locked`) is out of the way in a moment."""
    for left in range(tries - 1, -1, -1):
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(0.01)
        except OSError as error:  # some network file systems have no locks
            if error.errno not in _NO_LOCKS:
                raise
            return


def _still_there(path: Path, handle: int) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(handle)
    return (found.st_ino, found.st_dev) == (mine.st_ino, mine.st_dev)


def no_space(error: OSError) -> bool:
    """Whether it is for want of space that something cannot be written."""
    return error.errno in _NO_SPACE


@contextmanager
def explained(place: Path, kept: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn what the disk refuses into one line that names the place and says what was kept."""
    try:
        yield
    except OSError as error:
        where = error.filename or place
        message = f"no space left to write {where}" if no_space(error) else f"{where}: {error.strerror or error}"
        raise ValueError(f"{message}{kept()}") from error


def disk_trouble(error: Exception) -> OSError | None:
    """What the disk refused, where a library in another language tells it in words: `… (os error 28)`."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return None if number is None else OSError(int(number[1]), os.strerror(int(number[1])))


def is_locked(directory: Path) -> bool:
    """Whether a process holds a directory; asking does not disturb it."""
    try:
        handle = os.open(directory / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
