"""The report of a folder of runs, live on this machine alone: nothing can be changed through it.

It listens on 127.0.0.1, answers GET and HEAD, and refuses requests for other hosts' names (a page elsewhere could have
its name point here). Runs are found by looking, never by a path in a request: a request names one by its number in the
list or its key, and what is not in the list is not there.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from aioli.report import page as pages
from aioli.report.runs import report
from aioli.report.seen import Seen, find, look, sort
from aioli.train.layout import JOURNAL, RESULT, STATUS

HOST = "127.0.0.1"
NAMES = {"127.0.0.1", "localhost"}


class Folder:
    """The runs of a folder, read again only where something has been written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._known: dict[Path, Seen] = {}
        self._lock = threading.Lock()
        self.runs()  # refused, if it must be, before anybody looks

    def runs(self) -> dict[str, Path]:
        """Runs by name, as they are now; a link that leads out of the folder is none of them."""
        home = self.path.resolve()
        return {name: path for name, path in find([str(self.path)]) if path.resolve().is_relative_to(home)}

    def seen(self) -> dict[str, Seen]:
        """What can be said of them now."""
        with self._lock:
            found = {}
            for name, path in self.runs().items():
                try:
                    known = self._known.get(path)
                    now = look(name, path) if known is None else known
                    if known is not None:
                        known.trace.read()
                except (OSError, ValueError):  # removed, or being written: the next look may see it
                    continue
                if now is not None:
                    self._known[path] = found[name] = now
            return found

    def state(self) -> str:
        """Changes whenever anything does."""
        signs = []
        for name, path in self.runs().items():
            for file in (JOURNAL, RESULT, STATUS):
                try:
                    about = (path / file).stat()
                    signs.append(f"{name} {file} {about.st_size} {about.st_mtime_ns}")
                except OSError:
                    continue
        return hashlib.sha256("\n".join(signs).encode()).hexdigest()


def overview(folder: Folder) -> str:
    """All runs, and the report on them."""
    seen = folder.seen()
    title, lead, parts = report(sort(seen.values()))
    rows = "".join(_row(run) for run in sorted(seen.values(), key=lambda run: (run.trace.result is not None, run.name)))
    head = "".join(f"<th>{name}</th>" for name in ("run", "what", "seed", "step", "loss"))
    listed = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    parts = [pages.folded(f"{len(seen)} runs", listed, len(seen) <= 20), *parts]
    return pages.document(title, lead, parts, broad=True, live=True, follow="/state")


def _row(run: Seen) -> str:
    status, trace = _status(run), run.trace
    losses = run.losses()
    step = max(trace.step, status)
    mean = "" if losses is None else f"{sum(losses.values()) / len(losses):.4f}"
    cells = [run.label, str(run.seed), f"{step:,} of {run.about['steps']:,}", mean]
    name = f'<a href="/run/{escape(run.name)}">{escape(run.name)}</a>'
    return f"<tr><td>{name}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _status(run: Seen) -> int:
    from aioli.files import read_json

    found = read_json(run.path / STATUS)
    step = found.get("step") if isinstance(found, dict) else None
    return step if isinstance(step, int) else 0


def one(folder: Folder, name: str) -> str | None:
    """One run; None if there is no such run."""
    run = folder.seen().get(name)
    if run is None:
        return None
    title, lead, parts = report(sort([run]))
    back = '<p><a href="/">all runs</a></p>'
    return pages.document(title, lead, [back, *parts], broad=True, live=True, follow="/state")


def answer(folder: Folder, target: str) -> tuple[int, str, str]:
    """What is said to a request: status, kind of content, content."""
    path = unquote(urlsplit(target).path)
    if path == "/state":
        return 200, "text/plain", folder.state()
    found = overview(folder) if path == "/" else None
    if path.startswith("/run/"):
        found = one(folder, path.removeprefix("/run/"))
    if found is None:
        return 404, "text/plain", "there is no such page; / lists all runs\n"
    return 200, "text/html", found


def serve(folder: Folder, port: int) -> ThreadingHTTPServer:
    """A server that is ready to `serve_forever`."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "aioli", ""

        def do_GET(self) -> None:
            self._answer(lambda: answer(folder, self.path))

        do_HEAD = do_GET

        def _answer(self, say: Callable[[], tuple[int, str, str]]) -> None:
            host = (self.headers.get("Host") or "").rpartition(":")
            named = host[0] or host[2]
            if named not in NAMES:
                code, kind, text = 403, "text/plain", "this page is for this machine alone: use http://127.0.0.1\n"
            else:
                try:
                    code, kind, text = say()
                except (OSError, ValueError) as error:
                    code, kind, text = 500, "text/plain", f"{error}\n"
            body = text.encode()
            self.send_response(code)
            for name, value in (
                ("Content-Type", f"{kind}; charset=utf-8"),
                ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
                ("X-Frame-Options", "DENY"),
                ("Referrer-Policy", "no-referrer"),
            ):
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the terminal is the user's."""

    return ThreadingHTTPServer((HOST, port), Handler)
