"""`aioli reproduce`: the paper's experiments, at the size of this machine or of the paper."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioli.cli.jobs import add_executor, add_places, conduct, executor_of
from aioli.cli.show import Bar, need, say, table
from aioli.experiments.catalogue import EXPERIMENTS, Experiment, find
from aioli.experiments.profiles import PROFILES, Profile
from aioli.experiments.settings import Setting, named, plain_name

if TYPE_CHECKING:
    from aioli.data.store import TokenStore
    from aioli.experiments.bench import Bench

RESULTS = "aioli-results"
EXAMPLES = """examples:
  aioli reproduce --list                                  all experiments, and what they need
  aioli reproduce unrestricted --settings arxiv/stackexchange --seeds 1       minutes, on text of this machine
  aioli reproduce unrestricted restricted --data 'corpus/*.jsonl.gz'          on text in SlimPajama's schema
  aioli reproduce ood --data store --settings 'arxiv/book/github -> stackexchange'
  aioli reproduce unrestricted --profile paper --dry-run  what the paper trained, and how much that is
  aioli reproduce --show aioli-results/mini -o results.md all results as tables, next to the paper's

Interrupt it at any time: the same command goes on, runs that are equal are trained once, and what is recorded in DIR
already (same data, settings and versions) is not measured again, on this machine or another one.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "reproduce",
        help="repeat the paper's experiments, on a laptop or in full",
        description="Repeat the tables and figures of the paper: the same experiments at the size of this machine "
        "(--profile mini), or with the paper's own settings (--profile paper).",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("names", nargs="*", metavar="NAME", help="experiments (--list), or all")
    command.add_argument("--list", action="store_true", help="list the experiments")
    command.add_argument("--profile", choices=list(PROFILES), default="mini", help="how large (default mini)")
    command.add_argument(
        "--data",
        nargs="+",
        default=[],
        metavar="FILE",
        help="a token store, or files or a folder in SlimPajama's schema; left out: text that is on this machine",
    )
    command.add_argument(
        "--instructions", nargs="+", default=[], metavar="FILE", help="instruction tasks, one file each"
    )
    command.add_argument("--settings", dest="chosen", nargs="+", metavar="SETTING", help="only these data settings")
    command.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="paired seeds (default: what the experiment has, 3 in the small profile, 10 for ood)",
    )
    command.add_argument("--again", action="store_true", help="also measure what is recorded already")
    command.add_argument("--dry-run", action="store_true", help="say what would be trained")
    command.add_argument("--show", metavar="DIR", help="results that are there, as Markdown, next to the paper's")
    command.add_argument(
        "-o", "--out", metavar="DIR", help=f"where results go (default {RESULTS}/PROFILE); with --show a file"
    )
    add_places(command)
    add_executor(command)
    command.set_defaults(run=run, load=[])


def run(options: argparse.Namespace) -> int:
    """Reproduce."""
    if options.list:
        return _list(options.json)
    if options.show is not None:
        return _show(options)
    if not options.names:
        raise ValueError("which experiment? aioli reproduce --list names them")
    experiments, profile = find(options.names), PROFILES[options.profile]
    if options.seeds is not None and options.seeds < 1:
        raise ValueError(f"--seeds {options.seeds} must be at least 1")
    pieces = _pieces(experiments, options.chosen)
    if options.dry_run:
        return _dry_run(pieces, profile, options)
    if not profile.mini and not options.data:
        raise ValueError(
            "--profile paper needs the paper's data and GPUs: make a token store with `aioli prepare slimpajama-6b -o "
            "store` and give it with --data store; --dry-run says what would be trained"
        )
    return _measure(pieces, profile, options)


