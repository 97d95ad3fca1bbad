"""Results that need not be measured again: methods whose hash is in a record, while others have changed or are new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aioli.experiments.settings import SWEEP
from aioli.runs.comparison import BASE, Row


@dataclass(frozen=True)
class Kept:
    """What a record has that is still true."""

    rows: dict[str, dict[int, Row]] = field(default_factory=dict)
    """By method and seed."""
    best: dict[int, float] = field(default_factory=dict)
    """Losses of the sweep's best mixture, by the seed that judged it."""
    longer: dict[str, Any] | None = None
    """What stratified lost when it was trained longer."""
    made: dict[str, Any] | None = None
    """With what and when the record was made."""

    def to_json(self) -> dict[str, Any] | None:
        """Which methods were kept, and what they were made with."""
        return {"methods": list(self.rows), "made": self.made} if self.rows else None


def kept(recorded: Mapping[str, Any], each: Mapping[str, str], seeds: range) -> Kept:
    """What to keep of a record, which has the hash of each of its methods (`each`), the base among them.

    Nothing of one with other seeds: which seed judges which sweep depends on how many there are."""
    known, comparison = recorded.get("each"), recorded.get("comparison")
    if not isinstance(known, Mapping) or not isinstance(comparison, Mapping) or recorded["seeds"] != list(seeds):
        return Kept()
    try:
        rows = {
            score["method"]: {row["seed"]: _row(row) for row in score["rows"]}
            for score in comparison["scores"]
            if known.get(score["method"]) == each.get(score["method"]) is not None and not score["failed"]
        }
        rows = {name: found for name, found in rows.items() if sorted(found) == list(seeds)}
        if BASE not in rows:
            return Kept()
        best = _best(recorded, {seed: row.loss for seed, row in rows[BASE].items()})
    except (KeyError, TypeError, ValueError, AttributeError):  # a record of another form is measured again
        return Kept()
    if best is None and "ranked" in recorded:
        rows.pop(SWEEP, None)
    earlier = recorded.get("kept") or {}
    made = {**recorded["made"], "before": earlier["made"]} if earlier else recorded["made"]
    longer = recorded.get("longer")
    sound = isinstance(longer, Mapping) and {int(seed) for seed in longer.get("losses", ())} == set(seeds)
    return Kept(rows, best or {}, dict(longer) if longer and sound else None, made)


def _row(plain: Mapping[str, Any]) -> Row:
    """A row; what is no number any more, because it was infinite, is refused."""
    row = Row(**plain)
    if not all(isinstance(value, float | int) for value in (row.loss, row.perplexity, *row.losses.values())):
        raise ValueError(f"a row of seed {row.seed} has no loss")
    return row


def _best(recorded: Mapping[str, Any], base: Mapping[int, float]) -> dict[int, float] | None:
    """What the sweep's best mixture lost, from what it gained over the base; None where that is not recorded."""
    ranked = recorded.get("ranked")
    if not ranked or recorded.get("room_failed"):
        return None
    gains = ranked["room"]["gains"]
    return {int(seed): base[int(seed)] - float(gain) for seed, gain in gains.items()}
