"""`aioli fit`: a mixing law from a table of finished runs, and whether it can be trusted."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aioli.cli.jobs import check_place
from aioli.cli.show import Bar, say, table

if TYPE_CHECKING:
    from aioli.fits import Fit, Runs

EXAMPLES = """examples:
  aioli fit runs.csv --proportions 'p_*' --losses 'loss_*' -o fit.json     one table with both
  aioli fit mixtures.csv losses.csv -o fit.json                            two tables, joined by a column both have
  aioli fit mixtures.csv losses.csv --law auto -o fit.json                 the law that predicts best
  aioli fit mixtures.csv losses.csv --test new_mixtures.csv new_losses.csv
  aioli fit long.csv --proportions p1,p2,p3 --losses loss --targets-in domain --where step=30000
  aioli fit runs.parquet --proportions 'p_*' --losses 'loss_*' --law transfer:terms=4 --report fit.html

then:
  aioli predict fit.json mixtures.csv
  aioli solve fit.json

Patterns name columns; what stands under the star is the name of the group or target. Targets need not be groups.
Laws: log-linear (default), linear, transfer (a power law of what each group gives; terms=4 follows hundreds of runs),
trees (needs LightGBM), auto (the simplest within one standard error of the best, by cross-validation).
"""


def add_table(command: argparse.ArgumentParser) -> None:
    """How tables of runs are read."""
    command.add_argument("--proportions", metavar="GLOB", help="columns of proportions, such as 'train_*' or p1,p2,p3")
    command.add_argument("--losses", metavar="GLOB", help="columns of losses, such as 'metric/*_loss'")
    command.add_argument("--index", metavar="COLUMN", help="the column that joins two tables")
    command.add_argument(
        "--targets-in", metavar="COLUMN", help="for tables with a row for each run and target: the target's name"
    )
    command.add_argument(
        "--where", metavar="COLUMN=VALUE", action="append", default=[], help="only rows with this value (repeatable)"
    )


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "fit",
        help="fit a mixing law to a table of finished runs",
        description="Fit how losses answer to proportions, and measure it on runs it has not seen.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("tables", nargs="+", metavar="TABLE", help="CSV, TSV or Parquet; or mixtures and losses")
    add_table(command)
    command.add_argument("--law", default="log-linear", help="log-linear (default), linear, transfer, trees, auto")
    command.add_argument("--test", nargs="+", metavar="TABLE", help="measure on these runs as well")
    command.add_argument("--folds", type=int, metavar="K", help="folds of the cross-validation (default 5)")
    command.add_argument("--ridge", type=float, default=0.0, help="made-up average runs per group, for too few runs")
    command.add_argument("--seed", type=int, default=0, help="of the folds (default 0)")
    command.add_argument("-o", "--out", metavar="FILE.json", help="write the fit, for aioli predict and aioli solve")
    command.add_argument("--report", metavar="FILE.html", help="write a page with pictures")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def runs_of(tables: Sequence[str], options: argparse.Namespace) -> Runs:
    """A table as the options describe it."""
    from aioli.fits import read_runs

    where = {}
    for text in options.where:
        column, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--where {text} is not COLUMN=VALUE")
        where[column] = value
    return read_runs(tables, options.proportions, options.losses, options.index, options.targets_in, where)


def run(options: argparse.Namespace) -> int:
    """Fit a law."""
    out, page = check_place(options.out, (".json",)), check_place(options.report, (".html",), "--report")
    from aioli.fits import fit_runs

    runs = runs_of(options.tables, options)
    test = None if options.test is None else runs_of(options.test, options)
    bar = Bar("fitting")
    done = [0]

    def step() -> None:
        done[0] += 1
        bar.show(done[0], 0, f"{done[0]} laws fitted")

    try:
        fit = fit_runs(
            runs, options.law, test=test, folds=options.folds, seed=options.seed, ridge=options.ridge, step=step
        )
    finally:
        bar.clear()
    if out is not None:
        fit.save(out)
    if page is not None:
        from aioli.report.fits import write_fit

        write_fit(fit, page)
    if options.json:
        from aioli.fits.fit import finite

        say(json.dumps(finite({k: v for k, v in fit.to_json().items() if k not in ("runs",)}), indent=2))
    else:
        say(render(fit, out, page))
    return 0


def render(fit: Fit, out: Path | None, page: Path | None) -> str:
    """The fit for people."""
    from aioli.fits.named import FORMULAS

    runs = fit.runs
    lines = [f"{fit.name}: {FORMULAS[fit.name.partition(':')[0]]}"]
    counts = ((len(runs.P), "run"), (len(runs.groups), "group"), (len(runs.targets), "target"))
    lines.append("{}, {} → {}".format(*(f"{n} {word}{'s' * (n != 1)}" for n, word in counts)))
    if runs.renormalised:
        lines.append(f"shares of {runs.renormalised} of {len(runs.P)} rows were rounded and are made to sum to 1")
    if runs.missing:
        lines.append(f"{runs.missing} losses are missing; each leaves out that run for that target only")
    lines += [*runs.notes, ""]
    if fit.choices:
        lines += [_choices(fit), ""]
    lines += [_scores(fit), ""]
    lines += _troubles(fit)
    for place, words in ((out, "aioli solve {0}"), (page, "pictures: {0}")):
        if place is not None:
            lines.append(words.format(place) if place is page else f"written: {place}; next: {words.format(place)}")
    if out is None:
        lines.append("-o fit.json keeps it, for aioli predict and aioli solve")
    return "\n".join(lines)


def fraction(r2: float) -> str:
    """R², as far as it says anything: a law that has run away is worse than none, no matter by how much."""
    return "< -10" if r2 < -10 else f"{r2:.4f}"


def _choices(fit: Fit) -> str:
    rows = [
        [
            ("→ " if each.chosen else "  ") + each.name,
            f"{each.error:.4f}",
            "smallest" if each.worse == 0 else f"+{each.worse:.4f} ± {each.stderr:.4f}",
            f"{each.spearman:.4f}",
        ]
        for each in fit.choices
    ]
    header = ["  law", "error / variance", "more than the smallest", "Spearman"]
    note = "(the simplest law within one standard error of the smallest held-out error; means over targets)"
    return table(header, rows) + "\n" + note


def _scores(fit: Fit) -> str:
    measured = [fit.scores] + ([fit.test] if fit.test is not None else [])
    header = ["target", "runs"]
    for each in measured:
        header += [f"MSE, {each.how}", "R²", "Spearman"]
    header.append("R² in sample")
    rows = []
    for i, target in enumerate(fit.runs.targets):
        row = [target, str(fit.scores.runs[i])]
        for each in measured:
            row += [f"{each.mse[i]:.3g}", fraction(each.r2[i]), f"{each.spearman[i]:.4f}"]
        rows.append([*row, fraction(fit.law.r2_[i])])
    if len(rows) > 1:
        mean = ["mean", ""]
        for each in measured:
            mean += [f"{each.mse.mean():.3g}", fraction(each.r2.mean()), f"{each.spearman.mean():.4f}"]
        rows.append([*mean, fraction(fit.law.r2_.mean())])
    return table(header, rows)


def _troubles(fit: Fit) -> list[str]:
    """Warnings, the most telling first; many of one kind are counted."""
    lines: list[str] = []
    for kind, title in (
        ("poor", "little is explained"),
        ("interactions", "the law is misspecified: groups interact"),
        ("edge", "the law is misspecified near an edge"),
    ):
        some = [each for each in fit.troubles if each.kind == kind]
        if some:
            some.sort(key=lambda each: each.p_value if each.p_value is not None else 0.0)
            lines.append(f"warning: {title} ({len(some)} of {len(fit.runs.targets)} targets)")
            lines += [f"  {each.target}: {each.words}" for each in some[:4]]
            lines += [f"  … and {len(some) - 4} more (--json shows all)"] if len(some) > 4 else []
    if lines:
        if not fit.choices:
            lines.append("  --law auto looks for a law that fits better")
        lines.append("")
    return lines
