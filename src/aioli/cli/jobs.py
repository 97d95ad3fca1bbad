"""What commands that train many runs have in common: options, the run store, the executor, the progress bar."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioli.cli.parse import parse_budget, train_recipe
from aioli.cli.show import Bar, need
from aioli.files import read_json
from aioli.registry import load
from aioli.train.layout import STATUS

if TYPE_CHECKING:
    from aioli.runs.conducting import Asked, Carried, Conductor, Executor, Progress
    from aioli.runs.job import Setup
    from aioli.runs.rehearsal import Expected
    from aioli.train.recipe import TrainRecipe

STORE, SHORT = "aioli-runs", 20
SETTING = re.compile(r"[\w.]+=|.*\.ya?ml$")
"""How `field=value` begins (a method with settings has a colon first), or a recipe ends."""


def add_recipe(command: argparse.ArgumentParser) -> None:
    """What is to be trained."""
    command.add_argument("recipe", nargs="?", help="a YAML file, as for aioli train; left out: settings alone")
    command.add_argument("settings", nargs="*", metavar="field=value", help="settings to change, such as seed=1")
    command.add_argument(
        "--budget", help="steps of all extra runs: unrestricted (10 S), restricted (0.5 S), or a number of S"
    )
    command.add_argument(
        "--load", metavar="FILE.py", action="append", default=[], help="a Python file of yours that defines methods"
    )
    add_places(command)


def add_places(command: argparse.ArgumentParser) -> None:
    """Where runs are kept, and how many are trained at once."""
    command.add_argument("--store", default=STORE, metavar="DIR", help=f"where runs are kept (default {STORE})")
    command.add_argument("--workers", type=int, metavar="N", help="runs at once (default: one for each core)")
    command.add_argument("--threads", type=int, default=1, metavar="N", help="threads of each run (default 1)")


def add_executor(command: argparse.ArgumentParser) -> None:
    """Where it is trained."""
    command.add_argument(
        "--executor", choices=("local", "ray"), default="local", help="processes here (default), or Ray"
    )
    command.add_argument(
        "--address", metavar="HOST:PORT", help="a Ray cluster (auto finds one); left out: one is started"
    )
    command.add_argument("--cpus", type=float, metavar="N", help="CPUs of each run on Ray (default: --threads)")
    command.add_argument("--gpus", type=float, default=0, metavar="N", help="GPUs of each run on Ray (default 0)")
    command.add_argument(
        "--stack",
        type=int,
        default=1,
        metavar="N",
        help="train up to N runs of a sweep at once in each worker (default 1)",
    )
    command.add_argument("--quiet", action="store_true", help="no progress bar")
    command.add_argument("--json", action="store_true", help="print JSON")


def recipe_of(options: argparse.Namespace) -> TrainRecipe:
    """What is asked for; refused, if it must be, before anything heavy is loaded."""
    need("train", "torch", "transformers", "accelerate", "pydantic", "yaml")
    load(options.load)
    settings = list(options.settings)
    if isinstance(getattr(options, "methods", None), list):  # settings may stand anywhere, also after --methods
        settings += [word for word in options.methods if SETTING.match(word)]
        options.methods = [word for word in options.methods if not SETTING.match(word)] or ["all"]
    if options.budget is not None:
        settings.append(f"budget={parse_budget(options.budget)}")
    recipe = train_recipe(options.recipe, settings)
    if recipe.trackers:
        print("worth knowing: trackers are for aioli train; runs of a store are not reported to them", file=sys.stderr)
    return recipe


def setups(recipe: TrainRecipe, options: argparse.Namespace) -> tuple[Setup, Setup]:
    """Of final and of extra runs."""
    from aioli.runs.job import Setup

    gpu = options.gpus > 0 if getattr(options, "executor", "local") == "ray" else None
    return Setup.of(recipe, gpu=gpu), Setup.of(recipe, proxy=True, gpu=gpu)


@contextmanager
def executor_of(options: argparse.Namespace) -> Iterator[Executor]:
    """Where jobs are done; closed at the end, with everything saved."""
    if options.address is not None and options.executor != "ray":
        raise ValueError("--address is for Ray; add --executor ray")
    if options.executor == "ray":
        if options.stack > 1:
            raise ValueError("--stack is for local workers; leave it out with --executor ray")
        from aioli.runs.on_ray import RayExecutor

        cpus = options.threads if options.cpus is None else options.cpus
        found: Executor = RayExecutor(
            options.address, cpus, options.gpus, options.load, options.workers, options.threads
        )
    else:
        from aioli.runs.local import LocalExecutor

        found = LocalExecutor(options.workers, options.threads, options.load, options.stack)
    try:
        yield found
    finally:
        found.close()


class Live:
    """What is seen of many runs: how many are done, how far the others are, and the time left."""

    def __init__(self, conductor: Conductor, expected: Expected, quiet: bool) -> None:
        self.conductor, self.quiet, self.bar = conductor, quiet, Bar("training")
        self.total, self.runs = expected.steps, expected.runs

    def __call__(self, now: Progress) -> None:
        if self.quiet:
            return
        done, words = sum(job.run.task.steps for job in now.finished), []
        for job in now.running[: 4 * self.conductor.executor.workers]:  # the others are waiting
            status: Any = read_json(self.conductor.store.run_folder(job.key) / STATUS)
            if isinstance(status, dict) and isinstance(status.get("step"), int):
                done += status["step"]
                words.append(f"{job.about()['kind']} {status['step']}/{status['steps']}")
        runs = max(self.runs, now.done)
        failed = f"  {now.failed} failed" if now.failed else ""
        self.bar.show(
            min(done, self.total), max(self.total, done), f"{now.done}/{runs} runs{failed}", " · ".join(words[:4])
        )


def conduct(
    options: argparse.Namespace, asked: Sequence[Asked], final: Setup, proxy: Setup, executor: Executor | None = None
) -> list[Carried]:
    """Carry out methods, all saved when it is interrupted; one that cannot work is not begun. An executor that is given
    stays open."""
    from aioli.runs.conducting import Carried, Conductor
    from aioli.runs.rehearsal import expected
    from aioli.runs.store import RunStore

    store = RunStore(options.store)
    before = expected(asked, final, proxy)
    if 0 < before.shortest < SHORT:
        print(
            f"worth knowing: extra runs of {before.shortest} steps say little about mixtures; raise train.steps, the "
            "budget or proxy.steps",
            file=sys.stderr,
        )
    able = [each for each in asked if each.label not in before.refused]
    with executor_of(options) if executor is None else nullcontext(executor) as where:
        conductor = Conductor(store, where, final, proxy)
        conductor.report = live = Live(conductor, before, options.quiet or options.json)
        try:
            done = {id(each.asked): each for each in conductor.conduct(able)}
        except BaseException as stopped:
            live.bar.clear()
            if not isinstance(stopped, Exception):  # Ctrl-C or SIGTERM
                _stopped(conductor, options.stack)
            raise
        live.bar.clear()
    return [
        done.get(id(each)) or Carried(each, error=before.refused[each.label], refused=True, over=True) for each in asked
    ]


def _stopped(conductor: Conductor, stack: int) -> None:
    """Have everything saved, and say how to go on."""
    print("\nstopping; what is being trained is saved first", file=sys.stderr, flush=True)
    conductor.executor.close()
    count = len(conductor.progress.finished)
    rest = "the others are saved" if stack == 1 else "the others are saved (stacks begin again)"
    finished = f"{count} run{'s are' if count != 1 else ' is'} finished, {rest} in {conductor.store.path}"
    print(f"{finished}; go on with: {shlex.join(['aioli', *sys.argv[1:]])}", file=sys.stderr)


def check_place(path: str | None, endings: tuple[str, ...], option: str = "-o") -> Path | None:
    """Where a report goes; refused before hours of training if it cannot be written."""
    if path is None:
        return None
    file = Path(path)
    if file.suffix not in endings:
        raise ValueError(f"{option} {path} must end with {', '.join(endings)}")
    if not file.parent.is_dir():
        raise ValueError(f"{option} {path}: there is no directory {file.parent}")
    return file
