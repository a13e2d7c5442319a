"""One rule for what commands write: a file is replaced only with --force, or if the same command made it."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.reliability.conftest import assert_refused, listed

# Each writes the file whose name comes next; words in braces stand for run directories and a folder of images.
COMMANDS = {
    "report": ["report", "{run}", "-o"],
    "comparison": ["report", "{run}", "{other}", "-o"],
    "search": ["search", "{run}", "{photos}", "{photos}/part 0/003.png", "-o"],
    "curate": ["curate", "{run}", "{photos}", "--keep", "5", "-o"],
    "look": ["report", "{run}", "{photos}", "--map", "pca", "-o"],
    "sheet": ["data", "info", "{photos}", "--sheet"],
}
REPORTS = {"report", "comparison", "look"}
MARKED = (*sorted(REPORTS), "search", "sheet")  # a list of names has no place for a mark


@pytest.fixture
def words(run: Path, simclr_run: Path, folder: Path) -> dict[str, list[str]]:
    return {
        name: [word.format(run=run, other=simclr_run, photos=folder) for word in line]
        for name, line in COMMANDS.items()
    }


@pytest.fixture
def command(request: pytest.FixtureRequest, words: dict[str, list[str]]) -> list[str]:
    return words[request.param]


@pytest.mark.parametrize("command", COMMANDS, indirect=True)
@pytest.mark.parametrize("name", ["thesis.txt", "mine.png", "page.html", "table.csv"])
def test_a_file_of_the_users_is_replaced_only_with_force(carl: Run, tmp_path: Path, command: list[str], name: str):
    (tmp_path / name).write_text("precious")
    before = listed(tmp_path)
    assert_refused(carl(*command, name), [f"{name} exists", "--force"])
    assert (listed(tmp_path), (tmp_path / name).read_text()) == (before, "precious")
    done = carl(*command, name, "--force")
    assert done.returncode == 0, done.stderr
    assert b"precious" not in (tmp_path / name).read_bytes()


def test_a_report_never_replaces_another_file_of_the_run(carl: Run, run: Path):
    before = (run / "config.toml").read_text()
    assert_refused(carl("report", run, "-o", run / "config.toml"), ["config.toml exists"])
    assert (run / "config.toml").read_text() == before


@pytest.mark.parametrize("command", MARKED, indirect=True)
def test_what_the_same_command_made_is_replaced_freely(carl: Run, command: list[str]):
    for _ in range(2):
        done = carl(*command, "made")
        assert done.returncode == 0, done.stderr


def test_lists_of_names_carry_no_mark_and_tables_do(carl: Run, run: Path, folder: Path):
    for name, code in (("list.txt", 2), ("table.csv", 0)):
        assert carl("curate", run, folder, "--keep", "5", "-o", name).returncode == 0
        assert carl("curate", run, folder, "--keep", "5", "-o", name).returncode == code


@pytest.mark.parametrize("made", MARKED)
def test_one_command_does_not_replace_what_another_made(carl: Run, words: dict[str, list[str]], made: str):
    assert carl(*words[made], "made").returncode == 0
    others = set(COMMANDS) - {made} - (REPORTS if made in REPORTS else set())
    for other in others:
        assert_refused(carl(*words[other], "made"), ["made exists"])


def test_a_run_can_be_reported_again_into_its_own_directory(carl: Run, run: Path):
    (run / "report.html").write_text("as an earlier version wrote it")
    for _ in range(2):
        assert carl("report", run).returncode == 0
    assert "<html" in (run / "report.html").read_text()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes or devices in folders")
@pytest.mark.parametrize("command", COMMANDS, indirect=True)
def test_pipes_and_devices_are_written_to_and_links_followed(carl: Run, tmp_path: Path, command: list[str]):
    os.mkfifo(tmp_path / "pipe")
    there = set(tmp_path.iterdir()) | {tmp_path / "read"}
    # Into a file: a pipe that no one empties would stop the reader, and with it the command.
    with (
        open(tmp_path / "read", "wb") as read,
        subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=read) as reader,
    ):
        try:
            done = carl(*command, "pipe")
            assert done.returncode == 0, done.stderr
            assert reader.wait(timeout=30) == 0
        finally:
            reader.kill()
    assert (tmp_path / "read").stat().st_size
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    (tmp_path / "null").symlink_to(os.devnull)
    assert carl(*command, "null").returncode == 0
    assert (tmp_path / "null").is_symlink()
    assert set(tmp_path.iterdir()) == there | {tmp_path / "null"}  # and nothing appears beside them
    (tmp_path / "link").symlink_to("real")
    assert carl(*command, "link").returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").stat().st_size


@pytest.mark.parametrize("command", COMMANDS, indirect=True)
def test_a_folder_is_refused_as_an_output_before_any_work(carl: Run, tmp_path: Path, command: list[str]):
    (tmp_path / "folder").mkdir()
    assert_refused(carl(*command, "folder", "--force"), ["folder is a folder"])
    assert carl(*command, "folder").stdout == ""


@pytest.mark.parametrize("output", [".", "/", ".."])
@pytest.mark.parametrize("command", [*COMMANDS, "embed", "group"])
def test_an_output_that_has_no_name_is_refused_in_one_line(
    carl: Run, run: Path, folder: Path, words: dict[str, list[str]], command: str, output: str
):
    others = {
        "embed": ["embed", str(run), str(folder), "-o"],
        "group": ["group", str(run), str(folder), "--groups", "2", "-o"],
    }
    assert_refused(carl(*(words | others)[command], output, "--force"), [output])


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes in folders")
@pytest.mark.parametrize("command", ["embed", "group"])
def test_what_is_no_file_beside_an_output_stays(carl: Run, run: Path, folder: Path, tmp_path: Path, command: str):
    pipe = tmp_path / "made.csv.bad-files.txt"
    os.mkfifo(pipe)
    more = ["--groups", "2"] if command == "group" else []
    done = carl(command, run, folder, *more, "-o", "made.csv")
    assert done.returncode == 0, done.stderr
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("command", ["curate", "group"])
@pytest.mark.parametrize("place", ["file", "full", "circle"])
def test_a_place_for_links_that_is_not_new_is_refused_before_any_work(
    carl: Run, run: Path, folder: Path, tmp_path: Path, command: str, place: str
):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("precious")
    (tmp_path / "circle").symlink_to("circle")
    before = listed(tmp_path)
    more = ["--groups", "2"] if command == "group" else ["--keep", "5"]
    done = carl(command, run, folder, *more, "-o", "made.csv", "--links", place)
    assert_refused(done, [place])
    assert done.stdout == ""
    assert listed(tmp_path) == before


@pytest.mark.parametrize("command", ["curate", "group"])
@pytest.mark.parametrize("end", ["empty", "nothing yet"])
def test_links_go_to_where_a_link_leads(carl: Run, run: Path, folder: Path, tmp_path: Path, command: str, end: str):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(end)
    more = ["--groups", "2"] if command == "group" else ["--keep", "96"]
    done = carl(command, run, folder, *more, "-o", "made.csv", "--links", "link")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "link").is_symlink()
    assert len(list((tmp_path / end).rglob("*.png"))) == 96
