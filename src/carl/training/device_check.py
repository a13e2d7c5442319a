"""What `carl doctor --check` does: everything that a training needs of a device, tried on each one that is present.

Each check is a function of a device that returns words on what it found, or raises. The CPU is the reference for what
a device computes. With a tiny encoder they take seconds each, so that all of them stay far below ten minutes.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from carl.child_process import start_python
from carl.config import Config, resolve
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.data.sources.shapes import make_shapes
from carl.device import present_gpus
from carl.durations import in_words
from carl.memory import peak_memory
from carl.methods import METHODS
from carl.methods.build import build_method
from carl.records.metrics import read_records
from carl.records.run_directory import RunDirectory
from carl.training.checkpoint import Saver, load_checkpoint
from carl.training.learner import Learner
from carl.use.doctor import TIMED_STEP, Row, examine_environment, measure_step
from carl.views.recipes import pipeline
from carl.views.views import Views

IMAGES, SIDE, BATCH, STEPS = 64, 32, 16, 4
FACTS = DataFacts("shapes", IMAGES, 3, SIDE, 10)
CLOSE = 0.02  # largest difference of a loss, relative to the CPU's: GPUs multiply float32 in TensorFloat-32
CLOSE_HALF = 0.1  # the same in half precision
SAME_VIEW = 0.01  # largest difference of a pixel, of values in [0, 1]
FAILED = "FAILED"  # the word that a row begins with
PATIENCE = 400.0  # seconds for a training by two processes, which takes a few


class Failed(Exception):
    """What a device computes is not what it should be."""


def present_devices() -> list[torch.device]:
    """The devices to check: the first of each kind of GPU that torch sees, or else the CPU."""
    return [torch.device(kind) for kind in present_gpus() or ["cpu"]]


def examine_devices() -> Iterator[Row]:
    """Rows to paste into an issue: the machine, one row per check and device, and a summary."""
    yield from examine_environment()
    devices, started, failed = present_devices(), time.monotonic(), 0
    if devices[0].type == "cpu":
        yield "checked", "the CPU alone: torch sees no GPU here (CUDA, MPS or XPU)"
    for device in devices:
        for name, check in CHECKS.items():
            passed, words = outcome(check, device)
            failed += not passed
            yield f"{device.type} {name}", words
    total = len(devices) * len(CHECKS)
    took = in_words(time.monotonic() - started)
    yield "summary", f"{total - failed} of {total} checks passed in {took}; paste all of this into an issue"


def outcome(check: Callable[[torch.device], str], device: torch.device) -> tuple[bool, str]:
    """Whether the check passed, and what it found: an error of any kind is what a check is there to find."""
    try:
        return True, f"ok: {check(device)}"
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        return False, f"{FAILED}: {reason if isinstance(error, Failed) else f'{type(error).__name__}: {reason}'}"


def settings(name: str, **train: Any) -> Config:
    """The configuration of a method on the built-in drawings, with a tiny encoder."""
    method = METHODS[name]
    layers: list[Mapping[str, Any]] = [
        method.preset("robust", FACTS),
        {
            "data": {"source": "shapes", "image_size": SIDE},
            "method": {"name": name},
            "model": {"backbone": "test_resnet", "hidden_dim": 64, "output_dim": 32},
            "train": {"epochs": 1, "batch_size": BATCH, "precision": "fp32", **train},
        },
    ]
    return method.completed(resolve(layers, method.Options))


def views_on(device: torch.device, first: int = 0, recipe: str = "simclr") -> tuple[list[Tensor], Tensor, Tensor]:
    """Views, rows and labels of a batch of drawings; the views are made on the device."""
    pixels, labels = make_shapes(IMAGES, 0)
    rows = torch.arange(first, first + BATCH)
    images = torch.from_numpy(pixels)[rows].to(device)
    made = Views(pipeline(recipe, SIDE), (0.5,) * 3, (0.25,) * 3, seed=0)(images, rows.to(device), 0)
    return made, rows.to(device), torch.from_numpy(labels)[rows].to(device)


def new_learner(config: Config, device: torch.device) -> Learner:
    """A method on the device, with the weights that it has on a CPU, as its first epoch begins."""
    cpu = build_method(config, FACTS, torch.device("cpu"))
    method = build_method(config, FACTS, device)
    method.load_state_dict(cpu.state_dict())  # random numbers of devices differ
    learner = Learner(config, method, device, STEPS)

    def embed_all(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        made = [views_on(device, first, "eval") for first in range(0, IMAGES, BATCH)]
        with torch.no_grad():
            values = torch.cat([function(views[0]) for views, _, _ in made])
        return torch.cat([rows for _, rows, _ in made]), values

    method.before_epoch(0, embed_all)
    return learner


def train(learner: Learner, steps: int = STEPS) -> list[float]:
    """The losses of so many steps."""
    losses = []
    for _ in range(steps):
        made, rows, labels = views_on(learner.device, BATCH * learner.steps_done, learner.config.views.pipeline)
        losses.append(float(learner.take_step(Batch(made, rows, labels))["loss"]))
    if not np.isfinite(losses).all():
        raise Failed(f"{learner.config.method.name} has losses {losses}, which are not finite")
    return losses


def difference(found: list[float], expected: list[float], steps: int = 1) -> float:
    """The largest relative difference of the first losses; later ones part ways by rounding alone."""
    pairs = list(zip(found, expected, strict=True))[:steps]
    return max(abs(one - other) / max(abs(other), 1e-6) for one, other in pairs)


def check_methods(device: torch.device) -> str:
    """A training step of every method: its first loss is the CPU's."""
    largest = 0.0
    for name in METHODS:
        config = settings(name)
        found = train(new_learner(config, device), 2)
        if device.type != "cpu":
            apart = difference(found, train(new_learner(config, torch.device("cpu")), 2))
            largest = max(largest, apart)
            if apart > CLOSE:
                raise Failed(f"the first loss of {name} differs from the CPU's by {apart:.1%}")
    return f"{len(METHODS)} methods took two steps, first losses differ from the CPU's by at most {largest:.1e}"