def _pieces(experiments: list[Experiment], names: list[str] | None) -> list[tuple[Experiment, Setting]]:
    """Experiments with the settings that are asked for; of several experiments, those that have them."""
    wanted = {plain_name(name): name for name in names or ()}
    pieces, known = [], set()
    for each in experiments:
        here = {plain_name(setting.local().name): setting.name for setting in reversed(each.settings) if setting.groups}
        here |= {plain_name(setting.name): setting.name for setting in each.settings}
        chosen = [here[name] for name in wanted if name in here]
        known |= set(here)
        if chosen or not wanted:
            pieces += [(each, setting) for setting in named(chosen, each.settings)]
    missing = [name for short, name in wanted.items() if short not in known]
    if missing:
        there = dict.fromkeys(repr(setting.name) for each in experiments for setting in each.settings)
        raise ValueError(f"--settings {missing[0]}: there is no such setting here; there are {', '.join(there)}")
    return pieces


def _measure(pieces: list[tuple[Experiment, Setting]], profile: Profile, options: argparse.Namespace) -> int:
    need("train", "torch", "transformers", "accelerate", "pydantic", "yaml")
    from aioli.experiments import record

    pieces = _possible(pieces, options)
    folder = Path(options.out or f"{RESULTS}/{profile.name}")
    record.check(folder, {experiment.name for experiment, _ in pieces}, profile.name)
    failed, done = 0, {}
    with executor_of(options) as executor:
        bench = _bench(profile, options, executor)
        for experiment, setting in pieces:
            if bench.local and setting.groups:
                setting = setting.local()
                if len(setting.groups) < 2 or (experiment.name, setting.name) in done:
                    continue
            try:
                found = _one(bench, experiment, setting, folder, options)
            except ValueError as error:  # the others go on
                if len(pieces) == 1:
                    raise
                print(f"{experiment.name}: {setting.name}: {error}", file=sys.stderr)
                failed += 1
                continue
            done[experiment.name, setting.name] = found
            failed += record.failures(found)
    if options.json:
        say(json.dumps({f"{name}: {setting}": found for (name, setting), found in done.items()}, indent=1))
    return 1 if failed else 0


