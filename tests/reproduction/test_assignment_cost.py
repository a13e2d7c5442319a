"""What choosing prototypes costs: each part is measured, once, when no run is left beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from carl import files
from carl.models.momentum import Queue
from carl.reproduction import assignment_cost, reproduce
from carl.reproduction.assignment_cost import PARTS, Record
from carl.reproduction.jobs import outcome_file
from carl.reproduction.recipes import find_experiments
from carl.reproduction.reproduce import ReproduceRequest, Reproduction, plan_reproduction
from carl.reproduction.scales import CPU, PAPER, SMOKE
from carl.reproduction.tables import write_tables_and_figures
from tests.reproduction.outcomes import MACHINE, invented


@pytest.fixture(scope="module")
def measured() -> Record:
    return assignment_cost.measure(SMOKE, (10, 20), lambda line: None)


def test_every_part_takes_time_for_every_number_of_prototypes(measured):
    assert list(measured["prototypes"]) == ["10", "20"]
    for parts in measured["prototypes"].values():
        assert tuple(parts) == PARTS
        assert all(part["seconds"] > 0 for part in parts.values())
    assert measured["encoder_seconds"] > 0


def test_what_is_held_are_prototypes_queues_and_what_k_means_needs_of_all_images(measured):
    held = {name: part["bytes"] for name, part in measured["prototypes"]["20"].items()}
    row = 128 * 4  # an embedding in float32
    queue = Queue(64, 128)  # half of the 128 images, as their presets have it
    assert held == {
        "CARL, loss": 20 * row,
        "SwAV, codes and loss": 20 * row + 2 * sum(buffer.nbytes for buffer in queue.buffers()),
        "PCL, loss": 0,
        "PCL, embedding all images": 128 * row,
        "PCL, k-means": (5 + 10 + 20) * (row + 4) + 3 * 128 * 8,
        "SimCLR, loss (no prototypes)": 0,
    }


def test_queues_are_full_when_a_loss_is_timed():
    """Codes of an empty queue took three times as long: numbers next to zero are slow."""
    epoch = assignment_cost.Epoch(SMOKE, torch.device("cpu"))
    method = epoch.method("swav", {"prototypes": 10})
    epoch.loss_step(method)()
    queues = [module for module in method.modules() if isinstance(module, Queue)]
    assert [float(queue.filled) for queue in queues] == [1.0, 1.0]


def test_an_epoch_is_that_of_the_scales_runs():
    assert assignment_cost.record_settings(CPU, (10,)) == {
        "images": 10_000,
        "batch": 256,
        "counts": [10],
        "parts": list(PARTS),
    }
    assert assignment_cost.record_settings(PAPER, (10,))["images"] == 50_000
    assert assignment_cost.record_settings(SMOKE, (10,))["batch"] == 32


def test_times_are_medians_of_work_that_takes_turns_without_the_first():
    order: list[str] = []
    now = 0.0

    def work(name: str, *seconds: float) -> None:
        nonlocal now
        order.append(name)
        now += seconds[order.count(name) - 1]

    parts = {"a": lambda: work("a", 64.0, 1.0, 4.0, 16.0), "b": lambda: work("b", 8.0, 2.0, 2.0, 2.0)}
    found = assignment_cost.median_seconds(parts, 3, clock=lambda: now)
    assert order == ["a", "b"] * 4
    assert found == {"a": 4.0, "b": 2.0}


def record(**changes: object) -> Record:
    parts = {name: {"seconds": float(place), "bytes": 1_500_000} for place, name in enumerate(PARTS)}
    made = {
        **assignment_cost.record_settings(SMOKE, (10, 20)),
        "encoder_seconds": 50.0,
        "prototypes": {"10": parts, "20": parts},
    }
    return {**made, "machine": MACHINE, "made": "2026-11-17", **changes}


def test_the_table_has_seconds_their_share_of_the_encoders_and_what_is_held():
    text = assignment_cost.markdown_table(record())
    assert "| | K = 10 | K = 20 |\n|---|---|---|\n| CARL, loss | 0.00 s, 0.0%, 1.5 MB | " in text
    assert "| PCL, k-means | 4.00 s, 8.0%, 1.5 MB | 4.00 s, 8.0%, 1.5 MB |" in text
    assert "An epoch of 128 images in batches of 32, of which the encoder's" in text
    assert "x86_64, 2 cores, 2 threads; 2026-11-17" in text


@pytest.mark.parametrize(
    "damage",
    [
        {"images": 129},
        {"batch": 16},
        {"parts": ["CARL, loss"]},
        {"prototypes": {"10": {}, "20": {}}},
        {"prototypes": []},
        {"encoder_seconds": 0},
        {"encoder_seconds": None},
        {"machine": "here"},
    ],
)
def test_a_record_of_other_settings_or_damaged_does_not_count(damage, tmp_path):
    assignment_cost.write_record(tmp_path, record())
    assert assignment_cost.read_record(tmp_path, SMOKE, (10, 20)) == record()
    assert assignment_cost.read_record(tmp_path, SMOKE, (10,)) is None
    assignment_cost.write_record(tmp_path, record(**damage))
    assert assignment_cost.read_record(tmp_path, SMOKE, (10, 20)) is None


@pytest.mark.parametrize("text", ["", "[]", "null", "7", "{", '"a"'])
def test_a_file_that_is_no_record_does_not_count(text, tmp_path):
    (tmp_path / assignment_cost.FILE).write_text(text)
    assert assignment_cost.read_record(tmp_path, SMOKE, (10, 20)) is None


def claims(folder: Path, done: int | None = None) -> Reproduction:
    """The experiment, with outcomes of so many of its jobs."""
    work = plan_reproduction(ReproduceRequest("claims", "smoke", out=folder))
    for job in work.jobs[:done]:
        files.write_json(outcome_file(work.runs, job), invented(job))
    return work


def test_it_is_measured_once_and_not_while_a_run_is_left(monkeypatch, tmp_path):
    times: list[tuple[int, ...]] = []

    def measure(scale: object, counts: tuple[int, ...], say: object) -> Record:
        times.append(counts)
        return record()

    monkeypatch.setattr(assignment_cost, "measure", measure)
    reproduce.measure_assignment_cost(claims(tmp_path, done=2), print)
    assert times == []
    for _ in range(2):
        reproduce.measure_assignment_cost(claims(tmp_path), print)
    assert times == [(10, 20)]


def test_a_run_that_failed_does_not_keep_it_from_being_measured(monkeypatch, tmp_path):
    work = claims(tmp_path)
    files.write_json(outcome_file(work.runs, work.jobs[0]), invented(work.jobs[0], state="failed"))
    monkeypatch.setattr(assignment_cost, "measure", lambda *_: record())
    reproduce.measure_assignment_cost(work, print)
    assert json.loads((work.results / assignment_cost.FILE).read_text()) == record()


def test_the_table_stands_under_the_claims_alone(tmp_path):
    assignment_cost.write_record(tmp_path, record())
    told = []
    for experiment in find_experiments("all", SMOKE):
        write_tables_and_figures(experiment, SMOKE, {job.name: invented(job) for job in experiment.jobs}, tmp_path)
        if "What choosing prototypes costs" in (tmp_path / f"{experiment.name}.md").read_text():
            told.append(experiment.name)
    assert told == ["claims"]
    assert (tmp_path / "choosing.png").stat().st_size > 1000
    assert "18.0%" in (tmp_path / "choosing.svg").read_text()  # PCL's three parts together: 2 + 3 + 4 of 50 s
