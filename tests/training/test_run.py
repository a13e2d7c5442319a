"""A run from the command line: what it leaves behind, and how it goes on after any end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file

from carl.data.batches.base import Batch
from carl.training.learner import Learner
from carl.training.signals import Signals
from tests.conftest import SMALL, Run
from tests.weights import assert_same_weights

LISTED = [
    "config.toml", "environment.json", "metrics.jsonl", "encoder.safetensors", "head.safetensors",
    "checkpoint.pt", "gallery.npz", "report.html",
]  # fmt: skip


def records(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def begin(folder: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "carl", "pretrain", *map(str, arguments)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Until the metrics show that `step` is over."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        if (run / "metrics.jsonl").exists():
            lines = (run / "metrics.jsonl").read_text().splitlines()
            if any(json.loads(line)["step"] >= step for line in lines if line.endswith("}")):
                return
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, small_data: Path) -> Path:
    """An uninterrupted run of three epochs of six steps."""
    folder = tmp_path_factory.mktemp("whole")
    command = [
        sys.executable,
        "-m",
        "carl",
        "pretrain",
        str(small_data),
        *SMALL,
        "--out",
        "run",
        "--set",
        "train.keep_epochs=[2]",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_the_run_directory_holds_what_is_documented(whole: Path):
    for name in LISTED:
        assert (whole / name).stat().st_size > 0, name
    assert {p.name for p in (whole / "encoders").iterdir()} == {"epoch-0002.safetensors", "epoch-0002-head.safetensors"}
    assert not list(whole.rglob("*.partial"))
    kinds = [r["kind"] for r in records(whole)]
    assert kinds.count("probe") == 4  # before training and after each epoch
    assert records(whole)[-1]["event"] == "finished"


def test_metrics_hold_loss_terms_schedules_speed_and_prototype_health(whole: Path):
    step = next(r for r in records(whole) if r["kind"] == "step")
    assert {"loss", "consistency", "kl", "lr", "lambda", "images_per_second"} <= step.keys()
    probe = next(r for r in records(whole) if r["kind"] == "probe")
    assert {"used", "dead", "duplicates", "mean_entropy", "entropy", "agreement", "rank_me", "knn"} <= probe.keys()


def test_the_gallery_can_be_read_without_pickle_and_fits_together(whole: Path):
    with np.load(whole / "gallery.npz", allow_pickle=False) as gallery:
        count = len(gallery["rows"])
        assert count == 96
        for name in ("embeddings", "positions", "neighbours", "random_neighbours", "thumbnails", "group", "confidence"):
            assert len(gallery[name]) == count, name
        assert (gallery["neighbours"] != np.arange(count)[:, None]).all()


def test_killed_in_the_middle_of_an_epoch_and_resumed_it_ends_with_the_same_weights(
    whole: Path, small_data: Path, tmp_path: Path, carl: Run
):
    process = begin(tmp_path, small_data, *SMALL, "--out", "run", "--set", "train.keep_epochs=[2]")
    wait_for_step(tmp_path / "run", 8, process)  # the second of six steps of the second epoch
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = carl("pretrain", "--resume", "run")
    assert done.returncode == 0, done.stderr
    assert "resuming run at step 6 of 18" in done.stdout or "resuming run at step 12 of 18" in done.stdout
    assert_same_weights(whole, tmp_path / "run")
    steps = [r["step"] for r in records(tmp_path / "run") if r["kind"] == "step"]
    assert steps == [2, 4, 6, 8, 10, 12, 14, 16, 18]  # none twice, none missing


def test_killed_before_the_first_checkpoint_it_starts_again_and_ends_the_same(
    whole: Path, small_data: Path, tmp_path: Path, carl: Run
):
    process = begin(tmp_path, small_data, *SMALL, "--out", "run", "--set", "train.keep_epochs=[2]")
    wait_for_step(tmp_path / "run", 0, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = carl("pretrain", "--resume", "run")
    assert done.returncode == 0, done.stderr
    assert_same_weights(whole, tmp_path / "run")
    assert [r["epoch"] for r in records(tmp_path / "run") if r["kind"] == "probe"] == [0, 1, 2, 3]


def test_stopped_at_the_last_step_of_an_epoch_it_still_probes_and_keeps_that_epoch(
    whole: Path, small_data: Path, tmp_path: Path, carl: Run, monkeypatch: pytest.MonkeyPatch
):
    plain_step = Learner.take_step

    def step_then_signal(learner: Learner, batch: Batch) -> dict[str, torch.Tensor]:
        metrics = plain_step(learner, batch)
        if learner.steps_done == 12:  # the last of the second epoch
            signal.raise_signal(signal.SIGINT)
        return metrics

    monkeypatch.setattr(Learner, "take_step", step_then_signal)
    done = carl("pretrain", small_data, *SMALL, "--out", "run", "--set", "train.keep_epochs=[2]")
    assert done.returncode == 130
    assert (tmp_path / "run" / "encoders" / "epoch-0002.safetensors").exists()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert carl("pretrain", "--resume", "run").returncode == 0
    assert_same_weights(whole, tmp_path / "run")
    assert [r["epoch"] for r in records(tmp_path / "run") if r["kind"] == "probe"] == [0, 1, 2, 3]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send")
@pytest.mark.parametrize(
    ("name", "code"),
    [
        pytest.param("SIGINT", 130, marks=pytest.mark.slow),
        ("SIGTERM", 143),
        pytest.param("SIGHUP", 129, marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_within_the_epoch_and_resume_ends_with_the_same_weights(
    whole: Path, small_data: Path, tmp_path: Path, carl: Run, name: str, code: int
):
    arguments = [small_data, *SMALL, "--out", "run", "--set", "train.keep_epochs=[2]", "--set", "log.every=1"]
    process = begin(tmp_path, *arguments)
    wait_for_step(tmp_path / "run", 2, process)
    process.send_signal(getattr(signal, name))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert "all is saved; resume with: carl pretrain --resume run" in output
    assert "Traceback" not in output
    stopped_at = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"]
    assert 2 <= stopped_at < 18
    done = carl("pretrain", *arguments, "--resume", "auto")
    assert done.returncode == 0, done.stderr
    assert f"resuming run at step {stopped_at}" in done.stdout
    assert_same_weights(whole, tmp_path / "run")


@pytest.mark.skipif(os.name == "nt", reason="Windows has neither /dev/full nor broken pipes")
@pytest.mark.parametrize(
    "output",
    [
        "reader that goes away",
        pytest.param("full disk", marks=pytest.mark.slow),
        pytest.param("closed", marks=pytest.mark.slow),
    ],
)
def test_training_outlives_its_output(whole: Path, small_data: Path, tmp_path: Path, output: str):
    command = [sys.executable, "-m", "carl", "pretrain", str(small_data), *SMALL, "--out", "run"]
    if output == "closed":
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    full = Path("/dev/full")
    if output == "full disk" and not full.exists():
        pytest.skip("this system has no /dev/full")
    with (
        full.open("w") if output == "full disk" else nullcontext(subprocess.PIPE) as stdout,
        (tmp_path / "errors.txt").open("w") as errors,
        subprocess.Popen(command, cwd=tmp_path, stdout=stdout, stderr=errors, text=True) as process,
    ):
        if process.stdout is not None:
            process.stdout.readline()
            process.stdout.close()
        code = process.wait(timeout=240)
    said = (tmp_path / "errors.txt").read_text()
    assert code == 0, said
    assert "rror" not in said
    assert_same_weights(whole, tmp_path / "run")


def test_a_terminal_that_is_closed_does_not_end_a_run_under_nohup(monkeypatch: pytest.MonkeyPatch):
    if not hasattr(signal, "SIGHUP"):
        pytest.skip("Windows has no SIGHUP")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals().noticed():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_resume_auto_starts_and_then_has_nothing_left_to_do(whole: Path, small_data: Path, tmp_path: Path, carl: Run):
    arguments = ["pretrain", small_data, *SMALL, "--out", "run", "--resume", "auto"]
    assert carl(*arguments).returncode == 0
    modified = (tmp_path / "run" / "encoder.safetensors").stat().st_mtime_ns
    again = carl(*arguments)
    assert again.returncode == 0, again.stderr
    assert "finished" in again.stdout
    assert (tmp_path / "run" / "encoder.safetensors").stat().st_mtime_ns == modified
    assert_same_weights(whole, tmp_path / "run")


def test_a_finished_run_is_extended_and_says_how_the_schedule_changes(small_data: Path, tmp_path: Path, carl: Run):
    assert carl("pretrain", small_data, *SMALL, "--preset", "paper", "--out", "run", "--epochs", "2").returncode == 0
    done = carl("pretrain", "--resume", "run", "--epochs", "4")
    assert done.returncode == 0, done.stderr
    assert "extended from 2 to 4 epochs: the learning rate, 0.0006 at epoch 2" in done.stdout
    assert max(r["epoch"] for r in records(tmp_path / "run")) == 4


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--set", "optim.lr=0.1"], "optim.lr: 0.06 -> 0.1"),
        (["--prototypes", "11"], "method.prototypes: 10 -> 11"),
        (["--epochs", "2"], "train.epochs: 3 -> 2"),
        (["--seed", "5"], "train.seed: 0 -> 5"),
    ],
)
def test_resuming_with_a_changed_configuration_is_refused_with_the_difference_named(
    whole: Path, carl: Run, change: list[str], named: str
):
    before = (whole / "config.toml").read_text()
    done = carl("pretrain", "--resume", whole, *change)
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
    assert (whole / "config.toml").read_text() == before


def test_gradient_accumulation_gives_the_loss_of_the_whole_batch(small_data: Path, tmp_path: Path, carl: Run):
    # Without batch norm the parts must give what the whole gives, up to rounding.
    common = [
        small_data,
        *SMALL,
        "--preset",
        "paper",
        "--backbone",
        "test_vit",
        "--epochs",
        "1",
        "--set",
        "log.every=1",
        "--set",
        "probe.every=0",
    ]
    common += ["--set", "model.hidden_layers=0", "--set", "log.report=false"]
    assert carl("pretrain", *common, "--out", "whole").returncode == 0
    assert carl("pretrain", *common, "--out", "parts", "--set", "train.accumulate=4").returncode == 0
    losses = [[r["loss"] for r in records(tmp_path / name) if r["kind"] == "step"] for name in ("whole", "parts")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_accumulation_takes_a_partial_last_batch(small_data: Path, carl: Run):
    done = carl(
        "pretrain", small_data, *SMALL, "--epochs", "1", "--batch-size", "60", "--set", "train.accumulate=5",
        "--set", "train.drop_last=false", "--set", "data.limit=67", "--set", "log.report=false",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_run_goes_on_without_the_weights_it_started_from(small_data: Path, tmp_path: Path, carl: Run):
    weights_file = tmp_path / "start.pth"
    torch.save(timm.create_model("test_resnet", num_classes=0).state_dict(), weights_file)
    common = [small_data, *SMALL, "--set", "log.report=false"]
    assert carl("pretrain", *common, "--epochs", "1", "--init", "start.pth", "--out", "run").returncode == 0
    weights_file.unlink()
    assert carl("eval", "run").returncode == 0
    done = carl("pretrain", "--resume", "run", "--epochs", "2")
    assert done.returncode == 0, done.stderr


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_last_good_checkpoint(
    small_data: Path, tmp_path: Path, carl: Run
):
    done = carl(
        "pretrain", small_data, *SMALL, "--out", "run",
        "--set", "optim.name=sgd", "--set", "optim.lr=1e30", "--set", "optim.lr_end=1e30",
        "--set", "train.checkpoint_steps=1",
    )  # fmt: skip
    assert done.returncode == 2
    assert "not finite" in done.stderr
    assert "step" in done.stderr
    assert "Traceback" not in done.stderr
    checkpoint = tmp_path / "run" / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)["method"]
        assert all(value.isfinite().all() for value in state.values())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(small_data: Path, tmp_path: Path, carl: Run, precision: str):
    done = carl(
        "pretrain", small_data, *SMALL, "--epochs", "1", "--out", "run", "--set", f"train.precision={precision}"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_other_optimisers_channels_last_and_clipping_train(small_data: Path, carl: Run, optimiser: str):
    done = carl(
        "pretrain", small_data, *SMALL, "--epochs", "1", "--set", f"optim.name={optimiser}", "--set", "optim.lr=0.01",
        "--set", "optim.clip=1.0", "--set", "train.channels_last=true", "--set", "optim.warmup_epochs=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_tensorboard_gets_the_figures(small_data: Path, tmp_path: Path, carl: Run):
    done = carl("pretrain", small_data, *SMALL, "--epochs", "1", "--out", "run", "--set", "log.tensorboard=true")
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_the_encoder_loads_into_timm_and_torchvision_with_strict_keys(small_data: Path, tmp_path: Path, carl: Run):
    arguments = [*SMALL, "--backbone", "resnet18", "--epochs", "1", "--out", "run", "--set", "log.report=false"]
    assert carl("pretrain", small_data, *arguments).returncode == 0
    state = load_file(tmp_path / "run" / "encoder.safetensors")
    into_timm = timm.create_model("resnet18", num_classes=0)
    into_timm.load_state_dict(state, strict=True)
    into_torchvision = torchvision.models.resnet18()
    into_torchvision.fc = torch.nn.Identity()
    into_torchvision.load_state_dict(state, strict=True)
    images = torch.randn(2, 3, 32, 32)
    assert torch.allclose(into_timm.eval()(images), into_torchvision.eval()(images), atol=1e-5)


def test_evaluation_compares_with_random_weights_and_is_kept(whole: Path, carl: Run):
    done = carl("eval", whole)
    assert done.returncode == 0, done.stderr
    assert "random weights" in done.stdout
    result = json.loads((whole / "results" / "knn-small.json").read_text())
    assert result["protocol"] == "knn"
    assert result["kind"].startswith("offline")
    assert set(result["accuracy"]) == {"trained", "random"}
    made = result["made"]
    assert carl("eval", whole).stdout == done.stdout
    assert json.loads((whole / "results" / "knn-small.json").read_text())["made"] == made


def test_unlabelled_images_train_and_evaluation_says_what_is_missing(tmp_path: Path, carl: Run):
    images = np.random.default_rng(0).integers(0, 256, (48, 24, 24, 1), np.uint8)
    np.save(tmp_path / "grey.npy", images)
    done = carl("pretrain", "grey.npy", *SMALL, "--epochs", "1", "--out", "run")
    assert done.returncode == 0, done.stderr
    refused = carl("eval", "run")
    assert refused.returncode == 2
    assert "has no labels" in refused.stderr


def test_without_the_prior_the_run_collapses_and_says_so(small_data: Path, carl: Run):
    done = carl(
        "pretrain", small_data, *SMALL, "--preset", "paper", "--prototypes", "40", "--epochs", "12",
        "--prior-start", "0", "--prior-end", "0",
        "--set", "optim.name=sgd", "--set", "optim.lr=0.3", "--set", "log.report=false",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "collapsed" in done.stdout
    assert "raise --prior-start (now 0)" in done.stdout
