"""The file of names that a page saves and commands read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from carl.errors import UserError
from carl.records.given_names import LONGEST_NAME, GivenNames, fingerprint, read_names, write_names


def test_names_and_tags_come_back_as_they_were_written(tmp_path: Path):
    names = GivenNames({3: "owls", 17: "<b>night</b>"}, {"to delete": ("a.jpg", "ü/b c.jpg")}, "3f2a")
    write_names(tmp_path / "names.json", names)
    assert read_names(tmp_path / "names.json", "3f2a") == names


def test_a_file_written_by_hand_needs_groups_alone(tmp_path: Path):
    (tmp_path / "names.json").write_text('{"groups": {"3": " owls "}}')
    assert read_names(tmp_path / "names.json", "any") == GivenNames({3: "owls"})


def test_names_of_other_groups_are_refused(tmp_path: Path):
    write_names(tmp_path / "names.json", GivenNames({3: "owls"}, of="3f2a"))
    with pytest.raises(UserError, match="names other groups"):
        read_names(tmp_path / "names.json", "beef")


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"groups": []}', '{"groups": {"x": "owls"}}', '{"groups": {"-1": "owls"}}',
        '{"groups": {"3": 4}}', '{"groups": {"3": ""}}', '{"tags": {"t": "a.jpg"}}', '{"tags": {"t": [1]}}',
        '{"tags": {}, "version": 2}',
        '{"groups": {"9999999999999": "owls"}}', json.dumps({"groups": {"3": "x" * (LONGEST_NAME + 1)}}), "[" * 100_000,
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_one_line(tmp_path: Path, content: str):
    (tmp_path / "names.json").write_text(content)
    with pytest.raises(UserError, match="is not a file of names") as caught:
        read_names(tmp_path / "names.json")
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_pipe_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="does not exist"):
        read_names(tmp_path / "names.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_names(tmp_path / "pipe")


def test_other_groups_have_another_fingerprint():
    centres = np.eye(3, dtype=np.float32)
    assert fingerprint(centres) == fingerprint(centres.astype(np.float64))
    assert fingerprint(centres) != fingerprint(centres[::-1])
