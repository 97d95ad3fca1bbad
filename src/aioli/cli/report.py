"""`aioli report`: runs as one page that works offline."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aioli.cli.jobs import STORE, check_place
from aioli.cli.show import plain, say

EXAMPLES = """examples:
  aioli report run -o report.html                  one run: mixture, losses, A over its rounds, cost, recipe
  aioli report stratified aioli -o report.html     two runs side by side
  aioli report aioli-runs -o report.html           everything in a run store: methods with intervals, the law of a sweep
  aioli report 3f2a 77b0 --store aioli-runs -o report.html         runs of a store by the beginning of their keys
  aioli ui aioli-runs                              the same, live in a browser while runs go on
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "report",
        help="make one page of one run, a sweep or a comparison",
        description="Make one self-contained page of runs, finished or not. It needs no network, and can be printed.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("runs", nargs="+", metavar="RUN", help="directories of runs, run stores, or keys (--store)")
    command.add_argument("-o", "--out", default="report.html", metavar="FILE", help="the page (default report.html)")
    command.add_argument("--store", default=STORE, metavar="DIR", help=f"where keys are looked up (default {STORE})")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the page."""
    place = check_place(options.out, (".html",))
    from aioli.report import page
    from aioli.report.runs import report
    from aioli.report.seen import find, look_all, sort

    seen, troubles = look_all(find(options.runs, options.store))
    if not seen:
        raise ValueError(troubles[0] if troubles else f"{', '.join(options.runs)}: no run has begun there")
    for each in troubles:
        print(f"left out: {plain(each)}", file=sys.stderr)
    title, lead, parts = report(sort(seen), troubles)
    assert place is not None
    page.write(place, title, lead, parts, broad=True, live=True)
    say(f"{place}: {len(seen)} run{'s' * (len(seen) != 1)}, {Path(place).stat().st_size / 1e3:,.0f} kB")
    return 0