def check_views(device: torch.device) -> str:
    """The views of the same images, made on the device and on the CPU by its other executor."""
    on_device, _, _ = views_on(device)
    on_cpu, _, _ = views_on(torch.device("cpu"))
    largest = max(float((one.cpu() - other).abs().max()) * 0.25 for one, other in zip(on_device, on_cpu, strict=True))
    if largest > SAME_VIEW:
        raise Failed(f"a pixel of a view differs from the CPU's by {largest:.3f}, of 1")
    return f"pixels of {2 * BATCH} views differ from the CPU's by at most {largest:.1e}"


def check_bf16(device: torch.device) -> str:
    return _half_precision(device, "bf16")


def check_fp16(device: torch.device) -> str:
    return _half_precision(device, "fp16")


def _half_precision(device: torch.device, precision: str) -> str:
    expected = train(new_learner(settings("carl"), device))
    found = train(new_learner(settings("carl", precision=precision), device))
    apart = difference(found, expected)
    if apart > CLOSE_HALF:
        raise Failed(f"the first loss differs from float32's by {apart:.1%}")
    return f"{STEPS} steps, the first loss differs from float32's by {apart:.1e}"


def check_compile(device: torch.device) -> str:
    """The encoder through torch.compile, which needs a compiler: Triton's on a GPU, that of C++ on a CPU."""
    expected, start = train(new_learner(settings("carl"), device), 1), time.monotonic()
    found = train(new_learner(settings("carl", compile=True), device), 1)
    apart = difference(found, expected)
    if apart > CLOSE:
        raise Failed(f"the first loss differs by {apart:.1%} from that without torch.compile")
    return f"compiled in {in_words(time.monotonic() - start)}, the first loss differs by {apart:.1e}"


