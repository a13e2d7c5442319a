"""The run directory: the only thing that passes between training, evaluation and report."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save
from torch import Tensor, nn

from carl import files
from carl.config import Config, read_toml, resolve, to_toml
from carl.data.dataset import Dataset, Statistics
from carl.data.facts import DataFacts
from carl.errors import UserError
from carl.methods import find_method

JOB_LOCK = ".job.lock"  # of `carl compare` and `carl reproduce`, which also measure
FORMAT = 1  # of the run directory; written to environment.json and checkpoint.pt


@dataclass(frozen=True)
class DataRecord:
    """What using the encoder needs to know of the training data, which may be gone by then."""

    name: str  # a known name ("cifar10") where the source is recognised, else what the user gave
    images: int
    channels: int
    height: int  # of the packed images: any other image is scaled and centrally cut to this first
    width: int
    image_size: int  # side of what the encoder sees
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    fingerprint: str

    @classmethod
    def of(cls, dataset: Dataset, facts: DataFacts) -> DataRecord:
        images, statistics = dataset.pretraining.images, dataset.statistics
        return cls(
            name=facts.name,
            images=facts.images,
            channels=facts.channels,
            height=images.height,
            width=images.width,
            image_size=facts.image_size,
            mean=statistics.mean,
            std=statistics.std,
            class_names=dataset.class_names,
            fingerprint=dataset.fingerprint,
        )

    def check(self) -> None:
        """Raise a ValueError for what no data set can have."""
        sides = (self.images, self.channels, self.height, self.width, self.image_size)
        if min(sides) < 1 or not len(self.mean) == len(self.std) == self.channels:
            raise ValueError("sizes, or numbers of channels, that do not go together")
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise ValueError(f"mean {self.mean} and std {self.std}")

    @property
    def facts(self) -> DataFacts:
        return DataFacts(self.name, self.images, self.channels, self.image_size, len(self.class_names))

    @property
    def statistics(self) -> Statistics:
        return Statistics(self.mean, self.std)


class RunDirectory:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.environment_file = path / "environment.json"
        self.data_file = path / "data.json"
        self.metrics_file = path / "metrics.jsonl"
        self.encoder_file = path / "encoder.safetensors"
        self.head_file = path / "head.safetensors"
        self.checkpoint_file = path / "checkpoint.pt"
        self.gallery_file = path / "gallery.npz"
        self.results = path / "results"
        self.lock_file = path / ".lock"

    @classmethod
    def create(cls, path: Path, config: Config, device: torch.device, command: list[str]) -> RunDirectory:
        """A new run; refuses a directory that already holds anything."""
        cls.check_free(path)
        run = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            with run.locked():
                cls.check_free(path)  # another may have been faster
                files.write_json(run.environment_file, environment(command, device, config.train.seed))
                files.write_text(run.config_file, to_toml(config))  # last: with it the directory is a run
        except OSError as error:
            raise UserError(f"cannot make run directory {path}: {error.strerror}; choose another --out") from None
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        if not (path / "config.toml").is_file():
            what = "is not a run directory (it has no config.toml)" if path.exists() else "does not exist"
            raise UserError(f"{path} {what}; give the directory that `carl pretrain` printed")
        return cls(path)

    @staticmethod
    def check_free(path: Path) -> None:
        """Refuse a place that holds anything but what a process left that was killed while it made the directory."""
        if path.exists() and (not path.is_dir() or not all(map(_is_left_over, path.iterdir()))):
            raise UserError(
                f"run directory {path} exists; choose another --out, or go on with `carl pretrain --resume {path}`"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For this process alone; the lock of a process that ended, however it ended, is in no one's way."""
        with files.only_holder(self.lock_file) as held:
            if not held:
                raise UserError(
                    f"run directory {self.path} is in use by another process; wait until that has ended, or choose "
                    "another --out"
                )
            yield

    def check_format(self) -> None:
        """Refuse a directory that a later version of carl has written; those before wrote no other format."""
        found = read_environment(self.environment_file).get("format", FORMAT)
        if found != FORMAT:
            raise UserError(
                f"{self.path} has format {found!r} and this version of carl reads format {FORMAT}; use the version "
                f"that wrote it ({self.environment_file.name} names it)"
            )

    def read_config(self) -> Config:
        self.check_format()
        layer = read_toml(self.config_file)
        method = layer.get("method")
        name = str(method.get("name", "carl")) if isinstance(method, dict) else "carl"
        try:
            return resolve([layer], find_method(name).Options)
        except UserError as error:
            raise UserError(f"{self.config_file}: {error}") from None

    def write_config(self, config: Config) -> None:
        files.write_text(self.config_file, to_toml(config))

    def write_data(self, record: DataRecord) -> None:
        files.write_json(self.data_file, asdict(record))

    def read_data(self) -> DataRecord | None:
        """None for a run that was made before data.json was."""
        if not self.data_file.is_file():
            return None
        try:
            record = TypeAdapter(DataRecord).validate_json(self.data_file.read_bytes())
            record.check()
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split()[:20])
            raise UserError(
                f"{self.data_file} is damaged ({reason}); delete it, and it is made again from the data"
            ) from None
        return record

    def save_weights(self, encoder: nn.Module, head: nn.Module) -> None:
        write_weights(self.encoder_file, encoder)
        write_weights(self.head_file, head)

    def keep_encoder(self, encoder: nn.Module, head: nn.Module, epoch: int) -> None:
        """A copy that later epochs do not overwrite: encoders/epoch-0100.safetensors and its head."""
        write_weights(self.path / "encoders" / f"epoch-{epoch:04d}.safetensors", encoder)
        write_weights(self.path / "encoders" / f"epoch-{epoch:04d}-head.safetensors", head)


