"""Whole runs of several processes: what they see, how they stop, fail and go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from carl import distributed
from carl.data.batches.base import Batch
from carl.data.batches.shuffled import ShuffledBatches
from carl.errors import UserError
from carl.training import trial
from carl.training.learner import Learner
from tests.conftest import SMALL
from tests.distributed import processes

QUIET = ["--set", "log.report=false", "--set", "probe.every=0", "--set", "log.every=1"]
Event = Callable[[], None]


def watched(arguments: list[str], event: Event | None = None, at_step: int = -1, at_rank: int = 1) -> None:
    """The command, with a line in seen-RANK.txt for each batch and each embedding; `event` happens after a step."""
    rank = os.environ["RANK"]
    plain_step, plain_images = Learner.take_step, ShuffledBatches.whole_images

    def note(kind: str, where: int, indices: list[int]) -> None:
        with open(f"seen-{rank}.txt", "a") as file:
            file.write(json.dumps([kind, where, indices]) + "\n")

    def step(learner: Learner, batch: Batch) -> Any:
        number = learner.steps_done
        metrics = plain_step(learner, batch)
        note("step", number, batch.indices.tolist())
        if event is not None and (number, rank) == (at_step, str(at_rank)):
            event()
        return metrics

    def noted(batches: ShuffledBatches) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for rows, pixels in plain_images(batches):
            note("embed", 0, rows.tolist())
            yield rows, pixels

    with (
        mock.patch.object(Learner, "take_step", step),
        mock.patch.object(ShuffledBatches, "whole_images", noted),
    ):
        processes.command(*arguments)


def seen(folder: Path, kind: str = "step") -> dict[int, list[int]]:
    """Indices that each step saw, of all processes."""
    found: dict[int, list[int]] = {}
    for file in folder.glob("seen-*.txt"):
        for line in file.read_text().splitlines():
            what, step, indices = json.loads(line)
            if what == kind:
                found.setdefault(step, []).extend(indices)
    return found


def assert_none_twice(steps: dict[int, list[int]], per_epoch: int) -> None:
    for epoch in {step // per_epoch for step in steps}:
        counts = Counter(i for step, indices in steps.items() if step // per_epoch == epoch for i in indices)
        assert max(counts.values()) == 1


def losses(run: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {r["step"]: r["loss"] for r in lines if r["kind"] == "step"}


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise UserError("a planned failure; remove it")


def test_four_processes_see_no_image_twice_in_training_and_each_once_in_embedding(tmp_path: Path):
    images = 61  # batches of 16 leave 13 of them out
    np.save(tmp_path / "odd.npy", np.random.default_rng(0).integers(0, 256, (images, 16, 16, 3), np.uint8))
    arguments = ["pretrain", str(tmp_path / "odd.npy"), "--method", "pcl", *SMALL[:4], "--epochs", "3", "--out", "run"]
    arguments += [
        *QUIET,
        "--set",
        "method.warmup_epochs=0",
        "--set",
        "method.clusters=[4,6]",
        "--set",
        "method.queue=32",
    ]
    processes.run(4, tmp_path, watched, arguments)
    steps = seen(tmp_path)
    assert sorted(steps) == list(range(9))
    assert_none_twice(steps, per_epoch=3)
    assert all(len(indices) == 16 for indices in steps.values())
    assert Counter(seen(tmp_path, "embed")[0]) == dict.fromkeys(range(images), 3)  # once before each epoch


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, small_data: Path) -> Path:
    """A run of two processes of which one got a signal in the middle of the first epoch."""
    folder = tmp_path_factory.mktemp("stopped")
    arguments = ["pretrain", str(small_data), *SMALL, "--preset", "paper", "--epochs", "2", "--out", "run", *QUIET]
    arguments += ["--set", "train.sync_batch_norm=true"]
    group = processes.Group(2, folder, watched, arguments, stop, 1)
    assert group.wait() == [143, 143], group.outputs()
    assert "all is saved; resume with: carl pretrain --resume run" in group.output(0)
    assert "Traceback" not in group.outputs()
    assert not group.output(1)
    return folder


def test_a_signal_to_one_process_stops_all_at_the_same_step(stopped: Path):
    last = torch.load(stopped / "run" / "checkpoint.pt", weights_only=True)["step"]
    assert 2 <= last < 6
    assert sorted(seen(stopped)) == list(range(last))
    assert all(len(indices) == 16 for indices in seen(stopped).values())


def test_one_and_four_processes_go_on_where_two_stopped(stopped: Path, tmp_path: Path):
    done = max(seen(stopped)) + 1
    found = {}
    for ranks in (1, 4):
        folder = tmp_path / str(ranks)
        shutil.copytree(stopped, folder)
        for file in folder.glob("*.txt"):
            file.unlink()
        processes.run(ranks, folder, watched, ["pretrain", "--resume", "run"])
        rest = seen(folder)
        assert sorted(rest) == list(range(done, 12))
        assert_none_twice({**seen(stopped), **rest}, per_epoch=6)
        found[ranks] = (rest, losses(folder / "run"))
    for step, indices in found[1][0].items():
        assert sorted(found[4][0][step]) == sorted(indices)
    assert list(found[1][1]) == list(range(1, 13))
    assert list(found[1][1].values()) == pytest.approx(list(found[4][1].values()), rel=1e-2)


def test_an_error_of_one_process_ends_all_and_is_shown_once(tmp_path: Path, small_data: Path):
    arguments = ["pretrain", str(small_data), *SMALL, "--epochs", "1", "--out", "run", *QUIET]
    group = processes.Group(2, tmp_path, watched, arguments, fail, 2)
    codes = group.wait()
    assert codes[1] == 2
    assert codes[0] not in (0, None)
    assert group.outputs().count("carl: a planned failure; remove it") == 1
    assert "Traceback" not in group.outputs()


def torchrun(folder: Path, *arguments: str | Path, restarts: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(restarts), "-m", "carl", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def worker(agent: int, rank: int) -> int:
    """The process that torchrun started as this rank."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # of one that has just ended
            if entry.name.isdigit() and f"PPid:\t{agent}\n" in (entry / "status").read_text():
                variables = (entry / "environ").read_bytes().split(b"\0")
                if f"RANK={rank}".encode() in variables:
                    return int(entry.name)
    raise AssertionError(f"no process of rank {rank}")


