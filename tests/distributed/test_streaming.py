"""A run of two processes over shards: it sees every image, and goes on after a kill."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import SMALL
from tests.data.test_stream import write_tar
from tests.distributed import processes
from tests.distributed.test_runs import QUIET, die, losses, seen, watched

COUNTS = [5 + shard % 8 for shard in range(19)]
IMAGES = 176  # eleven batches of 16


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty shards of various sizes."""
    folder = tmp_path_factory.mktemp("shards")
    first = 0
    for number, count in enumerate([*COUNTS, IMAGES - sum(COUNTS)]):
        write_tar(folder / f"{number:03d}.tar", range(first, first + count))
        first += count
    return folder


def test_a_stream_shows_every_image_once_an_epoch_also_across_a_kill(shards: Path, tmp_path: Path):
    arguments = ["pretrain", f"{shards}/{{000..019}}.tar", *SMALL, "--epochs", "2", "--out", "run", *QUIET]
    arguments += ["--set", "train.checkpoint_steps=5", "--set", "data.buffer=32"]
    group = processes.Group(2, tmp_path, watched, arguments, die, 17)  # in the second epoch
    codes = group.wait()
    assert codes[1] == -9
    assert codes[0] not in (0, None)
    assert group.output(0).count("carl: another process of this run was lost") == 1
    assert "Traceback" not in group.outputs()
    before = {step: indices for step, indices in seen(tmp_path).items() if step < 15}  # as the checkpoint has it
    for file in tmp_path.glob("seen-*.txt"):
        file.unlink()
    processes.run(2, tmp_path, watched, ["pretrain", "--resume", "run"])
    after = seen(tmp_path)
    assert sorted(after) == list(range(15, 22))
    for epoch in range(2):
        steps = {**before, **after}
        found = Counter(i for step in range(11 * epoch, 11 * epoch + 11) for i in steps[step])
        assert found == dict.fromkeys(range(IMAGES), 1)
    assert list(losses(tmp_path / "run")) == list(range(1, 23))
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["event"] == "finished"
