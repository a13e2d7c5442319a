"""The run directory: which paths are a run's, and what its files must hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carl.errors import UserError
from carl.records.run_directory import RUN_FORMAT, RunDirectory, kept_epoch


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text('[data]\nsource = "photos"\n')
    return RunDirectory(tmp_path / "run")


def test_a_run_is_found_from_its_encoders_too(run: RunDirectory, tmp_path: Path):
    run.kept_encoders.mkdir()
    for path in (run.encoder_file, run.kept_encoder(7), tmp_path / "other.safetensors"):
        path.touch()
    for inside in (run.path, run.encoder_file, run.kept_encoder(7)):
        found = RunDirectory.containing(inside)
        assert found is not None
        assert found.path == run.path
    for outside in (tmp_path, tmp_path / "other.safetensors", tmp_path / "nowhere"):
        assert RunDirectory.containing(outside) is None


def test_kept_encoders_have_their_epoch_in_their_name_and_their_head_beside_them(run: RunDirectory):
    assert run.kept_encoder(7) == run.path / "encoders" / "epoch-0007.safetensors"
    assert run.head_of(run.kept_encoder(7)) == run.path / "encoders" / "epoch-0007-head.safetensors"
    assert run.head_of(run.encoder_file) == run.head_file
    assert kept_epoch(str(run.kept_encoder(7))) == 7
    assert kept_epoch(str(run.encoder_file)) is None


def test_values_are_read_as_they_are_and_only_of_a_known_format(run: RunDirectory):
    assert run.read_layer() == {"data": {"source": "photos"}}
    run.environment_file.write_text(json.dumps({"format": RUN_FORMAT + 1}))
    with pytest.raises(UserError, match=f"reads format {RUN_FORMAT}; use the version that wrote it"):
        run.read_layer()


def test_values_outside_of_sections_are_refused(run: RunDirectory):
    run.config_file.write_text('source = "photos"\n')
    with pytest.raises(UserError, match=r"config\.toml .* values outside of sections; restore it"):
        run.read_layer()


@pytest.mark.parametrize("content", ["{", "[" * 100_000, '{"a": ' + "1" * 400 + "}", b"\xff\xfe"])
def test_a_damaged_environment_is_named_with_its_remedy(run: RunDirectory, content: str | bytes):
    run.environment_file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r"environment\.json is not valid JSON .* delete or restore it"):
        run.check_format()
