"""Jobs are run once, resumed, split, and survive each other's failures; tables cannot be mistaken for the paper's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carl.errors import UserError
from carl.experiments.jobs import Job, Measure, collapsed_at, read_outcome
from carl.experiments.outputs import comma_separated, fill, health_table, latex, markdown
from carl.experiments.recipes import Cell, Plan, find_plans
from carl.experiments.runner import Shard, run_jobs, state
from carl.experiments.scales import CPU, PAPER, SMOKE
from tests.conftest import Run


def tiny(name: str, source: Path, **method: object) -> Job:
    layer = {
        "data": {"source": str(source)},
        "model": {"backbone": "test_resnet"},
        "method": {"name": "carl", "prototypes": 10, **method},
        "train": {"epochs": 1, "batch_size": 32},
        "probe": {"images": 32, "train_images": 64},
        "log": {"report": False},
    }
    return Job(name, layer, (Measure("knn"),))


def test_finished_jobs_are_skipped_and_a_failed_one_does_not_stop_the_rest(small_data, tmp_path):
    said: list[str] = []
    bad, good = tiny("bad", small_data, prototypes=1), tiny("good", small_data)
    failed = run_jobs([bad, good], tmp_path, said.append, own_process=False)
    assert [job.name for job in failed] == ["bad"]
    assert (state(tmp_path, bad), state(tmp_path, good)) == ("failed", "done")
    assert any("prototypes=1" in line for line in said)
    outcome = read_outcome(tmp_path, good)
    assert outcome is not None
    assert outcome["measures"]["knn"]["accuracy"]["trained"]["20"] > 0
    assert outcome["images_per_second"] > 0
    assert outcome["peak_memory_bytes"] > 10**8
    before = (tmp_path / "good" / "encoder.safetensors").stat().st_mtime_ns
    said.clear()
    run_jobs([good], tmp_path, said.append, own_process=False)
    assert said == ["1 of 1 runs are finished already"]
    assert (tmp_path / "good" / "encoder.safetensors").stat().st_mtime_ns == before


def test_a_job_with_another_measure_measures_it_without_training_again(small_data, tmp_path):
    job = tiny("job", small_data)
    run_jobs([job], tmp_path, lambda line: None, own_process=False)
    before = (tmp_path / "job" / "encoder.safetensors").stat().st_mtime_ns
    more = Job(job.name, job.layer, (*job.measures, Measure("linear-cached")))
    assert state(tmp_path, more) != "done"
    run_jobs([more], tmp_path, lambda line: None, own_process=False)
    outcome = read_outcome(tmp_path, more)
    assert outcome is not None
    assert set(outcome["measures"]) == {"knn", "linear-cached"}
    assert (tmp_path / "job" / "encoder.safetensors").stat().st_mtime_ns == before


def test_a_job_in_its_own_process_reports_its_error(small_data, tmp_path):
    said: list[str] = []
    run_jobs([tiny("bad", small_data, prototypes=1)], tmp_path, said.append, own_process=True)
    assert "prototypes=1" in said[-1]


def test_shards_share_all_jobs_without_overlap():
    jobs = [Job(str(number), {}, ()) for number in range(10)]
    parts = [Shard.parse(f"{i}/3").take(jobs) for i in (1, 2, 3)]
    assert sorted(job.name for part in parts for job in part) == sorted(job.name for job in jobs)


@pytest.mark.parametrize("text", ["0/3", "4/3", "2", "a/b", "/", "1/0"])
def test_bad_shards_are_refused(text):
    with pytest.raises(UserError, match="2/4"):
        Shard.parse(text)


def test_the_epoch_of_a_collapse_is_the_first_of_its_unbroken_row():
    verdicts = ["collapsed", "healthy", "collapsed", "collapsed"]
    probes = [{"epoch": epoch, "verdict": verdict} for epoch, verdict in enumerate(verdicts, start=1)]
    assert collapsed_at(probes) == 3
    assert collapsed_at(probes[:2]) is None


def outcome(value: float) -> dict:
    config = {"train": {"epochs": 20}, "method": {"prototypes": 10}}
    accuracy = {"trained": {"top-1": value, "top-5": 99.0}, "random": {"top-1": 30.0}}
    return {"state": "done", "measures": {"linear": {"accuracy": accuracy}}, "config": config, "images": 10_000}


def test_a_cell_below_the_papers_scale_cannot_be_mistaken_for_the_papers():
    cells = (Cell("carl", "CIFAR-10 200", ("a", "b"), "linear", ("carl", "CIFAR-10 200")),)
    plan = Plan("linear", "Linear evaluation", "Table 2", (), cells)
    filled = fill(plan, {"a": outcome(40.0), "b": outcome(42.0)})
    text = markdown(plan, CPU, filled)
    assert "78.94 ± 0.52 / *41.00 ± 1.41*" in text
    assert "10,000 images" in text
    assert "20 epochs" in text
    assert "2 seed(s)" in text
    assert "78.94 ± 0.52 / 41.00 ± 1.41" in markdown(plan, PAPER, filled)
    assert "\\textit{41.00 $\\pm$ 1.41}" in latex(plan, CPU, filled)
    assert "linear,cpu,carl,CIFAR-10 200,linear,78.940,0.520,41.000,1.414,2,20,10000" in comma_separated(
        plan, CPU, filled
    )


def test_failed_and_missing_runs_are_said_in_the_table():
    (plan,) = find_plans("prior", SMOKE)
    first = plan.cells[0]
    filled = fill(plan, {first.jobs[0]: {"state": "failed", "measures": {}}})
    text = markdown(plan, SMOKE, filled)
    assert "failed" in text
    assert "/ -" in text


def test_the_health_table_names_the_epoch_of_a_collapse():
    last = {"epoch": 5, "used": 2, "information": 0.1, "knn": 11.0}
    run = {**outcome(20.0), "probes": [last], "verdict": "collapsed", "collapsed_at": 2.0}
    assert "| lambda-0-0 | collapsed | 2 | 2 of 10 | 0.10 | 11.0 |" in health_table({"lambda-0-0": run})


def test_comparison_prints_every_method_and_goes_on_where_it_was(carl: Run, small_data):
    settings = ["--set", "model.backbone=test_resnet", "--set", "train.batch_size=32", "--set", "probe.images=32"]
    arguments = ["compare", small_data, "--methods", "carl,simclr", "--epochs", "1", "--out", "side", *settings]
    first = carl(*arguments)
    assert first.returncode == 0, first.stderr
    for name in ("| carl |", "| simclr |", "images/s", "peak MB"):
        assert name in first.stdout
    again = carl(*arguments)
    assert "2 of 2 runs are finished already" in again.stdout
    rows = json.loads(Path("side/comparison.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["carl", "simclr"]
    assert all(row["knn_random"] > 0 and row["images_per_second"] > 0 for row in rows)


def test_comparison_refuses_unknown_methods_in_one_line(carl: Run, small_data):
    ended = carl("compare", small_data, "--methods", "carl,simclrr")
    assert ended.returncode == 2
    assert "simclr" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.slow
def test_everything_of_the_paper_runs_at_smoke_scale(carl: Run):
    ended = carl("reproduce", "all", "--scale", "smoke", "--out", "repro")
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr
    for name in ("linear", "transfer", "prior", "prototypes", "batch-size", "claims"):
        for ending in ("md", "tex", "csv", "png", "svg"):
            assert (Path("repro/smoke") / f"{name}.{ending}").stat().st_size > 100
    status = carl("reproduce", "all", "--scale", "smoke", "--out", "repro", "--status")
    assert "waiting" not in status.stdout