def _one(
    bench: Bench, experiment: Experiment, setting: Setting, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """What is found in one setting: recorded already, or measured and recorded."""
    from aioli.experiments import record
    from aioli.train.records import finite

    seeds = options.seeds or bench.profile.seeds(experiment.name, setting)
    known = None
    if not options.again:
        known = record.known(folder, experiment, setting, bench.asked(experiment, setting, seeds))
        more = record.seeds(folder, experiment, setting)
        if known is None and more > experiment.count(seeds):
            raise ValueError(
                f"{folder} has {experiment.name} in {setting.name} with {more} seeds, which --seeds {seeds} would "
                "replace with less: choose another folder with -o, or say --again"
            )
    if not (options.quiet or options.json):
        already = ", recorded already (--again measures it anew)" if known else ""
        print(f"{experiment.name}: {setting.name}, {seeds} seed{'s' if seeds > 1 else ''}{already}", file=sys.stderr)
    source = EXPERIMENTS[experiment.like or experiment.name]
    recorded = None if options.again else record.recorded(folder, source, setting)
    found: dict[str, Any] = known or finite(bench.measure(experiment, setting, seeds, recorded))
    file = folder / f"{experiment.name}.json"
    if known is None:
        file = record.add(folder, experiment, bench.profile, setting, found)
    if not options.json:
        say(_words(experiment, setting, found) + f"\n\n{'written' if known is None else 'read'}: {file}\n")
    return found


def _possible(
    pieces: list[tuple[Experiment, Setting]], options: argparse.Namespace
) -> list[tuple[Experiment, Setting]]:
    """Without what cannot be done here; refused if that is all."""
    lacking = {}
    if not options.instructions:
        lacking["law-instruction"] = "instruction tasks, one file each: --instructions 'tasks/*.jsonl.gz'"
    if importlib.util.find_spec("lm_eval") is None:
        lacking["downstream"] = "lm-eval: pip install 'aioli-mix[eval]', or in a clone pip install -e '.[eval]'"
    names = dict.fromkeys(experiment.name for experiment, _ in pieces)
    for name in names:
        if name in lacking:
            if len(names) == 1:
                raise ValueError(f"{name} needs {lacking[name]}")
            print(f"{name} is left out: it needs {lacking[name]}", file=sys.stderr)
    return [piece for piece in pieces if piece[0].name not in lacking]


def _bench(profile: Profile, options: argparse.Namespace, executor: Any) -> Bench:
    """Data and runs, ready to measure with."""
    from aioli.experiments import stores
    from aioli.experiments.bench import Bench
    from aioli.runs.store import RunStore

    place = Path(f"{options.store}-data")
    place.mkdir(parents=True, exist_ok=True)
    bar = Bar("preparing")
    began = time.monotonic()

    def show(done: int, total: int, words: str) -> None:
        if not (options.quiet or options.json) and time.monotonic() - began > 1:
            bar.show(done, total, words)

    def ready(made: TokenStore) -> TokenStore:
        bar.clear()
        return made

    corpus = ready(stores.corpus(options.data, place, show))
    return Bench(
        profile,
        corpus,
        RunStore(options.store),
        place,
        lambda asked, final, proxy: conduct(options, asked, final, proxy, executor),
        lambda: ready(stores.instructions(options.instructions, corpus, place, show)),
        local=not options.data,
        gpu=options.gpus > 0 if options.executor == "ray" else None,
    )


def _words(experiment: Experiment, setting: Setting, found: dict[str, Any]) -> str:
    from aioli.experiments.tables import summary

    title, header, rows, notes = summary(experiment.name, setting.name, found)
    return "\n".join([title, "", table(header, rows), *(["", *notes] if notes else [])])


def _dry_run(pieces: list[tuple[Experiment, Setting]], profile: Profile, options: argparse.Namespace) -> int:
    need("train", "pydantic", "yaml")
    from aioli.experiments import stores
    from aioli.experiments.dry import plans

    stores.check(options.data)

    found = [plans(experiment, setting, profile, options.seeds) for experiment, setting in pieces]
    if options.json:
        say(json.dumps([each.to_json() for each in found], indent=1, ensure_ascii=False))
        return 0
    header = ["experiment", "setting", "model", "steps", "seeds", "runs", "in final runs"]
    rows = [
        [p.experiment, p.setting, p.model, f"{p.steps:,}", str(p.seeds), f"{p.runs or '–'}", f"{p.total:,.1f}"]
        for p in found
    ]
    lines = [f"profile {profile.name}: {profile.about}", "", table(header, rows), ""]
    whole = sum(each.total * each.steps for each in found)
    lines.append(f"{whole:,.0f} steps in all, before runs that experiments share are taken off; --json has the recipes")
    say("\n".join(lines))
    return 0


def _list(as_json: bool) -> int:
    rows = []
    for each in EXPERIMENTS.values():
        seeds = "/".join(dict.fromkeys(str(p.seeds(each.name, each.settings[0])) for p in PROFILES.values()))
        what = f"aioli analyze {each.study}" if each.study else f"{len(each.methods)} methods"
        rows.append([each.name, each.shows, each.about, str(len(each.settings)), what, seeds, each.needs])
    header = ["experiment", "of the paper", "what", "settings", "how", "seeds", "needs"]
    if as_json:
        plain: list[dict[str, Any]] = [dict(zip(header, row, strict=True)) for row in rows]
        for entry, each in zip(plain, EXPERIMENTS.values(), strict=True):
            entry["settings"] = [setting.name for setting in each.settings]
        say(json.dumps(plain, indent=1, ensure_ascii=False))
        return 0
    lines = [table(header, rows, left=7), ""]
    lines += [f"seeds: of the {' and of the '.join(PROFILES)} profile, where they differ", ""]
    lines += [f"--profile {profile.name}: {profile.about}" for profile in PROFILES.values()]
    lines.append("--profile paper also needs SlimPajama-6B as a token store (aioli prepare slimpajama-6b), and the hub")
    say("\n".join(lines))
    return 0


def _show(options: argparse.Namespace) -> int:
    from aioli.experiments.record import load_all, remarks
    from aioli.experiments.tables import markdown
    from aioli.files import write_text

    folder = Path(options.show)
    text = markdown(load_all(folder), options.show, remarks(folder))
    if options.out is None:
        say(text.rstrip())
    else:
        write_text(Path(options.out), text)
    return 0
