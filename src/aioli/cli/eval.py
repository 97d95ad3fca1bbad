"""`aioli eval`: how well finished models do at tasks, by lm-eval."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioli.cli.jobs import STORE, check_place
from aioli.cli.show import Bar, need, say, table
from aioli.files import write_text

if TYPE_CHECKING:
    from aioli.evaluate import Evaluation, Subject

EXAMPLES = """examples:
  aioli eval run                                          a run of aioli train, on the paper's eight tasks
  aioli eval run --limit 100                              a trial: only the first 100 examples of each task
  aioli eval run-a run-b 3f2a -o table.md                 several in one table; 3f2a is a run of ./aioli-runs
  aioli eval run --tasks arc_easy piqa --shots 5          some tasks, with five solved examples before each question
  aioli eval run --task-dir my-tasks                      your own tasks: all in my-tasks
  aioli eval run --task-dir my-tasks --tasks mine paper   one of them, and the paper's eight
  aioli eval some-model --tokenizer some-tokenizer        any causal model of transformers in a directory
  aioli eval --list-tasks arc                             names that contain a word (all: --list-tasks)

The paper's tasks take their data from the Hugging Face hub the first time. A task is a YAML file, as lm-eval reads it;
it may name Python functions, which are run, so give --task-dir only what you trust.
"""
ENDINGS = (".json", ".md", ".csv")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "eval",
        help="evaluate finished runs on downstream tasks (lm-eval)",
        description="Evaluate finished runs, or other models, on downstream tasks by lm-eval.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "keys", nargs="*", metavar="RUN", help="directory of a run or a model, or the beginning of a key in --store"
    )
    command.add_argument(
        "--tasks", nargs="+", metavar="NAME", help="tasks, groups and tags of lm-eval (default: paper, the eight)"
    )
    command.add_argument(
        "--task-dir", metavar="DIR", help="your own tasks; Python that they name is run (then default: all of them)"
    )
    command.add_argument(
        "--list-tasks", nargs="?", const="", metavar="WORD", help="names of tasks that contain a word, and leave"
    )
    command.add_argument("--shots", type=int, metavar="N", help="solved examples before each question")
    command.add_argument("--limit", type=int, metavar="N", help="only the first N examples of each task")
    command.add_argument("--batch", type=int, default=16, metavar="N", help="sequences at once (default 16)")
    command.add_argument("--store", default=STORE, metavar="DIR", help=f"where runs are kept (default {STORE})")
    command.add_argument(
        "--tokenizer", metavar="DIR", help="default: that of the model, or of the token store it was trained on"
    )
    command.add_argument(
        "-o", "--out", metavar="FILE", action="append", default=[], help=f"also write {', '.join(ENDINGS)}"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Evaluate."""
    need("eval", "lm_eval", "torch", "transformers", "accelerate", "pydantic", "yaml")
    if options.list_tasks is not None:
        return _list(options)
    if not options.keys:
        raise ValueError("which run? Give its directory, or the beginning of its key (`aioli runs` lists them)")
    places = [check_place(file, ENDINGS) for file in options.out]
    _check_numbers(options)
    from aioli.evaluate import find, load_tasks

    named = [find(name, options.store, options.tokenizer) for name in options.keys]
    subjects = list({subject.model.resolve(): subject for subject in named}.values())  # each run once
    bar = Bar("loading tasks")
    tasks = load_tasks(
        options.tasks, options.task_dir, options.shots, lambda name, k, all_: bar.show(k, all_, f"{k}/{all_}", name)
    )
    bar.clear()
    from aioli.evaluate import measure

    found = []
    for subject in subjects:
        live = Live(subject.name)
        how = {"limit": options.limit, "batch": options.batch, "report": live}
        found.append(measure(subject.model, subject.tokenizer, tasks, **how))
        live.bar.clear()
    _show(subjects, found, [place for place in places if place is not None], options.json)
    return 0


def _check_numbers(options: argparse.Namespace) -> None:
    """Before anything is loaded."""
    for name, value, least in (
        ("--limit", options.limit, 1),
        ("--batch", options.batch, 1),
        ("--shots", options.shots, 0),
    ):
        if value is not None and value < least:
            raise ValueError(f"{name} {value} must be at least {least}")


def _list(options: argparse.Namespace) -> int:
    """Names of tasks, one in a line."""
    from aioli.evaluate import task_names

    names = [name for name in task_names(options.task_dir) if options.list_tasks.lower() in name.lower()]
    if not names:
        raise ValueError(f"no task has {options.list_tasks!r} in its name")
    say(json.dumps(names, indent=1) if options.json else "\n".join(names))
    return 0


class Live:
    """How far a run is, on the stream that was there before the libraries were silenced."""

    def __init__(self, name: str) -> None:
        self.name, self.stream, self.task = name, sys.stderr, ""
        self.bar = Bar(name, self.stream)

    def __call__(self, task: str, done: int, total: int) -> None:
        if task != self.task:
            self.bar.clear()
            self.task, self.bar = task, Bar(f"{self.name} {task}", self.stream)
        self.bar.show(done, total, f"{done}/{total}")


def _show(subjects: list[Subject], found: list[Evaluation], places: list[Path], as_json: bool) -> None:
    """Print what was found, and write it where it was asked for."""
    from aioli.report.evaluation import comma_separated, header, markdown, remarks, rows

    named = {subject.name: each for subject, each in zip(subjects, found, strict=True)}
    keyed = {subject.key or subject.name: each for subject, each in zip(subjects, found, strict=True)}
    plain: list[dict[str, Any]] = [
        {"run": subject.name, "key": subject.key, **each.to_json()}
        for subject, each in zip(subjects, found, strict=True)
    ]
    text = json.dumps(plain, indent=2, ensure_ascii=False)
    for place in places:
        if place.suffix == ".json":
            write_text(place, text + "\n")
        else:
            write_text(place, markdown(named) if place.suffix == ".md" else comma_separated(keyed))
    say(text if as_json else "\n".join([table(header(named), rows(named)), "", *remarks(named)]))