def free_name(folder: Path, name: str) -> Path:
    """folder/name, or folder/name-2 and so on if that is taken."""
    path, number = folder / name, 2
    while path.exists():
        path, number = folder / f"{name}-{number}", number + 1
    return path


def write_weights(path: Path, module: nn.Module) -> None:
    state: Mapping[str, Tensor] = module.state_dict()
    with files.atomic_writer(path) as file:
        file.write(save({key: value.detach().cpu().contiguous() for key, value in state.items()}))


def read_weights_into(path: Path, module: nn.Module) -> None:
    try:
        module.load_state_dict(load_file(path))
    except Exception as error:  # a damaged file and a foreign one differ only in their message
        reason = " ".join(str(error).split()[:30]) or "unreadable"
        raise UserError(f"{path} does not fit this run: {reason}; restore the file or train again") from None
    check_finite(path, module)


def check_finite(path: Path, module: nn.Module) -> None:
    """Weights that are not finite give no features, whatever reads them."""
    bad = next((key for key, value in module.state_dict().items() if not bool(value.isfinite().all())), None)
    if bad is not None:
        raise UserError(f"{path} holds values that are not finite (in {bad}); restore the file or train again")


def read_environment(path: Path) -> dict[str, Any]:
    """What environment.json holds; {} where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); delete or restore it") from None
    return found if isinstance(found, dict) else {}


def _is_left_over(path: Path) -> bool:
    """Whether a file is of those that are there before config.toml makes a directory a run."""
    if path.name == "environment.json":
        return "format" in read_environment(path)
    # job.json: what `carl compare` and `carl reproduce` write of a run that could not start.
    return path.name in (".lock", JOB_LOCK, "job.json") or (
        path.name.startswith(".") and path.name.endswith(files.PARTIAL)
    )


def environment(command: list[str], device: torch.device, seed: int) -> dict[str, Any]:
    """Where and with what a run was made."""
    packages = ("carl-ssl", "torch", "torchvision", "timm", "numpy", "pillow", "safetensors")
    return {
        "format": FORMAT,
        "command": command,
        "device": str(device),
        "seed": seed,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "packages": {name: _version(name) for name in packages},
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "git_revision": _git_revision(),
        "executable": sys.executable,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    """Revision of the source this package runs from, None for an installed copy."""
    here = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
