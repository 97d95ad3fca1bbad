"""`aioli demo`: what this is about, on one screen."""

from __future__ import annotations

import argparse

from aioli.cli.show import progress
from aioli.cli.simulate import parse_methods, render
from aioli.simulate import Setting, compare

EXAMPLES = """examples:
  aioli demo
"""

INTRO = """You want a model that is good at one thing, and you have four data groups to train it on, none of them quite
that thing. How much of each? This is a simulated world with known truth: nothing is trained, everything else is real.
"""

NEXT = """
What to try next
  aioli simulate --targets 1 --methods stratified aioli-ood aioli-ood:eta=2    settings, before spending GPU hours
  aioli simulate                                                              every method, judged on its own groups
  aioli methods                                                               what they assume, and what they cost
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "demo",
        help="see what it does: four groups mixed towards one target, in seconds",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare a few methods towards a target and say what to do next."""
    print(INTRO)
    methods = parse_methods(["stratified", "proportional", "aioli-ood", "aioli-pooled", "dml", "doge", "skill-it"])
    found = compare(Setting("powerlaw", 4, 1, 2000), methods, range(20), progress=progress("simulating"))
    print(render(found))
    print(NEXT)
    return 0
