"""`aioli demo`: what should a model that is good at one thing be trained on? Two real runs, live, on any laptop."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from aioli.cli.show import Bar, need, table
from aioli.report.text import bar, running, shares, spark
from aioli.report.text import path as way_of
from aioli.train.layout import RESULT, STATUS

EXAMPLES = """examples:
  aioli demo                       three groups mixed towards a fourth: even shares against Aioli
  aioli demo --in-domain           judged on the groups themselves instead
  aioli demo --seed 1              again, with other weights and another order of the data

Nothing is downloaded: the text is what comes with Python on this machine. Interrupted, it goes on when run again.
"""
GROUPS, TARGET, STEPS = ("python", "headers", "stubs"), "prose", 2000
ROUNDS, VAL_TOKENS, LEAST = 10, 2304, 240
"""Half the usual rounds, so that the usual 5% of the compute buys looks twice as large; both runs look at the same."""
WORDS = {
    "python": "Python source",
    "headers": "C and C++ headers",
    "stubs": "type stubs",
    "tests": "tests",
    "prose": "documentation prose",
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "demo",
        help="see what it does: two real training runs on this machine, in a few minutes",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("-o", "--out", default="aioli-demo", help="where to put it all (default: aioli-demo)")
    command.add_argument("--in-domain", action="store_true", help="judge on the groups that are trained on")
    command.add_argument("--seed", type=int, default=0, help="weights and order of the data (default: 0)")
    command.add_argument("--steps", type=int, default=STEPS, help=f"steps of each run (default: {STEPS})")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prepare the text, train both runs at once, show what came of it."""
    if options.steps < LEAST:
        raise ValueError(f"--steps {options.steps} is too short for {ROUNDS} rounds; use {LEAST} or more")
    need("train", "torch", "transformers", "accelerate", "pydantic", "tokenizers")
    from aioli.report.demo import Outcome, page

    folder = Path(options.out)
    method = "aioli" if options.in_domain else "aioli-ood"
    print(_question(options.in_domain) + "\n")
    store = _store(folder)
    found = _available(store)
    groups = (
        [g for g in GROUPS if g in found] if options.in_domain else [g for g in GROUPS if g in found and g != TARGET]
    )
    jobs = {name: _job(folder, store, name, groups, options) for name in ("stratified", method)}
    print("training, both at once, a core each:")
    for command, _ in jobs.values():
        print(f"  {shlex.join(['aioli', *command])}")
    print()
    _train(jobs)
    outcome = Outcome.read({name: path for name, (_, path) in jobs.items()}, method, options.in_domain)
    print(_verdict(outcome))
    kind = "in-domain" if options.in_domain else TARGET
    written = page(outcome, folder / f"{kind}-seed-{options.seed}.html", [*_next(options)])
    print(f"\nThe same as a page, with charts: {written.resolve().as_uri()}\n\nWhat to try next")
    print("\n".join(_next(options)))
    return 0


def _question(in_domain: bool) -> str:
    names = [WORDS[g] for g in GROUPS]
    have = f"{', '.join(names[:-1])} and {names[-1]}"
    if in_domain:
        return f"You train a small language model on {have}, to be good at all three: how much of each?"
    return f"You want a small language model that is good at {WORDS[TARGET]}. You have {have}: how much of each?"


def _store(folder: Path) -> Path:
    """The token store of this machine's own text."""
    from aioli.data import prepare

    store = folder / "store"
    if not (store / "manifest.json").is_file():
        print("gathering text that comes with Python on this machine, and tokenizing it")
        folder.mkdir(parents=True, exist_ok=True)
        bar = Bar("tokenizing")
        prepare("local", store, progress=bar.show)
        bar.clear()
    return store


def _available(store: Path) -> list[str]:
    from aioli.data import TokenStore

    found = list(TokenStore(store).groups)
    if TARGET not in found or len(set(GROUPS) & set(found)) < 2:
        raise ValueError(f"this machine has too little text for the demo: only {', '.join(found)}")
    return found


