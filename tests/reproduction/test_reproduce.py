"""The command `carl reproduce`: what it asks of data and folders, what it says, and that all of it runs."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from unittest import mock

import pytest

from carl import files
from carl.config import Config
from carl.data.dataset import Dataset
from carl.errors import UserError
from carl.reproduction import data_paths, jobs, reproduce
from carl.reproduction.recipes import distinct_jobs, find_experiments
from carl.reproduction.reproduce import ReproduceRequest, plan_reproduction
from carl.reproduction.scales import CPU, SMOKE
from tests.conftest import Run
from tests.reproduction.outcomes import invented


def test_the_papers_scale_refuses_data_that_are_not_the_papers(carl: Run, small_data, tmp_path, monkeypatch):
    monkeypatch.setattr(data_paths, "FILES", {"cifar10": ("cifar10-train.npz",)})
    shutil.copy(small_data, tmp_path / "cifar10-train.npz")
    ended = carl("reproduce", "linear", "--scale", "paper", "--data-root", tmp_path)
    assert ended.returncode == 2
    assert "has 96 training images and the paper's cifar10 has 50,000" in ended.stderr


def test_data_that_no_run_can_have_are_an_error_before_the_first(carl: Run, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "load_data_for", refused)
    ended = carl("reproduce", "linear", "--out", "repro", "--data-root", tmp_path)
    assert (ended.returncode, ended.stderr) == (2, "carl: no such data\n")
    assert not (tmp_path / "repro").exists()


def refused(config: Config) -> None:
    raise UserError("no such data")


def test_data_that_some_runs_cannot_have_are_said_before_the_first(monkeypatch, tmp_path):
    def only_cifar10(config: Config) -> Dataset:
        if config.data.source != "cifar10":
            raise UserError("no such data")
        return mock.Mock(training_images=10_000)

    monkeypatch.setattr(reproduce, "load_data_for", only_cifar10)
    said: list[str] = []
    experiments = find_experiments("all", CPU)
    reproduce.check_data(distinct_jobs(experiments), None, CPU, said.append)
    assert said == ["25 of 57 runs will fail because cifar100 is missing: no such data"]


def test_a_shard_has_a_status_and_a_dry_run_of_its_own_and_nothing_is_written(carl: Run, tmp_path):
    whole = find_experiments("prior", CPU)[0].jobs
    files.write_json(jobs.kept_file(tmp_path / "repro/cpu", whole[0].name), invented(whole[0]))
    before = sorted(tmp_path.rglob("*"))
    ended = carl("reproduce", "prior", "--out", "repro", "--status", "--shard", "1/10")
    assert ended.stdout == "prior: 1 done of 1 runs\n"
    ended = carl("reproduce", "all", "--out", "repro", "--status", "--shard", "20/57")
    assert "linear: none of 0 runs" in ended.stdout
    ended = carl("reproduce", "prior", "--dry-run", "--shard", "2/10")
    assert ended.stdout.startswith("prior: Weight of the prior (Figure 2, section 4.1 of the paper), 1 runs")
    assert "lambda-2-2" in ended.stdout
    assert "lambda-1-1" not in ended.stdout
    assert sorted(tmp_path.rglob("*")) == before


def test_a_part_without_runs_says_so(carl: Run):
    ended = carl("reproduce", "prior", "--status", "--shard", "11/11")
    assert ended.stdout == "--shard 11/11 has no runs: there are only 10 in all\n"


def test_what_is_finished_is_kept_and_shown_when_the_rest_is_cut_off(monkeypatch, tmp_path):
    (experiment,) = find_experiments("claims", SMOKE)
    job = experiment.jobs[0]

    def stopped(*_: object, **named: object) -> None:
        files.write_json(jobs.outcome_file(tmp_path / "runs/smoke", job), invented(job, 43.21))
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "run_jobs", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce.reproduce(ReproduceRequest("claims", "smoke", out=tmp_path), print)
    assert jobs.kept_file(tmp_path / "smoke", job.name).is_file()
    assert "43.21" in (tmp_path / "smoke/claims.md").read_text()


def test_the_status_says_which_run_a_process_is_at(carl: Run, tmp_path):
    job = find_experiments("prior", CPU)[0].jobs[1]
    with jobs.job_lock(job, tmp_path / "repro/runs/cpu"):
        ended = carl("reproduce", "prior", "--out", "repro", "--status")
    assert ended.stdout == f"prior: 9 waiting, 1 running of 10 runs\n  running: {job.name}\n"


def test_tables_wait_for_another_shard_to_have_written_its_own(monkeypatch, tmp_path):
    """Outcomes are read and written in one go: what another finished meanwhile is in them."""
    work = plan_reproduction(ReproduceRequest("claims", "smoke", out=tmp_path))
    job, runs = work.jobs[0], work.runs
    runs.mkdir(parents=True)
    write = threading.Thread(target=reproduce.write_results, args=(work,))
    with files.only_holder(runs / ".tables.lock"):
        write.start()
        time.sleep(0.2)
        assert not (work.results / "claims.md").exists()
        files.write_json(jobs.outcome_file(runs, job), invented(job, 43.21))
    write.join()
    assert "43.21" in (work.results / "claims.md").read_text()


def test_the_status_needs_no_data(carl: Run, tmp_path):
    job = find_experiments("prior", CPU)[0].jobs[0]
    files.write_json(jobs.outcome_file(tmp_path / "repro/runs/cpu", job), invented(job))
    ended = carl("reproduce", "prior", "--out", "repro", "--status")
    said = ended.stdout.splitlines()
    assert said[:2] == [
        "prior: 1 done, 9 waiting of 10 runs",
        "  waiting: cifar10/carl/lambda-2-2/20-epochs/seed-0",
    ]
    assert carl("reproduce", "linear", "--out", "repro", "--status").stdout == "linear: 19 waiting of 19 runs\n"


@pytest.mark.slow
def test_everything_of_the_paper_runs_at_smoke_scale(carl: Run):
    ended = carl("reproduce", "all", "--scale", "smoke", "--out", "repro")
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr
    for name in ("linear", "transfer", "prior", "prototypes", "batch-size", "claims"):
        for ending in ("md", "tex", "csv", "png", "svg"):
            assert (Path("repro/smoke") / f"{name}.{ending}").stat().st_size > 100
    status = carl("reproduce", "all", "--scale", "smoke", "--out", "repro", "--status")
    assert "waiting" not in status.stdout
