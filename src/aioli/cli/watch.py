"""`aioli watch`: attach to a run, running or finished, from another terminal."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from aioli.cli.show import plain, table

EXAMPLES = """examples:
  aioli watch run                  follow a run until it ends (leave with Ctrl-C; the run goes on)
  aioli watch run --once           how it stands now
  aioli watch run --json           the same for machines
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "watch",
        help="look at a run: its mixture, losses and time left, live",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("run_directory", metavar="RUN", help="directory of a run (`aioli train -o`)")
    command.add_argument("--once", action="store_true", help="show how it stands now, and leave")
    command.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="how often to look (default: 1)")
    command.add_argument("--json", action="store_true", help="how it stands now, as JSON")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show the run until it ends."""
    from aioli.report.trace import Trace

    if not options.every > 0:
        raise ValueError(f"--every {options.every} must be a positive number of seconds")
    trace = Trace(Path(options.run_directory)).read()
    if trace.torn:
        print(f"worth knowing: {trace.torn}; the run mends it when it goes on", file=sys.stderr)
    if options.json:
        print(json.dumps(state(trace), indent=2, ensure_ascii=False))
        return 0
    if options.once or trace.result is not None:
        print(render(trace))
        return 0
    return follow(trace, options.every)


def follow(trace: Any, every: float) -> int:
    """Redraw on a terminal; elsewhere one line whenever there is news."""
    terminal, drawn, before = sys.stdout.isatty(), 0, (-1, -1)
    while True:
        trace.read()
        status = status_of(trace)
        if terminal:
            text = render(trace)
            sys.stdout.write((f"\x1b[{drawn}F" if drawn else "") + text.replace("\n", "\x1b[K\n") + "\x1b[K\n\x1b[J")
            sys.stdout.flush()
            drawn = text.count("\n") + 1
        elif (now := (trace.segments, trace.step if status is None else status["step"])) != before:
            before = now
            print(line(trace, status), flush=True)
        if trace.result is not None:
            if not terminal:
                print(render(trace))
            return 0
        if status is None and not _alive(trace.path):
            if terminal:
                return 0
            print("nobody is training it")
            return 0
        time.sleep(every)


def _alive(path: Path) -> bool:
    """Whether a process holds the run."""
    from aioli.files import is_locked

    return is_locked(path)


def status_of(trace: Any) -> dict[str, Any] | None:
    """What the run says it is doing, while it runs."""
    from aioli.files import read_json
    from aioli.train.layout import STATUS

    found = read_json(trace.path / STATUS)
    return found if isinstance(found, dict) and trace.result is None and _alive(trace.path) else None


def line(trace: Any, status: dict[str, Any] | None) -> str:
    """How a run stands, in one line."""
    from aioli.report.text import progress_line

    now = (status or {}).get("proportions") or (trace.proportions.values[-1] if trace.proportions.values else [])
    shares = ", ".join(f"{name} {p:.0%}" for name, p in list(zip(trace.about["groups"], now, strict=False))[:8])
    return plain(f"{progress_line(trace, status).lstrip('█░ ')}  {shares}")


def render(trace: Any) -> str:
    """How a run stands, on a screen."""
    from aioli.report import text

    status = status_of(trace)
    parts = [plain(text.header(trace)), text.progress_line(trace, status), ""]
    now = None if status is None or status["tag"].startswith("sweep") else status.get("proportions")
    parts += [table(["share of", "on the way", "", "now"], text.mixture_rows(trace, now), left=3)]
    if rows := text.loss_rows(trace):
        parts += ["", table(["validation loss of", "on the way", "first", "now"], rows, left=2)]
    seconds = trace.seconds
    if seconds["train"] and seconds["probe"]:
        taken = f"{seconds['probe'] / seconds['train']:.1%} of the time of training"
        parts += ["", f"{text.looking(trace)} has taken {taken}"]
    if trace.result is not None:
        from aioli.cli.train import render as verdict

        parts += ["", "in the end, on held-out data:", verdict(trace.result)]
    return "\n".join(parts)


def state(trace: Any) -> dict[str, Any]:
    """How a run stands, for machines."""
    from aioli.train.records import finite

    found = {
        "about": trace.about,
        "step": trace.step,
        "segments": trace.segments,
        "status": status_of(trace),
        "proportions": {"steps": trace.proportions.steps, "values": trace.proportions.values},
        "val_loss": {"steps": trace.val_loss.steps, "values": trace.val_loss.values},
        "loss": {"steps": trace.loss.steps, "values": [v[0] for v in trace.loss.values]},
        "seconds": trace.seconds,
        "result": trace.result,
    }
    return dict(finite(found))
