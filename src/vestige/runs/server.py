"""``vestige view``: the list of runs, live, for the user's own browser on this computer.

Only the loopback interface is served. Every address begins with a random token, so other users and
other pages cannot read anything. ``Host``, and the host of a request target in absolute form (RFC
9112, § 3.2.2), must be this server, which stops DNS rebinding. A foreign ``Origin`` and requests of
other sites are refused, and so is every method but GET and HEAD.
Besides the list only files named ``page.html`` are served. They are opened folder by folder below
the served one without following links, so that no name leads outside.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from vestige.choices import check_whole
from vestige.errors import BadInput, NotFound, extra
from vestige.runs.index_page import render_index, render_rows
from vestige.runs.paths import given_path
from vestige.runs.summaries import RunSummary, newest_first, run_folders, summarize
from vestige.studies.run_digests import PAGE

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LOOPBACK = "127.0.0.1"
MOST_PAGE_BYTES = 2**26
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LiveRuns:
    """The runs below a folder; a run is read again only if its files changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[object, RunSummary]] = {}
        self._lock = threading.Lock()

    def runs(self) -> list[RunSummary]:
        """All runs, newest first."""
        with self._lock:
            found = {name: self._summary(name) for name in run_folders(self.folder)}
            self._known = found
        return newest_first(one for _, one in found.values())

    def _summary(self, name: str) -> tuple[object, RunSummary]:
        state = tuple(
            _state(self.folder / name / part)
            for part in ("report.json", "manifest.json", "units", PAGE)
        )
        known = self._known.get(name)
        if known is not None and known[0] == state:
            return known
        return state, summarize(self.folder, name)


def _state(path: Path) -> object:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def open_below(folder: Path, path: str) -> bytes | None:
    """The page of a run below a folder by its relative path; None where there is none to serve.

    Every part of the path is opened in the folder before it and must not be a link.
    """
    parts = path.split("/")
    unsound = any(p in ("", ".", "..") or "\0" in p or "\\" in p for p in parts)
    if unsound or parts[-1] != PAGE or len(parts) > 32:
        return None
    careful = os.O_RDONLY | os.O_NOFOLLOW | getattr(os, "O_CLOEXEC", 0)
    handles = []
    try:
        handles.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
        for part in parts[:-1]:
            handles.append(os.open(part, careful | os.O_DIRECTORY, dir_fd=handles[-1]))
        handles.append(os.open(parts[-1], careful | os.O_NONBLOCK, dir_fd=handles[-1]))
        status = os.fstat(handles[-1])
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_PAGE_BYTES:
            return None
        with os.fdopen(handles.pop(), "rb") as file:
            return file.read(MOST_PAGE_BYTES)
    except (OSError, ValueError):
        return None
    finally:
        for handle in handles:
            os.close(handle)


def make_app(folder: Path, token: str, port: int) -> Any:
    """The application as a function of ASGI; ``port`` is the one that Host and Origin name."""
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse

    live = LiveRuns(folder)
    hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}

    def refused(status: int, sentence: str) -> Response:
        return PlainTextResponse(f"{sentence}\n", status, HEADERS)

    def answer(request: Request) -> Response:
        headers = request.headers
        # The target as it was sent: what a client encodes must not become a separator here.
        raw = request.scope.get("raw_path") or request.scope["path"].encode()
        target = path_of(raw.decode("ascii", "replace"))
        if target is None or headers.getlist("host")[:2] not in [[host] for host in hosts]:
            return refused(403, "This server answers to its own address only.")
        origins = headers.getlist("origin")
        if any(one not in {f"http://{host}" for host in hosts} for one in origins):
            return refused(403, "Requests of other pages are refused.")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return refused(403, "Requests of other pages are refused.")
        given, slash, path = target.removeprefix("/").partition("/")
        if not secrets.compare_digest(given.encode(), token.encode()):
            return refused(403, "The address lacks the token that vestige view printed.")
        if request.method not in ("GET", "HEAD"):
            return refused(405, "Only GET is answered.")
        if not slash:
            return refused(404, "The address ends with a slash.")
        if path == "":
            return HTMLResponse(render_index(live.runs(), live=True, titles=True), headers=HEADERS)
        if path == "rows":
            return rows(headers.get("if-none-match", ""))
        content = open_below(folder, unquote(path, errors="replace")) if sound(path) else None
        if content is None:
            return refused(404, "There is no such page.")
        return HTMLResponse(content, headers=HEADERS)

    def path_of(target: str) -> str | None:
        """The path of a request target; None where it names another server."""
        if target.startswith("/"):
            return target
        for host in hosts:
            if target.lower().startswith(f"http://{host}/"):
                return target[len(f"http://{host}") :]
        return None

    def sound(path: str) -> bool:
        return "%2f" not in path.lower() and "%5c" not in path.lower()

    def rows(known: str) -> Response:
        text = str(render_rows(live.runs(), titles=True))
        mark = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
        if known == mark:
            return HTMLResponse("", 304, {**HEADERS, "ETag": mark})
        return HTMLResponse(text, headers={**HEADERS, "ETag": mark})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            response = await run_in_threadpool(answer, Request(scope, receive))
            await response(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    return app


class RunServer:
    """A server of the runs below a folder on a free port of the loopback interface."""

    def __init__(self, folder: str | Path, port: int = 0) -> None:
        try:
            import starlette  # noqa: F401
            import uvicorn
        except ImportError as error:
            raise NotFound(f"vestige view needs starlette and uvicorn: {extra('view')}.") from error
        base = given_path(folder, "The folder of runs")
        check_whole("port of the server", port, 0)
        if not os.path.isdir(base):
            raise NotFound(f"{base} is no folder: give a folder with runs below it.")
        self.token = secrets.token_urlsafe(24)
        self._socket = _bound(port)
        self.port = self._socket.getsockname()[1]
        app = make_app(base.resolve(), self.token, self.port)
        settings = uvicorn.Config(
            app,
            http="h11",  # other parsers drop the host of a target in absolute form
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(settings)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"

    def run(self) -> None:
        """Serve until ctrl-C, or until ``stop``."""
        try:
            self._server.run(sockets=[self._socket])
        except KeyboardInterrupt:
            pass
        finally:
            self._socket.close()

    def stop(self) -> None:
        """End ``run``, from another thread."""
        self._server.should_exit = True


def _bound(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((LOOPBACK, port))
        made.listen()  # so that the address answers as soon as it is printed
    except (OSError, OverflowError) as error:
        made.close()
        raise BadInput(f"Port {port} is not free ({error}): leave out --port.") from error
    return made