def has_worker(agent: int) -> bool:
    with suppress(AssertionError):
        return worker(agent, 0) > 0
    with suppress(AssertionError):
        return worker(agent, 1) > 0
    return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the worker in /proc")
def test_a_killed_worker_is_started_again_and_the_run_goes_on_from_its_checkpoint(tmp_path: Path, small_data: Path):
    run = tmp_path / "run"
    arguments = [small_data, *SMALL, "--epochs", "12", "--out", run, *QUIET, "--set", "train.checkpoint_steps=4"]
    agent = torchrun(tmp_path, "pretrain", *arguments, restarts=1)
    try:
        deadline = time.monotonic() + 300
        while not (run / "checkpoint.pt").exists() or not losses(run):
            assert agent.poll() is None, agent.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(worker(agent.pid, rank=1), signal.SIGKILL)
        output, _ = agent.communicate(timeout=300)
    finally:
        agent.terminate()  # which it passes on; killed, it would leave its workers behind
        agent.wait()
    assert agent.returncode == 0, output
    assert "of 72" in output.split("resuming")[1]
    assert output.count("carl: another process of this run was lost") <= 1
    assert list(losses(run)) == list(range(1, 73))  # none twice, none missing
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["event"] == "finished"


def machine(folder: Path, number: int, port: int, nodes: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """torchrun as on one of several machines, each with one process; what it says is in a file."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", nodes, "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "test"]
    command += ["--rdzv-conf", "last_call_timeout=5,join_timeout=120", "--max-restarts", "3", "-m", "carl"]
    with open(folder / f"machine-{number}.txt", "w") as output:
        return subprocess.Popen(
            [*command, *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},  # docs/scaling.md
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def said(folder: Path, number: int) -> str:
    return (folder / f"machine-{number}.txt").read_text()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return int(taken.getsockname()[1])


@pytest.mark.slow
def test_two_machines_train_one_run(tmp_path: Path, small_data: Path):
    run, port = tmp_path / "run", free_port()
    arguments = ["pretrain", small_data, *SMALL, "--epochs", "2", "--out", run, "--resume", "auto", *QUIET]
    machines = [machine(tmp_path, number, port, "2", *arguments) for number in range(2)]
    codes = [each.wait(timeout=300) for each in machines]
    outputs = [said(tmp_path, number) for number in range(2)]
    assert codes == [0, 0], outputs
    assert sum("epoch" in output for output in outputs) == 1  # one speaks
    assert list(losses(run)) == list(range(1, 13))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="kills a whole session")
def test_a_machine_that_goes_and_one_that_comes_leave_the_run_going_on(tmp_path: Path, small_data: Path):
    run, port = tmp_path / "run", free_port()
    longer = ["--epochs", "120", "--set", "train.checkpoint_steps=4"]
    arguments = ["pretrain", small_data, *SMALL, *longer, "--out", run, "--resume", "auto", *QUIET]
    machines = [machine(tmp_path, 0, port, "1:2", *arguments)]  # the first hosts the store

    def another() -> None:
        """A machine that comes, with a worker of its own that has taken part in some steps."""
        machines.append(machine(tmp_path, len(machines), port, "1:2", *arguments))
        wait_until(lambda: has_worker(machines[-1].pid))
        go_on()

    def steps() -> int:
        return max(losses(run), default=0) if (run / "checkpoint.pt").exists() else 0

    def go_on() -> None:
        before = steps()
        wait_until(lambda: steps() > before + 10)

    def wait_until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert machines[0].poll() is None, said(tmp_path, 0)
            assert time.monotonic() < deadline, said(tmp_path, 0)
            time.sleep(0.05)

    try:
        go_on()
        another()
        os.killpg(machines[1].pid, signal.SIGKILL)
        go_on()
        another()
        code = machines[0].wait(timeout=300)
    finally:
        for each in machines:
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()
    outputs = [said(tmp_path, number) for number in range(3)]
    assert code == 0, outputs
    assert sum(output.count("resuming") for output in outputs) >= 2  # one came, it went, another came; two may be one
    assert list(losses(run)) == list(range(1, 721))


@pytest.mark.slow
def test_an_error_that_all_processes_meet_is_shown_once(tmp_path: Path, small_data: Path):
    agent = torchrun(tmp_path, "pretrain", small_data, *SMALL, "--batch-size", "15", "--out", "run")
    output, _ = agent.communicate(timeout=120)
    assert agent.returncode != 0
    assert output.count("carl: batch size 15 does not divide over 2 processes; use a multiple of 2") == 1
    assert not (tmp_path / "run").exists()


def compare_texts() -> None:
    distributed.start(torch.device("cpu"))
    distributed.check_agreement("the number", "1")
    values = torch.tensor([1.0, float(distributed.rank())]), torch.tensor([[3.0]], dtype=torch.float64)
    distributed.average_(values)
    assert values[0].tolist() == [1.0, 0.5]
    with distributed.computing_alone():
        assert distributed.world_size() == 1
        with distributed.computing_together():
            assert distributed.world_size() == 2
    with pytest.raises(UserError, match="process 0 has the number 0 and process 1 has 1; all machines"):
        distributed.check_agreement("the number", str(distributed.rank()))
    distributed.stop()


def test_processes_that_see_different_files_notice(tmp_path: Path):
    processes.run(2, tmp_path, compare_texts)


def open_length(arguments: list[str]) -> None:
    """The command, on a machine where the main process measures a slow pace and the other one a fast one."""
    plain, seconds = trial.timed_steps, 3000.0 if os.environ["RANK"] == "0" else 0.001
    with (
        mock.patch("carl.training.budget.CHOICES", (2, 3, 4)),
        mock.patch.object(trial, "timed_steps", lambda *given: (seconds for _ in plain(*given))),
    ):
        processes.command(*arguments)


def test_the_main_process_decides_how_many_epochs_there_is_time_for(tmp_path: Path, small_data: Path):
    given = [word for word in SMALL if word not in ("--epochs", "3")]
    processes.run(2, tmp_path, open_length, ["pretrain", str(small_data), *given, *QUIET, "--out", "run"])
    said = (tmp_path / "output-0.txt").read_text()
    assert "2 epochs instead of 4" in said
    assert sorted(losses(tmp_path / "run")) == list(range(1, 13))  # both processes trained two epochs of six steps
