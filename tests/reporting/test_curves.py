"""Curves of whatever was logged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carl.reporting.curves import MOST_POINTS, charts
from carl.reporting.run_reader import read_runs
from tests.reporting.conftest import make_run


def by_key(*paths: Path) -> dict[str, dict[str, object]]:
    return {str(chart["key"]): chart for chart in charts(read_runs(list(paths)))}


def test_figures_of_any_name_are_drawn_known_ones_with_a_title_of_their_own(tmp_path: Path):
    found = by_key(make_run(tmp_path / "run", None))
    assert found["own_term"]["title"] == "Own term"
    assert found["own_term"]["group"] == found["loss"]["group"] == "Loss"
    assert found["knn"]["title"] == "kNN probe, online (%)"
    assert not {"step", "epoch", "prototypes", "verdict"} & found.keys()


def test_groups_stand_together_with_the_loss_first(tmp_path: Path):
    groups = [chart["group"] for chart in charts(read_runs([make_run(tmp_path / "run", None)]))]
    assert groups[0] == "Loss"
    assert len({group for group, after in zip(groups, [*groups[1:], ""], strict=True) if group != after}) == len(
        set(groups)
    )


def test_batch_and_probe_share_a_chart_but_many_runs_show_one_line_each(tmp_path: Path):
    paths = [make_run(tmp_path / name, None) for name in ("a", "b")]
    for path in paths:
        with (path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"kind": "step", "step": 1, "epoch": 1, "used": 3}) + "\n")
    (alone,) = (by_key(paths[0])["used"]["series"],)
    assert [line["kind"] for line in alone] == ["step", "probe"]  # type: ignore[attr-defined]
    together = by_key(*paths)["used"]["series"]
    assert [(line["run"], line["kind"]) for line in together] == [(0, "probe"), (1, "probe")]  # type: ignore[attr-defined]


def test_long_lines_are_averaged_and_keep_their_mean(tmp_path: Path):
    run = make_run(tmp_path / "run", None)
    steps = [{"kind": "step", "step": k, "epoch": k / 100, "loss": float(k)} for k in range(3000)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    (line,) = by_key(run)["loss"]["series"]  # type: ignore[misc]
    assert len(line["points"]) == MOST_POINTS
    assert sum(y for _, y in line["points"]) / MOST_POINTS == pytest.approx(1499.5)
