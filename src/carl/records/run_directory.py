"""The run directory: the only thing that passes between training, evaluation and report."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from carl import files
from carl.config import Config, read_toml, to_toml
from carl.errors import UserError
from carl.framing import Interpolation
from carl.records.environment import Hardware, environment
from carl.records.regular_files import read_bytes, read_text

RUN_FORMAT = 1  # of the run directory; written to environment.json and checkpoint.pt
JOB_FILE = "job.json"  # outcome of a run of `carl compare` or `carl reproduce`, also of one that could not start
JOB_LOCK = ".job.lock"  # held by `carl compare` and `carl reproduce`, which also measure


@dataclass(frozen=True)
class DataRecord:
    """What using the encoder needs to know about the training data, which may be gone by then."""

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
    interpolation: Interpolation = "bicubic"  # of that scaling; older runs do not record it

    def check(self) -> None:
        """Raise a ValueError for values that no data set can have."""
        sides = (self.images, self.channels, self.height, self.width, self.image_size)
        if min(sides) < 1 or not len(self.mean) == len(self.std) == self.channels:
            raise ValueError("sizes, or numbers of channels, that do not go together")
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise ValueError(f"mean {self.mean} and std {self.std}")


LAST = "last.safetensors"  # of `encoders/`


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
        self.report_file = path / "report.html"
        self.results = path / "results"
        self.kept_encoders = path / "encoders"
        self.start_file = self.kept_encoders / "start.safetensors"  # what a run with --init started from
        self.last_file = self.kept_encoders / LAST  # what it trained, if that is not what it keeps
        self.lock_file = path / ".lock"

    @classmethod
    def create(
        cls,
        path: Path,
        config: Config,
        hardware: Hardware,
        command: Sequence[str],
        more: Mapping[str, Any] | None = None,
    ) -> RunDirectory:
        """A new run; refuses a directory that already holds anything. `more` goes into environment.json too."""
        cls.check_free(path)
        run = cls(path)
        about = {"format": RUN_FORMAT, **environment(command, config.train.seed, hardware), **(more or {})}
        try:
            path.mkdir(parents=True, exist_ok=True)
            with run.locked():
                cls.check_free(path)  # another may have been faster
                files.write_json(run.environment_file, about)
                run.write_config(config)  # last: with it the directory is a run
        except OSError as error:
            raise UserError(f"cannot make run directory {path}: {error.strerror}; choose another --out") from None
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        run = cls(path)
        if not run.exists:
            what = "is not a run directory: it has no config.toml" if path.exists() else "does not exist"
            raise UserError(f"{path} {what}; give the run directory that `carl pretrain` printed")
        run.check_files()
        return run

    @classmethod
    def containing(cls, path: Path) -> RunDirectory | None:
        """The run that `path` is or lies in: RUN, RUN/encoder.safetensors, RUN/encoders/epoch-0100.safetensors."""
        folder = path
        if path.is_file() and path.suffix == ".safetensors":
            folder = path.parent
            if folder.name == cls(folder.parent).kept_encoders.name:
                folder = folder.parent
        run = cls(folder)
        if not run.exists:
            return None
        run.check_files()
        return run

    @property
    def exists(self) -> bool:
        return self.config_file.is_file()

    @property
    def quoted(self) -> str:
        """The directory as a word of a command."""
        return shlex.quote(str(self.path))

    @staticmethod
    def check_free(path: Path) -> None:
        """Refuse a path that is in use, except for leftovers of a process that was killed while it made the run."""
        if path.exists() and (not path.is_dir() or not all(map(_is_left_over, path.iterdir()))):
            raise UserError(
                f"run directory {path} exists; choose another --out, or resume it with `carl pretrain --resume {path}`"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process uses the run. A process that ends, even if it is killed, gives up its lock."""
        with files.only_holder(self.lock_file) as held:
            if not held:
                raise UserError(
                    f"run directory {self.path} is in use by another process; wait until that has ended, or choose "
                    "another --out"
                )
            yield

    def check_files(self) -> None:
        """Refuse a run with anything but regular files: reading or writing a named pipe would wait for ever."""
        own = [file for file in vars(self).values() if file not in (self.path, self.results, self.kept_encoders)]
        for file in (*own, *self.results.glob("*.json"), *self.kept_encoders.glob("*.safetensors")):
            if file.exists() and not file.is_file():
                raise UserError(f"{file} is not a regular file, and a run holds nothing else; remove it")

    def check_format(self) -> None:
        """Refuse a directory from a later version of carl. All earlier versions wrote this format."""
        found = self.read_environment().get("format", RUN_FORMAT)
        if found != RUN_FORMAT:
            raise UserError(
                f"{self.path} has format {found!r} and this version of carl reads format {RUN_FORMAT}; use the version "
                f"that wrote it ({self.environment_file.name} names it)"
            )

    def read_layer(self) -> dict[str, dict[str, Any]]:
        """The values in config.toml, not validated: `carl.methods.run_config.read_config` does that."""
        self.check_format()
        layer = read_toml(self.config_file)
        if not all(isinstance(section, dict) for section in layer.values()):
            raise UserError(
                f"{self.config_file} does not belong to a run: it holds values outside of sections; restore it"
            )
        return layer

    def write_config(self, config: Config) -> None:
        files.write_text(self.config_file, to_toml(config))

    def read_environment(self) -> dict[str, Any]:
        """The content of environment.json; {} if there is none."""
        return read_json_object(self.environment_file)

    def write_data(self, record: DataRecord) -> None:
        files.write_json(self.data_file, asdict(record))

    def read_data(self) -> DataRecord | None:
        """The content of data.json; None for old runs, which have none."""
        if not self.data_file.is_file():
            return None
        try:
            record = TypeAdapter(DataRecord).validate_json(read_bytes(self.data_file))
            record.check()
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split()[:20])
            raise UserError(
                f"{self.data_file} is damaged ({reason}); delete it, and it is made again from the data"
            ) from None
        return record

    def kept_encoder(self, epoch: int) -> Path:
        """A copy of the encoder that later epochs do not overwrite."""
        return self.kept_encoders / f"epoch-{epoch:04d}.safetensors"

    def trained_encoder(self, weights: Path | None = None) -> Path:
        """The file of the trained encoder, or other `weights` of this run; a UserError if it is not there yet."""
        file = weights or self.encoder_file
        if not file.is_file():
            raise UserError(f"{self.path} has no {file.name} yet; train it first: carl pretrain --resume {self.path}")
        return file

    def head_of(self, encoder: Path) -> Path:
        """The file with the projection head and the prototypes that belong to an encoder of this run."""
        if encoder.name == self.encoder_file.name:
            return self.head_file
        return encoder.with_name(f"{encoder.stem}-head.safetensors")


def kept_epoch(encoder: str) -> int | None:
    """The epoch in the name of a kept encoder's file; None for other files."""
    found = re.search(r"epoch-(\d+)\.safetensors$", encoder)
    return int(found[1]) if found else None


def free_name(folder: Path, name: str) -> Path:
    """folder/name, or folder/name-2 and so on if that is taken."""
    path, number = folder / name, 2
    while path.exists():
        path, number = folder / f"{name}-{number}", number + 1
    return path


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} if there is no file or it holds something else."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path), parse_int=_whole_number)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); delete or restore it") from None
    return value if isinstance(value, dict) else {}


def _whole_number(digits: str) -> int:
    if len(digits) > 300:  # more than a float can be
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _is_left_over(path: Path) -> bool:
    """Whether a file is one of those that are written before config.toml, which makes a directory a run."""
    if path.name == "environment.json":
        return "format" in read_json_object(path)
    return path.name in (".lock", JOB_LOCK, JOB_FILE) or (
        path.name.startswith(".") and path.name.endswith(files.PARTIAL)
    )
