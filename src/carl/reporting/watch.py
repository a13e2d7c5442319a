"""A page that follows a run while it trains: served on this machine alone, and read from the run directory.

The server answers GET of one secret address and of the state beside it, and nothing else. It binds to 127.0.0.1, so no
other machine reaches it. The address holds a random word, so that other users of this machine do not find it. A Host
header other than its own is refused: a web site could otherwise give its own name this address (DNS rebinding) and read
the page. It writes nothing.
"""

from __future__ import annotations

import hashlib
import html
import json
import secrets
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer

from carl.errors import UserError
from carl.records.metrics import has_finished, read_records
from carl.records.run_directory import RunDirectory
from carl.reporting.pages import run_page
from carl.terminal import Say

HOST = "127.0.0.1"
PATIENCE = 10.0  # seconds for a browser to send its request
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def watch(run: Path, say: Say, port: int = 0, projection: str = "auto", names: Path | None = None) -> None:
    """Serve the page of a run until Ctrl-C."""
    RunDirectory.open(run)
    if not 0 <= port <= 65_535:
        raise UserError(f"--port {port} is not a port; use 1024 to 65535, or leave it out for a free one")
    try:
        server = WatchServer(run, port, projection, names)
    except OSError as error:
        raise UserError(f"port {port} cannot be used ({error.strerror}); choose another, or leave out --port") from None
    with server:
        try:
            say(f"watching {run} at {server.address}")
            say("open it in a browser on this machine; Ctrl-C ends watching, not the run")
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:  # also one that comes between the lines
            say(f"no longer watching {run}")


class WatchServer(ThreadingHTTPServer):
    """Holds the page, which is made again when the run directory has changed."""

    daemon_threads = True

    def __init__(self, run: Path, port: int = 0, projection: str = "auto", names: Path | None = None) -> None:
        super().__init__((HOST, port), WatchHandler)
        self.run, self.projection, self.names = run, projection, names
        self.path = f"/{secrets.token_urlsafe(12)}/"
        self._lock = threading.Lock()
        self._page: tuple[str, bytes] | None = None

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's own looks up a name for the address, which is slow offline
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def hosts(self) -> set[str]:
        return {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}{self.path}"

    def page(self) -> bytes:
        with self._lock:
            version = version_of(self.run)
            if self._page is None or self._page[0] != version:
                self._page = (version, self._made(version))
            return self._page[1]

    def _made(self, version: str) -> bytes:
        try:
            page = run_page(self.run, self.projection, self.names, live=version)
        except (UserError, OSError) as error:  # a file that is half there or damaged: say it, and try again later
            said = html.escape(" ".join(str(error).split()))
            refresh = '<meta charset="utf-8"><meta http-equiv="refresh" content="5">'
            page = f"<!doctype html>{refresh}<title>CARL</title><p>{said}</p>"
        return page.encode("utf-8", "backslashreplace")

    def state(self) -> bytes:
        return json.dumps({"version": version_of(self.run), "note": news(self.run)}).encode()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that goes away in the middle of an answer does not matter."""


def version_of(run: Path) -> str:
    """Changes when anything does that the page shows."""
    found = hashlib.sha256()
    for path in sorted([*run.glob("*.*"), *run.glob("results/*.json")]):
        if path.suffix in (".jsonl", ".json", ".npz", ".toml", ".safetensors"):
            try:
                status = path.stat()
            except OSError:
                continue
            found.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode("utf-8", "replace"))
    return found.hexdigest()[:16]


def news(run: Path) -> str:
    """Whether the run still trains, in words: its records say when it last moved."""
    file = RunDirectory(run).metrics_file
    if has_finished(read_records(file)):
        return "The run has finished."
    try:
        seconds = max(0.0, time.time() - file.stat().st_mtime)
    except OSError:
        return "The run has logged nothing yet."
    ago = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"Last news from the run: {ago} ago."


class WatchHandler(BaseHTTPRequestHandler):
    """One request. Anything but a GET of the page or its state from our own host is refused."""

    server: WatchServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "carl", ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        if self.headers.get_all("Host") is None or set(self.headers.get_all("Host", [])) - self.server.hosts:
            self._answer(HTTPStatus.FORBIDDEN, b"this is not the host you asked for\n")
        elif self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            self._answer(HTTPStatus.FORBIDDEN, b"other sites may not ask\n")
        elif self.path == self.server.path:
            self._answer(HTTPStatus.OK, self.server.page(), "text/html; charset=utf-8")
        elif self.path == f"{self.server.path}state":
            self._answer(HTTPStatus.OK, self.server.state(), "application/json")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"nothing here; use the address that carl printed\n")

    def _refuse(self) -> None:
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET is answered\n", also={"Allow": "GET"})

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _answer(
        self,
        status: HTTPStatus,
        body: bytes,
        kind: str = "text/plain; charset=utf-8",
        also: dict[str, str] | None = None,
    ) -> None:
        self.close_connection = True  # a body that was sent along is not read, and must not be taken for a request
        self.send_response(status)
        for name, value in {**HEADERS, **(also or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The terminal shows the run, not requests."""
