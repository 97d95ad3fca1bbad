"""`aioli solve`: the best mixture under a fitted law, how sure it is, and how much it matters."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aioli.cli.jobs import check_place
from aioli.cli.show import Bar, say, table
from aioli.export.systems import SYSTEMS, block
from aioli.files import read_json, sealed, write_text

if TYPE_CHECKING:
    from aioli.fits import Fit, Solution, Wish

EXAMPLES = """examples:
  aioli solve fit.json                                     the mixture with the lowest mean loss over all targets
  aioli solve fit.json --target medicine,law               only these targets count
  aioli solve fit.json --weight code=2 --max books=0.1 --min wiki=0.02
  aioli solve fit.json --available tokens.yaml --budget 100e9 --max-epochs 4
                                                           no group repeated more than 4 times in 100 billion tokens
  aioli solve fit.json --tried                             no share above what some run has tried
  aioli solve fit.json --block megatron                    only the mixture, to paste

tokens.yaml (or .json) says how many tokens there are of each group:
  code: 30e9
  books: 5e9
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "solve",
        help="the best mixture under a fitted law, and how sure it is",
        description="Find the mixture with the lowest predicted loss, exactly, with intervals and what it matters.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("fit", metavar="FIT.json", help="written by aioli fit -o")
    for name, what in (
        ("weight", "how much a target counts (default 1)"),
        ("max", "largest share of a group"),
        ("min", "smallest share of a group"),
    ):
        command.add_argument(f"--{name}", action="append", default=[], metavar="NAME=NUMBER,…", help=what)
    command.add_argument("--target", action="append", default=[], metavar="A,B", help="only these targets count")
    command.add_argument("--available", metavar="FILE", help="tokens there are of each group (YAML or JSON)")
    command.add_argument("--budget", type=float, metavar="TOKENS", help="tokens of the run, with --available")
    command.add_argument("--max-epochs", type=float, metavar="N", help="how often a group may be repeated (default 4)")
    command.add_argument("--tried", action="store_true", help="no share above what some run has tried")
    command.add_argument(
        "--bootstrap",
        type=int,
        metavar="N",
        help="resampled tables for intervals (default 200; 100 or 20 for slow laws; 0: none)",
    )
    command.add_argument("--seed", type=int, default=0, help="of the resampling (default 0)")
    command.add_argument("--block", choices=list(SYSTEMS), help="print only the mixture, for this trainer")
    command.add_argument("-o", "--out", metavar="FILE.json", help="also write everything as JSON")
    command.add_argument("--report", metavar="FILE.html", help="write a page with pictures")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def numbers(texts: Sequence[str], names: Sequence[str], what: str, option: str) -> dict[str, float]:
    """`code=2,books=0.5`, also several times; names may hold commas or equals signs if they are known."""
    found: dict[str, float] = {}
    for text in texts:
        rest, seen = text, set[str]()
        while rest:
            name = max((n for n in names if rest.startswith(n + "=")), key=len, default=rest.partition("=")[0])
            value, _, after = rest[len(name) + 1 :].partition(",")
            if name in seen:
                raise ValueError(f"{option} {text} names {name} twice")
            seen.add(name)
            if name not in names:
                raise ValueError(f"{option} {text}: there is no {what} {name!r}; there are {', '.join(names)}")
            try:
                found[name] = float(value)
            except ValueError:
                hint = "0.2, not 20%" if value.endswith("%") else f"{name}=0.1"
                raise ValueError(f"{option} {text}: {value!r} is not a number; write {hint}") from None
            if not math.isfinite(found[name]) or found[name] < 0:
                raise ValueError(f"{option} {text}: {name}={value} must be a number that is not negative")
            rest = after
    return found


def tokens_of(path: str, groups: Sequence[str]) -> dict[str, float]:
    """Tokens by group, from YAML or JSON."""
    if not Path(path).is_file():
        raise ValueError(f"--available {path}: there is no such file")
    if path.endswith(".json"):
        plain = read_json(Path(path)) if Path(path).is_file() else None
        if not isinstance(plain, dict):
            raise ValueError(f'{path} is not a JSON object such as {{"code": 30e9}}')
    else:
        from aioli.recipe import read

        plain = read(path)
    found = {}
    unknown = [str(name) for name in plain if str(name) not in groups]
    if unknown:
        raise ValueError(f"{path} names {unknown[0]!r}, which is no group of the fit; there are {', '.join(groups)}")
    for name, value in plain.items():
        try:
            found[str(name)] = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{path}: {name} is {value!r}, not a number of tokens") from None
    return found


def wish_of(fit: Fit, options: argparse.Namespace) -> Wish:
    """What is asked for."""
    from aioli.fits import Wish, caps_from_tokens

    groups, targets = fit.runs.groups, fit.runs.targets
    caps = numbers(options.max, groups, "group", "--max")
    natural = None
    if options.available is not None:
        natural = tokens_of(options.available, groups)
        if options.budget is None:
            raise ValueError("--available needs --budget: the tokens of the whole run, such as --budget 100e9")
        epochs = 4.0 if options.max_epochs is None else options.max_epochs
        for group, cap in caps_from_tokens(natural, groups, options.budget, epochs).items():
            caps[group] = min(cap, caps.get(group, 1.0))
    elif options.budget is not None or options.max_epochs is not None:
        raise ValueError("--budget and --max-epochs need --available: how many tokens there are of each group")
    if options.tried:
        for group, most in zip(groups, fit.runs.P.max(0).tolist(), strict=True):
            caps[group] = min(most, caps.get(group, 1.0))
    floors = numbers(options.min, groups, "group", "--min")
    named = [name for text in options.target for name in ([text] if text in targets else text.split(","))]
    weights = numbers(options.weight, targets, "target", "--weight")
    idle = [name for name in weights if named and name not in named]
    if idle:
        raise ValueError(f"--weight {idle[0]} counts for nothing: --target leaves {idle[0]} out")
    return Wish.of(fit.runs, weights, floors, caps, tuple(named) or None, natural)


