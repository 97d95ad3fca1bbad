"""Models and how they did at tasks, as a table: for a terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from aioli.evaluate.result import PREFERRED, Evaluation, Score
from aioli.report.markdown import safe
from aioli.report.markdown import table as markdown_table

Evaluations = Mapping[str, Evaluation]
"""By the name of the run; all of the same tasks."""


def header(found: Evaluations) -> list[str]:
    """The run, its tasks, their mean; a task that is measured otherwise says how."""
    tasks = _first(found).tasks
    names = [name if task.metric == PREFERRED else f"{name} ({task.metric})" for name, task in tasks.items()]
    return ["run", *names, *["mean"] * _has_mean(found)]


def rows(found: Evaluations) -> list[list[str]]:
    """One for each run."""
    return [[name, *map(cell, _scores(each, _has_mean(found)))] for name, each in found.items()]


def cell(score: Score) -> str:
    """A number with its standard error."""
    return _number(score.value) + ("" if score.error is None else f" ±{_number(score.error)}")


def remarks(found: Evaluations) -> list[str]:
    """How to read it."""
    first = _first(found)
    shots = {task.shots for task in first.tasks.values()}
    how = f"{shots.pop()} shots" if len(shots) == 1 and None not in shots else "shots as each task has them"
    metrics = {task.metric for task in first.tasks.values()}
    what = f"{metrics.pop()} " if len(metrics) == 1 else ""
    lines = [f"{what}± standard error over examples; {how}; lm-eval {first.harness}"]
    if first.limit is not None:
        lines.append(f"only the first {first.limit} examples of each task: a trial, not a result")
    for name, each in found.items():
        if each.cut:
            lines.append(
                f"{name}: {each.cut} of {each.requests} pairs of question and answer are longer than the "
                f"{each.context} tokens that the model takes; their beginning was left out"
            )
    return lines


def markdown(found: Evaluations) -> str:
    """A table for a report."""
    lines = [*markdown_table(header(found), rows(found)), "", *(f"{safe(line)}  " for line in remarks(found))]
    return "\n".join(line.rstrip() if line == lines[-1] else line for line in lines) + "\n"


def comma_separated(found: Evaluations) -> str:
    """A table for machines: each task with its standard error beside it."""
    tasks = [*_first(found).tasks, *["mean"] * _has_mean(found)]
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["run", *(column for task in tasks for column in (task, f"{task}_stderr"))])
    for name, each in found.items():
        scores = _scores(each, _has_mean(found))
        out.writerow([name, *(value for score in scores for value in (score.value, score.error))])
    return text.getvalue()


def _scores(each: Evaluation, with_mean: bool) -> list[Score]:
    mean = each.mean
    return [*(task.score for task in each.tasks.values()), *([mean] if with_mean and mean is not None else [])]


def _has_mean(found: Evaluations) -> bool:
    """Whether there is a mean, and more than one task to take it of."""
    first = _first(found)
    return len(first.tasks) > 1 and first.mean is not None


def _first(found: Evaluations) -> Evaluation:
    return next(iter(found.values()))


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"
