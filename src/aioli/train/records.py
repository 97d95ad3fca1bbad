"""What a run writes down: the lines of its journal, what trackers are told, and its state for those who watch.

{"kind": "run", …}        once, at the beginning
{"kind": "segment", …}    after every segment: mixture, tokens, what was observed, A, p
{"kind": "look", …}       every now and then inside them: training loss since the last one, validation losses
{"kind": "result", …}     once, at the end
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aioli import __version__
from aioli.config import to_plain
from aioli.protocol import Observation, Segment
from aioli.train.layout import STATUS

if TYPE_CHECKING:
    from aioli.train.running import Run


def opening(run: Run) -> dict[str, Any]:
    """The first line of a journal."""
    recipe = run.recipe
    return {
        "kind": "run",
        "groups": run.groups,
        "targets": run.targets,
        "steps": run.last,
        "first": run.first,
        "batch": recipe.train.batch,
        "context": run.store.context,
        "method": recipe.method.name,
        "settings": recipe.method.settings,
        "model": recipe.model.preset or recipe.model.name,
        "parameters": sum(p.numel() for p in run.engine.plain.parameters()),
        "data": run.store.fingerprint,
        "val_tokens": run.engine.validation.tokens,
        "notes": run.notes,
        "seed": recipe.seed,
        "aioli": __version__,
    }


def segment_line(run: Run, segment: Segment, observation: Observation, begin: int) -> dict[str, Any]:
    """What came of a segment."""
    engine = run.engine
    measures = engine.finished
    assert measures is not None
    used = (engine.sampler.drawn - np.array(measures.drawn)) * engine.sampler.context  # with loss or without
    values = {k: to_plain(v) for k, v in vars(observation).items() if k != "tokens" and v is not None}
    return {
        "kind": "segment",
        "begin": begin,
        "end": engine.step,
        "tag": segment.tag,
        "proportions": segment.proportions.tolist(),
        "realised": (used / used.sum()).tolist() if used.sum() else None,
        "tokens": used.tolist(),
        "loss": measures.loss / measures.steps if measures.steps else None,
        "values": finite(values),
        "report": finite(run.policy.news()),
        "lr": engine.settings.schedule.rate(max(0, engine.step - 1)),
        "epochs": engine.sampler.epochs.tolist(),
        "seconds": {
            "train": measures.train_seconds,
            "probe": measures.probe_seconds,
            "probe_share": probe_share(engine.seconds),
        },
    }


def look_line(run: Run, loss: float, val_loss: Sequence[float]) -> dict[str, Any]:
    """How things stand inside a segment."""
    return {"kind": "look", "step": run.engine.step, "loss": loss, "val_loss": list(val_loss)}


def verdict(names: list[str], losses: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    """Losses of all targets on one split, and their means."""
    return {
        "loss": dict(zip(names, losses.tolist(), strict=True)),
        "perplexity": dict(zip(names, np.exp(losses).tolist(), strict=True)),
        "mean_loss": float(losses.mean()),
        "mean_perplexity": float(np.exp(losses).mean()),
    }


def probe_share(seconds: Mapping[str, float]) -> float:
    """Time of looking as a share of the time of training."""
    return seconds["probe"] / seconds["train"] if seconds["train"] else 0.0


def finite(value: Any) -> Any:
    """JSON has no NaN: what is not a number becomes null."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def scalars(line: Mapping[str, Any], groups: list[str], targets: list[str]) -> dict[str, float]:
    """What trackers are told of a line."""
    found: dict[str, Any] = {"loss": line.get("loss"), "lr": line.get("lr")}
    observed = dict(line.get("values", {}))
    if line["kind"] == "segment":
        found["probe_share"] = line["seconds"]["probe_share"]
        found |= {f"proportions/{name}": value for name, value in zip(groups, line["proportions"], strict=True)}
    elif line["kind"] == "look":
        observed["val_loss"] = line["val_loss"]
    elif line["kind"] == "result":
        for split in ("val", "test"):
            observed_here = line.get(split, {}).get("loss", {})
            found |= {f"final_{split}_loss/{name}": value for name, value in observed_here.items()}
    for kind, values in observed.items():
        names = targets if kind == "val_loss" else groups
        if isinstance(values, list) and len(values) == len(names) and not isinstance(values[0], list):
            found |= {f"{kind}/{name}": value for name, value in zip(names, values, strict=True)}
    return {key: float(value) for key, value in found.items() if value is not None}


def flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level, as trackers want them."""
    found: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value if isinstance(value, int | float | str | bool) else str(value)
    return found


class Status:
    """Says at most once a second what a run is doing; who watches sees a whole file or the one before."""

    def __init__(self, path: Path) -> None:
        self.path, self.written, self.began = path / STATUS, 0.0, (time.monotonic(), -1)

    def show(self, run: Run) -> None:
        """Write it, unless that was just done."""
        now, done = time.monotonic(), run.step + run.tried
        if now - self.written < 1.0:
            return
        if self.began[1] < 0:
            self.began = (now, done)
        self.written = now
        gone = now - self.began[0]
        rate = (done - self.began[1]) / gone if gone > 0 else 0.0
        found = {
            "step": run.step,
            "steps": run.last,
            "loss": run.engine.loss,
            "tokens_per_second": rate * run.recipe.train.batch * run.store.context,
            "seconds_left": run.left / rate if rate > 0 else None,
            "proportions": None if run.segment is None else run.segment.proportions.tolist(),
            "tag": "" if run.segment is None else run.segment.tag,
            "process": os.getpid(),
            "host": os.uname().nodename,
            "time": time.time(),
        }
        beside = self.path.with_name(f".{STATUS}.{os.getpid()}")
        with suppress(OSError):  # a full disk must not stop a run because of this
            beside.write_text(json.dumps(finite(found)), encoding="utf-8")
            os.replace(beside, self.path)

    def clear(self) -> None:
        """The run is over; what a process that was killed has left goes as well."""
        for file in (self.path, *self.path.parent.glob(f".{STATUS}.*")):
            with suppress(OSError):
                file.unlink()
