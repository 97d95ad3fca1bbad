"""The command line: one module per command, this one to find them and to turn errors into one line."""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from aioli import __version__
from aioli.cli import (
    analyze,
    compare,
    demo,
    eval,
    export,
    fit,
    groups,
    methods,
    mix,
    plan,
    predict,
    prepare,
    report,
    reproduce,
    runs,
    simulate,
    solve,
    train,
    ui,
    watch,
)
from aioli.cli.show import plain
from aioli.files import no_space
from aioli.options import nearest

LONGEST, LINES = 1000, 10
"""Characters of a line of a complaint, and lines, that are shown at most."""
COMMANDS = (
    demo,
    groups,
    prepare,
    train,
    watch,
    plan,
    mix,
    compare,
    runs,
    eval,
    fit,
    predict,
    solve,
    analyze,
    export,
    report,
    ui,
    reproduce,
    simulate,
    methods,
)


class _Parser(argparse.ArgumentParser):
    """Names what was probably meant."""

    def error(self, message: str) -> NoReturn:
        """One line more than argparse's own."""
        found = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        hint = nearest(found[1], re.findall(r"[\w-]+", found[2])) if found else ""
        super().error(message + hint)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = _Parser(
        prog="aioli",
        description="Choose how much of each data group a language model should see, and feed it that mixture.",
        epilog="`aioli COMMAND --help` shows examples.",
    )
    top.add_argument("--version", action="version", version=f"aioli {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.add(commands)
    for command in commands.choices.values():
        command.set_defaults(known=[word for word in command._option_string_actions if word.startswith("--")])
    return top


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Arguments; settings such as context=64 may stand anywhere among the options."""
    top = parser()
    options, rest = top.parse_known_args(arguments)
    dashed = any(word.startswith("-") for word in rest)
    if rest and hasattr(options, "keys") and not dashed:
        options.keys += rest
        return options
    if rest and (not hasattr(options, "settings") or dashed):
        hint = _hint(next(word for word in rest if word.startswith("-")), options) if dashed else ""
        top.error(f"unrecognized arguments: {' '.join(rest)}{hint}; see aioli {options.command} --help")
    if rest:
        options.settings += rest
    return options


def _hint(word: str, options: argparse.Namespace) -> str:
    name = word.partition("=")[0]
    return f" ({name} goes after {options.command})" if name in options.known else nearest(name, options.known)


class Terminated(BaseException):
    """SIGTERM, as an exception: commands clean up as they do for Ctrl-C."""


def _terminated(number: int, frame: object) -> None:
    raise Terminated


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM is an exception for as long as a command runs, and what it was before, once it has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told = sys.unraisablehook

    def again(lost: sys.UnraisableHookArgs) -> None:
        """Python cannot raise within a finalizer: once more, a little later."""
        if lost.exc_type is not Terminated:
            told(lost)
            return
        later = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
        later.daemon = True
        later.start()

    before = signal.signal(signal.SIGTERM, _terminated)
    sys.unraisablehook = again
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
        sys.unraisablehook = told


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; bad input is one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without UTF-8 gets question marks, not a failure
            stream.reconfigure(errors="replace")
    options = _parse(arguments)
    try:
        with _terminable():
            return _run(options)
    except Terminated:
        print("terminated", file=sys.stderr)
        return 143


def _run(options: argparse.Namespace) -> int:
    """Run a command; what goes wrong, in its own words."""
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except ValueError as error:
        return _refused(options.command, str(error))
    except BrokenPipeError:  # the reader, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a file that may not be read, a name that is too long, a disk that is full
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        what = "no space left to write" if no_space(error) else error.strerror or error
        return _refused(options.command, f"{where}{what}")
    except (MemoryError, RuntimeError) as error:  # torch has no error of its own for memory that is not there
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        return _refused(options.command, "there is not enough memory for this")
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def _refused(command: str, message: str) -> int:
    """Say why; words from data in it cannot steer a terminal, or fill it."""
    lines = [plain(line) for line in message.splitlines()]
    shown = [line if len(line) <= LONGEST else f"{line[:LONGEST]}…" for line in lines[:LINES]]
    rest = [f"… and {len(lines) - LINES} more lines"] if len(lines) > LINES else []
    print(f"aioli {command}: " + "\n".join([*shown, *rest]), file=sys.stderr)
    return 2
