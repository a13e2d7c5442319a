"""What `carl doctor` says: the machine, what is installed, how fast a training step is, and what is missing."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from carl.config import Config, resolve
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.defaults import BATCH_SIZE
from carl.device import pick_device, present_gpus
from carl.methods import find_method
from carl.methods.build import build_method
from carl.models.pretrained.pip_weights import PACKAGES as WEIGHTS_PACKAGES
from carl.optim import build_optimizer
from carl.records.environment import PACKAGES as RECORDED_PACKAGES
from carl.records.environment import installed_version, processor
from carl.use.export.to_hub import PACKAGES as HUB_PACKAGES
from carl.use.export.to_onnx import PACKAGES as ONNX_PACKAGES
from carl.user_paths import cache_folder
from carl.views.recipes import pipeline
from carl.views.views import Views

Row = tuple[str, str]

EXTRAS = {  # extra: (the packages it brings, what they are for)
    "weights": (tuple(WEIGHTS_PACKAGES.values()), "encoders trained on ImageNet, such as timm:tf_efficientnet_lite0"),
    "onnx": (ONNX_PACKAGES, "carl export --to onnx"),
    "hub": (HUB_PACKAGES, "carl export --to hub:USER/NAME"),
    "stream": (("fsspec", "aiohttp"), "shards at an address, such as https:// or s3://"),
    "map": (("umap",), "carl report RUN --map umap"),
    "tensorboard": (("tensorboard",), "--set log.tensorboard=true"),
    "wandb": (("wandb",), "--set log.wandb=true"),
}
PACKAGES = (*RECORDED_PACKAGES, "pyarrow", "scikit-learn")
SECONDS = 3.0  # of steps; long enough that the first, slow ones do not count
FACTS = DataFacts.known("cifar10")  # the step that is timed is the paper's
TIMED_STEP = f"carl, resnet18, {FACTS.image_size} px, batch {BATCH_SIZE}"


def examine(speed: bool) -> Iterator[Row]:
    """Everything there is to know about this machine and installation; `speed` takes some seconds."""
    yield from examine_environment()
    yield from examine_extras()
    if speed:
        yield examine_speed()


def examine_environment() -> Iterator[Row]:
    """Machine, versions and devices."""
    yield "python", f"{platform.python_version()} at {sys.executable}"
    yield "system", f"{platform.platform()}, {processor()}"
    yield "cores", f"{os.cpu_count()}, torch uses {torch.get_num_threads()}"
    yield "memory", _memory()
    yield "device", _device()
    for package in PACKAGES:
        yield package, installed_version(package) or "not installed"
    yield "cache", _cache()


def examine_speed() -> Row:
    """Images per second of CARL's step with the paper's encoder and batch at CIFAR's size."""
    device = pick_device("auto")
    rate = measure_step(device)
    minutes = FACTS.images / rate / 60
    return "speed", (
        f"{rate:,.0f} images/s on {device} ({TIMED_STEP}): an epoch of {FACTS.images:,} images takes {minutes:.1f} min"
    )


def examine_extras() -> Iterator[Row]:
    """Which optional parts are there, and how to get the others."""
    for extra, (packages, purpose) in EXTRAS.items():
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        state = f"missing; pip install 'carl-ssl[{extra}]'" if missing else "installed"
        yield extra, f"{state} (for {purpose})"
    if torch.version.cuda is None and Path("/proc/driver/nvidia/version").exists():
        yield "cuda", "an NVIDIA driver is here but this torch is for CPUs; install torch with CUDA, see pytorch.org"


def measure_step(device: torch.device) -> float:
    """Images per second through views, forward, backward and optimiser; the first two steps do not count."""
    config, side = _config(FACTS), FACTS.image_size
    method = build_method(config, FACTS, device)
    optimizer = build_optimizer(method, config.optim)
    views = Views(pipeline(config.views.pipeline, side), (0.5,) * 3, (0.25,) * 3, seed=0)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (BATCH_SIZE, side, side, 3), dtype=torch.uint8, generator=generator).to(device)
    indices = torch.arange(BATCH_SIZE, device=device)
    steps, start = -2, time.perf_counter()
    while steps < 1 or time.perf_counter() - start < SECONDS:
        if steps == 0:
            start = time.perf_counter()
        loss, _ = method(Batch(views(images, indices, steps + 2), indices), 0.0)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss.item()  # waits for the device, so that the clock is right
        steps += 1
    return steps * BATCH_SIZE / (time.perf_counter() - start)


def _config(facts: DataFacts) -> Config:
    method = find_method("carl")
    layer = {"data": {"source": facts.name, "image_size": facts.image_size}, "train": {"batch_size": BATCH_SIZE}}
    return method.completed(resolve([layer, method.preset("paper", facts)], method.Options))


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    except (AttributeError, OSError, ValueError):  # not on Windows
        return "unknown"


def _device() -> str:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return f"cuda {torch.version.cuda}: {', '.join(names)}"
    return ", ".join(present_gpus()) or "cpu only"


def _cache() -> str:
    folder = cache_folder()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
    return f"{folder}, {size / 2**30:.1f} GiB (CARL_CACHE sets another)"
