"""`aioli simulate`: compare methods where the truth is known, in seconds."""

from __future__ import annotations

import argparse
import json

from aioli.cli.parse import parse_budget, parse_methods
from aioli.cli.show import progress, share, table
from aioli.registry import load
from aioli.simulate import WORLDS, Comparison, Setting, compare

EXAMPLES = """examples:
  aioli simulate                                          seven groups, all methods, 20 seeds
  aioli simulate --targets 1                              good at something that is not trained on
  aioli simulate --methods stratified aioli aioli:eta=0.5,k=8 aioli:rounds=5
                                                          try settings before spending GPU hours
  aioli simulate --world uniform --methods all            where nothing is to be won: who does harm?
  aioli simulate --budget restricted --methods dml aioli+dml
  aioli simulate --methods stratified 'aioli:caps={"group0":0.2}' 'aioli+dml:base={"runs":20}'
  aioli simulate --load my_methods.py --methods stratified mine:points=7
  aioli simulate --json | jq .scores
"""


MOST = {"groups": 5000, "targets": 5000, "seeds": 100_000, "steps": 10**9, "workers": 1024}
"""The largest numbers that are taken for meant."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "simulate",
        help="compare methods and settings in a simulated world with known truth, in seconds",
        description="Compare methods where the truth is known. Every seed draws a new world, the same for all methods.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--world", default="powerlaw", help=f"{', '.join(WORLDS)} (default powerlaw)")
    command.add_argument("--groups", type=int, default=7, metavar="M", help="data groups to mix (default 7)")
    command.add_argument(
        "--targets", type=int, metavar="N", help="judge on N targets outside the groups (default: the groups)"
    )
    command.add_argument("--weights", metavar="W,…", help="how much each target counts, e.g. 4,1,1")
    command.add_argument(
        "--methods",
        nargs="+",
        default=["all"],
        metavar="NAME[:K=V,…]",
        help="`all` (default), or names with settings; see aioli methods",
    )
    command.add_argument("--seeds", type=int, default=20, metavar="N", help="paired seeds (default 20)")
    command.add_argument("--first-seed", type=int, default=0, metavar="S", help="the first of them (default 0)")
    command.add_argument("--steps", type=int, default=2000, metavar="S", help="steps of the final run (default 2000)")
    command.add_argument(
        "--budget",
        default="unrestricted",
        help="extra steps in all: unrestricted (10 S, default), restricted (S/2), or a multiple of S",
    )
    command.add_argument("--load", metavar="FILE.py", help="a Python file of yours that defines methods")
    command.add_argument("--workers", type=int, metavar="N", help="processes (default: all cores)")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def parse_weights(text: str | None) -> tuple[float, ...] | None:
    """Comma-separated numbers."""
    if text is None:
        return None
    try:
        return tuple(float(v) for v in text.split(","))
    except ValueError:
        raise ValueError(f"--weights {text!r} must be numbers separated by commas, one per target") from None


def render(found: Comparison) -> str:
    """The comparison for people."""
    low, high = found.room_interval
    towards = "" if found.targets is None else f" → {found.targets} target{'s' * (found.targets != 1)}"
    where = f"{found.groups} groups{towards}"
    spread = "" if found.seeds == 1 else f" [{low:.4f}, {high:.4f}]"
    lines = [
        f"{found.world} world, {where}, S={found.steps}, {found.seeds} paired seeds, budget {found.budget}",
        f"stratified ends at a mean loss of {found.stratified:.4f}; the best static mixture would gain "
        f"{found.room:.4f}{spread}{' — no room' if found.no_room else ''}",
        "",
    ]
    header = (
        "method",
        "mean loss",
        "vs stratified",
        "95% interval",
        "room closed",
        "gap to oracle",
        "wins",
        "extra runs",
        "probing",
    )
    rows = []
    for s in sorted(found.scores, key=lambda s: s.difference):
        sure = "" if s.interval[0] <= 0 <= s.interval[1] else "  better" if s.difference < 0 else "  worse "
        rows.append(
            (
                s.method,
                f"{s.loss:.4f}",
                f"{s.difference:+.4f}{sure or ' ' * 8}",
                "–" if s.seeds == 1 else f"[{s.interval[0]:+.4f}, {s.interval[1]:+.4f}]",
                "–" if found.no_room else share(s.room_closed),
                f"{s.gap:+.4f}",
                f"{s.wins}/{s.seeds}",
                f"{s.extra_runs:g} ({s.extra_steps:g} S)" if s.extra_runs else "0",
                share(s.probing),
            )
        )
    lines.append(table(header, rows))
    lines += [f"\nskipped {name}: {why}" for name, why in found.skipped.items()]
    lines.append(
        "\nvs stratified: paired difference in true final loss, negative is better; 'better'/'worse' where the interval"
        "\nexcludes 0. probing: cost of all observations in units of the final run's training."
    )
    return "\n".join(lines)


def run(options: argparse.Namespace) -> int:
    """Simulate and print."""
    if options.seeds < 1:
        raise ValueError(f"--seeds {options.seeds} must be at least 1")
    for name, most in MOST.items():
        value = getattr(options, name)
        if value is not None and value > most:
            raise ValueError(f"--{name} {value} is more than is simulated in a lifetime; use at most {most:,}")
    if options.load:
        load([options.load])
    if options.groups == 1:
        raise ValueError("--groups 1: with one group there is nothing to choose; use 2 or more")
    weights = parse_weights(options.weights)
    setting = Setting(
        options.world, options.groups, options.targets, options.steps, parse_budget(options.budget), weights
    )
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    found = compare(setting, parse_methods(options.methods), seeds, options.workers, progress("simulating"))
    if not found.scores:
        raise ValueError("; ".join(f"{name} cannot run here: {why}" for name, why in found.skipped.items()))
    print(json.dumps(found.to_json(), indent=2, allow_nan=False) if options.json else render(found))
    return 0
