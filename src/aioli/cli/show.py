"""What commands print: aligned tables, numbers, and a progress bar with the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns aligned: the first `left` to the left, the others to the right."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[c]) for row in cells) for c in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.ljust(w) if c < left else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(cells[0]), "  ".join("─" * w for w in widths), *(line(row) for row in cells[1:])])


def progress(label: str, stream: TextIO | None = None) -> Callable[[int, int], None]:
    """A bar on a terminal, nothing elsewhere; call it with what is done and the total."""
    out = sys.stderr if stream is None else stream
    began = time.monotonic()

    def show(done: int, total: int) -> None:
        if not out.isatty():
            return
        filled = round(24 * done / total)
        left = (time.monotonic() - began) * (total - done) / max(done, 1)
        out.write(f"\r{label} {'█' * filled}{'░' * (24 - filled)} {done}/{total}  {left:4.0f} s left ")
        if done == total:
            out.write("\r" + " " * (len(label) + 60) + "\r")
        out.flush()

    return show


def share(value: float) -> str:
    """A fraction as whole percent."""
    return f"{round(100 * value) + 0}%"
