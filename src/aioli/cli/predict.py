"""`aioli predict`: what a fitted law says of other mixtures."""

from __future__ import annotations

import argparse
import json

import numpy as np

from aioli.cli.show import say, table

EXAMPLES = """examples:
  aioli predict fit.json mixtures.csv                      a table with a column for each group
  aioli predict fit.json mixtures.csv --proportions 'train_*'
  aioli predict fit.json --mixture code=0.5,books=0.3,web=0.2
  aioli predict fit.json mixtures.csv --csv > predicted.csv
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "predict",
        help="losses that a fitted law predicts for mixtures",
        description="Predict the losses of mixtures, with a law that aioli fit has written.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("fit", metavar="FIT.json", help="written by aioli fit -o")
    command.add_argument("mixtures", nargs="?", metavar="MIXTURES", help="CSV, TSV or Parquet, a mixture in each row")
    command.add_argument("--mixture", action="append", default=[], metavar="GROUP=SHARE,…", help="a mixture by name")
    command.add_argument("--proportions", metavar="GLOB", help="columns of proportions, such as 'train_*'")
    command.add_argument("--csv", action="store_true", help="print CSV with all digits")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Predict."""
    from aioli.cli.solve import numbers
    from aioli.fits import Fit, read_mixtures
    from aioli.simplex import as_mixture

    fit = Fit.load(options.fit)
    groups, targets = fit.runs.groups, fit.runs.targets
    parts, rounded = [], 0
    if options.mixtures is not None:
        P, rounded = read_mixtures(options.mixtures, groups, options.proportions, fit.runs.columns)
        parts.append(P)
    for text in options.mixture:
        shares = numbers([text], groups, "group", "--mixture")
        parts.append(as_mixture([shares.get(group, 0.0) for group in groups], name="--mixture")[None])
    if not parts:
        raise ValueError("which mixtures? give a table, or --mixture code=0.5,books=0.5")
    P = np.concatenate(parts)
    losses = fit.predict(P)
    mean = losses.mean(1)
    if options.json:
        rows = [
            {
                "proportions": dict(zip(groups, p, strict=True)),
                "losses": dict(zip(targets, losses[k].tolist(), strict=True)),
                "mean_loss": float(mean[k]),
            }
            for k, p in enumerate(P.tolist())
        ]
        say(json.dumps({"law": fit.name, "renormalised_rows": rounded, "predictions": rows}, indent=2))
    elif options.csv:
        import csv
        import sys

        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(["row", *targets, "mean"])
        out.writerows([k + 1, *map(repr, losses[k].tolist()), repr(float(mean[k]))] for k in range(len(P)))
    else:
        shown = [[str(k + 1), *(f"{v:.4f}" for v in losses[k]), f"{mean[k]:.4f}"] for k in range(len(P))]
        say(table(["row", *targets, "mean"], shown))
        if rounded:
            say(f"{rounded} rows were rounded and are made to sum to 1")
    return 0
