"""Who works on a run: one owner at a time, on this machine or another one that sees the same files.

    claim-000001.json  claim-000002.json  …

The owner is who made the claim with the highest number. The next number can be made only once (an exclusive create,
which network file systems do atomically), and only when the owner has let go or is dead: its process is gone, or on
another machine it has given no sign of life for a while. So two who find a dead owner cannot both become the next. Ages
are told by the clock of the file system.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from aioli.files import read_json

BEAT, DEAD = 5.0, 60.0
"""Seconds between signs of life, and without one until an owner on another machine is taken to be dead."""


class LostError(Exception):
    """The claim was taken over by somebody who took its owner for dead."""


class Claim:
    """Work on a run, held until it is let go: `with Claim.make(folder) as claim`."""

    def __init__(self, folder: Path, number: int, token: str) -> None:
        self.folder, self.number, self.token = folder, number, token
        self._stop = threading.Event()
        self._beat = threading.Thread(target=self._live, daemon=True)

    @classmethod
    def make(cls, folder: Path) -> Claim | None:
        """Claim a run; None if somebody else has it."""
        folder.mkdir(parents=True, exist_ok=True)
        number, owner = _latest(folder)
        if number and not _free(_file(folder, number), owner):
            return None
        token = uuid.uuid4().hex
        about = {"released": False, **_me(), "token": token}  # `released` first: _release knows where it is
        try:
            _create(_file(folder, number + 1), json.dumps(about))
        except FileExistsError:
            return None
        claim = cls(folder, number + 1, token)
        if not claim.held:  # made below a claim that was not there a moment ago
            _file(folder, number + 1).unlink(missing_ok=True)
            return None
        for old in range(max(1, number - 1), number + 1):
            _file(folder, old).unlink(missing_ok=True)
        for left in folder.glob(".claim-*"):  # by a process that was killed; one that lives has lost, and asks again
            left.unlink(missing_ok=True)
        return claim

    def __enter__(self) -> Claim:
        self._beat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stop.set()
        self._beat.join()
        with suppress(OSError):  # what cannot be written counts as dead when this process is
            self._release()

    def _release(self) -> None:
        if self.held:
            handle = os.open(_file(self.folder, self.number), os.O_WRONLY)
            try:  # in its place, at once: nothing is left behind by a kill, and a full disk has room for it
                os.pwrite(handle, b"true ", len('{"released": '))
            finally:
                os.close(handle)

    def _live(self) -> None:
        while not self._stop.wait(BEAT):
            with suppress(OSError):  # a file system may be away for a moment
                os.utime(_file(self.folder, self.number))

    @property
    def held(self) -> bool:
        """Whether it is still ours."""
        number, owner = _latest(self.folder)
        return number == self.number and (owner or {}).get("token") == self.token

    def check(self) -> None:
        """Refuse to go on when somebody else has taken over."""
        if not self.held:
            raise LostError(f"{self.folder} was taken over by another process; this one stops")


def owner_of(folder: Path) -> dict[str, Any] | None:
    """Who works on a run; None if nobody does."""
    number, owner = _latest(folder)
    return owner if number and not _free(_file(folder, number), owner) else None


def _file(folder: Path, number: int) -> Path:
    return folder / f"claim-{number:06d}.json"


def _create(file: Path, text: str) -> None:
    """Make a claim that was not there, at once with what it says: killed in between, nobody is kept off."""
    beside = file.with_name(f".claim-{uuid.uuid4().hex}")
    try:
        with beside.open("x", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        try:
            os.link(beside, file)
        except FileExistsError:
            raise
        except OSError:  # some file systems have no links
            with file.open("x", encoding="utf-8") as out:
                try:
                    out.write(text)
                    out.flush()
                except OSError:  # the disk is full: an empty claim would keep everybody off
                    file.unlink()
                    raise
    finally:
        beside.unlink(missing_ok=True)


def _latest(folder: Path) -> tuple[int, dict[str, Any] | None]:
    """The claim with the highest number, 0 if there is none; what it says is None while it is being written."""
    numbers = [int(file.stem[6:]) for file in folder.glob("claim-*.json") if file.stem[6:].isdigit()]
    number = max(numbers, default=0)
    found = read_json(_file(folder, number)) if number else None
    return number, found if isinstance(found, dict) else None


def _free(file: Path, owner: dict[str, Any] | None) -> bool:
    """Whether the owner of the latest claim has let go or is dead."""
    if owner is not None:
        if owner.get("released") is True:
            return True
        if owner.get("boot") is not None and owner.get("boot") == _boot():
            alive = _alive(owner)
            if alive is not None:
                return not alive
    probe = file.with_name(f".claim-clock-{uuid.uuid4().hex}")
    try:
        probe.touch()
        age = probe.stat().st_mtime - file.stat().st_mtime
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return age > DEAD


def _me() -> dict[str, Any]:
    seen = _seen(os.getpid())
    return {
        "process": os.getpid(),
        "started": None if seen is None else seen[1],
        "host": os.uname().nodename,
        "boot": _boot(),
        "time": time.time(),
    }


def _boot() -> str | None:
    """Tells machines of the same name apart, containers too."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _alive(owner: dict[str, Any]) -> bool | None:
    """Whether a process of this machine is the owner still; None where one may not know."""
    process = owner.get("process")
    if not isinstance(process, int) or process < 1:
        return None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to somebody else
        pass
    seen = _seen(process)
    if seen is None:
        return None  # processes of others may be hidden
    state, began = seen
    return state not in "ZX" and began == owner.get("started")  # a number that is used again belongs to another


def _seen(process: int) -> tuple[str, str] | None:
    """The state of a process, and when it began in ticks since boot."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], fields[19]
