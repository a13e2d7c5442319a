"""What a run left in its directory, read without torch."""

from __future__ import annotations

import json
import os
import shlex
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from carl import files
from carl.config import read_toml
from carl.errors import UserError
from carl.evaluation.results import Subject, file_hash, is_number
from carl.records.gallery import Gallery, check_gallery

GALLERY_FORMAT = 2  # what training/gallery.py writes
LARGEST_GALLERY = 2**30  # bytes; the thumbnails of the most images that it holds take 70 MB, their embeddings 40
RUN_FORMAT = 1  # of the run directory, runs.py's
LARGEST = 1e300  # a figure whose mean with others is still a number

Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory; parts that a run does not have yet are empty."""

    path: Path
    name: str
    config: dict[str, dict[str, Any]]
    environment: dict[str, Any]
    data: dict[str, Any]  # name, number and statistics of the images
    records: list[Record]
    results: list[dict[str, Any]]
    gallery: Gallery
    gallery_note: str  # how to make gallery.npz when it is missing or of another format

    def value(self, section: str, key: str, otherwise: Any = None) -> Any:
        return self.config.get(section, {}).get(key, otherwise)

    def of_kind(self, kind: str) -> list[Record]:
        return [record for record in self.records if record.get("kind") == kind]

    @cached_property
    def subject(self) -> Subject:
        """What a score has to be of to stand for this run."""
        fingerprint = str(self.data.get("fingerprint") or "")
        return Subject(
            file_hash(self.path / "encoder.safetensors"), str(self.value("data", "source", "?")), fingerprint
        )

    @property
    def quoted(self) -> str:
        """The directory as a word of a command."""
        return shlex.quote(str(self.path))

    @property
    def finished(self) -> bool:
        return bool(self.records) and self.records[-1].get("event") == "finished"

    @property
    def epochs_done(self) -> float:
        return max((float(r["epoch"]) for r in self.records if is_number(r.get("epoch"))), default=0.0)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs, with names that tell them apart."""
    resolved = [Path(os.path.realpath(path)) for path in paths]  # Path.resolve fails on links that go in a circle
    twice = next((path for path, real in zip(paths, resolved, strict=True) if resolved.count(real) > 1), None)
    if twice is not None:
        raise UserError(f"{twice} is given twice; name each run once")
    names = [path.name for path in resolved]
    unique = len(set(names)) == len(names)
    return [read_run(path, name if unique else str(path)) for path, name in zip(paths, names, strict=True)]


def read_run(path: Path, name: str) -> Run:
    if not (path / "config.toml").is_file():
        raise UserError(f"{path} is not a run directory (it has no config.toml); give what `carl pretrain` made")
    config, environment = read_toml(path / "config.toml"), _read_environment(path / "environment.json")
    if not all(isinstance(section, dict) for section in config.values()):
        raise UserError(
            f"{path / 'config.toml'} is not the file of a run: it holds values outside of sections; restore it"
        )
    if environment.get("format", RUN_FORMAT) != RUN_FORMAT:
        raise UserError(
            f"{path} has format {environment['format']!r} and this version of carl reads format {RUN_FORMAT}; use the "
            "version that wrote it (environment.json names it)"
        )
    gallery, note = _read_gallery(path)
    return Run(
        path=path,
        name=name,
        config=config,
        environment=environment,
        data=_read_json(path / "data.json"),
        records=[r for line in files.read_json_lines(path / "metrics.jsonl") if (r := _cleaned(line)) is not None],
        results=[_read_json(file) for file in sorted(path.glob("results/*.json"))],
        gallery=gallery,
        gallery_note=note,
    )


def _read_environment(path: Path) -> dict[str, Any]:
    """environment.json with a command that is words and packages that are named, whoever wrote it."""
    found = _read_json(path)
    command, packages = found.get("command"), found.get("packages")
    words = [str(word) for word in command] if isinstance(command, list) else []
    return {**found, "command": words, "packages": packages if isinstance(packages, dict) else {}}


def _cleaned(record: Record) -> Record | None:
    """A line of metrics.jsonl with the values that it can have; None for one that no run writes."""
    kind = record.get("kind")
    if not isinstance(kind, str) or (kind in ("step", "probe") and not _fits("epoch", record.get("epoch"))):
        return None
    return {key: value for key, value in record.items() if _fits(key, value)}


def _fits(key: str, value: object) -> bool:
    if key in ("findings", "warnings"):
        return isinstance(value, list) and all(isinstance(text, str) for text in value)
    if key in ("kind", "event", "verdict"):
        return isinstance(value, str)
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST  # not NaN either


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_int=_whole_number)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); delete or restore it") from None
    return value if isinstance(value, dict) else {}


def _whole_number(digits: str) -> int:
    if len(digits) > 300:  # more than a float can be
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _read_gallery(path: Path) -> tuple[Gallery, str]:
    """The arrays of gallery.npz, or none and a line that says how to make them."""
    file = path / "gallery.npz"
    make = f"carl pretrain --resume {shlex.quote(str(path))} --set log.report=true"
    if not file.is_file():
        return {}, f"This run has no gallery.npz yet; it is written at the end of a run. Make it with: {make}"
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > LARGEST_GALLERY:
            raise ValueError(f"{size} bytes unpacked, and at most {LARGEST_GALLERY} are read")
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            gallery = {name: arrays[name] for name in arrays.files}
        found = int(gallery.get("format", np.zeros(())))
        if found == GALLERY_FORMAT:
            check_gallery(gallery)
    except Exception as error:  # a damaged archive fails in many ways: zip, zlib, header, pickled content
        raise UserError(
            f"{file} cannot be read ({' '.join(str(error).split()[:12])}); delete it and make it again: {make}"
        ) from None
    if found != GALLERY_FORMAT:
        return {}, f"Another version of carl wrote gallery.npz; delete {file} and make it again: {make}"
    return gallery, ""
