"""What a run and a result say about where they were made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from carl.records import environment


def test_a_repository_around_an_installed_copy_is_not_taken_for_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def revision_at(place: str) -> str | None:
        file = tmp_path / place / "carl" / "records" / "environment.py"
        file.parent.mkdir(parents=True)
        monkeypatch.setattr(environment, "__file__", str(file))
        return environment.machine(environment_of_a_cpu())["git_revision"]

    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "mine"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert revision_at("src") == head
    assert revision_at(".venv/lib/site-packages") is None


def environment_of_a_cpu() -> environment.Hardware:
    return environment.Hardware(device="cpu", threads=1, cuda=None)
