"""Files are whole and stay where they are; locks have one holder and end with it, however it ends."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from carl.errors import UserError
from carl.files import atomic_writer, check_replaceable, only_holder, write_text

needs_pipes = pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes or devices in folders")
HOLD = """
import sys
from pathlib import Path
from carl.files import only_holder
with only_holder(Path(sys.argv[1])) as held:
    print(held, flush=True)
    sys.stdin.read()
"""


def hold_elsewhere(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_lock_has_one_holder_and_ends_with_it_however_it_ends(tmp_path: Path, end: str):
    other = hold_elsewhere(tmp_path / "lock")
    try:
        with only_holder(tmp_path / "lock") as held:
            assert not held
    finally:
        if end == "kill":
            other.kill()
        other.communicate()
    with only_holder(tmp_path / "lock") as held:
        assert held


def test_a_patient_process_gets_the_lock_when_its_holder_lets_go(tmp_path: Path):
    holding, asked = threading.Event(), threading.Event()

    def hold() -> None:
        with only_holder(tmp_path / "lock"):
            holding.set()
            asked.wait()
            time.sleep(0.1)

    thread = threading.Thread(target=hold)  # a lock belongs to an open file, so a thread stands for a process
    thread.start()
    holding.wait()
    asked.set()
    with only_holder(tmp_path / "lock", patience=30.0) as held:
        assert held
    thread.join()


def test_the_lock_file_stays_the_same_so_that_all_who_have_it_open_wait_for_each_other(tmp_path: Path):
    (tmp_path / "lock").touch()
    before = (tmp_path / "lock").stat().st_ino
    with only_holder(tmp_path / "lock"):
        pass
    with only_holder(tmp_path / "lock") as held:
        assert held
    assert (tmp_path / "lock").stat().st_ino == before


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_disk_that_cannot_lock_lets_everyone_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    def refuse(file: int, operation: int) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr("fcntl.flock", refuse)
    with only_holder(tmp_path / "lock") as first, only_holder(tmp_path / "lock") as second:
        assert (first, second) == (True, True)


def test_a_lock_file_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "lock", tmp_path / "folder"):
        with pytest.raises(OSError, match=r"exists|directory") as error, only_holder(path):
            pass
        assert str(error.value.filename).startswith(str(tmp_path))


def test_an_error_of_the_work_passes_through_and_releases_the_lock(tmp_path: Path):
    with pytest.raises(OSError, match="no space"), only_holder(tmp_path / "lock"):
        raise OSError(errno.ENOSPC, "no space")
    with only_holder(tmp_path / "lock") as held:
        assert held


def test_the_target_of_a_link_is_replaced_and_the_link_stays(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "between.txt")
    (tmp_path / "between.txt").symlink_to(Path("disk") / "real.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "between.txt").is_symlink()
    assert (tmp_path / "disk" / "real.txt").read_text() == "new"
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["real.txt"]


def test_a_link_to_what_does_not_exist_yet_makes_it(tmp_path: Path):
    (tmp_path / "link.txt").symlink_to(tmp_path / "later.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "later.txt").read_text() == "new"


def test_a_link_to_itself_is_an_error_and_stays(tmp_path: Path):
    (tmp_path / "link.txt").symlink_to(tmp_path / "link.txt")
    with pytest.raises(OSError, match="symbolic links"):
        write_text(tmp_path / "link.txt", "new")
    assert os.readlink(tmp_path / "link.txt") == str(tmp_path / "link.txt")
    assert len(list(tmp_path.iterdir())) == 1


@needs_pipes
def test_a_pipe_gets_the_content_and_stays_a_pipe(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE, text=True) as reader:
            try:
                with atomic_writer(tmp_path / name) as file:
                    file.write(b"old")
                    file.seek(0)  # as some formats do
                    file.write(b"new")
                assert reader.communicate(timeout=30)[0] == "new"
            finally:
                reader.kill()
        assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


@needs_pipes
def test_a_pipe_gets_nothing_of_what_failed(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="closed"), atomic_writer(tmp_path / "pipe") as file:
        file.close()  # the end fails; with no reader, opening the pipe would wait for ever


@needs_pipes
def test_a_device_stays_a_device(tmp_path: Path):
    (tmp_path / "link").symlink_to(os.devnull)
    write_text(tmp_path / "link", "new")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    if os.geteuid() == 0:  # only the superuser could replace it
        os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.stat(os.devnull).st_rdev)
        write_text(tmp_path / "null", "new")
        assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_an_error_of_a_device_names_it(tmp_path: Path):
    (tmp_path / "link").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        write_text(tmp_path / "link", "new" * 100_000)
    assert caught.value.filename == str(tmp_path / "link")


def test_the_longest_names_that_a_disk_allows_can_be_written(tmp_path: Path):
    for name in ("a" * 255, "\u00fc" * 127):
        write_text(tmp_path / name, "text")
        assert (tmp_path / name).read_text() == "text"


def test_text_with_bytes_that_are_no_letters_is_written_escaped(tmp_path: Path):
    write_text(tmp_path / "text", "a\udcffb")
    assert (tmp_path / "text").read_text() == "a\\udcffb"


def test_a_file_is_replaced_only_by_force_or_if_it_carries_the_mark(tmp_path: Path):
    path = tmp_path / "page.html"
    check_replaceable(path, force=False)
    path.write_text("<mark of carl>")
    check_replaceable(path, force=True)
    check_replaceable(path, force=False, mark=b"<mark of carl>")
    (tmp_path / "link").symlink_to(path)
    for taken in (path, tmp_path / "link"):
        with pytest.raises(UserError, match=f"{taken.name} exists; .* --force"):
            check_replaceable(taken, force=False)
    path.write_text("mine")
    with pytest.raises(UserError, match="exists"):
        check_replaceable(path, force=False, mark=b"<mark of carl>")
    with pytest.raises(UserError, match="is a folder"):
        check_replaceable(tmp_path, force=True)


@needs_pipes
def test_what_is_not_a_file_needs_no_force(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    check_replaceable(tmp_path / "pipe", force=False, mark=b"mark")
    check_replaceable(Path(os.devnull), force=False, mark=b"mark")
