"""`aioli methods`: the paper's Table 1, generated from the code."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from aioli.cli.show import table
from aioli.methods import conduct, create, names
from aioli.runs.spec import Problem, Result, Run

EXAMPLES = """examples:
  aioli methods            every method as law, parameters and solver, with its extra runs
  aioli methods --json     the same for machines
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "methods",
        help="every method as law × parameters × solver (the paper's Table 1)",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def count_extra_runs(name: str, m: int) -> int:
    """How many extra runs a method plans for m groups in the unrestricted setting, counted on made-up results."""
    problem = Problem(tuple(f"g{j}" for j in range(m)), 5000, sizes=tuple(range(1, m + 1)))
    rng = np.random.default_rng(0)

    def train(runs: list[Run]) -> list[Result]:
        return [Result(rng.uniform(2, 3, m), np.full(m, 5.0), np.full(m, 1 / m)) for _ in runs]

    method = create(name, trees=1, candidates=100, top=1) if name == "regmix" else create(name)
    return conduct(method, problem, train).extra_runs


def extra_runs(name: str) -> str:
    """The count for 2, 3 and 7 groups, as a number or as m."""
    try:
        counts = [count_extra_runs(name, m) for m in (2, 3, 7)]
    except ValueError as error:
        return "10" if "LightGBM" in str(error) else "?"
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


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    found = rows()
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return 0
    header = ("method", "mixing law", "parameters", "solver", "extra runs")
    cells = [
        (r["method"] + ("" if r["lmo"] else " *"), r["law"], r["parameters"], r["solver"], r["extra_runs"])
        for r in found
    ]
    print(table(header, cells, left=4))
    print("\n* outside the framework (not an LMO instance)")
    print("aioli+NAME runs NAME's plan, then lets Aioli adjust its mixture during the final run")
    return 0
