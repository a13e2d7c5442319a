"""data.views_from was called data.road: the old name is still read, and users who write it are told."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import carl as package
from carl.config import MethodOptions, read_settings, read_toml, resolve
from tests.conftest import SMALL, Run

WARNING = "data.road is now called data.views_from"


def test_later_layers_win_whichever_name_they_use():
    old, new = {"data": {"source": "x", "road": "photos"}}, {"data": {"source": "x", "views_from": "packed"}}
    assert resolve([old], MethodOptions).data.views_from == "photos"
    assert resolve([old, new], MethodOptions).data.views_from == "packed"
    assert resolve([new, old], MethodOptions).data.views_from == "photos"


def test_a_file_of_an_old_run_is_read_silently_and_a_users_file_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "old.toml").write_text('[data]\nsource = "x"\nroad = "packed"\n')
    assert read_toml(tmp_path / "old.toml") == {"data": {"source": "x", "views_from": "packed"}}
    assert capsys.readouterr().err == ""
    assert resolve([read_settings(tmp_path / "old.toml")], MethodOptions).data.views_from == "packed"
    assert capsys.readouterr().err.count(WARNING) == 1


def test_a_run_of_the_old_name_goes_on_as_it_was(carl: Run, small_data: Path, tmp_path: Path):
    started = carl("pretrain", small_data, *SMALL, "--out", "run", "--set", "data.road=packed")
    assert started.returncode == 0, started.stderr
    assert started.stderr.count(WARNING) == 1
    config = tmp_path / "run" / "config.toml"
    assert tomllib.loads(config.read_text())["data"]["views_from"] == "packed"
    config.write_text(config.read_text().replace("views_from =", "road ="))
    again = carl("pretrain", "--resume", "run", "--epochs", "4")
    assert again.returncode == 0, again.stderr
    assert WARNING not in again.stderr
    config.write_text(config.read_text().replace("views_from =", "road ="))
    changed = carl("pretrain", "--resume", "run", "--set", "data.views_from=auto")
    assert changed.returncode == 2
    assert "data.views_from: 'packed' -> 'auto'" in changed.stderr


def test_the_settings_of_the_api_are_read_under_the_old_name_too(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    settings = {"data.road": "packed", "probe.every": 0, "log.report": False, "method.prototypes": 10}
    run = package.pretrain(
        small_data, out=tmp_path / "run", backbone="test_resnet", epochs=1, batch_size=16, settings=settings
    )
    assert tomllib.loads((run / "config.toml").read_text())["data"]["views_from"] == "packed"
    assert capsys.readouterr().err.count(WARNING) == 1
