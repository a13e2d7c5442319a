"""Whatever ends a run or refuses to take its files: what was saved is not lost, and resume ends with the same bits."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from carl.data.photo_images import PhotoImages
from carl.errors import UserError
from carl.evaluation.result_files import check_writable
from carl.records.run_directory import RunDirectory
from carl.training.checkpoint import load_checkpoint
from carl.training.journal import Journal
from carl.training.loop import Trainer
from tests.reliability.conftest import assert_refused, call, listed
from tests.reliability.killing import choose, differences, ending, make_photos, run_child
from tests.reliability.world import copy_run
from tests.weights import assert_same_weights

needs_sigkill = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
LIKE_RUN = [
    "--backbone", "test_resnet", "--epochs", "2", "--batch-size", "16", "--prototypes", "10",
    "--set", "probe.every=0", "--set", "log.report=false",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """Photos, an uninterrupted run on them, and the moments it went through."""
    folder = tmp_path_factory.mktemp("whole")
    data = make_photos(tmp_path_factory.mktemp("data") / "photos")
    code, output = run_child(folder, data)
    assert code == 0, output
    return data, folder / "run", json.loads((folder / "moments.json").read_text())


def kill_and_resume(whole: tuple[Path, Path, list[str]], folder: Path, moment: int) -> None:
    data, finished, moments = whole
    code, output = run_child(folder, data, moment)
    assert code == -9, (moments[moment - 1], output)
    code, output = run_child(folder, data)
    assert code == 0, (moments[moment - 1], output)
    assert differences(ending(finished), ending(folder / "run")) == [], moments[moment - 1]
    assert not list((folder / "run").rglob("*.partial")), moments[moment - 1]


@needs_sigkill
@pytest.mark.parametrize(
    ("kind", "seed"), [("packing", 0), ("saving config.toml", 0), ("saving checkpoint.pt", 0), ("stepping", 0)]
)
def test_killed_at_a_random_moment_it_resumes_and_ends_with_the_same_bits(
    whole: tuple[Path, Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    kill_and_resume(whole, tmp_path, choose(whole[2], kind, seed))


@needs_sigkill
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["packing", "saving", "evaluating", "stepping"])
def test_killed_at_more_random_moments_it_resumes_and_ends_with_the_same_bits(
    whole: tuple[Path, Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    kill_and_resume(whole, tmp_path, choose(whole[2], kind, 100 + seed))


@needs_sigkill
@pytest.mark.slow
def test_killed_again_and_again_it_still_ends_with_the_same_bits(
    whole: tuple[Path, Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    data, finished, moments = whole
    packed = next(number for number, moment in enumerate(moments) if "stepping" in moment)
    killed = 0
    for _ in range(50):
        # First within the training, since packing is done whole or not at all; then with room for a checkpoint or two.
        code, output = run_child(tmp_path, data, packed + 30 if not killed else 60)
        killed += code == -9
        if code == 0:
            break
        assert code == -9, output
    assert killed >= 3
    assert differences(ending(finished), ending(tmp_path / "run")) == []


class FullDisk:
    """Lets files be made, and nothing be written to those of one name, from the `count`-th of them on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, count: int, number: int = errno.ENOSPC) -> None:
        self.name, self.left, self.number = name, count, number
        self.make, self.open = tempfile.mkstemp, os.fdopen
        self.watched: set[int] = set()
        monkeypatch.setattr("carl.files.tempfile.mkstemp", self._mkstemp)
        monkeypatch.setattr("carl.files.os.fdopen", self._fdopen)

    def _mkstemp(self, *arguments: Any, **options: Any) -> tuple[int, str]:
        descriptor, name = self.make(*arguments, **options)
        if Path(name).name.startswith(f".{self.name}."):
            self.left -= 1
            if self.left < 0:
                self.watched.add(descriptor)
        return descriptor, name

    def _fdopen(self, descriptor: int, *arguments: Any, **options: Any) -> Any:
        file = self.open(descriptor, *arguments, **options)
        if descriptor not in self.watched:
            return file
        self.watched.discard(descriptor)

        class Refusing:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *error: object) -> None:
                file.close()

            def write(self, data: bytes) -> int:
                raise OSError(number, os.strerror(number))

            def flush(self) -> None: ...

            def fileno(self) -> int:
                return file.fileno()

        number = self.number
        return Refusing()


