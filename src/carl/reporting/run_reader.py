"""What a run left in its directory, read without torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from carl.errors import UserError
from carl.evaluation.results import RunIdentity
from carl.records.gallery import Gallery, read_gallery, remake_command
from carl.records.metrics import Record, has_finished, is_number, read_records
from carl.records.run_directory import RunDirectory, read_json_object
from carl.records.weights_hash import file_hash


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory; parts that a run does not have yet are empty."""

    directory: RunDirectory
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
    def identity(self) -> RunIdentity:
        """What a score must have been measured on to stand for this run."""
        fingerprint = str(self.data.get("fingerprint") or "")
        return RunIdentity(file_hash(self.directory.encoder_file), str(self.value("data", "source", "?")), fingerprint)

    @property
    def quoted(self) -> str:
        """The directory as a word of a command."""
        return self.directory.quoted

    @property
    def finished(self) -> bool:
        return has_finished(self.records)

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
    run = RunDirectory.open(path)
    config = run.read_layer()
    gallery, note = _gallery_and_note(run)
    return Run(
        directory=run,
        name=name,
        config=config,
        environment=_cleaned_environment(run),
        data=read_json_object(run.data_file),
        records=read_records(run.metrics_file),
        results=[read_json_object(file) for file in sorted(run.results.glob("*.json"))],
        gallery=gallery,
        gallery_note=note,
    )


def _cleaned_environment(run: RunDirectory) -> dict[str, Any]:
    """environment.json with a command that is words and packages that are named, whoever wrote it."""
    found = run.read_environment()
    command, packages = found.get("command"), found.get("packages")
    words = [str(word) for word in command] if isinstance(command, list) else []
    return {**found, "command": words, "packages": packages if isinstance(packages, dict) else {}}


def _gallery_and_note(run: RunDirectory) -> tuple[Gallery, str]:
    """The arrays of gallery.npz, or none and a line that says how to make them."""
    if not run.gallery_file.is_file():
        return {}, (
            f"This run has no gallery.npz yet; it is written at the end of a run. Make it with: {remake_command(run)}"
        )
    gallery = read_gallery(run)
    if gallery is None:
        return {}, (
            f"Another version of carl wrote gallery.npz; delete {run.gallery_file} and make it again: "
            f"{remake_command(run)}"
        )
    return gallery, ""
