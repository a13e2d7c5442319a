"""Run directories whose files can be read but are of other hands: used as far as they make sense, or refused."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from carl.records.regular_files import read_bytes
from carl.records.weights_hash import file_hash
from carl.reproduction.jobs import Job, stored_outcome
from carl.training.journal import Journal
from tests.reliability.conftest import assert_refused, call, listed
from tests.reliability.test_hostile import MEGABYTE, bounded
from tests.reliability.world import copy_run
from tests.weights import assert_same_weights

LINES = [
    {"kind": "step", "loss": 1},
    {"kind": "step", "step": 3, "epoch": "one", "loss": 1},
    {"kind": "step", "step": "3", "epoch": 1, "loss": "low", "images_per_second": [1]},
    {"kind": "step", "step": 3, "epoch": float("nan"), "loss": 1e308},
    {"kind": "step", "step": 10**400, "epoch": 10**400, "loss": 10**400},
    {"kind": "probe", "step": 0, "epoch": 0},
    {"kind": "probe", "step": 0, "epoch": 1, "used": 3},
    {"kind": "probe", "step": 0, "epoch": 1, "used": "all", "prototypes": None, "knn": "good", "rank_me": {}},
    {"kind": "probe", "step": 0, "epoch": 1, "used": 3, "prototypes": -3, "dead": None, "agreement": "some"},
    {"kind": "probe", "step": 0, "epoch": 1, "findings": 5, "warnings": 5, "verdict": 5, "knn": 1.0},
    {"kind": "probe", "step": 0, "epoch": 1, "warnings": [5, []], "verdict": "healthy"},
    {"kind": "event", "step": 0, "epoch": 0, "event": ["finished"], "seconds": "long"},
    {"kind": ["step"], "step": 0, "epoch": 0},
    {"step": 0, "epoch": 0},
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: json.dumps(line)[:60])
def test_lines_of_metrics_by_other_hands_hinder_neither_a_report_nor_a_resume(
    run: Path, tmp_path: Path, line: dict[str, Any]
):
    copy = copy_run(run, tmp_path / "run")
    text = (copy / "metrics.jsonl").read_text()
    (copy / "metrics.jsonl").unlink()
    (copy / "metrics.jsonl").write_text(json.dumps(line) + "\n" + text + json.dumps(line) + "\n")
    for arguments in (["report", "run"], ["pretrain", "--resume", "run"]):
        done = call(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr


FILES = [
    "config.toml", "environment.json", "data.json", "metrics.jsonl", "encoder.safetensors", "head.safetensors",
    "checkpoint.pt", "gallery.npz", "results/knn-small.json", "encoders/epoch-0001.safetensors", ".lock",
]  # fmt: skip


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fails if what is inside waits for longer."""

    def wake(signum: int, frame: FrameType | None) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, wake)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in folders")
@pytest.mark.parametrize("name", FILES)
def test_a_named_pipe_in_a_run_is_refused_and_not_waited_for(run: Path, tmp_path: Path, name: str):
    copy = copy_run(run, tmp_path / "run")
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).unlink(missing_ok=True)
    os.mkfifo(copy / name)
    for arguments in (["report", "run"], ["eval", "run"], ["pretrain", "--resume", "run", "--epochs", "3"]):
        with within(30):
            assert_refused(call(tmp_path, *arguments), ["config.toml" if name == "config.toml" else name])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in folders")
def test_what_reads_files_of_a_run_waits_for_no_pipe(tmp_path: Path):
    pipe = tmp_path / "job.json"
    os.mkfifo(pipe)
    with within(5):
        assert file_hash(pipe) == ""
        assert stored_outcome(tmp_path.parent, Job(tmp_path.name, {}, ())) is None
        with pytest.raises(OSError, match="not a regular file"):
            read_bytes(pipe)


def test_lines_of_metrics_that_a_run_wrote_are_all_kept(run: Path):
    text = (run / "metrics.jsonl").read_text()
    records = Journal(run / "metrics.jsonl", None, 10**9, write=False).records  # type: ignore[arg-type]
    assert records == [json.loads(line) for line in text.splitlines()]
    assert len(records) > 2


@pytest.mark.parametrize(
    "values",
    [
        {"command": 5},
        {"command": [5, None, {}]},
        {"packages": []},
        {"packages": {"torch": [1]}},
        {"threads": "many", "device": 3, "cuda": []},
    ],
    ids=str,
)
def test_an_environment_of_other_types_hinders_no_report(run: Path, tmp_path: Path, values: dict[str, Any]):
    copy = copy_run(run, tmp_path / "run")
    found = json.loads((copy / "environment.json").read_text())
    (copy / "environment.json").unlink()
    (copy / "environment.json").write_text(json.dumps({**found, **values}))
    done = call(tmp_path, "report", "run")
    assert done.returncode == 0, done.stderr


Arrays = dict[str, np.ndarray]


def without(name: str) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.__delitem__(name)


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({name: change(arrays[name])})


GALLERIES: dict[str, Callable[[Arrays], None]] = {
    **{f"no {name}": without(name) for name in ("rows", "thumbnails", "neighbours", "group_mean", "grouping", "views")},
    "no labels' names": without("class_names"),
    "only the format": lambda arrays: [arrays.pop(name) for name in list(arrays)[1:]].clear(),
    "neighbours beyond": changed("neighbours", lambda a: a + 1000),
    "neighbours before": changed("neighbours", lambda a: a - 1000),
    "groups beyond": changed("group", lambda a: a + 1000),
    "labels beyond": changed("labels", lambda a: a + 2**40),
    "fewer images": changed("embeddings", lambda a: a[:5]),
    "flat": changed("thumbnails", lambda a: a.reshape(len(a), -1)),
    "grey": changed("thumbnails", lambda a: a[..., :1]),
    "real pixels": changed("thumbnails", lambda a: a.astype(np.float32)),
    "wide pixels": changed("thumbnails", lambda a: a.astype(np.uint16)),
    "large": changed("views", lambda a: np.zeros((*a.shape[:2], 9000, 1, 3), np.uint8)),
    "words": changed("similarities", lambda a: a.astype(str)),
    "not finite": changed("positions", lambda a: a * np.nan),
    "no neighbours": changed("similarities", lambda a: a[:, :0]),
}