def _job(
    folder: Path, store: Path, name: str, groups: list[str], options: argparse.Namespace
) -> tuple[list[str], Path]:
    """The command of a run and where it goes."""
    kind = "in-domain" if options.in_domain else TARGET
    path = folder / f"{kind}-{name}-seed-{options.seed}-{options.steps}"
    words = ["train", f"data={store}", f"data.groups=[{', '.join(groups)}]"]
    if not options.in_domain:
        words.append(f"data.targets=[{TARGET}]")
    method = "stratified" if name == "stratified" else f"{{name: {name}, settings: {{rounds: {ROUNDS}}}}}"
    words += [f"method={method}", f"val.tokens={VAL_TOKENS}", f"train.steps={options.steps}"]
    words += ["train.threads=1", f"seed={options.seed}"]
    return [*words, "-o", str(path)], path


def _train(jobs: dict[str, tuple[list[str], Path]]) -> None:
    """Both runs at once, each in a process of its own, watched from here."""
    processes = {}
    for name, (command, path) in jobs.items():
        if (path / RESULT).is_file():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(path.name + ".log").open("w", encoding="utf-8") as log:
            processes[name] = subprocess.Popen(  # noqa: S603  a list of words, no shell
                [sys.executable, "-m", "aioli", *command, "--quiet"], stdout=log, stderr=log, start_new_session=True
            )
    screen = Screen({name: path for name, (_, path) in jobs.items()})
    try:
        while any(process.poll() is None for process in processes.values()):
            screen.show()
            if any(process.poll() not in (None, 0) for process in processes.values()):
                break
            time.sleep(0.5)
        screen.show(last=True)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)  # it saves itself; the next time it goes on
        for process in processes.values():
            process.wait()
    for name, process in processes.items():
        if process.returncode != 0:
            file = jobs[name][1].with_name(jobs[name][1].name + ".log")
            said = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
            raise ValueError(f"the {name} run failed: {said[-1] if said else 'it said nothing'} (all of it: {file})")


class Screen:
    """One line for each run, drawn over and over on a terminal; elsewhere a line now and then."""

    def __init__(self, paths: dict[str, Path]) -> None:
        self.paths, self.drawn, self.written = paths, 0, 0.0

    def show(self, last: bool = False) -> None:
        """Say how far they have got."""
        terminal, now = sys.stdout.isatty(), time.monotonic()
        if not terminal and not last and now - self.written < 20:
            return
        self.written = now
        width = max(map(len, self.paths))
        rows = [f"{name.ljust(width)}  {self._line(path, terminal)}" for name, path in self.paths.items()]
        if terminal:
            size = os.get_terminal_size().columns - 1
            up = f"\x1b[{self.drawn}F" if self.drawn else ""
            sys.stdout.write(up + "".join(f"{row[:size]}\x1b[K\n" for row in rows))
            self.drawn = len(rows)
        else:
            sys.stdout.write("".join(f"{row}\n" for row in rows))
        sys.stdout.flush()

    @staticmethod
    def _line(path: Path, terminal: bool) -> str:
        from aioli.files import read_json

        if (path / RESULT).is_file():
            return "finished"
        status: dict[str, Any] | None = read_json(path / STATUS)
        if status is None:
            return "starting"
        drawn = [bar(status["step"], status["steps"], 20)] if terminal else []
        p = status["proportions"] or []
        return "  ".join([*drawn, *running(status), shares([""] * len(p), p)])


def _verdict(outcome: Any) -> str:
    """What came of it, in words and numbers."""
    rows = outcome.rows()
    lines = [
        "",
        table(rows[0], rows[1:]),
        "",
        f"how {outcome.method} moved the mixture, from the first step to the last:",
    ]
    trace = outcome.traces[outcome.method]
    for j, group in enumerate(outcome.groups):
        way = way_of(trace.proportions, j, trace.about["steps"], 40)
        lines.append(
            f"  {group.ljust(max(map(len, outcome.groups)))}  {spark(way, 0, 1)}  {way[0]:.0%} → {way[-1]:.0%}"
        )
    return "\n".join([*lines, "", *outcome.words()])


def _next(options: argparse.Namespace) -> list[str]:
    other = "aioli demo" if options.in_domain else "aioli demo --in-domain"
    why = "towards a target that is not trained on" if options.in_domain else "judged on the groups themselves"
    return [
        f"  aioli demo --seed {options.seed + 1}{' --in-domain' if options.in_domain else ''}".ljust(44)
        + "is it luck?",
        f"  {other}".ljust(44) + why,
        "  aioli prepare --help".ljust(44) + "your own text",
        "  aioli train --help".ljust(44) + "your own model and targets",
        "  aioli methods".ljust(44) + "other ways to choose the mixture",
    ]
