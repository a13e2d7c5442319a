"""Downloads: whole and right, or not there; and where to put the file by hand when there is no network."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from carl.data.sources import official
from carl.data.sources.download import Archive, fetch, unpacked
from carl.errors import UserError
from tests.reliability.conftest import assert_refused, call


def silent(what: str, done: int, total: int) -> None: ...


def cifar_archive() -> bytes:
    batch = pickle.dumps({"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 0, 1]}, 2)
    files = {"data_batch_1": batch, "test_batch": batch, "batches.meta": pickle.dumps({"label_names": ["a", "b"]}, 2)}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


CONTENT = cifar_archive()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """What may go wrong on the way, by path."""

    def do_GET(self) -> None:
        way = self.path.split("/")[1]
        if way == "missing":
            self.send_error(404)
            return
        if way == "junk":
            self.wfile.write(b"this is no HTTP\r\n\r\n")
            return
        self.send_response(200)
        if way == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"100\r\n" + CONTENT[:50])  # and no more
            return
        if way != "length":
            self.send_header("Content-Length", str(len(CONTENT)))
        else:
            self.send_header("Content-Length", "many")
        self.end_headers()
        sent = {"whole": CONTENT, "cut": CONTENT[:-50], "other": CONTENT[:-1] + b"x", "length": CONTENT}[way]
        self.wfile.write(sent)

    def log_message(self, format: str, *arguments: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()
    thread.join()


def archive(url: str) -> Archive:
    return Archive(f"{url}/cifar.tar.gz", MD5, "cifar-10-batches-py")


def test_a_whole_download_is_checked_and_unpacked(server: str, tmp_path: Path):
    folder = unpacked(archive(f"{server}/whole"), tmp_path, silent)
    assert sorted(path.name for path in folder.iterdir()) == ["batches.meta", "data_batch_1", "test_batch"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar-10-batches-py", "cifar.tar.gz"]


@pytest.mark.parametrize("way", ["cut", "other", "chunked", "missing", "junk", "length"])
def test_a_download_that_fails_leaves_nothing_and_says_where_to_put_the_file(server: str, tmp_path: Path, way: str):
    with pytest.raises(UserError, match=r"by hand and put it at .*cifar\.tar\.gz") as caught:
        fetch(archive(f"{server}/{way}"), tmp_path, silent)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://no-such-host.invalid", "nosuch://x", "http://[bad"])
def test_offline_is_said_with_where_to_put_the_file_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str):
    monkeypatch.setattr(official, "CIFAR10_ARCHIVE", archive(url))
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    done = call(tmp_path, "data", "prepare", "cifar10")
    assert_refused(
        done, [f"{url}/cifar.tar.gz cannot be downloaded", "by hand", f"{tmp_path}/cache/downloads/cifar.tar"]
    )
    (tmp_path / "cache" / "downloads" / "cifar.tar.gz").write_bytes(CONTENT)
    done = call(tmp_path, "data", "prepare", "cifar10")
    assert done.returncode == 0, done.stderr
    assert "ready: 4 train, 4 test" in done.stdout


@pytest.mark.parametrize("content", [b"", CONTENT[:-1], CONTENT + b"x", b"text"])
def test_a_file_put_there_by_hand_is_checked_like_a_download(tmp_path: Path, content: bytes):
    (tmp_path / "cifar.tar.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"MD5 sum .* damaged or partial; delete it"):
        fetch(archive("http://127.0.0.1:9"), tmp_path, silent)


def test_an_archive_that_cannot_be_unpacked_leaves_no_folder(tmp_path: Path):
    content = CONTENT[: len(CONTENT) // 2]
    (tmp_path / "cifar.tar.gz").write_bytes(content)
    damaged = Archive("http://x/cifar.tar.gz", hashlib.md5(content).hexdigest(), "cifar-10-batches-py")
    with pytest.raises(UserError, match="cannot be unpacked"):
        unpacked(damaged, tmp_path, silent)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar.tar.gz"]


def test_a_partial_download_of_a_killed_process_is_not_taken_for_whole(server: str, tmp_path: Path):
    (tmp_path / ".cifar.tar.gz.abc.partial").write_bytes(CONTENT[:100])
    (tmp_path / ".partial-abc" / "cifar-10-batches-py").mkdir(parents=True)
    folder = unpacked(archive(f"{server}/whole"), tmp_path, silent)
    assert (folder / "test_batch").is_file()


def test_what_killed_downloads_left_is_removed_once_it_is_old(server: str, tmp_path: Path):
    foreign = tmp_path / ".partial-of-another-program"
    foreign.mkdir()
    for age in ("old", "young"):
        (tmp_path / f".cifar.tar.gz.{age}.partial").write_bytes(CONTENT[:100])
        (tmp_path / f".partial-cifar-10-batches-py-{age}").mkdir()
    for path in (foreign, *tmp_path.glob("*old*")):
        os.utime(path, (10**9, 10**9))
    unpacked(archive(f"{server}/whole"), tmp_path, silent)
    assert not list(tmp_path.glob("*old*"))
    assert len(list(tmp_path.glob("*young*"))) == 2
    assert foreign.exists()


def test_the_weights_of_timm_without_a_network_say_what_to_do(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from carl.models.pretrained import hub

    monkeypatch.setattr(hub, "answers", lambda address: False)
    done = call(tmp_path, "pretrain", small_data, "--backbone", "test_resnet", "--init", "timm", "--batch-size", "8")
    assert_refused(done, ["no network", "fetch https://", "put it at"])
