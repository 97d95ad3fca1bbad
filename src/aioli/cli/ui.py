"""`aioli ui`: the report of a folder of runs, live in a browser."""

from __future__ import annotations

import argparse
import sys

EXAMPLES = """examples:
  aioli ui aioli-runs              a run store, while mix or compare fills it
  aioli ui runs --port 9000        a folder with runs of aioli train
  ssh -L 8765:127.0.0.1:8765 host  then open http://127.0.0.1:8765 here, for runs on another machine

It listens on 127.0.0.1 only and changes nothing. Ctrl-C ends it; runs go on.
"""
PORT = 8765


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "ui",
        help="look at runs in a browser while they go on",
        description="Show the runs of a folder in a browser, live.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("runs", metavar="RUNS_DIR", help="a run store, a folder of runs, or one run")
    command.add_argument("--port", type=int, default=PORT, help=f"where (default {PORT}; 0 finds a free one)")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    if not 0 <= options.port < 65536:
        raise ValueError(f"--port {options.port} is not a port; use one from 1024 to 65535, or 0 for a free one")
    from aioli.report.server import HOST, Folder, serve

    folder = Folder(options.runs)
    try:
        server = serve(folder, options.port)
    except OSError as error:
        raise ValueError(f"--port {options.port} cannot be used ({error.strerror}); try --port 0") from None
    print(f"http://{HOST}:{server.server_port}/ shows {options.runs}; Ctrl-C ends it", file=sys.stderr, flush=True)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        server.server_close()
    return 0
