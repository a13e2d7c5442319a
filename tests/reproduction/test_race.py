"""The race of methods: what a budget pays for, the clock, and the table of records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks import race, race_lightly, race_records, race_study
from benchmarks.race import ENTRANTS, HELD_OUT, MARGIN, PACE_STEPS, Track

from carl.config import merge
from carl.errors import UserError
from carl.methods import METHODS
from carl.reproduction.jobs import Job, outcome_file
from carl.training.plan import completed
from carl.views.configured import build_views

WHOLE = Track("imagenet", 50_000, None, 3_600_000, "test")
SMALL = Track("imagenet", 64, None, 512, "test", source="shapes", side=24, backbone="test_resnet")
MACHINE = {"device": "cpu", "processor": "a CPU", "cores": 2, "threads": 2, "cuda": None}


@pytest.mark.parametrize("name", list(ENTRANTS))
def test_every_entrant_is_a_configuration_that_a_run_accepts(name: str):
    config = completed(WHOLE.layer(ENTRANTS[name], 0, 1000), WHOLE.facts)
    assert config.method.name in METHODS
    assert (config.train.steps, config.model.stem, config.probe.every) == (1000, "imagenet", config.train.epochs)
    assert all(epoch < config.train.epochs for epoch in config.train.keep_epochs)


def test_passes_pay_for_fewer_steps_the_more_views_an_image_has():
    """20 epochs of 10,000 images in two views are 400,000 passes; a teacher's passes are a third each."""
    track = Track("imagenet", 10_000, None, 400_000, "test")
    assert track.steps_for(ENTRANTS["simclr"], 400_000) == 400_000 // (2 * 256)
    four = merge([ENTRANTS["carl"], {"views": {"count": 4}, "train": {"batch_size": 64}}])
    assert track.steps_for(four, 400_000) == 400_000 // (4 * 64)
    small = merge([ENTRANTS["carl"], {"views": {"small_count": 4, "small_size": 16}}])
    assert track.steps_for(small, 400_000) == 400_000 // (3 * 256)
    assert track.steps_for(ENTRANTS["byol"], 400_000) == int(400_000 / (8 / 3 * 256))


def test_held_out_images_are_not_trained_on():
    track = replace(WHOLE, judge="held-out")
    assert (track.trained, track.data["held_out"]) == (45_000, HELD_OUT)
    assert replace(track, images=10_000).trained == 10_000
    assert replace(track, images=10_000).data["limit_by"] == "first"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(race, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_a_small_race_by_passes_is_run_judged_recorded_and_not_run_again(
    results: Path, tmp_path: Path, small_data: Path
):
    said: list[str] = []
    track = replace(SMALL, source=str(small_data))
    for _ in range(2):
        assert race.race([track], ["simclr"], 1, tmp_path / "runs", None, race.Shard(), said.append) == 0
    assert len([line for line in said if line.startswith("[1/1]")]) == 1
    (kept,) = (results / "jobs").glob("*.json")
    outcome = json.loads(kept.read_text())
    assert outcome["config"]["train"]["steps"] == track.steps_for(ENTRANTS["simclr"], 512)
    text = (results / "records.md").read_text()
    assert "## imagenet stem, 64 images, 512 passes, judged on test images" in text
    assert "--passes 512 --method simclr --images 64 --stem imagenet --judge test" in text


class Clock:
    """Runs without training: each takes `start` seconds and one per step."""

    def __init__(self, start: float) -> None:
        self.now, self.start = 0.0, start
        self.steps: list[int] = []

    def monotonic(self) -> float:
        return self.now

    def run_jobs(self, jobs: Sequence[Job], runs: Path, say: Any, own_process: bool, data_root: Any) -> dict[str, str]:
        (job,) = jobs
        steps = job.layer["train"]["steps"]
        if not job.measures:
            self.now += self.start + steps
            self.steps.append(steps)
        measured = {m.key: {"accuracy": {"trained": {"top-1": 50.0, "20": 40.0}}} for m in job.measures}
        config = completed(job.layer, SMALL.facts)
        outcome = {
            "name": job.name, "state": "done", "layer": job.to_json()["layer"], "measures": measured,
            "images_per_second": float(config.train.batch_size), "machine": MACHINE, "made": "2026-11-18",
            "config": json.loads(config.model_dump_json(exclude_none=True)), "data": "shapes", "images": 64,
            "classes": 10,
        }  # fmt: skip
        path = outcome_file(runs, job)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(outcome))
        return {}


