"""`aioli compare`: methods side by side on real training, over paired seeds; the paper's tables for any data."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from aioli.cli.jobs import add_executor, add_recipe, check_place, conduct, recipe_of, setups
from aioli.cli.parse import parse_methods
from aioli.cli.show import say, table
from aioli.files import sealed, write_text

if TYPE_CHECKING:
    from aioli.runs.comparison import Comparison

EXAMPLES = """examples:
  aioli compare recipe.yaml                               all methods, one seed
  aioli compare recipe.yaml --seeds 5 --budget restricted -o table.html
  aioli compare recipe.yaml --methods dml aioli aioli+dml aioli:eta=0.5,k=8 --seeds 5
  aioli compare data=store train.steps=500                no recipe: defaults on a token store
  aioli compare recipe.yaml --load my_methods.py --methods mine
  aioli compare recipe.yaml --executor ray --address auto --gpus 1
  aioli plan recipe.yaml --seeds 5                        how long that would take

Interrupt it at any time: the same command goes on, and runs that are equal are trained once.
"""
ENDINGS = (".html", ".md", ".json", ".txt")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "compare",
        help="train every method on your data over several seeds, and compare",
        description="Train methods on your data, over paired seeds, and compare them with stratified.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recipe(command)
    add_methods(command)
    command.add_argument(
        "-o", "--out", metavar="FILE", action="append", default=[], help=f"also write {', '.join(ENDINGS)}"
    )
    add_executor(command)
    command.set_defaults(run=run)


def add_methods(command: argparse.ArgumentParser) -> None:
    """Which methods, how often."""
    command.add_argument(
        "--methods", nargs="+", default=["all"], metavar="NAME", help="all (default), or names such as aioli:eta=0.5"
    )
    command.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="how many, from the recipe's seed on (default 1)"
    )


def run(options: argparse.Namespace) -> int:
    """Compare."""
    recipe = recipe_of(options)
    places = [check_place(file, ENDINGS) for file in options.out]
    named = parse_methods(["stratified", *options.methods])
    if options.seeds < 1:
        raise ValueError(f"--seeds {options.seeds} must be at least 1")
    from aioli.runs.comparison import compare
    from aioli.runs.conducting import Asked
    from aioli.runs.store import RunStore

    final, proxy = setups(recipe, options)
    seeds = range(recipe.seed, recipe.seed + options.seeds)
    asked = [Asked(label, method, final.problem(seed)) for seed in seeds for label, method in named]
    carried = conduct(options, asked, final, proxy)
    found = compare(carried, RunStore(options.store), final, proxy, recipe.budget)
    for place in places:
        if place is not None:
            save(found, place)
    say(json.dumps(found.to_json(), indent=2) if options.json else render(found))
    fine = "all" in options.methods  # then it is no surprise that some cannot work here
    return 1 if any(each.error and not (each.refused and fine) for each in carried) else 0


def save(found: Comparison, place: Path) -> None:
    """Write a comparison in the form that the name of the file asks for."""
    from aioli.report.compare import markdown, page

    if place.suffix == ".html":
        page(found, place)
    elif place.suffix == ".json":
        write_text(place, json.dumps(sealed(found.to_json()), indent=2, ensure_ascii=False) + "\n")
    else:
        write_text(place, markdown(found) if place.suffix == ".md" else render(found) + "\n")


def render(found: Comparison) -> str:
    """The comparison for people."""
    from aioli.report.compare import HEADER, cells, failures, ordered, remarks, setting, title

    rows = [cells(score) for score in ordered(found)]
    lines = [title(found), setting(found), "", table(HEADER, rows), "", *remarks(found)]
    if failed := failures(found):
        lines += ["", "without a result:", *(f"  {line}" for line in failed)]
    return "\n".join(lines)
