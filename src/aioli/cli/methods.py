"""`aioli methods`: the paper's Table 1, generated from the code, and the settings of each method."""

from __future__ import annotations

import argparse
import inspect
import json
from typing import Any

import numpy as np

from aioli.carrying import Carrying
from aioli.cli.show import table
from aioli.methods import create, names
from aioli.registry import explain, settings_of
from aioli.runs.spec import Problem, Result

EXAMPLES = """examples:
  aioli methods            every method as law, parameters and solver, with its extra runs
  aioli methods aioli      one method: what it does and its settings
  aioli methods --json     the table for machines
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "methods",
        help="every method as law × parameters × solver (the paper's Table 1)",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("name", nargs="?", help="a method, to see its settings")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def count_extra_runs(name: str, m: int) -> int:
    """How many extra runs a method plans for m groups in the unrestricted setting, counted on made-up results."""
    quick = {"candidates": 100, "top": 1, "trees": 1}  # what is fitted to made-up results need not be good
    method = create(name, **{key: value for key, value in quick.items() if key in settings_of(name)})
    carrying = Carrying(method, Problem(tuple(f"g{j}" for j in range(m)), 5000, sizes=tuple(range(1, m + 1))))
    rng = np.random.default_rng(0)
    try:
        while carrying.final is None:
            drawn = [rng.uniform(2, 3, m) for _ in carrying.stage]
            carrying.tell([Result(losses, np.full(m, 5.0), np.full(m, 1 / m)) for losses in drawn])
    except ValueError as error:  # an extra that is not installed: the runs planned before it is needed are what counts
        if "pip install" not in str(error):
            raise
    return len({run.key for run in carrying.extra})


def extra_runs(name: str) -> str:
    """The count for 2, 3 and 7 groups, as a number or as m."""
    counts = [count_extra_runs(name, m) for m in (2, 3, 7)]
    return str(counts[0]) if len(set(counts)) == 1 else "m" if counts == [2, 3, 7] else str(counts)


def rows() -> list[dict[str, Any]]:
    """One row per method."""
    found = []
    for name in names():
        row = create(name).row
        found.append(
            {
                "method": name,
                "law": row.law,
                "parameters": row.parameters,
                "solver": row.solver,
                "extra_runs": extra_runs(name),
                "lmo": row.lmo,
            }
        )
    return found


def one(name: str) -> dict[str, Any]:
    """One method: what it does, its settings with their defaults and meanings."""
    plain = create(name).name
    base = "aioli" if plain.startswith("aioli+") else plain
    settings = [
        {"setting": key, "default": p.default, "meaning": explain(base, key)} for key, p in settings_of(base).items()
    ]
    about = explain(base)
    if plain != base:
        inner = plain.removeprefix("aioli+")
        about = f"{inner}'s plan; S_init steps of the final run with its mixture; then Aioli, from even shares (E3)."
        settings = [s for s in settings if s["setting"] not in ("S_init", "p_init")]
        meaning = f'settings of {inner} (aioli methods {inner}), such as {{"runs": 5}}'
        length = (
            f"steps with {inner}'s mixture; None: as long as its extra runs are, or would be in the restricted setting"
        )
        settings = [
            {"setting": "base", "default": {}, "meaning": meaning},
            {"setting": "S_init", "default": None, "meaning": length},
            *settings,
        ]
    return {"method": plain, "about": about, "settings": settings}


def run(options: argparse.Namespace) -> int:
    """Print the table, or one method."""
    if options.name is not None:
        found = one(options.name)
        if options.json:
            print(json.dumps(found, indent=2, ensure_ascii=False))
            return 0
        print(f"{found['method']}: {inspect.cleandoc(found['about'])}\n")
        if found["settings"]:
            shown = [(s["setting"], str(s["default"]), s["meaning"]) for s in found["settings"]]
            print(table(("setting", "default", "meaning"), shown, left=3))
        return 0
    listed = rows()
    if options.json:
        print(json.dumps(listed, indent=2, ensure_ascii=False))
        return 0
    header = ("method", "mixing law", "parameters", "solver", "extra runs")
    cells = [
        (r["method"] + ("" if r["lmo"] else " *"), r["law"], r["parameters"], r["solver"], r["extra_runs"])
        for r in listed
    ]
    print(table(header, cells, left=4))
    print("\n* outside the framework (not an LMO instance)")
    print(
        "aioli+NAME runs NAME's plan, begins the final run with NAME's mixture, and goes on with Aioli from even shares"
    )
    print("aioli methods NAME shows a method's settings")
    return 0
