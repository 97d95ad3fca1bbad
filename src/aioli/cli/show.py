"""What commands print: aligned tables, numbers, and a progress bar with the time left."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from aioli.report.text import bar, clock, columns_of


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns aligned: the first `left` to the left, the others to the right."""
    cells = [[plain(cell) for cell in row] for row in (header, *rows)]
    widths = [max(columns_of(row[c]) for row in cells) for c in range(len(header))]

    def line(row: Sequence[str]) -> str:
        gaps = [" " * (w - columns_of(cell)) for cell, w in zip(row, widths, strict=True)]
        padded = (cell + gap if c < left else gap + cell for c, (cell, gap) in enumerate(zip(row, gaps, strict=True)))
        return "  ".join(padded).rstrip()

    return "\n".join([line(cells[0]), "  ".join("─" * w for w in widths), *(line(row) for row in cells[1:])])


def say(text: str) -> None:
    """Print lines in which words from data may occur."""
    print("\n".join(plain(line) for line in text.splitlines()))


def plain(text: str) -> str:
    """Text from data, without what would steer a terminal."""
    return "".join(c if c.isprintable() else "�" for c in text)


def progress(label: str, stream: TextIO | None = None) -> Callable[[int, int], None]:
    """A bar on a terminal, nothing elsewhere; call it with what is done and the total."""
    bar = Bar(label, stream)
    return lambda done, total: bar.show(done, total, f"{done}/{total}")


class Bar:
    """A progress bar with the time left; elsewhere than on a terminal, a line a minute."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self.label, self.out = label, sys.stderr if stream is None else stream
        self.began, self.first, self.written, self.width = time.monotonic(), -1, 0.0, 0

    def show(self, done: int, total: int, words: str, rest: str = "") -> None:
        """Say how far it has got; a total of 0 is unknown. `rest` comes last, as far as there is room."""
        now = time.monotonic()
        if self.first <= 0:
            self.first, self.began = done, now  # what was done before is no measure of speed
        terminal = self.out.isatty()
        pause = 0.1 if terminal else 5 if self.written == 0 else 30
        if now - (self.written or self.began) < pause and done != total:
            return
        gone = max(done - self.first, 0)
        left = "" if not (total and gone) else f"  {clock((now - self.began) * (total - done) / gone)} left"
        if terminal:
            self.written = now
            columns = shutil.get_terminal_size((80, 24)).columns
            size = 24 if columns >= 110 else 10
            drawn = f"{bar(done, total, size)} " if total else ""
            line = f"{self.label} {drawn}{words}{left}{'  ' * bool(rest)}{rest}"[: columns - 1]
            self.out.write("\r" + line.ljust(self.width))
            self.width = len(line)
            if total and done >= total:
                self.clear()
        elif now - self.began > 1 and (not total or done < total):
            self.written = now
            self.out.write(f"{self.label} {words}{left}{'  ' * bool(rest)}{rest}\n")
        self.out.flush()

    def clear(self) -> None:
        """Wipe the bar off the terminal."""
        if self.width and self.out.isatty():
            self.out.write("\r" + " " * self.width + "\r")
            self.out.flush()
            self.width = 0


def need(extra: str, *modules: str) -> None:
    """Refuse, with the remedy, to go on without what an extra installs."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"this needs {missing[0]}, which is not installed; pip install 'aioli-mix[{extra}]'")


def share(value: float) -> str:
    """A fraction as whole percent."""
    return f"{round(100 * value) + 0}%"
