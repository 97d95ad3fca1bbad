"""`aioli mix`: carry out one method, and get its mixture in a form that other trainers take."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aioli.cli.jobs import add_executor, add_recipe, check_place, conduct, recipe_of, setups
from aioli.cli.parse import parse_methods
from aioli.cli.show import say, table
from aioli.export.schedule import rounded
from aioli.export.systems import SYSTEMS, block
from aioli.files import sealed, write_text
from aioli.report.text import clock, spark
from aioli.report.text import path as way_of

if TYPE_CHECKING:
    from aioli.runs.conducting import Asked
    from aioli.runs.job import Setup
    from aioli.runs.mixing import Mixture

EXAMPLES = """examples:
  aioli mix recipe.yaml --method dml                      ten extra runs, a law, its optimum, the final run
  aioli mix recipe.yaml --method dml --only-proportions   the same without the final run
  aioli mix recipe.yaml --method aioli                    the mixture moves while the model trains
  aioli mix recipe.yaml --method regmix:runs=32 proxy.model=tiny proxy.steps=500 --budget 20
  aioli mix recipe.yaml --method doremi --block hf        only the lines for Hugging Face datasets
  aioli mix recipe.yaml --method dml --executor ray --address auto --gpus 1

Interrupt it at any time: the same command goes on. Runs are kept (aioli runs) and never trained twice.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "mix",
        help="carry out one method on your data and print the mixture",
        description="Carry out a method with all the runs it needs; print its mixture, losses and cost.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recipe(command)
    command.add_argument("--method", metavar="NAME", help="such as dml or aioli:eta=0.5 (default: the recipe's)")
    command.add_argument("--only-proportions", action="store_true", help="do not train the final run")
    command.add_argument("--block", choices=list(SYSTEMS), help="print only the mixture, for this trainer")
    command.add_argument("-o", "--out", metavar="FILE.json", help="also write everything as JSON")
    add_executor(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry out a method."""
    recipe = recipe_of(options)
    place = check_place(options.out, (".json",))
    if options.method is None:
        from aioli.registry import create

        named = [(recipe.method.name, create(recipe.method.name, **recipe.method.settings))]
    else:
        named = parse_methods([options.method])
    if len(named) != 1:
        raise ValueError(f"--method {options.method} names {len(named)} methods; aioli compare takes several")
    from aioli.runs.conducting import Asked
    from aioli.runs.mixing import mixture
    from aioli.runs.store import RunStore

    final, proxy = setups(recipe, options)
    asked = Asked(*named[0], final.problem(recipe.seed), not options.only_proportions)
    if options.only_proportions:
        _ends_static(asked, final, proxy)
    carried = conduct(options, [asked], final, proxy)[0]
    if carried.error is not None:
        raise ValueError(f"{asked.label}: {carried.error}")
    found = mixture(carried, RunStore(options.store))
    if place is not None:
        write_text(place, json.dumps(sealed(found.to_json()), indent=2, ensure_ascii=False) + "\n")
    if options.json:
        say(json.dumps(found.to_json(), indent=2))
    elif options.block is not None:
        if found.path is not None:
            print("worth knowing: the mixture moved; this is its mean over the run", file=sys.stderr)
        say(block(options.block, found.proportions))
    else:
        say(render(found))
    return 0


def _ends_static(asked: Asked, final: Setup, proxy: Setup) -> None:
    """Refuse, before extra runs are trained, a method that has no proportions without its final run."""
    from aioli.policies import Static
    from aioli.runs.rehearsal import LateError, rehearse

    with suppress(LateError):  # a method of the user's that can only be known by carrying it out
        last = rehearse(asked.method, asked.problem, final, proxy).stages[-1][0]
        if not isinstance(last.run.rules, Static):
            raise ValueError(
                f"{asked.label} moves the mixture while the final run trains, so there are no proportions without it; "
                "leave --only-proportions out"
            )


def render(found: Mixture) -> str:
    """The mixture, its losses and its cost, for people."""
    lines = [f"{found.method}: {found.about}", ""]
    shares = rounded(found.proportions, 4)
    rows = [[name, "█" * round(30 * share), f"{share:.2%}"] for name, share in shares.items()]
    if found.path is not None:
        for j, row in enumerate(rows):
            row.insert(1, spark(way_of(found.path, j, found.steps, 30), 0.0, 1.0))
    moved = [] if found.path is None else ["on the way"]
    lines += [table(["group", *moved, "", "share" if not moved else "mean share"], rows, 2 + len(moved)), ""]
    if found.measured or found.predicted:
        lines += [_losses(found), ""]
    lines += [_cost(found), "", "to paste:", f"  {block('json', found.proportions)}"]
    lines.append(f"  {block('megatron', found.proportions)}")
    lines.append(f"  (--block {'|'.join(SYSTEMS)} prints one alone; aioli export writes them with your paths)")
    return "\n".join(lines)


def _losses(found: Mixture) -> str:
    header, rows = ["loss of"], [[target] for target in found.targets]
    columns: dict[str, dict[str, Any]] = {}
    if found.predicted is not None:
        model = "" if found.predicted_model is None else f" of {found.predicted_model}"
        columns[f"predicted, {found.predicted_steps} steps{model}"] = found.predicted
    columns |= {f"measured, {split}": losses for split, losses in found.measured.items()}
    for name, losses in columns.items():
        header.append(name)
        for row in rows:
            row.append(f"{losses[row[0]]:.4f}")
    return table(header, rows)


def _cost(found: Mixture) -> str:
    cost = found.cost
    return (
        f"cost: {cost['extra_runs']} extra runs, {cost['extra_steps']:,} extra steps "
        f"({cost['extra_steps'] / found.steps:.2g} S); {clock(cost['train'])} of training, {clock(cost['probe'])} of "
        f"looking at validation losses on the way ({cost['probing']:.1%} of that), {clock(cost['evaluation'])} of "
        "judging on all held-out data"
    )