@pytest.mark.parametrize("name", ["checkpoint.pt", "encoder.safetensors"])
def test_a_disk_that_is_full_while_saving_leaves_the_last_good_checkpoint_and_says_so(
    run: Path, small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    FullDisk(monkeypatch, name, count=1)
    done = call(tmp_path, "pretrain", small_data, *LIKE_RUN, "--out", "run")
    assert_refused(done, ["No space left", name, "the last good checkpoint is run/checkpoint.pt", "--resume run"])
    assert load_checkpoint(tmp_path / "run" / "checkpoint.pt").step == 6
    assert not list((tmp_path / "run").rglob("*.partial"))
    monkeypatch.undo()
    done = call(tmp_path, "pretrain", "--resume", "run")
    assert done.returncode == 0, done.stderr
    assert_same_weights(run, tmp_path / "run")


def test_a_disk_that_is_full_while_noting_a_step_says_so_too(
    run: Path, small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plain = Journal.write

    def write(journal: Journal, kind: str, step: int, epoch: float, **values: Any) -> None:
        if step == 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(journal, kind, step, epoch, **values)

    monkeypatch.setattr(Journal, "write", write)
    done = call(tmp_path, "pretrain", small_data, *LIKE_RUN, "--out", "run")
    assert_refused(done, ["No space left", "the last good checkpoint is run/checkpoint.pt"])
    monkeypatch.undo()
    assert call(tmp_path, "pretrain", "--resume", "run").returncode == 0
    assert_same_weights(run, tmp_path / "run")


def test_a_run_directory_that_is_read_only_is_refused(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    FullDisk(monkeypatch, "environment.json", count=0, number=errno.EROFS)
    done = call(tmp_path, "pretrain", small_data, *LIKE_RUN, "--out", "run")
    assert_refused(done, ["cannot make run directory run", "Read-only file system", "--out"])


@pytest.mark.parametrize("place", ["file", "file/x", "file/x/y", "link", "link/x"])
def test_a_place_for_results_that_is_no_folder_is_refused_before_measuring(tmp_path: Path, place: str):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(UserError, match=f"{place.split('/')[0]} is not a folder"):
        check_writable(tmp_path / place / "knn.json")


def test_a_result_that_cannot_be_written_in_the_end_is_shown(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    FullDisk(monkeypatch, "knn-small.json", count=0)
    copy = copy_run(run, tmp_path / "run")
    done = call(tmp_path, "eval", copy)
    assert_refused(done, ["knn-small.json", "No space left", "--out"])
    assert "random weights" in done.stdout
    assert not list(copy.rglob("*.partial"))


def test_what_could_not_be_kept_is_not_measured(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def measure(*arguments: Any) -> Any:
        raise AssertionError("it was measured")

    copy = copy_run(run, tmp_path / "run")
    monkeypatch.setattr("carl.evaluation.result_files.os.access", lambda *arguments, **options: False)
    monkeypatch.setattr("carl.evaluation.evaluate.measure", measure)
    done = call(tmp_path, "eval", copy)
    assert_refused(done, ["knn-small.json", "is read-only", "--out"])


def test_data_with_a_name_too_long_for_a_result_are_measured_and_kept(run: Path, small_data: Path, tmp_path: Path):
    copy, data = copy_run(run, tmp_path / "run"), tmp_path / f"{'x' * 245}.npz"
    data.write_bytes(small_data.read_bytes())
    for _ in range(2):
        done = call(tmp_path, "eval", copy, "--data", data)
        assert done.returncode == 0, done.stderr
    assert len(list((copy / "results").glob("knn-xxx*.json"))) == 1


def test_without_a_cache_to_write_to_images_are_packed_in_memory(
    run: Path, small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "file" / "cache"))
    done = call(tmp_path, "pretrain", small_data, *LIKE_RUN, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "packed in memory" in done.stdout
    assert_same_weights(run, tmp_path / "run")


def test_a_run_directory_in_use_is_refused_and_left_alone(run: Path, small_data: Path, tmp_path: Path):
    copy = copy_run(run, tmp_path / "run")
    with RunDirectory(copy).locked():
        before = listed(copy)
        assert_refused(call(tmp_path, "pretrain", "--resume", "run", "--epochs", "3"), ["run is in use", "--out"])
        assert listed(copy) == before
    (tmp_path / "new").mkdir()
    with RunDirectory(tmp_path / "new").locked():
        done = call(tmp_path, "pretrain", small_data, *LIKE_RUN, "--out", "new")
        assert_refused(done, ["new is in use"])
        assert [path.name for path in (tmp_path / "new").iterdir()] == [".lock"]


@needs_sigkill
def test_the_lock_of_a_killed_process_is_in_no_ones_way(run: Path, tmp_path: Path):
    copy = copy_run(run, tmp_path / "run")
    code = (
        "import os, signal, sys; from pathlib import Path; from carl.files import only_holder\n"
        "with only_holder(Path(sys.argv[1])) as held:\n"
        "    print(held, flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(copy / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert_refused(call(tmp_path, "pretrain", "--resume", "run"), ["in use"])
    finally:
        holder.kill()
        holder.communicate()
    assert (copy / ".lock").exists()
    done = call(tmp_path, "pretrain", "--resume", "run")
    assert done.returncode == 0, done.stderr


def test_what_a_process_left_that_died_before_the_run_was_one_does_not_block_it(small_data: Path, tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "environment.json").write_text('{"format": 1}')
    (folder / ".config.toml.x.partial").write_text("[da")
    RunDirectory.check_free(folder)
    (folder / "photo.png").write_bytes(b"mine")
    with pytest.raises(UserError, match="exists"):
        RunDirectory.check_free(folder)


@pytest.fixture
def own_data_run(small_data: Path, tmp_path: Path) -> Path:
    """A run of one epoch on data that may be changed."""
    shutil.copy(small_data, tmp_path / "mine.npz")
    arguments = [*LIKE_RUN, "--epochs", "1", "--set", "data.limit=32"]
    done = call(tmp_path, "pretrain", "mine.npz", *arguments, "--out", "run")
    assert done.returncode == 0, done.stderr
    return tmp_path / "run"


def test_data_that_vanished_or_changed_are_named_and_the_run_is_left_alone(own_data_run: Path, tmp_path: Path):
    data = tmp_path / "mine.npz"
    with np.load(data) as arrays:
        changed = dict(arrays)
    changed["x_train"] = changed["x_train"][::-1]
    before = listed(own_data_run)
    np.savez(data, **changed)
    done = call(tmp_path, "pretrain", "--resume", "run", "--epochs", "2")
    assert_refused(done, ["mine.npz have changed since the run began"])
    data.unlink()
    done = call(tmp_path, "pretrain", "--resume", "run", "--epochs", "2")
    assert_refused(done, ["mine.npz does not exist"])
    assert listed(own_data_run) == before


def test_a_photo_that_vanishes_while_training_is_named(tmp_path: Path):
    photos = PhotoImages(tmp_path, ("gone.jpg",), np.array([[40, 40]]))
    with pytest.raises(UserError, match=r"gone\.jpg could be decoded when it was packed but not now"):
        photos.crop(np.array([0]), np.array([[[0, 0, 8, 8]]]), [8])


def test_a_checkpoint_that_does_not_fit_changes_no_file(run: Path, tmp_path: Path):
    copy = copy_run(run, tmp_path / "run")
    state = torch.load(copy / "checkpoint.pt", weights_only=True)
    (copy / "checkpoint.pt").unlink()
    torch.save({**state, "step": 2, "method": {"a": torch.zeros(2)}}, copy / "checkpoint.pt")
    before = listed(copy)
    assert_refused(call(tmp_path, "pretrain", "--resume", "run"), ["checkpoint.pt does not fit"])
    changed = {name for name in listed(copy) if listed(copy)[name] != before.get(name)}
    assert changed <= {".lock"}


def test_a_signal_within_a_save_does_not_cut_it(
    run: Path, small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plain = Trainer.save

    def save(trainer: Trainer) -> None:
        if trainer.learner.steps_done == 6:
            signal.raise_signal(signal.SIGTERM)
        plain(trainer)

    monkeypatch.setattr(Trainer, "save", save)
    done = call(tmp_path, "pretrain", small_data, *LIKE_RUN, "--out", "run")
    assert done.returncode == 143
    assert load_checkpoint(tmp_path / "run" / "checkpoint.pt").step == 6
    monkeypatch.undo()
    assert call(tmp_path, "pretrain", "--resume", "run").returncode == 0
    assert_same_weights(run, tmp_path / "run")
