"""Files that another program cuts short while they are in use. A mapped file would kill the process (SIGBUS)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from carl.use.grouping import points
from tests.reliability.world import encoded

# Read the images again and again for as long as the file `stop` is missing; an error of ours is counted and no more.
READING = """
import sys
from pathlib import Path
import numpy as np
from carl.data import open_dataset
from carl.errors import UserError

images, refused, first = open_dataset(sys.argv[1]).train.images, 0, ""
print("open", flush=True)
while not Path(sys.argv[2]).exists():
    try:
        images.gather(np.arange(len(images) - 64, len(images)))
        np.asarray(images.pixels[len(images) // 2 :]).sum()
    except UserError as error:
        refused, first = refused + 1, first or str(error)
print(refused, first)
"""


def child(code: str, *words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def save_npy(folder: Path) -> Path:
    np.save(folder / "x.npy", np.full((2000, 16, 16, 3), 9, np.uint8))
    return folder / "x.npy"


def save_npz(folder: Path) -> Path:
    np.savez(folder / "x.npz", images=np.full((2000, 16, 16, 3), 9, np.uint8))
    return folder / "x.npz"


def save_folder(folder: Path) -> Path:
    for number in range(200):
        (folder / f"{number}.png").write_bytes(encoded("PNG", 64, 64))
    return folder


def own_file(source: Path, cache: Path) -> Path:
    return source


def packed_file(source: Path, cache: Path) -> Path:
    return next(cache.glob("packed/*/train/pixels.npy"))


@pytest.mark.parametrize(
    ("save", "read_from"),
    [
        pytest.param(save_npy, own_file, id="npy"),
        pytest.param(save_npz, packed_file, id="packed from npz"),
        pytest.param(save_folder, packed_file, id="packed from a folder"),
    ],
)
def test_a_file_that_is_cut_while_it_is_read_never_kills(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    save: Callable[[Path], Path],
    read_from: Callable[[Path, Path], Path],
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    source, stop = save(tmp_path / "data"), tmp_path / "stop"
    with child(READING, source, stop) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        file = read_from(source, tmp_path / "cache")
        size, end = file.stat().st_size, time.monotonic() + 1.5
        while time.monotonic() < end and reader.poll() is None:  # the moment of the cut is a different one each time
            os.truncate(file, 4096)
            time.sleep(0.0005)
            os.truncate(file, size)
        stop.touch()
        said, errors = reader.communicate(timeout=60)
    assert reader.returncode == 0, (reader.returncode, errors)
    refused, _, message = said.partition(" ")
    assert int(refused) > 0
    assert message.startswith(f"{file} became shorter while it was in use; ")


@pytest.mark.parametrize("layout", ["channels first", "columns first"])
def test_an_npy_file_that_is_cut_before_it_is_packed_is_refused(tmp_path: Path, layout: str):
    array = np.zeros((2000, 3, 32, 32) if layout == "channels first" else (2000, 32, 32, 3), np.uint8)
    np.save(tmp_path / "x.npy", np.asfortranarray(array) if layout == "columns first" else array)
    code = """
import os, sys
from pathlib import Path
from carl.data.sources.arrays import list_npy
from carl.errors import UserError

split = list_npy(Path(sys.argv[1]), "x").splits["train"]
os.truncate(sys.argv[1], 4096)
try:
    print(sum(int(pixels.sum()) for pixels, _ in split.read()))
except UserError as error:
    print(error)
"""
    with child(code, tmp_path / "x.npy") as reader:
        said, errors = reader.communicate(timeout=60)
    assert reader.returncode == 0, (reader.returncode, errors)
    assert said == f"{tmp_path / 'x.npy'} became shorter while it was in use; restore it and run this again\n"


@pytest.mark.slow
def test_training_on_an_npy_file_that_is_cut_ends_with_one_line_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    array = np.random.default_rng(0).integers(0, 256, (256, 16, 16, 3), np.uint8)
    np.save(tmp_path / "x.npy", array)
    run = tmp_path / "run"
    words = ["pretrain", tmp_path / "x.npy", "--out", run, "--resume", "auto", "--backbone", "test_resnet"]
    words += ["--batch-size", 64, "--prototypes", 10, "--epochs", 8, "--image-size", 16]
    words += ["--set", "probe.every=0", "--set", "log.report=false", "--set", "train.checkpoint_steps=1"]
    started = [sys.executable, "-P", "-m", "carl", *map(str, words)]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as training:
        wait_for_checkpoint(run, training)
        os.truncate(tmp_path / "x.npy", 4096)
        _, errors = training.communicate(timeout=120)
    assert training.returncode == 2, (training.returncode, errors)
    said = [line for line in errors.splitlines() if line.startswith("carl: ")]
    assert said == [f"carl: {tmp_path / 'x.npy'} became shorter while it was in use; restore it and run this again"]
    assert "Traceback" not in errors
    np.save(tmp_path / "x.npy", array)
    resumed = subprocess.run(started, capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming {run} at step" in resumed.stdout


def wait_for_checkpoint(run: Path, training: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not (run / "checkpoint.pt").exists():
        assert training.poll() is None, training.communicate()
        assert time.monotonic() < end, "no checkpoint"
        time.sleep(0.05)


def test_weights_that_are_cut_after_they_were_read_do_not_kill(tmp_path: Path):
    save_file({"weight": torch.ones(4_000_000)}, tmp_path / "x.safetensors")
    code = """
import os, sys
from pathlib import Path
from carl.models.state_dicts import read_weights

weights = read_weights(Path(sys.argv[1]))
os.truncate(sys.argv[1], 4096)
print(int(weights["weight"].sum()))
"""
    with child(code, tmp_path / "x.safetensors") as reader:
        said, errors = reader.communicate(timeout=60)
    assert (reader.returncode, said) == (0, "4000000\n"), errors


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room is taken by writing")
def test_points_for_which_the_disk_has_no_room_are_an_error_before_they_are_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(points, "IN_MEMORY", 0)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    projection = points.Projection(torch.zeros(2), torch.eye(2))
    with pytest.raises(OSError, match="No space left"):
        points.project(lambda: [np.ones((4, 2), np.float32)], projection, 4, tmp_path)
