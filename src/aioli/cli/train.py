"""`aioli train`: one run under a policy, live on the screen, resumable."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioli.cli.parse import train_recipe
from aioli.cli.show import Bar, need, plain, table
from aioli.report.text import shares

if TYPE_CHECKING:
    from aioli.train import Run, TrainRecipe

FIRST = os.environ.get("RANK", "0") == "0"
"""Whether this is the process that speaks, of those that torchrun starts."""
EXAMPLES = """examples:
  aioli train recipe.yaml -o run                          train a recipe
  aioli train recipe.yaml -o run method=stratified        the same with settings changed
  aioli train data=store -o run train.steps=500           no recipe at all: defaults on a token store
  aioli train --help-recipe                               everything a recipe can say

Stopped, killed or crashed, a run goes on where it was when the same command is run again.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "train",
        help="train a model on a token store under a policy",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("recipe", nargs="?", help="a YAML file; left out: settings alone")
    command.add_argument("settings", nargs="*", metavar="field=value", help="settings to change, such as seed=1")
    command.add_argument("-o", "--out", help="directory of the run")
    command.add_argument("--quiet", action="store_true", help="print nothing but the result")
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    command.add_argument("--help-recipe", action="store_true", help="list every field of a recipe")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train, or explain the recipe."""
    need("train", "torch", "transformers", "accelerate", "pydantic", "yaml")
    stop, stopped = threading.Event(), set[int]()

    def asked(number: int, frame: object) -> None:
        if number in stopped:
            raise KeyboardInterrupt  # asked twice: at once, without saving
        stopped.add(number)
        stop.set()

    if not options.help_recipe and threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, asked)  # before the long imports: from here on a run saves itself first
    from aioli.recipe import describe
    from aioli.train.recipe import TrainRecipe

    if options.help_recipe:
        print(table(("field", "default", "meaning"), describe(TrainRecipe), left=3))
        return 0
    recipe = _recipe(options)  # refused, if it must be, before torch is loaded
    from aioli.train import Run, StoppedError

    live = Live(options.quiet or options.json)
    try:
        job = Run(recipe, options.out, live, stop)
        if FIRST and not options.quiet:
            for note in job.notes:
                print(f"worth knowing: {note}", file=sys.stderr)
        result = job.train()
    except StoppedError as end:
        if FIRST:
            print(f"\rstopped at step {end.step}; go on with: {_again()}", file=sys.stderr)
        return 130 if signal.SIGINT in stopped else 0
    except ValueError as error:
        if FIRST:
            raise
        print(f"aioli train, process {os.environ['RANK']}: {error}", file=sys.stderr)
        return 2
    finally:
        live.bar.clear()
    if FIRST:
        print(json.dumps(result, indent=2, ensure_ascii=False) if options.json else render(result))
    return 0


def _recipe(options: argparse.Namespace) -> TrainRecipe:
    """What is asked for."""
    if options.out is None:
        raise ValueError("where to? Give a directory for the run with -o")
    if Path(options.out).exists() and not Path(options.out).is_dir():
        raise ValueError(f"-o {options.out} is a file; give a directory for the run")
    return train_recipe(options.recipe, options.settings)


def _again() -> str:
    """The command that resumes a run."""
    if "WORLD_SIZE" in os.environ:
        return "the same command"
    return shlex.join(["aioli", *sys.argv[1:]])


class Live:
    """What is seen of a run while it goes on."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.bar, self.seen = quiet, Bar("training"), 0.0
        self.first: tuple[float, int] | None = None

    def __call__(self, job: Run) -> None:
        """Called after every step, those on copies of the model included."""
        now = time.monotonic()
        if self.quiet or job.segment is None:
            return
        if self.first is None:
            self.first = (now, job.step + job.tried)
        steps, total, done = job.step, job.last, job.step + job.tried
        if now - self.seen < 0.2 and steps != total:
            return
        self.seen = now
        began, first = self.first
        trying = job.engine.forked is not None
        rate = (done - first) * job.recipe.train.batch * job.store.context / max(now - began, 1e-9)
        bars = shares([plain(group) for group in job.groups], job.segment.proportions.tolist())
        words = f"{steps}/{total}  " + ("trying mixtures out on copies" if trying else f"loss {job.engine.loss:.3f}")
        self.bar.show(done, done + job.left, words, f"{bars}  {rate:,.0f} tokens/s")


def render(result: dict[str, Any]) -> str:
    """The result of a run, for people."""
    splits = [split for split in ("val", "test") if split in result]
    rows = [[target, *(f"{result[split]['loss'][target]:.4f}" for split in splits)] for target in result["targets"]] + [
        ["mean", *(f"{result[split]['mean_loss']:.4f}" for split in splits)]
    ]
    used = ", ".join(f"{plain(group)} {share:.1%}" for group, share in result["realised"].items())
    lines = [table(["loss of", *splits], rows), "", f"trained on {used}"]
    mean = result.get("mean_proportions", {})
    if any(abs(share - result["realised"][group]) > 0.01 for group, share in mean.items()):
        asked = ", ".join(f"{plain(group)} {share:.1%}" for group, share in mean.items())
        lines.append(f"asked for on average, which is what a proxy run recommends: {asked}")
    return "\n".join(lines)
