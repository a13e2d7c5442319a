"""A hundred thousand files: memory stays flat, and a killed process is gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import carl
from carl.use.embedding_files import EmbeddingFile
from carl.use.embedding_parts import PART

IMAGES = 100_000


def make_files(folder: Path) -> list[str]:
    """Small BMP files, each another image; their sorted paths."""
    from PIL import Image

    generator = np.random.default_rng(0)
    names = []
    for number in range(IMAGES):
        path = folder / f"{number // 1000:03d}" / f"{number:06d}.bmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
        names.append(str(path))
    return names


def resident(process: subprocess.Popen[str]) -> int:
    """Bytes of memory that the process and those it has started to decode hold now."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError, IndexError):  # of one that has just ended
            text = status.read_text()
            if status.parent.name == str(process.pid) or f"PPid:\t{process.pid}\n" in text:
                total += 1024 * int(text.split("VmRSS:")[1].split()[0])
    return total


def start(run: Path, images: Path, output: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "carl", "embed", str(run), str(images), "-o", str(output)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def parts(output: Path) -> int:
    return len(list(output.with_name(f"{output.name}.parts").glob("0*.parquet")))


def wait_for(process: subprocess.Popen[str], output: Path, count: int) -> None:
    while parts(output) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_stays_flat_and_a_killed_process_is_gone_on_with(run: Path, tmp_path: Path):
    names, output = make_files(tmp_path / "images"), tmp_path / "e.parquet"
    process = start(run, tmp_path / "images", output)
    wait_for(process, output, 6)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not output.exists()
    process = start(run, tmp_path / "images", output)
    memory = []
    for count in range(9, IMAGES // PART + 1):
        wait_for(process, output, count)
        memory.append(resident(process))
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    print(f"memory at each part in MB: {[round(value / 1e6) for value in memory]}")
    print(stdout)
    assert "resumed after" in stdout
    early, late = np.median(memory[:4]), np.median(memory[-4:])
    assert late - early < 0.05 * early
    index = EmbeddingFile(output)
    assert index.names() == names
    assert pq.read_metadata(output).num_rows == IMAGES
    chosen = np.arange(0, IMAGES, 9973)
    expected = carl.load_encoder(run).embed([names[row] for row in chosen])
    np.testing.assert_allclose(index.embeddings()[chosen], expected, atol=1e-5)