def run(options: argparse.Namespace) -> int:
    """Solve."""
    out, page = check_place(options.out, (".json",)), check_place(options.report, (".html",), "--report")
    from aioli.fits import Fit, solve

    fit = Fit.load(options.fit)
    wish = wish_of(fit, options)
    bar = Bar("resampling")
    count = 0 if options.block is not None and out is None and page is None else options.bootstrap
    try:
        found = solve(fit, wish, count, options.seed, lambda k, n: bar.show(k, n, f"{k}/{n} tables"))
    finally:
        bar.clear()
    plain = json.dumps(found.to_json(), indent=2, ensure_ascii=False)
    if out is not None:
        write_text(out, json.dumps(sealed(found.to_json()), indent=2, ensure_ascii=False) + "\n")
    if page is not None:
        from aioli.report.fits import write_solution

        write_solution(found, page)
    if options.json:
        say(plain)
    elif options.block is not None:
        say(block(options.block, dict(zip(fit.runs.groups, found.best.proportions.tolist(), strict=True))))
    else:
        say(render(found, page))
    return 0


def render(found: Solution, page: Path | None = None) -> str:
    """The solution for people."""
    fit, best, wish = found.fit, found.best, found.wish
    lines = [f"{fit.name}, fitted to {len(fit.runs.P)} runs; {_objective(found)}", ""]
    header = ["group", "", "share"]
    if found.interval is not None and found.near is not None:
        header += ["95% interval", "as good"]
    if (wish.high < 1).any() or (wish.low > 0).any():
        header.append("allowed")
    rows = []
    for j, group in enumerate(fit.runs.groups):
        row = [group, "█" * round(30 * best.proportions[j]), f"{best.proportions[j]:.2%}"]
        if found.interval is not None and found.near is not None:
            row += [_range(found.interval[j]), _range(found.near[j])]
        if len(header) in (4, 6):
            row.append(_range((wish.low[j], wish.high[j])))
        rows.append(row)
    lines += [table(header, rows, 2), ""]
    lines += [*_certainty(found), ""]
    lines += [_simple(found), ""]
    lines += [f"worth knowing: {note}" for note in found.notes]
    lines += ["to paste:", f"  {block('json', dict(zip(fit.runs.groups, best.proportions.tolist(), strict=True)))}"]
    lines.append(f"  (--block {'|'.join(SYSTEMS)} prints one alone; aioli export writes them with your paths)")
    if page is not None:
        lines.append(f"pictures: {page}")
    return "\n".join(lines)


def _range(pair: Sequence[float]) -> str:
    return f"{pair[0]:.1%} – {pair[1]:.1%}"


def _objective(found: Solution) -> str:
    weights, targets = found.wish.target_weights, found.fit.runs.targets
    used = [(t, w) for t, w in zip(targets, weights, strict=True) if w > 0]
    if len(used) == 1:
        return f"the loss of {used[0][0]} counts"
    if len({round(w, 9) for _, w in used}) == 1:
        which = f"all {len(used)} targets" if len(used) == len(targets) else ", ".join(t for t, _ in used)
        return f"the mean loss of {which} counts"
    least = min(w for _, w in used)
    return "the weighted mean loss counts: " + ", ".join(f"{t} ×{w / least:.3g}" for t, w in used)


def _certainty(found: Solution) -> list[str]:
    best = found.best
    words = [f"predicted loss {best.value:.4f}"]
    if found.loss_interval is not None:
        words[0] += f", 95% interval {found.loss_interval[0]:.4f} to {found.loss_interval[1]:.4f}"
        words[0] += f" ({found.resamples} resampled tables)"
    if best.gap is not None:
        words.append(f"no allowed mixture is better by more than {best.gap:.1g}, under this law (certified)")
    if found.stderr is not None and found.regret is not None:
        words.append(
            f"'as good': how far that share can go before the loss rises by one standard error ({found.stderr:.2g}); "
            f"a mixture chosen from another such table would lose {found.regret:.2g} on average"
        )
    return words


def _simple(found: Solution) -> str:
    rows = []
    for name, each in found.compared.items():
        row = [each.titled(name), f"{each.loss:.4f}", f"{each.worse:+.4f}"]
        if each.interval is not None:
            row.append(f"{each.interval[0]:+.4f} to {each.interval[1]:+.4f}")
        row.append("yes" if each.within else "no")
        rows.append(row)
    interval = ["95% interval"] if found.loss_interval is not None else []
    if all(each.within for each in found.compared.values()):
        rows = [row[:-1] for row in rows]
    header = ["instead", "predicted loss", "difference", *interval, "allowed"]
    return table(header[: len(rows[0])], rows)
