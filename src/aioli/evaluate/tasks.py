"""Tasks of lm-eval by name: those it comes with, and those of a directory that the user names.

The YAML of a task may name Python functions, which are run; so nothing is ever loaded but what comes with lm-eval and
what is in that directory.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aioli.evaluate.quiet import quiet, reason

PAPER = (
    "arc_challenge",
    "arc_easy",
    "boolq",
    "hellaswag",
    "lambada_openai",
    "openbookqa",
    "piqa",
    "winogrande",
)
"""The eight tasks of the paper; `paper` stands for them."""
FILES = ("json", "csv", "parquet", "arrow", "text", "xml", "webdataset")
"""Data that is read from files, wherever they are."""
HUB = ("huggingface_hub", "httpx", "httpx2", "requests", "aiohttp")
"""Whose errors are about reaching the hub."""


@dataclass(frozen=True)
class Tasks:
    """Tasks that have been loaded, with their data: by the name that was asked for, as lm-eval holds them."""

    loaded: dict[str, Any]


def load_tasks(
    names: Sequence[str] | None = None,
    include: str | Path | None = None,
    shots: int | None = None,
    report: Callable[[str, int, int], None] | None = None,
) -> Tasks:
    """Load tasks, groups or tags by name, with their data; left out: the paper's, or all of the directory `include`.

    `shots`: solved examples before each question, except for tasks that are always asked without; left out: as the
    task has it."""
    if shots is not None and shots < 0:
        raise ValueError(f"shots={shots} must be at least 0")
    own = None if include is None else _own(Path(include))
    if names is None:
        names = PAPER if own is None else own.all_subtasks
    asked = list(dict.fromkeys(each for name in names for each in (PAPER if name == "paper" else (name,))))
    if not asked:
        raise ValueError("no task is named")
    for name in asked:
        if name.endswith((".yaml", ".yml")):  # lm-eval would load it, and run its Python, from anywhere
            raise ValueError(f"{name} is not the name of a task; name its directory with --task-dir, and its `task:`")
    manager = _manager(asked, own, include)
    for name in asked:
        if name not in manager.task_index:
            raise ValueError(_unknown(name, manager, own, include))
    loaded = {}
    for k, name in enumerate(asked):
        if report is not None:
            report(name, k, len(asked))
        loaded[name] = _load(manager, name)
        _set_shots(loaded[name]["tasks"].values(), shots)
    return Tasks(loaded)


def task_names(include: str | Path | None = None) -> list[str]:
    """Everything that can be asked for."""
    if include is None:
        return list(_built_in().all_tasks)
    return sorted({*_built_in().all_tasks, *_own(Path(include)).all_tasks})


def _load(manager: Any, name: str) -> dict[str, Any]:
    try:
        with quiet(), _own_metrics():
            found: dict[str, Any] = manager.load(name)
    except Exception as error:  # a task may be any Python, and data may come from anywhere
        raise ValueError(_why_not(name, manager.task_index[name].cfg or {}, error)) from error
    if not found["tasks"]:
        raise ValueError(f"group {name} has no tasks")
    for each, task in found["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False):
            raise ValueError(f"task {each} runs programs that the model writes, which aioli does not; leave it out")
    return found


@contextmanager
def _own_metrics() -> Iterator[None]:
    """For a metric that it does not know, lm-eval would fetch a program from the hub, and run it."""
    from lm_eval.api import registry, task

    usual = task.get_metric

    def known(name: str, foreign: bool = False) -> Any:
        if foreign or name not in registry.metric_registry:
            raise ValueError(
                f"metric {name!r} is not one of lm-eval's own; name a function of yours (!function) instead"
            )
        return usual(name)

    task.get_metric = known
    try:
        yield
    finally:
        task.get_metric = usual


def _why_not(name: str, config: dict[str, Any], error: Exception) -> str:
    """Why a task could not be loaded, and what would help."""
    data, why = config.get("dataset_path"), reason(error)
    if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in HUB:
        if data in FILES:
            return f"task {name}: {why}; its data_files are looked for from the directory that the command runs in"
        which = "its data set" if data is None else f"its data set {data}"
        remedy = "the first time it comes from the Hugging Face hub, later from the cache (HF_HOME)"
        return f"task {name}: {which} could not be had: {why}; {remedy}"
    return f"task {name} cannot be loaded: {why}"


def _set_shots(tasks: Any, shots: int | None) -> None:
    """As lm-eval's own command does it."""
    for task in tasks:
        usual = task.get_config("num_fewshot")
        if shots is not None and usual != 0:
            task.set_config(key="num_fewshot", value=shots)
        elif usual is None:
            task.set_config(key="num_fewshot", value=0)


# ---------------------------------------------------------------------- where tasks are


def _manager(asked: Sequence[str], own: Any, include: str | Path | None) -> Any:
    """What knows all that is asked for; lm-eval's own 14,000 tasks take seconds to read, and often are not needed."""
    if own is None:
        return _built_in()
    if all(name in own.task_index for name in asked) and _complete(own):
        return own
    return _read(include, True)


@cache
def _built_in() -> Any:
    return _read(None, True)


def _own(folder: Path) -> Any:
    """The tasks of a directory."""
    if not folder.is_dir():
        raise ValueError(f"--task-dir {folder}: there is no such directory")
    found = _read(folder, False)
    if not found.all_subtasks:
        files = len(list(folder.rglob("*.yaml")))
        what = "no *.yaml file" if files == 0 else f"{files} *.yaml files, none of them a task that lm-eval can read"
        raise ValueError(f"--task-dir {folder} holds no tasks ({what}); a task is a YAML file with `task: NAME` in it")
    return found


def _read(include: str | Path | None, defaults: bool) -> Any:
    with quiet():
        from lm_eval.tasks import TaskManager

        try:
            return TaskManager(include_path=None if include is None else str(include), include_defaults=defaults)
        except Exception as error:  # names that are no strings, files that may not be read
            raise ValueError(f"the tasks of {include or 'lm-eval'} cannot be read: {reason(error)}") from error


def _complete(manager: Any) -> bool:
    """Whether every group consists of tasks that are there."""
    for entry in manager.task_index.values():
        members = (entry.cfg or {}).get("task")
        for member in members if isinstance(members, list) else []:
            name = member.get("task", member.get("group")) if isinstance(member, dict) else member
            if not isinstance(name, str) or name not in manager.task_index:
                return False
    return True


def _unknown(name: str, manager: Any, own: Any, include: str | Path | None) -> str:
    near = difflib.get_close_matches(name, [*([] if own is None else own.all_tasks), *manager.all_tasks], 1)
    hint = f"did you mean {near[0]}? " if near else ""
    where = "lm-eval" if include is None else f"{include} and lm-eval"
    return f"{where} has no task {name!r}; {hint}`aioli eval --list-tasks WORD` lists names that contain a word"