def check_resume(device: torch.device) -> str:
    """Four steps in one go, and two of them, a checkpoint file and two more: the same bits."""

    def weights(interrupted: bool) -> dict[str, Tensor]:
        learner = new_learner(settings("carl"), device)
        train(learner, STEPS // 2)
        if interrupted:
            with tempfile.TemporaryDirectory(prefix="carl-check-") as folder:
                run = RunDirectory(Path(folder))
                Saver(learner, run, "").save()
                learner = new_learner(settings("carl"), device)
                Saver(learner, run, "").restore(load_checkpoint(run.checkpoint_file))
        train(learner, STEPS // 2)
        return {key: value.cpu() for key, value in learner.method.state_dict().items()}

    first, second, resumed = weights(False), weights(False), weights(True)
    if not _equal(first, second):
        return "two equal trainings already differ in their bits on this device, so resuming cannot be exact either"
    if not _equal(first, resumed):
        raise Failed("a resumed training has other weights than one that was not interrupted")
    return "weights after a resumption are the same, bit for bit"


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[key], other[key]) for key in one)


def check_processes(device: torch.device) -> str:
    """`carl pretrain` by two processes under torchrun: NCCL between two GPUs, gloo on a CPU."""
    if device.type in ("mps", "xpu") or (device.type == "cuda" and torch.cuda.device_count() < 2):
        return "left out: two processes need two CUDA devices"
    with tempfile.TemporaryDirectory(prefix="carl-check-") as folder:
        pixels, _ = make_shapes(IMAGES, 0)
        np.save(Path(folder) / "images.npy", pixels)
        options = ["--backbone", "test_resnet", "--batch-size", str(BATCH), "--epochs", "1", "--seed", "0"]
        values = ["probe.every=0", "log.report=false", "log.every=1", "train.precision=fp32"]
        values += [f"train.device={device.type}", "train.sync_batch_norm=true"]
        quick = [word for value in values for word in ("--set", value)]
        run = ["-m", "carl", "pretrain", str(Path(folder) / "images.npy"), *options, *quick]
        one, two = (Path(folder) / name for name in ("one", "two"))
        _finish([*run, "--out", str(one)], folder)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        _finish([*launcher, *run, "--out", str(two)], folder)
        alone, together = (_losses(RunDirectory(path)) for path in (one, two))
    apart = difference(together, alone, 2)  # the second loss has seen the gradients of both
    if apart > CLOSE:
        raise Failed(f"a loss differs by {apart:.1%} from that of one process")
    backend = "NCCL" if device.type == "cuda" else "gloo"
    return f"two processes by {backend}, the first losses differ from those of one by at most {apart:.1e}"


def _losses(run: RunDirectory) -> list[float]:
    return [float(record["loss"]) for record in read_records(run.metrics_file) if record["kind"] == "step"]


def _finish(arguments: list[str], folder: str) -> None:
    """Run a command of Python to its end."""
    said = Path(folder) / "said.txt"
    with (
        said.open("wb") as output,
        start_python(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as it,
    ):
        try:
            code = it.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            it.kill()
            raise Failed(f"two processes did not end within {PATIENCE:.0f} s") from None
    if code != 0:
        last = (said.read_text("utf-8", "replace").strip().splitlines() or ["no words"])[-1]
        raise Failed(f"a training ended with code {code}: {last}")


def check_speed(device: torch.device) -> str:
    """The paper's step at CIFAR's size: images per second, and the memory that it takes."""
    rate = measure_step(device)
    return f"{rate:,.0f} images/s, {_memory(device)} ({TIMED_STEP})"


def _memory(device: torch.device) -> str:
    """Most memory that was in use: on a device its own, on a CPU that of the process."""
    most = peak_memory(device)
    return "memory unknown" if most is None else f"{most / 2**30:.1f} GiB at most"


CHECKS: dict[str, Callable[[torch.device], str]] = {
    "methods": check_methods,
    "views": check_views,
    "bf16": check_bf16,
    "fp16": check_fp16,
    "compile": check_compile,
    "resume": check_resume,
    "processes": check_processes,
    "speed": check_speed,
}
