"""What came of an evaluation: each task's metrics with their standard errors, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PREFERRED = "acc"
"""The metric that stands for a task that has it: the paper's."""


@dataclass(frozen=True)
class Score:
    """A number and how sure it is."""

    value: float
    error: float | None = None
    """Standard error over the examples; None where there is none."""

    def to_json(self) -> dict[str, Any]:
        return {"value": _finite(self.value), "stderr": None if self.error is None else _finite(self.error)}


@dataclass(frozen=True)
class TaskScore:
    """How a model did at a task, or at a group of tasks."""

    metrics: dict[str, Score]
    examples: int
    shots: int | None = None
    """Solved examples before each question; None: the tasks of a group differ."""
    version: str | None = None
    """Of the task."""

    @property
    def metric(self) -> str:
        """The name of the metric that stands for the task."""
        return PREFERRED if PREFERRED in self.metrics else next(iter(self.metrics))

    @property
    def score(self) -> Score:
        return self.metrics[self.metric]

    def to_json(self) -> dict[str, Any]:
        metrics = {name: score.to_json() for name, score in self.metrics.items()}
        about = {"examples": self.examples, "shots": self.shots, "version": self.version}
        return {"metric": self.metric, **self.score.to_json(), "metrics": metrics, **about}


@dataclass(frozen=True)
class Evaluation:
    """How a model did at all that was asked."""

    model: str
    tokenizer: str
    tasks: dict[str, TaskScore]
    """What was asked for; a tag is the tasks that carry it."""
    parts: dict[str, TaskScore]
    """The tasks that groups consist of."""
    context: int
    """Tokens that the model takes."""
    requests: int
    """Pairs of question and answer that it was asked about."""
    cut: int
    """Those that were longer than its context: the beginning was left out."""
    limit: int | None
    """Only so many examples of each task."""
    harness: str
    """Version of lm-eval."""

    @property
    def mean(self) -> Score | None:
        """Over the tasks, each counting the same; None if they are not measured by the same metric."""
        scores = [task.score for task in self.tasks.values()]
        if len({task.metric for task in self.tasks.values()}) != 1:
            return None
        errors = [score.error for score in scores if score.error is not None]
        error = math.sqrt(sum(e * e for e in errors)) / len(scores) if len(errors) == len(scores) else None
        return Score(sum(score.value for score in scores) / len(scores), error)

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "tokenizer": self.tokenizer,
            "tasks": {name: task.to_json() for name, task in self.tasks.items()},
            "parts": {name: task.to_json() for name, task in self.parts.items()},
            "mean": None if self.mean is None else self.mean.to_json(),
            "context": self.context,
            "requests": self.requests,
            "cut": self.cut,
            "limit": self.limit,
            "lm_eval": self.harness,
        }


def task_scores(results: Mapping[str, Any]) -> dict[str, TaskScore]:
    """Every task and group in what `lm_eval.evaluate` returns that has been measured."""
    found = {}
    for name, plain in results["results"].items():
        if metrics := _metrics(plain):
            version, shots = results["versions"].get(name), results["n-shot"].get(name)
            found[name] = TaskScore(
                metrics,
                int(plain["sample_len"]),
                None if shots is None else int(shots),
                None if version in (None, "Yaml", "N/A") else str(version),  # lm-eval's words for none
            )
    return found


def _metrics(plain: Mapping[str, Any]) -> dict[str, Score]:
    """`acc,none` and `acc_stderr,none` are `acc` with its error; any other filter than none stays in the name."""
    found = {}
    for key, each in plain.items():
        name, comma, kind = key.rpartition(",")
        value = _number(each)
        if comma and not name.endswith("_stderr") and value is not None:
            found[name if kind == "none" else key] = Score(value, _number(plain.get(f"{name}_stderr,{kind}")))
    return found


def _number(value: Any) -> float | None:
    """A number, of whatever kind; lm-eval writes N/A where there is none."""
    return float(value) if hasattr(value, "__float__") and not isinstance(value, bool) else None


def _finite(value: float) -> float | None:
    """JSON has no other numbers."""
    return value if math.isfinite(value) else None
