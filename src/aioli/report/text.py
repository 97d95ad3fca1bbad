"""A run on a terminal: where it is, its mixture now and on the way, its losses."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from typing import Any
from unicodedata import east_asian_width

from aioli.report.trace import Curve, Trace

BLOCKS = "▁▂▃▄▅▆▇█"
PATH, STALE = 24, 60.0
"""Points of a path on a terminal, and the seconds after which a silent run is taken to be gone."""


def columns_of(text: str) -> int:
    """How much room a text takes, in letters: some are as wide as two."""
    return sum(1 + (east_asian_width(letter) in "WF") for letter in text)


def bar(done: float, total: float, size: int) -> str:
    """How much of something is done."""
    filled = round(size * done / total) if total else 0
    return "█" * filled + "░" * (size - filled)


def shares(names: Sequence[str], proportions: Sequence[float], most: int = 8) -> str:
    """A mixture in one line, each share with a small bar."""
    pairs = list(zip(names, proportions, strict=True))[:most]
    return " ".join(f"{name} {BLOCKS[min(7, int(8 * p))]}{p:.0%}".lstrip() for name, p in pairs)


def clock(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def running(status: dict[str, Any]) -> list[str]:
    """How far a run has got, by its own account: step, loss, time left."""
    words = [f"{status['step']}/{status['steps']}"]
    if status.get("loss") is not None:
        words.append(f"loss {status['loss']:.3f}")
    if status.get("seconds_left") is not None:
        words.append(f"{clock(status['seconds_left'])} left")
    if status.get("tag") == "forks":
        words.append("trying mixtures out on copies of the model")
    return words


def spark(values: Sequence[float], low: float | None = None, high: float | None = None) -> str:
    """A curve in one line."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return ""
    bottom, top = min(known) if low is None else low, max(known) if high is None else high
    scale = (len(BLOCKS) - 1) / (top - bottom) if top > bottom else 0.0
    return "".join(BLOCKS[max(0, min(7, round((v - bottom) * scale)))] if math.isfinite(v) else " " for v in values)


def path(curve: Curve, column: int, steps: int, points: int = PATH) -> list[float]:
    """A column of a curve, at so many steps evenly spread over the part of the run that is over."""
    if not curve.steps:
        return []
    end = curve.steps[-1]
    count = max(1, min(points, round(points * end / steps))) if steps else points
    found = (curve.at(end * (k + 1) / count) for k in range(count))
    return [values[column] for values in found if values is not None]


def header(trace: Trace) -> str:
    """What the run is."""
    about = trace.about
    if not about:
        raise ValueError(f"the journal of {trace.path} is empty; nothing has been trained yet")
    towards = "" if about["targets"] == about["groups"] else f" → {', '.join(about['targets'])}"
    size = f"{about['parameters'] / 1e6:.3g}M parameters"
    groups = ", ".join(about["groups"]) if len(about["groups"]) <= 8 else f"{len(about['groups'])} groups"
    return f"{trace.path}: {about['method']} on {groups}{towards} · {about['model']}, {size} · seed {about['seed']}"


def looking(trace: Trace) -> str:
    """What time beside training goes into, in words."""
    forks = trace.about["method"] == "aioli-fork"
    return "looking, and trying mixtures out on copies of the model," if forks else "looking"


def progress_line(trace: Trace, status: dict[str, Any] | None) -> str:
    """How far it has got."""
    total = trace.about["steps"]
    if trace.result is not None:
        return f"finished: {trace.result['steps']} steps"
    if status is None:
        again = shlex.join(["aioli", "train", str(trace.path / "recipe.yaml"), "-o", str(trace.path)])
        return f"not running; {trace.step} of {total} steps are in the journal; go on with: {again}"
    words = [bar(status["step"], total, 24), *running(status), f"{status['tokens_per_second']:,.0f} tokens/s"]
    silent = time.time() - status["time"]
    if silent > STALE:
        words.append(f"(no sign of life for {clock(silent)})")
    return "  ".join(words)


def mixture_rows(trace: Trace, now: Sequence[float] | None, most: int = 16) -> list[list[str]]:
    """Each group: its share now, as a number and a bar, and on the way."""
    groups = trace.about["groups"]
    if now is None:
        now = trace.proportions.values[-1] if trace.proportions.values else [1 / len(groups)] * len(groups)
    chosen = sorted(range(len(groups)), key=lambda j: -now[j])[:most] if len(groups) > most else range(len(groups))
    rows = []
    for j in chosen:
        way = spark(path(trace.proportions, j, trace.about["steps"]), 0.0, 1.0)
        rows.append([groups[j], way, "█" * round(20 * now[j]), f"{now[j]:.1%}"])
    if len(groups) > most:
        rows.append([f"… {len(groups) - most} more", "", "", ""])
    return rows


def loss_rows(trace: Trace, most: int = 16) -> list[list[str]]:
    """Each target: its validation loss when first seen and now, and on the way."""
    curve, rows = trace.way, []
    for i, target in enumerate(trace.about["targets"][:most]):
        if curve.values:
            way = spark(path(curve, i, trace.about["steps"]))
            rows.append([target, way, f"{curve.values[0][i]:.4f}", f"{curve.values[-1][i]:.4f}"])
    return rows
