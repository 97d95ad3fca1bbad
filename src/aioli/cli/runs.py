"""`aioli runs`: what is in a run store."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from typing import TYPE_CHECKING, Any

from aioli.cli.jobs import STORE
from aioli.cli.show import need, plain, table
from aioli.report.text import clock, shares

if TYPE_CHECKING:
    from aioli.runs.store import Entry, RunStore

EXAMPLES = """examples:
  aioli runs                                              all runs of ./aioli-runs
  aioli runs --state failed                               those that failed, and why
  aioli runs --kind static --seed 0                       those with a fixed mixture and seed 0
  aioli runs show 3f2a                                    everything about the run whose key begins so
  aioli runs remove 3f2a 77b1                             remove runs
  aioli runs remove --state failed                        remove all that failed
  aioli runs remove --models                              only the weights of finished runs; results stay
  aioli runs table --steps 2000 > runs.csv                proportions and losses of finished static runs, for aioli fit
  aioli watch aioli-runs/3f/3f2a…/run                     follow one that is being trained
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "runs",
        help="list, show and remove the runs that mix and compare keep",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("action", nargs="?", choices=("list", "show", "remove", "table"), default="list")
    command.add_argument("keys", nargs="*", metavar="KEY", help="the beginning of a run's key")
    command.add_argument("--store", default=STORE, metavar="DIR", help=f"where runs are kept (default {STORE})")
    command.add_argument("--state", help="finished, running, failed or unfinished")
    command.add_argument("--kind", help="only runs whose kind contains this, such as static or aioli")
    command.add_argument("--seed", type=int, help="only runs with this seed")
    command.add_argument("--steps", type=int, help="only runs of this length")
    command.add_argument("--models", action="store_true", help="with remove: only models and checkpoints")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """List, show or remove."""
    need("data", "pydantic", "yaml")
    from aioli.runs.store import STATES, RunStore

    if options.state is not None and options.state not in STATES:
        raise ValueError(f"--state {options.state} is not one of {', '.join(STATES)}")
    store = RunStore(options.store, make=False)
    chosen = [store.entry(store.find(key)) for key in options.keys] if options.keys else store.entries()
    filtered = any(value is not None for value in (options.state, options.kind, options.seed, options.steps))
    chosen = [entry for entry in chosen if _matches(entry, options)]
    if options.action == "show":
        if not options.keys:
            raise ValueError("which run? Give the beginning of its key; `aioli runs` lists them")
        return _show(store, chosen, options)
    if options.action == "remove":
        if not options.keys and not filtered and not options.models:
            raise ValueError("which runs? Give keys, or --state, --kind, --seed or --steps to choose by")
        return _remove(store, chosen, options)
    if options.action == "table":
        return _table(chosen)
    if options.json:
        print(json.dumps([_plain(entry) for entry in chosen], indent=1, ensure_ascii=False))
    else:
        print(render(chosen, store))
    return 0


def _table(entries: list[Entry]) -> int:
    """Finished runs with a fixed mixture as CSV: what they were trained on and where they ended."""
    runs = [e for e in entries if e.result is not None and e.about.get("proportions") and not e.about.get("parent")]
    runs = [e for e in runs if "targets" in e.about]
    if not runs:
        raise ValueError("no finished run with a fixed mixture is among them")
    groups = list(dict.fromkeys(g for e in runs for g in e.about["groups"]))
    splits = [split for split in ("val", "test") if any(split in (e.result or {}) for e in runs)]
    targets = list(dict.fromkeys(t for e in runs for t in e.about["targets"]))
    out = csv.writer(sys.stdout, lineterminator="\n")
    losses = [(split, target) for split in splits for target in targets]
    out.writerow(["run", "model", "steps", "seed", *(f"p_{g}" for g in groups), *(f"{s}_{t}" for s, t in losses)])
    for e in sorted(runs, key=_order):
        about, result = e.about, e.result or {}
        p = dict(zip(about["groups"], about["proportions"], strict=True))
        ends = [result.get(split, {}).get("loss", {}).get(target, "") for split, target in losses]
        shares = [p.get(g, 0.0) for g in groups]
        out.writerow([e.key, about.get("model"), about.get("steps"), about.get("seed"), *shares, *ends])
    return 0


