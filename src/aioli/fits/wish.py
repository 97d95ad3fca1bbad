"""What is wanted of a mixture: which targets count how much, and bounds on the shares, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from aioli.fits.table import Runs
from aioli.simplex import Array, as_weights, box, uniform


@dataclass(frozen=True)
class Wish:
    """What is wanted: targets and their weights, and bounds on shares."""

    target_weights: Array
    """Of every target of the fit; 0 leaves one out."""
    low: Array
    high: Array
    simple: Mapping[str, Array] = field(default_factory=dict)
    """Simple mixtures to compare with, by name."""

    @classmethod
    def of(
        cls,
        runs: Runs,
        weights: Mapping[str, float] | None = None,
        floors: Mapping[str, float] | None = None,
        caps: Mapping[str, float] | None = None,
        targets: tuple[str, ...] | None = None,
        natural: Mapping[str, float] | None = None,
    ) -> Wish:
        """By name; a target that is not named counts once, a group without bounds has none."""
        chosen = (
            _named(dict.fromkeys(targets, 1.0), runs.targets, "target", 0.0) if targets else np.ones(len(runs.targets))
        )
        counted = chosen * _named(weights or {}, runs.targets, "target", 1.0)
        if (counted < 0).any() or not np.isfinite(counted).all() or not counted.any():
            raise ValueError(f"target weights {counted.tolist()} must not be negative, and one must be above 0")
        low = _named(floors or {}, runs.groups, "group", 0.0)
        high = _named(caps or {}, runs.groups, "group", 1.0)
        for group, a, b in zip(runs.groups, low, high, strict=True):
            if a > b:
                raise ValueError(f"{group} must be at least {a:g} and at most {b:g}, which cannot be")
        box(len(runs.groups), low, high)
        simple = {"uniform": uniform(len(runs.groups))}
        if natural:
            sizes = _named(natural, runs.groups, "group", 0.0)
            if not (sizes.sum() > 0 and np.isfinite(sizes).all() and sizes.min() >= 0):
                raise ValueError(f"tokens {sizes.tolist()} must not be negative, and one group must have some")
            simple["natural"] = sizes / sizes.sum()
        return cls(as_weights(counted, len(counted)), low, high, simple)


def _named(values: Mapping[str, float], names: tuple[str, ...], what: str, rest: float) -> Array:
    unknown = [name for name in values if name not in names]
    if unknown:
        raise ValueError(f"there is no {what} {unknown[0]!r}; there are {', '.join(names)}")
    return np.array([float(values.get(name, rest)) for name in names])


def caps_from_tokens(
    available: Mapping[str, float], groups: tuple[str, ...], budget: float, epochs: float
) -> dict[str, float]:
    """The largest share of each group that does not repeat its tokens more than `epochs` times within the budget."""
    if not (np.isfinite(budget) and budget > 0) or not (np.isfinite(epochs) and epochs > 0):
        raise ValueError(f"--budget {budget:g} and --max-epochs {epochs:g} must be positive")
    _named(available, groups, "group", 0.0)
    missing = [group for group in groups if group not in available]
    if missing:
        raise ValueError(
            f"how many tokens there are of {missing[0]!r} is not said; give a number for every group, or 0"
        )
    for group, tokens in available.items():
        if not (np.isfinite(tokens) and tokens >= 0):
            raise ValueError(f"{group} has {tokens} tokens available; give a number that is not negative")
    caps = {group: min(1.0, available[group] * epochs / budget) for group in groups}
    if sum(caps.values()) < 1.0:
        have = sum(available.values()) * epochs
        raise ValueError(
            f"{sum(available.values()):.3g} tokens at most {epochs:g} times are {have:.3g}, fewer than the budget of "
            f"{budget:.3g}; allow more epochs, a smaller budget, or add data"
        )
    return caps
