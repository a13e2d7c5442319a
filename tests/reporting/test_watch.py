"""carl report --watch: what its server answers, and to whom."""

from __future__ import annotations

import html
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path

import pytest

from carl.errors import UserError
from carl.reporting.watch import WatchServer, watch
from tests.conftest import Run
from tests.reporting.conftest import make_gallery, make_run


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WatchServer]:
    with WatchServer(make_run(tmp_path / "run", None, finished=False)) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(
    server: WatchServer,
    path: str | None = None,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    host: str = "",
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest(method, server.path if path is None else path, skip_host=True)
    if host != "none":
        connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    for name, value in (headers or {}).items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection.getresponse()


def test_the_page_of_a_run_that_trains_is_served(server: WatchServer):
    answer = ask(server)
    page = html.unescape(answer.read().decode())
    assert answer.status == 200
    assert '<p class="word">training' in page
    assert "connect-src 'self'" in page
    assert "carl pretrain --resume" not in page.partition('id="curves"')[0]
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["Cache-Control"] == "no-store"


def test_the_state_changes_when_the_run_does_and_nothing_is_written(server: WatchServer):
    def state() -> dict[str, str]:
        found: dict[str, str] = json.loads(ask(server, f"{server.path}state").read())
        return found

    before, there = state(), sorted(server.run.iterdir())
    assert before["note"].startswith("Last news from the run: ")
    assert state()["version"] == before["version"]
    with (server.run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "event", "event": "finished", "seconds": 75.0}\n')
    assert state()["version"] != before["version"]
    assert state()["note"] == "The run has finished."
    assert b'<p class="word">healthy' in ask(server).read()
    assert sorted(server.run.iterdir()) == there


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
def test_nothing_but_get_is_answered(server: WatchServer, method: str):
    answer = ask(server, method=method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "none"])
def test_another_host_is_refused(server: WatchServer, host: str):
    answer = ask(server, host=host)
    assert answer.status == 403
    assert b"CARL" not in answer.read()


def test_other_sites_and_other_addresses_get_nothing(server: WatchServer):
    assert ask(server, headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    for path in ("/", "/report.html", f"{server.path}../config.toml", f"{server.path}?x=1", "//etc/passwd"):
        assert ask(server, path).status == 404
    assert ask(server, host=f"localhost:{server.server_port}").status == 200


def test_only_this_machine_is_served(server: WatchServer):
    assert server.server_address[0] == "127.0.0.1"


def test_a_run_that_is_damaged_for_a_while_is_told_of_and_read_again(server: WatchServer):
    (server.run / "gallery.npz").write_bytes(b"PK not really <b>")
    told = ask(server).read().decode()
    assert "cannot be read" in told
    assert 'http-equiv="refresh"' in told
    (server.run / "gallery.npz").unlink()
    assert b'class="word">training' in ask(server).read()


def test_a_port_in_use_and_a_folder_that_is_no_run_are_errors_of_one_line(server: WatchServer, tmp_path: Path):
    with pytest.raises(UserError, match="cannot be used"):
        watch(server.run, print, server.server_port)
    with pytest.raises(UserError, match=r"no config\.toml"):
        watch(tmp_path, print)


def test_options_that_do_not_go_together_are_refused(carl: Run, tmp_path: Path):
    for name in ("a", "b"):
        make_run(tmp_path / name, None)
    for words in (("a", "b", "--watch"), ("a", "--watch", "-o", "x.html"), ("a", "--port", "8000")):
        ended = carl("report", *words)
        assert ended.returncode == 2
        assert "--watch" in ended.stderr


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_ends_watching_with_a_line(tmp_path: Path):
    run = make_run(tmp_path / "run", make_gallery())
    command = [sys.executable, "-u", "-c", "from carl.cli import main; main()", "report", str(run), "--watch"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a suite in the background ignores it
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(f"watching {run} at http://127.0.0.1:")
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, f"no longer watching {run}\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_watching_outlives_its_output(tmp_path: Path):
    run = make_run(tmp_path / "run", None, finished=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from carl.cli import main; main()", "report", str(run), "--watch", "--port"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with (
        open("/dev/full", "wb") as full,
        subprocess.Popen([*command, str(port)], stdout=full, stderr=subprocess.PIPE, preexec_fn=heard) as process,
    ):
        try:
            assert answers(port, process)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, error) == (0, b"")


def answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether a server answers at this port before its process ends."""
    while process.poll() is None:
        with suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", "/")
            return connection.getresponse().status == HTTPStatus.NOT_FOUND
        time.sleep(0.1)
    return False
