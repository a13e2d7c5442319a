"""The expected cost: each kind of run at its own pace, evaluation included."""

from __future__ import annotations

import json

import pytest

from carl import files
from carl.records.run_directory import RunDirectory
from carl.reproduction import cost
from carl.reproduction.cost import Pace, estimate, measured_pace, passes
from carl.reproduction.jobs import Measure, outcome_file
from carl.reproduction.recipes import distinct_jobs, find_experiments
from carl.reproduction.scales import CPU, PAPER, SMOKE
from tests.reproduction.outcomes import invented


@pytest.fixture
def paces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Supervised at 1000 images/s, all others at 100; the names of the jobs that were timed."""
    timed: list[str] = []

    def fake(job):
        timed.append(job.name)
        return Pace(0.001, 0.0001) if "/supervised/" in job.name else Pace(0.01, 0.0001)

    monkeypatch.setattr(cost, "measured_pace", fake)
    return timed


def test_every_kind_of_run_is_timed_once_and_counts_at_its_own_pace(paces, tmp_path):
    jobs = distinct_jobs(find_experiments("linear", CPU))
    found = estimate(jobs, tmp_path)
    assert len(paces) == 7  # methods; seeds and random weights are no kinds
    slow = sum(job.cost for job in jobs if job.trains and "/supervised/" not in job.name) * 0.01
    assert sum(found.training.values()) >= slow + 10_000 * 20 * 0.001
    assert min(found.evaluation.values()) > 0
    assert set(found.whole) == {job.name for job in jobs}
    assert found.seconds == pytest.approx(sum(found.training.values()) + sum(found.evaluation.values()))


def test_sizes_batches_and_prototypes_are_kinds_of_their_own(paces, tmp_path):
    estimate(distinct_jobs(find_experiments("batch-size", PAPER)), tmp_path)
    assert len(paces) == 5 * 7  # batches and prototypes
    paces.clear()
    estimate(distinct_jobs(find_experiments("linear", PAPER)), tmp_path)
    assert len(paces) == 7 * 3 + 2  # 32, 96 and 64 px; CARL and SwAV have more prototypes on CIFAR-100


def test_what_is_done_of_a_run_is_not_counted_again(paces, tmp_path):
    job = find_experiments("prior", CPU)[0].jobs[0]
    whole = estimate([job], tmp_path)
    assert whole.seconds == whole.whole[job.name] > 2000
    run = RunDirectory(tmp_path / job.name)
    run.path.mkdir(parents=True)
    records = [{"kind": "step", "epoch": 14.8}, {"kind": "probe", "epoch": 15}]
    run.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    run.checkpoint_file.touch()
    run.encoder_file.touch()  # which comes with every checkpoint
    cut_off = estimate([job], tmp_path)
    assert cut_off.training[job.name] == pytest.approx(0.25 * whole.training[job.name])
    assert (cut_off.evaluation, cut_off.whole) == (whole.evaluation, whole.whole)
    run.metrics_file.write_text(json.dumps({"kind": "event", "event": "finished", "epoch": 20}) + "\n")
    found = invented(job)
    del found["measures"]["knn"]
    files.write_json(outcome_file(tmp_path, job), found)
    to_measure = estimate([job], tmp_path)
    assert to_measure.training[job.name] == 0
    assert to_measure.seconds == pytest.approx(0.0001 * passes(job, Measure("knn")))


def test_evaluation_counts_its_epochs():
    job = next(job for job in find_experiments("linear", PAPER)[0].jobs if "cifar10/carl" in job.name)
    assert passes(job, Measure("linear")) == 100 * 50_000 + 10_000
    assert passes(job, Measure("transfer", data="cifar100")) == 50 * 50_000 + 10_000
    assert passes(job, Measure("finetune")) == 50 * 3 * 50_000 + 10_000
    assert passes(job, Measure("semi", fraction=0.1)) == 50 * 3 * 5_000 + 10_000


def test_untrained_encoders_alone_have_a_cost_and_no_speed(tmp_path):
    jobs = [job for job in distinct_jobs(find_experiments("linear", CPU)) if not job.trains]
    found = estimate(jobs, tmp_path)
    assert found.seconds > 0
    assert "images/s" not in found.in_words()


@pytest.mark.parametrize("method", ["supervised", "pcl", "carl"])
def test_a_pace_is_measured_with_the_jobs_own_method(method):
    job = next(job for job in find_experiments("linear", SMOKE)[0].jobs if f"/{method}/" in job.name)
    found = measured_pace(job)
    assert 0 < found.forward < 1
    assert 0 < found.train < 1  # which of them is longer is not tested: on a busy machine a pass may take any time


def test_a_slow_machine_is_not_said_to_stand_still():
    kind = cost.Kind("carl", 96, 256)
    assert (
        "carl 96 px 0.25 images/s" in cost.Estimate({"job": 1.0}, {"job": 1.0}, {kind: Pace(4.0, 1.0)}, {}).in_words()
    )


def test_speeds_of_one_method_and_size_are_said_as_a_range():
    paces = {cost.Kind("carl", 32, 256, count): Pace(1 / speed, 0.001) for count, speed in ((10, 300), (1000, 200))}
    words = cost.Estimate({"job": 1.0}, {"job": 1.0}, paces, {}).in_words()
    assert words.endswith("as measured here now: carl 32 px 200 to 300 images/s")