def _matches(entry: Entry, options: argparse.Namespace) -> bool:
    about = entry.about
    return (
        (options.state is None or entry.state == options.state)
        and (options.kind is None or options.kind in str(about.get("kind")))
        and (options.seed is None or about.get("seed") == options.seed)
        and (options.steps is None or about.get("steps") == options.steps)
    )


def _plain(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in vars(entry).items() if value is not None}


def render(entries: list[Entry], store: RunStore) -> str:
    """Runs for people."""
    if not entries:
        return f"no such runs in {store.path}"
    rows = [_row(entry) for entry in sorted(entries, key=_order)]
    counts = {state: sum(e.state == state for e in entries) for state in dict.fromkeys(e.state for e in entries)}
    lines = [table(["key", "kind", "steps", "seed", "model", "state", "val loss", "note"], rows, 2)]
    lines.append("\n" + ", ".join(f"{count} {state}" for state, count in counts.items()))
    return "\n".join(lines)


def _order(entry: Entry) -> tuple[Any, ...]:
    about = entry.about
    return (about.get("seed", 0), str(about.get("kind")), about.get("steps", 0), entry.key)


def _row(entry: Entry) -> list[str]:
    about = entry.about
    kind, p = str(about.get("kind", "?")), about.get("proportions")
    if p and len(p) <= 8:
        kind += f" {' '.join(f'{share:.0%}' for share in p)}"
    loss, rest = "", ""
    if entry.result is not None:
        loss = f"{entry.result['val']['mean_loss']:.4f}"
    elif entry.status is not None:
        rest = f"step {entry.status.get('step')}"
    elif entry.error is not None:
        rest = str(entry.error.get("error"))[:200]
    cells = [entry.key[:10], kind, f"{about.get('steps', '?')}", f"{about.get('seed', '?')}", str(about.get("model"))]
    return [*cells, entry.state, loss, rest]


def _show(store: RunStore, entries: list[Entry], options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps([_plain(entry) for entry in entries], indent=1, ensure_ascii=False))
        return 0
    for entry in entries:
        about = entry.about
        lines = [entry.key, f"  {about.get('kind')}, {about.get('steps')} steps, seed {about.get('seed')}"]
        if about.get("proportions"):
            lines.append(f"  asked for {shares(about['groups'], about['proportions'], 100)}")
        lines.append(f"  {about.get('model')} on {about.get('data')}")
        lines.append(f"  {entry.state}; {store.run_folder(entry.key)}")
        if entry.result is not None:
            from aioli.cli.train import render as render_result

            seconds = entry.result["seconds"]
            lines += ["", render_result(entry.result)]
            lines.append(f"took {clock(sum(seconds.get(name, 0.0) for name in ('train', 'probe', 'evaluation')))}")
        if entry.error is not None:
            lines += ["", f"  {entry.error.get('kind')}: {entry.error.get('error')}", "", "  the end of its log:"]
            lines += [f"    {line}" for line in store.log(entry.key).splitlines()]
        print("\n".join("\n".join(plain(part) for part in line.splitlines()) for line in lines))
    return 0


def _remove(store: RunStore, entries: list[Entry], options: argparse.Namespace) -> int:
    if options.models:
        free = sum(store.remove_model(entry.key) for entry in entries)
        print(f"{free / 1e6:,.1f} MB are free; results stay, and a model that is needed again is trained again")
        return 0
    running = [entry for entry in entries if entry.state == "running"]
    for entry in entries:
        if entry.state != "running":
            store.remove(entry.key)
    left = f"; {len(running)} that are being trained stay" if running else ""
    count = len(entries) - len(running)
    print(f"{count} run{'s' * (count != 1)} removed from {store.path}{left}")
    return 0
