"""Tables and words in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [_line(header), f"| {' | '.join(['---'] * len(header))} |", *(_line(row) for row in rows)]


def _line(row: Sequence[str]) -> str:
    return f"| {' | '.join(safe(cell) for cell in row)} |"


def safe(text: str) -> str:
    """Words from data cannot open a table, a link or a tag."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    for sign in "\\|<>[]`*_":
        plain = plain.replace(sign, f"\\{sign}")
    return plain
