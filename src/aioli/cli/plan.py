"""`aioli plan`: what a method or a comparison would train and how long that takes, before anything is spent."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioli import __version__
from aioli.cli.compare import add_methods
from aioli.cli.jobs import add_recipe, recipe_of, setups
from aioli.cli.parse import parse_methods
from aioli.cli.show import say, table
from aioli.report.text import clock

if TYPE_CHECKING:
    from aioli.runs.job import Job
    from aioli.runs.rehearsal import Rehearsal

EXAMPLES = """examples:
  aioli plan recipe.yaml                                  all methods, one seed
  aioli plan recipe.yaml --methods dml aioli+dml --seeds 5 --budget restricted
  aioli plan recipe.yaml --workers 8 --no-timing          only count

The time is that of a few training steps of your model on your data, measured here.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "plan",
        help="what mix or compare would train, and how long it would take",
        description="Show the runs of every method, and how long they would take; nothing is trained but a few steps.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recipe(command)
    add_methods(command)
    command.add_argument("--no-timing", action="store_true", help="do not measure how long a step takes")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Plan."""
    recipe = recipe_of(options)
    if options.seeds < 1:
        raise ValueError(f"--seeds {options.seeds} must be at least 1")
    workers = _workers(options)
    from aioli.registry import create, where_from
    from aioli.runs.rehearsal import LateError, rehearse

    final, proxy = setups(recipe, options)
    plans: dict[str, Rehearsal] = {}
    refused: dict[str, str] = {}
    jobs: dict[str, Job] = {}
    named = parse_methods(options.methods)
    for label, method in named if len(named) == 1 else {"stratified": create("stratified"), **dict(named)}.items():
        try:
            for seed in range(recipe.seed + options.seeds - 1, recipe.seed - 1, -1):
                plan = rehearse(method, final.problem(seed), final, proxy)
                counted = plan.counted(label)
                sum(job.tried for job in counted.values())  # refused here, if it cannot be rehearsed
                plans[label], jobs = plan, jobs | counted
        except LateError as error:
            refused[label] = f"nobody knows how many runs it takes: {error}"
        except Exception as error:
            refused[label] = where_from(error)
    if not plans:
        raise ValueError("; ".join(f"{name} cannot run here: {why}" for name, why in refused.items()))
    there = _finished(options.store, jobs)
    seconds, judging = ({}, 0.0) if options.no_timing else _seconds(jobs, options.threads)
    found = {
        "groups": final.recipe.data.groups,
        "targets": final.recipe.data.targets,
        "steps": recipe.train.steps,
        "budget": recipe.budget,
        "seeds": options.seeds,
        "methods": [_method(label, plan, seconds, recipe.train.steps) for label, plan in plans.items()],
        "aioli": __version__,
        "refused": refused,
        "runs": len(jobs),
        "finished": len(there),
        "run_steps": sum(job.run.task.steps for key, job in jobs.items() if key not in there),
        "fork_steps": sum(job.tried for key, job in jobs.items() if key not in there),
        "workers": workers,
        "judging": judging,
        "seconds": _wall(plans, jobs, there, seconds, workers) if seconds else None,
    }
    say(json.dumps(found, indent=2) if options.json else render(found))
    return 0


def _workers(options: argparse.Namespace) -> int:
    if options.workers is not None and options.workers < 1:
        raise ValueError(f"--workers {options.workers} must be at least 1")
    from aioli.runs.machine import cores, gpus

    return int(options.workers or len(gpus()) or cores())


def _finished(path: str, jobs: Mapping[str, Job]) -> set[str]:
    """Which runs are in the store already."""
    from aioli.runs.store import MARK, RunStore

    if not (Path(path) / MARK).is_file():
        return set()
    store = RunStore(path, make=False)
    return {key for key, job in jobs.items() if store.outcome(job) is not None}


def _seconds(jobs: Mapping[str, Job], threads: int) -> tuple[dict[str, float], float]:
    """How long each run would take here, and which share of all that is judging."""
    from aioli.config import content_hash
    from aioli.runs.estimate import Pace, measure

    paces: dict[str, Pace] = {}
    found, judging = {}, 0.0
    for key, job in jobs.items():
        kind = content_hash(job.setup.content)
        if kind not in paces:
            paces[kind] = measure(job.setup, threads)
        found[key] = paces[kind].seconds(job)
        judging += paces[kind].judging
    return found, judging / max(sum(found.values()), 1e-9)


def _method(label: str, plan: Rehearsal, seconds: Mapping[str, float], steps: int) -> dict[str, Any]:
    """One method on one seed."""
    from aioli.runs.rehearsal import purpose

    stages = [
        {
            "what": purpose(stage, k == len(plan.stages) - 1),
            "runs": len({job.key for job in stage}),
            "steps": stage[0].run.task.steps,
            "model": stage[0].about()["model"],
        }
        for k, stage in enumerate(plan.stages)
    ]
    return {
        "method": label,
        "extra_runs": len(plan.extra),
        "extra_steps": sum(job.run.task.steps for job in plan.extra) / steps,
        "fork_steps": sum(job.tried for job in plan.jobs.values()),
        "seconds": sum(seconds[key] for key in plan.counted(label)) if seconds else None,
        "stages": stages,
    }


def _wall(
    plans: Mapping[str, Rehearsal], jobs: Mapping[str, Job], there: set[str], seconds: Mapping[str, float], workers: int
) -> float:
    """From beginning to end: the work shared by all workers, but no less than the longest chain of stages."""
    work = sum(seconds[key] for key in jobs if key not in there) / workers
    timed = {job.key: seconds[key] for key, job in jobs.items()}
    chains = [
        sum(max((timed[job.key] for job in stage if job.key not in there), default=0.0) for stage in plan.stages)
        for plan in plans.values()
    ]
    return max([work, *chains])


def render(found: Mapping[str, Any]) -> str:
    """The plan for people."""
    rows: list[Sequence[str]] = []
    for method in found["methods"]:
        for k, stage in enumerate(method["stages"]):
            first = k == 0
            rows.append(
                [
                    method["method"] if first else "",
                    stage["what"],
                    f"{stage['runs']} × {stage['steps']:,}",
                    stage["model"],
                    str(method["extra_runs"]) if first else "",
                    f"{method['extra_steps']:.2g} S" if first else "",
                    clock(method["seconds"]) if first and method["seconds"] is not None else "",
                ]
            )
    timed = found["seconds"] is not None
    header = ["method", "stage", "runs × steps", "model", "extra runs", "extra steps", "alone"]
    if not timed:
        header, rows = header[:-1], [row[:-1] for row in rows]
    seeds = "" if found["seeds"] == 1 else f", {found['seeds']} seeds"
    towards = "" if found["targets"] == found["groups"] else f" → {', '.join(found['targets'])}"
    lines = [
        f"{', '.join(found['groups'])}{towards}: S={found['steps']:,}, budget {found['budget']}{seeds}",
        "",
        table(header, rows, 2),
        "",
    ]
    there = f", {found['finished']} of which are finished" if found["finished"] else ""
    lines.append(f"in all {found['runs']} different runs{there}; {found['run_steps']:,} steps are to be trained")
    for method in found["methods"]:
        if method["fork_steps"]:
            more = method["fork_steps"] / found["steps"]
            lines.append(f"{method['method']} also trains up to about {more:.2g} S on copies of the model")
    if timed:
        workers = f"{found['workers']} worker{'s' * (found['workers'] != 1)}"
        lines.append(f"with {workers} about {clock(found['seconds'])}, by a short measurement on this machine")
    if timed and found["judging"] > 0.2:
        lines.append(f"{found['judging']:.0%} of that is to judge every run on all validation and test data")
    lines += [f"{name} cannot run here: {why}" for name, why in found["refused"].items()]
    return "\n".join(lines)
