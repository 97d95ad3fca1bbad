"""`aioli analyze`: do the laws hold on your data, are a method's parameters right, is greedy enough?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from aioli.cli.jobs import add_executor, add_recipe, check_place, conduct, recipe_of, setups
from aioli.cli.parse import parse_methods
from aioli.cli.show import say, table

ABOUT = {
    "laws": "fit static and dynamic mixing laws to sweeps (Section 4.2, Figure 2); several --at for checkpoints",
    "interactions": "residuals of the dynamic law, with a test for interactions (Figure 6)",
    "a-star": "does A* change its order over time, and is its diagonal enough (Appendix C.2.1)",
    "parameters": "how close each online method's A is to A*, against what it gains (Figure 3)",
    "greedy": "two rounds: the best pair of mixtures against the best one at a time (Section 4.4)",
}
EXAMPLES = """examples:
  aioli analyze laws data=store 'data.groups=[code, books]' train.steps=2000 --seeds 3 -o laws.html -o laws.json
  aioli analyze laws recipe.yaml --at 0.2 0.4 0.8            the dynamic laws at three times
  aioli analyze laws recipe.yaml model.name=checkpoint-72k   from a model that is trained already
  aioli analyze interactions recipe.yaml --starts 3          (shares the runs of laws)
  aioli analyze parameters recipe.yaml --methods doge aioli --seeds 3
  aioli analyze greedy recipe.yaml --sweep 5                 5 + 25 runs of half the steps

Runs are kept and shared (aioli runs); interrupt it at any time: the same command goes on. Judging short forks on all
validation data takes most of the time; val.final=500 judges on 500 sequences of each target.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "analyze",
        help="see whether the mixing laws and the methods' parameters hold on your data",
        description="Studies of Section 4 and Appendix C of the paper, on your data and model:\n"
        + "\n".join(f"  {name:13} {words}" for name, words in ABOUT.items()),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("study", choices=list(ABOUT), metavar="STUDY", help=", ".join(ABOUT))
    add_recipe(command)
    command.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds, from the recipe's on (default 1)")
    command.add_argument(
        "--sweep", type=int, metavar="N", help="mixtures of a sweep (default: the paper's 9, 10 or 40)"
    )
    command.add_argument("--alpha", type=float, help="concentration of the sweep's Dirichlet draws (1, or 1.5)")
    command.add_argument(
        "--at",
        nargs="+",
        default=[],
        metavar="SHARE",
        help="when forks leave, as shares of the run (0.4; 0.25 beyond m = 3)",
    )
    command.add_argument(
        "--ahead", type=int, metavar="N", help="steps of a fork (default: S/50, or S/8 beyond m = 3; at least 25)"
    )
    command.add_argument(
        "--starts", type=int, metavar="N", help="initial mixtures p⁰ (default: all, or 1 beyond m = 3)"
    )
    command.add_argument("--methods", nargs="+", metavar="NAME", help="for parameters (default: all four)")
    command.add_argument(
        "-o", "--out", metavar="FILE", action="append", default=[], help="also write .md, .json or .html (with figures)"
    )
    add_executor(command)
    command.set_defaults(run=run)


def _shares(texts: list[str], options: argparse.Namespace) -> tuple[float, ...]:
    """Numbers; what is none belongs to the settings, which may stand anywhere."""
    found, swallowed = [], []
    for text in texts:
        try:
            found.append(float(text))
        except ValueError:
            if "=" not in text:
                raise ValueError(f"--at {text} is not a number; use shares of the run such as 0.2 0.4") from None
            swallowed.append(text)
    options.settings[:0] = swallowed  # in the order they were written, as far as that is known
    return tuple(found)


def run(options: argparse.Namespace) -> int:
    """Analyze."""
    from aioli.report.analysis import ENDINGS, write

    at = _shares(options.at, options)
    places = [check_place(file, ENDINGS) for file in options.out]
    methods = options.methods
    options.methods = None
    recipe = recipe_of(options)
    if options.seeds < 1:
        raise ValueError(f"--seeds {options.seeds} must be at least 1")
    from aioli.analysis.asking import ask, found, on_one_schedule
    from aioli.runs.store import RunStore

    setup, _ = setups(on_one_schedule(recipe), options)
    asked = ask(
        options.study,
        setup,
        RunStore(options.store),
        range(recipe.seed, recipe.seed + options.seeds),
        None if methods is None else parse_methods(methods),
        sweep=options.sweep,
        at=at,
        ahead=options.ahead,
        starts=options.starts,
        alpha=options.alpha,
    )
    study = found(conduct(options, [asked], setup, setup)[0])
    for place in places:
        if place is not None:
            write(study, place)
    if options.json:
        from aioli.fits.fit import finite

        say(json.dumps(finite(study.to_json()), indent=1))
        return 0
    lines = [study.title, "", *study.words, ""]
    for each in study.tables:
        lines += [table(each.header, each.rows), ""]
    lines += [f"written: {place}" for place in places if place is not None]
    if not any(isinstance(place, Path) and place.suffix == ".html" for place in places):
        lines.append("-o FILE.html writes a page with figures")
    say("\n".join(lines).rstrip())
    return 0