def test_a_race_by_minutes_plans_the_steps_that_fit_and_counts_the_pace_run(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock = Clock(start=30.0)
    monkeypatch.setattr(race, "run_jobs", clock.run_jobs)
    monkeypatch.setattr(race.time, "monotonic", clock.monotonic)
    track = replace(SMALL, minutes=10.0, passes=None)
    for _ in range(2):  # the second finds the first
        race.race([track], ["carl"], 1, tmp_path / "runs", None, race.Shard(), lambda _: None)
    room = int(MARGIN * (600 - (30 + PACE_STEPS) - 30))
    assert clock.steps == [PACE_STEPS, room]
    (kept,) = (results / "jobs").glob("*.json")
    clocked = json.loads(kept.read_text())["race"]
    assert clocked == {"minutes": 10.0, "seconds": 30.0 + PACE_STEPS + 30.0 + room, "pace_seconds": 30.0 + PACE_STEPS}
    assert clocked["seconds"] <= 600
    assert "| 10 minutes |" in (results / "records.md").read_text()


def test_a_budget_that_a_start_uses_up_is_refused(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = Clock(start=300.0)
    monkeypatch.setattr(race, "run_jobs", clock.run_jobs)
    monkeypatch.setattr(race.time, "monotonic", clock.monotonic)
    with pytest.raises(UserError, match=r"10 minutes are too short .* give at least 11 minutes"):
        race.race([replace(SMALL, minutes=10.0, passes=None)], ["carl"], 1, tmp_path, None, race.Shard(), print)


def test_more_than_the_budget_is_no_record_and_the_best_stands_first():
    def outcome(entrant: str, knn: float, seconds: float) -> dict[str, Any]:
        measures = {
            "linear-cached": {"accuracy": {"trained": {"top-1": knn + 5}}},
            "knn": {"accuracy": {"trained": {"20": knn}}},
            "knn-epoch-1": {"accuracy": {"trained": {"20": 30.0}}, "pretraining_epochs": 1},
        }
        name = f"imagenet-stem/10000-images/10-minutes-here/test/{entrant}/seed-0"
        return {
            "name": name,
            "measures": measures,
            "machine": MACHINE,
            "made": "2026-11-18",
            "race": {"seconds": seconds},
        }

    text = race_records.tables([outcome("slow", 40.0, 700.0), outcome("fast", 45.0, 590.0)])
    lines = [line for line in text.splitlines() if line.startswith(("| slow", "| fast"))]
    assert lines[0].startswith("| fast | 1 | 50.00 | 45.00 | 10 minutes | 9.8 minutes | 1: 30.0 | a CPU")
    assert "11.7 minutes, over: no record" in lines[1]


@pytest.mark.slow
def test_lightlys_example_trains_and_is_judged_like_the_others(results: Path, tmp_path: Path, small_data: Path):
    track = replace(SMALL, source=str(small_data), passes=1024)
    found = race.run_entrant(track, race.LIGHTLY, 0, tmp_path / "runs", None, lambda _: None)
    assert found is not None
    assert found["measures"].keys() == {"linear-cached", "knn"}
    assert race.run_entrant(track, race.LIGHTLY, 0, tmp_path / "runs", None, pytest.fail) == found
    assert "| lightly | 1 |" in race_records.tables([found])
    assert race_lightly.BATCH == 256


@pytest.mark.parametrize("part", list(race_study.PARTS))
def test_every_row_of_the_study_is_a_configuration_and_costs_the_same(part: str):
    track = Track("imagenet", 10_000, None, 120_000, "held-out")
    names = set()
    for words, (job,) in race_study.jobs(part, 120_000, 1).items():
        config = completed(job.layer, track.facts)
        sides = [recipe.size for recipe in build_views(config, (0.5,) * 3, (0.5,) * 3).recipes]
        each = METHODS[config.method.name].passes(config, sides) * config.train.batch_size
        assert config.train.steps is not None, words
        assert 120_000 - each < config.train.steps * each <= 120_000, words
        names.add(job.name)
    assert len(names) == len(race_study.PARTS[part])


def test_a_table_of_the_study_has_a_row_for_each_setting_that_is_done():
    measures = {
        "linear-cached": {"accuracy": {"trained": {"top-1": 45.0}}}, "knn": {"accuracy": {"trained": {"20": 40.0}}}
    }  # fmt: skip
    done = {"measures": measures, "verdict": "healthy", "images_per_second": 100.0}
    text = race_study.table("views", 1000, {"two": [done], "four": []})
    assert text.splitlines()[-1] == "| two | 1 | 45.00 | 40.00 | healthy | 100.0 |"