@pytest.mark.parametrize("name", GALLERIES)
def test_a_gallery_that_lacks_or_mistakes_an_array_is_refused_by_name(run: Path, tmp_path: Path, name: str):
    copy = copy_run(run, tmp_path / "run")
    with np.load(run / "gallery.npz") as found:
        arrays = dict(found)
    GALLERIES[name](arrays)
    (copy / "gallery.npz").unlink()
    np.savez(copy / "gallery.npz", **arrays)
    before = listed(copy)
    assert_refused(call(tmp_path, "report", "run"), ["gallery.npz", "make it again"])
    assert listed(copy) == before


def set_(state: dict[str, Any], *keys: Any, value: Any) -> None:
    for key in keys[:-1]:
        state = state[key]
    state[keys[-1]] = value


def nested() -> list[Any]:
    """Few lists, each twice in the next: copied one by one they would be 2**60."""
    made: list[Any] = []
    for _ in range(60):
        made = [made, made]
    return made


CHECKPOINTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "format": lambda state: set_(state, "format", value=torch.zeros(2)),
    "format of lists": lambda state: set_(state, "format", value=nested()),
    "no groups": lambda state: set_(state, "optimizer", value={"state": {}}),
    "group of words": lambda state: set_(state, "optimizer", "param_groups", 0, value="text"),
    "fewer groups": lambda state: state["optimizer"]["param_groups"].pop(),
    "momentum of a word": lambda state: set_(state, "optimizer", "state", 0, "momentum_buffer", value="text"),
    "momentum of a number": lambda state: set_(state, "optimizer", "state", 0, "momentum_buffer", value=3),
    "momentum of lists": lambda state: set_(state, "optimizer", "state", 0, "momentum_buffer", value=nested()),
    "other momentum": lambda state: set_(state, "optimizer", "state", 0, value={"exp_avg": torch.zeros(3)}),
    "momentum not finite": lambda state: state["optimizer"]["state"][0]["momentum_buffer"].fill_(float("nan")),
    "weights not finite": lambda state: next(iter(state["method"].values())).fill_(float("inf")),
    "weights by number": lambda state: set_(state, "method", value={0: torch.zeros(3)}),
}


def change_checkpoint(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    change(state)
    stream = io.BytesIO()
    torch.save(state, stream)
    (run / "checkpoint.pt").unlink()
    (run / "checkpoint.pt").write_bytes(stream.getvalue())


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_of_other_hands_is_refused_before_the_first_step(run: Path, tmp_path: Path, name: str):
    copy = copy_run(run, tmp_path / "run")
    change_checkpoint(copy, CHECKPOINTS[name])
    assert_refused(call(tmp_path, "pretrain", "--resume", "run", "--epochs", "3"), ["checkpoint.pt"])


EXPANDED: dict[str, Callable[[dict[str, Any]], None]] = {
    "of a weight": lambda state: set_(state, "optimizer", "state", 0, "momentum_buffer", value=one_as(4 * 10**8)),
    "of no weight": lambda state: set_(state, "optimizer", "state", 9999, value={"momentum_buffer": one_as(4 * 10**8)}),
    "of the generator": lambda state: set_(state, "random_state", value=one_as(10**9, torch.uint8)),
    "of the method": lambda state: set_(state, "method", next(iter(state["method"])), value=one_as(4 * 10**8)),
}


def one_as(count: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """One number that says it is many: a copy of it takes the memory of all of them."""
    return torch.zeros(1, dtype=dtype).expand(count)


@pytest.mark.parametrize("name", EXPANDED)
def test_a_tensor_of_a_checkpoint_is_copied_only_if_its_shape_is_right(run: Path, tmp_path: Path, name: str):
    copy = copy_run(run, tmp_path / "run")
    change_checkpoint(copy, EXPANDED[name])
    call(tmp_path, "pretrain", "--resume", "nowhere")  # what is imported for the first time takes memory too
    with bounded(600 * MEGABYTE):
        assert_refused(call(tmp_path, "pretrain", "--resume", "run", "--epochs", "3"), ["checkpoint.pt"])


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "words": {"momentum": "text", "lr": "text", "weight_decay": None},
    "others": {"momentum": 0.1, "nesterov": True, "lr": 7.0},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_rates_and_momentum_are_those_of_the_configuration_whatever_a_checkpoint_says(
    run: Path, tmp_path: Path, name: str
):
    def spoil(state: dict[str, Any]) -> None:
        groups = state["optimizer"]["param_groups"]
        state["optimizer"]["param_groups"] = [{**OPTIONS[name], "params": group["params"]} for group in groups]

    copy_run(run, tmp_path / "plain")
    change_checkpoint(copy_run(run, tmp_path / "changed"), spoil)
    for folder in ("plain", "changed"):
        done = call(tmp_path, "pretrain", "--resume", folder, "--epochs", "3")
        assert done.returncode == 0, done.stderr
    assert_same_weights(tmp_path / "plain", tmp_path / "changed")
