"""Room before rank: a method can only win where there is something to win.

The room of a setting is what the best static mixture of a sweep gains over stratified. It is chosen by validation loss
among the runs of one seed and judged by test loss with another seed, against stratified of that seed: judged by the run
it was chosen for, it would owe part of its gain to that run's luck. What a method gains is told as a share of the room,
with an interval; where the room's interval covers zero there is no room, and methods are not ranked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aioli.simplex import Array
from aioli.stats import interval


@dataclass(frozen=True)
class Room:
    """What there is to win, in mean test loss."""

    gains: dict[int, float]
    """By seed."""
    mean: float
    interval: tuple[float, float]

    @property
    def there(self) -> bool:
        """Whether there is any, for sure."""
        return bool(self.interval[0] > 0)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"gains": self.gains, "mean": self.mean, "interval": list(self.interval), "there": self.there}


def room_of(stratified: Mapping[int, float], best: Mapping[int, float]) -> Room:
    """From the losses of stratified and of the best static mixture, by seed."""
    gains = {seed: stratified[seed] - best[seed] for seed in stratified if seed in best}
    values = list(gains.values())
    return Room(gains, float(np.mean(values)), interval(values))


def closed(gains: Mapping[int, float], room: Room) -> tuple[float, tuple[float, float] | None]:
    """The share of the room that a method closes, and its 95% interval over paired seeds.

    The share is a ratio of means; its interval is Fieller's, from the means and covariance of the two gains. None where
    the room is not known well enough for one.
    """
    pairs = [(gains[s], room.gains[s]) for s in gains if s in room.gains]
    x, y = (np.array(column) for column in zip(*pairs, strict=True))
    share = float(x.mean() / y.mean()) if y.mean() != 0 else float("nan")
    return share, _fieller(x, y)


def _fieller(x: Array, y: Array) -> tuple[float, float] | None:
    from scipy.special import stdtrit

    n = len(x)
    if n < 2:
        return None
    t2 = float(stdtrit(n - 1, 0.975)) ** 2 / n
    cov = np.cov(x, y)
    a = float(y.mean() ** 2 - t2 * cov[1, 1])
    b = float(x.mean() * y.mean() - t2 * cov[0, 1])
    c = float(x.mean() ** 2 - t2 * cov[0, 0])
    inside = b * b - a * c
    if a <= 0 or inside < 0:
        return None
    return (b - inside**0.5) / a, (b + inside**0.5) / a


def ranked(losses: Mapping[str, Mapping[int, float]], base: str, best: Mapping[int, float]) -> dict[str, Any] | None:
    """For every method its paired gain over the base with an interval, and the share of the room that it closes.

    `best`: losses of the sweep's best mixture, by the seed they are judged with. None: nothing can be compared."""
    if not set(losses.get(base, ())) & set(best):
        return None
    room = room_of(losses[base], best)
    found: dict[str, Any] = {"room": room.to_json(), "methods": {}}
    for name, values in losses.items():
        gains = {seed: losses[base][seed] - value for seed, value in values.items() if seed in losses[base]}
        if not gains:
            continue
        entry: dict[str, Any] = {"gain": float(np.mean(list(gains.values()))), "seeds": sorted(gains)}
        entry["interval"] = list(interval(list(gains.values()))) if len(gains) > 1 else None
        if room.there and name != base and set(gains) & set(room.gains):
            share, span = closed(gains, room)
            entry |= {"closed": share, "closed_interval": None if span is None else list(span)}
        found["methods"][name] = entry
    return found
