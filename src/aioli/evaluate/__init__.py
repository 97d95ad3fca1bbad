"""Downstream tasks: how well finished models do at them, measured by lm-eval. Needs `aioli-mix[eval]`.

Names are loaded when they are used: a run can be found, or refused, before torch and lm-eval are loaded.
"""

from typing import TYPE_CHECKING

from aioli.lazy import names_from

if TYPE_CHECKING:
    from aioli.evaluate.harness import evaluate, measure
    from aioli.evaluate.result import Evaluation, Score, TaskScore
    from aioli.evaluate.subject import Subject, find
    from aioli.evaluate.tasks import PAPER, Tasks, load_tasks, task_names

__all__ = [
    "PAPER",
    "Evaluation",
    "Score",
    "Subject",
    "TaskScore",
    "Tasks",
    "evaluate",
    "find",
    "load_tasks",
    "measure",
    "task_names",
]

_PLACES = {
    "PAPER": "tasks",
    "Evaluation": "result",
    "Score": "result",
    "Subject": "subject",
    "TaskScore": "result",
    "Tasks": "tasks",
    "evaluate": "harness",
    "find": "subject",
    "load_tasks": "tasks",
    "measure": "harness",
    "task_names": "tasks",
}

__getattr__ = names_from(__name__, _PLACES)
