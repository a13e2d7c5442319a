"""Numbers that are not finite are caught at the step where they appear, and the images that it saw are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from carl.data.batches.base import Batch
from carl.data.batches.packed import PackedBatches
from carl.data.sources.python import list_python
from carl.errors import UserError
from carl.methods.base import Method
from carl.methods.health import rank_me
from carl.training import guard
from carl.training.guard import MOST_SKIPPED, Guard, Watch
from carl.training.learner import Learner
from carl.views.views import Views
from tests.conftest import Ended
from tests.reliability.conftest import assert_refused, call

BAD_STEP = 8  # the second of six steps of the second epoch
BAD = pytest.mark.parametrize("bad", [float("nan"), float("-inf")])


def train(folder: Path, data: Path, *arguments: str) -> Ended:
    common = ["--backbone", "test_resnet", "--epochs", "3", "--batch-size", "16", "--prototypes", "10"]
    quiet = ["--set", "probe.every=0", "--set", "log.report=false", "--set", "log.every=4", "--out", "run"]
    return call(folder, "pretrain", data, *common, *quiet, *arguments)


def images_of_step(seed: int = 0) -> list[int]:
    """Places of the images that BAD_STEP sees, computed apart from the run."""
    batches = PackedBatches.__new__(PackedBatches)
    batches.seed, batches.split = seed, [None] * 96  # type: ignore[assignment]
    return batches.order(1)[16:32].tolist()


def spoil(monkeypatch: pytest.MonkeyPatch, change: Callable[[Learner, Batch], Batch]) -> None:
    plain = Learner.take_step

    def step(learner: Learner, batch: Batch) -> dict[str, Tensor]:
        return plain(learner, change(learner, batch) if learner.steps_done + 1 == BAD_STEP else batch)

    monkeypatch.setattr(Learner, "take_step", step)


def assert_caught(folder: Path, done: Ended, what: str) -> dict[str, Any]:
    assert_refused(done, [f"the {what} is not finite at step {BAD_STEP} (epoch 2)", "run/bad-batch.json"])
    assert "the last good checkpoint is run/checkpoint.pt" in done.stderr
    assert torch.load(folder / "run" / "checkpoint.pt", weights_only=True)["step"] == 6
    record: dict[str, Any] = json.loads((folder / "run" / "bad-batch.json").read_text())
    assert (record["step"], record["epoch"], record["not_finite"]) == (BAD_STEP, 2, what)
    assert record["images"] == images_of_step()
    return record


@BAD
def test_a_loss_that_is_not_finite_is_caught_at_its_step(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: float
):
    plain = Method.__call__

    def compute(method: Method, batch: Batch, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = plain(method, batch, progress)
        return loss * bad, {**metrics, "loss": loss * bad}

    def change(learner: Learner, batch: Batch) -> Batch:
        monkeypatch.setattr(learner, "compute", lambda *arguments: compute(learner.method, *arguments))
        return batch

    spoil(monkeypatch, change)
    assert_caught(tmp_path, train(tmp_path, small_data), "loss")


@BAD
def test_a_gradient_that_is_not_finite_is_caught_at_its_step_although_the_loss_is(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: float
):
    def change(learner: Learner, batch: Batch) -> Batch:
        parameter = next(learner.method.parameters())
        parameter.register_hook(lambda gradient: gradient * bad)
        return batch

    spoil(monkeypatch, change)
    assert_caught(tmp_path, train(tmp_path, small_data), "gradient")


def change_after_the_update(monkeypatch: pytest.MonkeyPatch, change: Callable[[nn.Module], object]) -> None:
    """Once a step of the second epoch is done, and its loss and gradient have been looked at."""
    plain = Guard.look

    def look(guard: Guard, loss: Tensor, batch: Batch) -> None:
        plain(guard, loss, batch)
        if guard.learner.steps_done == BAD_STEP:
            change(guard.learner.method)

    monkeypatch.setattr(Guard, "look", look)


@BAD
def test_averages_kept_beside_the_weights_are_not_saved_when_they_are_not_finite(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: float
):
    def spoil(method: nn.Module) -> None:
        next(value for name, value in method.named_buffers() if "running_mean" in name).fill_(bad)

    change_after_the_update(monkeypatch, spoil)
    done = train(tmp_path, small_data)
    assert_refused(done, ["averages kept beside them, are not finite", "run/checkpoint.pt"])
    assert torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"] == 6


def test_features_that_are_not_finite_have_no_rank():
    with pytest.raises(UserError, match="features are not finite"):
        rank_me(torch.tensor([[1.0, float("inf")], [0.0, 1.0]]))


def test_views_that_are_not_finite_name_their_images(small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    culprits = images_of_step()[3:5]
    plain = PackedBatches.views_of

    def views_of(views: Views, pixels: list[Tensor], indices: Tensor, epoch: int) -> list[Tensor]:
        made = plain(views, pixels, indices, epoch)
        if epoch == 1:  # as a view that is a function of (seed, epoch, image) would be
            made[0][torch.isin(indices, torch.tensor(culprits))] = float("nan")
        return made

    monkeypatch.setattr(PackedBatches, "views_of", staticmethod(views_of))
    done = train(tmp_path, small_data)
    assert_refused(done, ["not finite", "bad-batch.json", "the views of image"])
    record = json.loads((tmp_path / "run" / "bad-batch.json").read_text())
    assert set(record["images_with_bad_views"]) == set(culprits) & set(record["images"])
    assert record["images_with_bad_views"]


def test_pixels_that_are_not_finite_do_not_get_in():
    class Data:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Tensor:
            return torch.full((3, 4, 4), float("nan"))

    listing = list_python(Data())
    with pytest.raises(UserError, match=r"item 0 of Data has values outside of \[0, 1\]"):
        list(listing.splits["train"].read())


def test_a_watch_reads_nothing_until_it_is_asked():
    """On the meta device there is nothing to read, so any look by the host fails."""
    device = torch.device("meta")
    watch = Watch(device, skips=True)
    parameter = nn.Parameter(torch.zeros(3, device=device))
    parameter.grad = torch.zeros(3, device=device)
    watch.look(1, torch.zeros((), device=device), [parameter], torch.zeros(2, dtype=torch.int64, device=device))
    with pytest.raises((RuntimeError, NotImplementedError)):
        watch.found()


def test_a_watch_read_late_still_knows_the_first_bad_step_and_its_images():
    watch = Watch(torch.device("cpu"), skips=False)
    parameter = nn.Parameter(torch.zeros(2))
    for step, loss in enumerate([1.0, 2.0, float("nan"), 3.0, float("inf")], start=1):
        parameter.grad = torch.zeros(2)
        watch.look(step, torch.tensor(loss), [parameter], torch.tensor([step, 10 * step]))
    bad = watch.found()
    assert bad is not None
    assert (bad.step, bad.what, bad.images) == (3, "loss", [3, 30])


def overflow(monkeypatch: pytest.MonkeyPatch, steps: range) -> None:
    """Gradients of these steps (from 1) too large for fp16."""
    plain = Learner.take_step

    def step(learner: Learner, batch: Batch) -> dict[str, Tensor]:
        if learner.steps_done + 1 not in steps:
            return plain(learner, batch)
        parameter = next(learner.method.parameters())
        hook = parameter.register_hook(lambda gradient: gradient * float("inf"))
        try:
            return plain(learner, batch)
        finally:
            hook.remove()

    monkeypatch.setattr(Learner, "take_step", step)


def train_in_fp16(folder: Path, data: Path, epochs: int) -> Ended:
    """Two steps an epoch of four tiny images: fp16 is slow on a CPU."""
    small = ["--image-size", "8", "--batch-size", "4", "--set", "data.limit=8", "--set", "log.every=1"]
    small += [
        "--preset",
        "paper",
    ]  # of four images robust's gradients overflow by themselves, until the scale has fallen
    return train(folder, data, *small, "--set", "train.precision=fp16", "--epochs", str(epochs))


def test_fp16_leaves_out_a_step_that_overflows_and_counts_it(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    overflow(monkeypatch, range(2, 4))
    done = train_in_fp16(tmp_path, small_data, epochs=2)
    assert done.returncode == 0, done.stderr
    assert skipped(tmp_path / "run") == [0, 1, 2, 2]
    monkeypatch.undo()
    done = call(tmp_path, "pretrain", "--resume", "run", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    assert skipped(tmp_path / "run") == [0, 1, 2, 2, 2, 2]  # still known after a resume


def skipped(run: Path) -> list[int]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["skipped_steps"] for record in records if record["kind"] == "step"]


def test_fp16_stops_when_too_many_steps_in_a_row_overflow(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert MOST_SKIPPED == 30
    monkeypatch.setattr(guard, "MOST_SKIPPED", 4)
    overflow(monkeypatch, range(3, 1000))
    done = train_in_fp16(tmp_path, small_data, epochs=5)
    assert_refused(done, ["4 steps in a row up to step 6", "fp16", "run/checkpoint.pt", "bf16"])
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert all(value.isfinite().all() for value in state["method"].values() if value.is_floating_point())
