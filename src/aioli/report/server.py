"""The report of a folder of runs, live on this machine alone: nothing can be changed through it.

It listens on 127.0.0.1, answers GET and HEAD, and refuses requests for other hosts' names (a page elsewhere could have
its name point here). Runs are found by looking, never by a path in a request: a request names one by its number in the
list or its key, and what is not in the list is not there.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from aioli.report import page as pages
from aioli.report.runs import report
from aioli.report.seen import Seen, find, look_all, sort
from aioli.train.layout import JOURNAL, RESULT, STATUS

HOST = "127.0.0.1"
AT_ONCE, SECONDS = 32, 30.0
"""Connections that are held at once, and how long one may last: a page asks and goes."""
HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Content-Security-Policy", "frame-ancestors 'none'"),
)
NAMES = {"127.0.0.1", "localhost"}


class Folder:
    """The runs of a folder, read again only where something has been written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._known: dict[Path, Seen] = {}
        self.lock = threading.Lock()
        """Held while a page is made: one at a time."""
        if not self.path.is_dir():
            raise ValueError(f"{path} is not a directory; give a run store, a folder of runs, or a run")

    def runs(self) -> dict[str, Path]:
        """Runs by name, as they are now; a link that leads out of the folder is none of them."""
        home = self.path.resolve()
        try:
            found = find([str(self.path)])
        except ValueError:  # none has begun yet
            return {}
        return {name: path for name, path in found if path.resolve().is_relative_to(home)}

    def seen(self) -> tuple[dict[str, Seen], list[str]]:
        """What can be said of them now, and which cannot be read."""
        found, troubles = look_all(self.runs().items(), self._known)
        self._known = {run.path: run for run in found}
        return {run.name: run for run in found}, troubles

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
    seen, troubles = folder.seen()
    if not seen:
        waiting = [pages.listed(troubles)] if troubles else []
        return pages.document("No run has begun", "This page follows.", waiting, live=True, follow="/state")
    title, lead, parts = report(sort(seen.values()), troubles)
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
    name = f'<a href="/run/{quote(run.name, safe="")}">{escape(run.name)}</a>'
    return f"<tr><td>{name}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _status(run: Seen) -> int:
    from aioli.files import read_json

    found = read_json(run.path / STATUS)
    step = found.get("step") if isinstance(found, dict) else None
    return step if isinstance(step, int) else 0


def one(folder: Folder, name: str) -> str | None:
    """One run; None if there is no such run."""
    run = folder.seen()[0].get(name)
    if run is None:
        return None
    title, lead, parts = report(sort([run]))
    back = '<p><a href="/">all runs</a></p>'
    return pages.document(title, lead, [back, *parts], broad=True, live=True, follow="/state")


def answer(folder: Folder, target: str) -> tuple[int, str, str]:
    """What is said to a request: status, kind of content, content."""
    path = unquote(urlsplit(target).path, errors="replace")
    if path == "/state":
        return 200, "text/plain", folder.state()
    with folder.lock:
        return _page(folder, path)


def _page(folder: Folder, path: str) -> tuple[int, str, str]:
    found = overview(folder) if path == "/" else None
    if path.startswith("/run/"):
        found = one(folder, path.removeprefix("/run/"))
    if found is None:
        return 404, "text/plain", "there is no such page; / lists all runs\n"
    return 200, "text/html", found


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def serve(folder: Folder, port: int) -> ThreadingHTTPServer:
    """A server that is ready to `serve_forever`."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version, timeout = "aioli", "", 10

        def do_GET(self) -> None:
            self._answer(lambda: answer(folder, self.path))

        do_HEAD = do_GET

        def _answer(self, say: Callable[[], tuple[int, str, str]]) -> None:
            host = (self.headers.get("Host") or "").rpartition(":")
            named = (host[0] or host[2]).lower()
            if named not in NAMES:
                code, kind, text = 403, "text/plain", "this page is for this machine alone: use http://127.0.0.1\n"
            else:
                try:
                    code, kind, text = say()
                except Exception as error:  # a run may be removed or written while it is read
                    code, kind, text = 500, "text/plain", f"{type(error).__name__}: {error}\n"
            self._say(code, kind, text)

        def _say(self, code: int, kind: str, text: str) -> None:
            body = text.encode(errors="replace")
            self.send_response(code)
            about = (("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(body))))
            for name, value in (*about, *HEADERS):
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            """What cannot be understood, or is no GET, is refused in plain words that repeat nothing of it."""
            self._say(code, "text/plain", "this page can only be looked at: GET and HEAD\n")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the terminal is the user's."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        held = threading.BoundedSemaphore(AT_ONCE)

        def process_request(self, request: Any, client_address: Any) -> None:
            """Who comes when all places are taken is turned away at once."""
            if self.held.acquire(blocking=False):
                super().process_request(request, client_address)
            else:
                self.shutdown_request(request)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            """However slowly somebody asks, the place is free again in time."""
            end = threading.Timer(SECONDS, _hang_up, (request,))
            end.daemon = True
            end.start()
            try:
                super().process_request_thread(request, client_address)
            finally:
                end.cancel()
                self.held.release()

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing: browsers come and go."""

    return Server((HOST, port), Handler)
