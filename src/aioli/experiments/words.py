"""Numbers and remarks of result pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Block = str | tuple[Sequence[str], Sequence[Sequence[str]]]
"""A paragraph, or a table: header and rows."""


def cell(text: str) -> str:
    """Safe inside a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def signed(value: float | None, span: Sequence[float] | None, digits: int = 2) -> str:
    """A difference with its interval; bold where that excludes zero."""
    if value is None:
        return "–"
    text = f"{value:+.{digits}f}"
    if span is None or any(end is None for end in span):
        return text
    text += f" [{span[0]:+.{digits}f}, {span[1]:+.{digits}f}]"
    return f"**{text}**" if span[0] * span[1] > 0 else text


def percent(value: float | None, span: Sequence[float] | None) -> str:
    """A share with its interval."""
    if value is None:
        return "–"
    return f"{value:.0%}" + ("" if span is None else f" [{span[0]:.0%}, {span[1]:.0%}]")


def beside(here: str, there: str | None) -> str:
    """A number next to the paper's."""
    return here if there is None else f"{here} *({there})*"


def number(summary: Callable[[Any], Any], values: Sequence[float | None], form: str) -> str:
    """A summary of numbers; a dash where one of them is not known."""
    return "–" if any(value is None for value in values) else format(float(summary(values)), form)


def mixture(p: Sequence[float]) -> str:
    """Shares in a few characters."""
    return ", ".join(f"{v:.2f}" for v in p)


def plural(count: int, word: str) -> str:
    """1 seed, 2 seeds."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def made_with(found: Mapping[str, Any]) -> str:
    """Seeds, versions, machine and time, of all settings."""
    entries = list(found["settings"].values())
    seeds = sorted({len(entry["seeds"]) for entry in entries})
    made = entries[-1]["made"]
    count = plural(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    groups = sorted({group for entry in entries for group in entry["made"]["data"]["tokens"]})
    prints = dict.fromkeys(entry["made"]["data"]["fingerprint"][:12] for entry in entries)
    return (
        f"{count}; aioli {made['aioli']}, torch {made['torch']}, {made['machine']['cores']} cores; data "
        f"{', '.join(prints)} ({len(groups)} groups)."
    )
