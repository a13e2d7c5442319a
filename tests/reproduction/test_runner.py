"""Jobs are run once, resumed, split, add to each other's outcomes and survive each other's failures."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from carl import files
from carl.child_process import start_python
from carl.errors import UserError
from carl.reproduction import data_paths, jobs, runner
from carl.reproduction.cost import Estimate
from carl.reproduction.jobs import Job, Measure, collapsed_at, read_outcome
from carl.reproduction.recipes import find_experiments
from carl.reproduction.runner import Shard, job_state, run_jobs, time_left
from carl.reproduction.scales import CPU, SMOKE
from tests.conftest import Run
from tests.reproduction.outcomes import invented


def tiny(job: str, source: Path, **method: object) -> Job:
    layer = {
        "data": {"source": str(source)},
        "model": {"backbone": "test_resnet"},
        "method": {**({} if "name" in method else {"name": "carl", "prototypes": 10}), **method},
        "train": {"epochs": 1, "batch_size": 32},
        "probe": {"images": 32, "train_images": 64},
        "log": {"report": False},
    }
    return Job(job, layer, (Measure("knn"),))


def test_finished_jobs_are_skipped_and_a_failed_one_does_not_stop_the_rest(small_data, tmp_path):
    said: list[str] = []
    bad, good = tiny("bad", small_data, prototypes=1), tiny("good", small_data)
    failed = run_jobs([bad, good], tmp_path, said.append, own_process=False)
    assert list(failed) == ["bad"]
    assert (job_state(tmp_path, bad), job_state(tmp_path, good)) == ("failed", "done")
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
    assert job_state(tmp_path, more) != "done"
    run_jobs([more], tmp_path, lambda line: None, own_process=False)
    outcome = read_outcome(tmp_path, more)
    assert outcome is not None
    assert set(outcome["measures"]) == {"knn", "linear-cached"}
    assert (tmp_path / "job" / "encoder.safetensors").stat().st_mtime_ns == before


def test_kept_outcomes_count_where_nothing_is_of_the_job_yet(small_data, tmp_path):
    kept, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    done, failed, other = (tiny(name, small_data) for name in ("a/done", "failed", "other"))
    for job, found in (
        (done, invented(done)),
        (failed, runner.failed_outcome(failed, "no disk")),
        (other, invented(tiny("other", small_data, prototypes=11))),
    ):
        files.write_json(jobs.kept_file(kept, job.name), found)
    assert jobs.adopt_outcomes([done, failed, other], kept, elsewhere) == 1
    assert read_outcome(elsewhere, done) is not None
    assert [job_state(elsewhere, job) for job in (failed, other)] == ["waiting", "waiting"]
    assert jobs.adopt_outcomes([done, failed, other], kept, elsewhere) == 0  # what is there stays


def test_a_failure_never_replaces_what_is_kept_and_does_not_keep_it_from_being_used(small_data, tmp_path):
    job = tiny("job", small_data)
    done = invented(job)
    jobs.keep_outcome(job, done, tmp_path / "results")
    jobs.keep_outcome(job, runner.failed_outcome(job, "no disk"), tmp_path / "results")
    files.write_json(jobs.outcome_file(tmp_path / "runs", job), runner.failed_outcome(job, "no disk"))
    assert job_state(tmp_path / "runs", job) == "failed"
    assert jobs.adopt_outcomes([job], tmp_path / "results", tmp_path / "runs") == 1
    assert read_outcome(tmp_path / "runs", job) == json.loads(json.dumps(done))


def test_figures_of_another_way_to_measure_are_measured_again(small_data, tmp_path):
    job = tiny("job", small_data)
    run_jobs([job], tmp_path, lambda line: None, own_process=False)
    found = read_outcome(tmp_path, job)
    assert found is not None
    found["measures"]["knn"]["hyperparameters"]["temperature"] = 0.5
    files.write_json(jobs.outcome_file(tmp_path, job), found)
    assert job_state(tmp_path, job) == "measures missing"


def test_an_outcome_without_its_weights_is_not_mixed_with_those_of_new_ones(small_data, tmp_path, monkeypatch):
    job = tiny("job", small_data)
    run_jobs([job], tmp_path / "here", lambda line: None, own_process=False)
    found = read_outcome(tmp_path / "here", job)
    assert found is not None
    found["measures"]["knn"]["encoder_hash"] = "of weights that are gone"
    files.write_json(jobs.kept_file(tmp_path, job.name), found)
    assert jobs.adopt_outcomes([job], tmp_path, tmp_path / "there") == 1
    more = Job(job.name, job.layer, (*job.measures, Measure("linear-cached")))
    with monkeypatch.context() as patched:  # cut off after training
        patched.setattr(jobs, "measured", lambda *_: 1 / 0)
        assert run_jobs([more], tmp_path / "there", lambda line: None, own_process=False)
    run_jobs([more], tmp_path / "there", lambda line: None, own_process=False)
    outcome = read_outcome(tmp_path / "there", more)
    assert outcome is not None
    assert len({measure["encoder_hash"] for measure in outcome["measures"].values()}) == 1
    assert outcome["measures"]["knn"]["encoder_hash"] != "of weights that are gone"


def test_an_outcome_without_its_weights_stays_until_there_is_a_new_one(small_data, tmp_path, monkeypatch):
    job = tiny("job", small_data)
    files.write_json(jobs.outcome_file(tmp_path, job), invented(job, 41.0))
    more = Job(job.name, job.layer, (*job.measures, Measure("linear-cached")))
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "carry_out", lambda _: 1 / 0)
        assert run_jobs([more], tmp_path, lambda line: None, own_process=False)
    found = read_outcome(tmp_path, more)
    assert found is not None
    assert found["measures"]["knn"]["accuracy"]["trained"] == {"20": 41.0}
    run_jobs([more], tmp_path, lambda line: None, own_process=False)
    found = read_outcome(tmp_path, more)
    assert found is not None
    assert found["measures"]["knn"]["accuracy"]["trained"]["20"] != 41.0


def test_an_outcome_of_what_a_preset_was_before_does_not_count(small_data, tmp_path):
    job = tiny("job", small_data)
    found = invented(job)
    files.write_json(jobs.outcome_file(tmp_path, job), found)
    assert job_state(tmp_path, job) == "done"
    for section, key, value in (("optim", "lr", 9.9), ("method", "targets", "average"), ("method", "gone", 1)):
        other = {**found, "config": {**found["config"], section: {**found["config"][section], key: value}}}
        files.write_json(jobs.outcome_file(tmp_path, job), other)
        assert job_state(tmp_path, job) == "waiting", key
    del found["config"]["method"]["targets"]  # a value that came later, with what was always done as its default
    found["config"]["train"]["device"] = "cuda:7"
    files.write_json(jobs.outcome_file(tmp_path, job), found)
    assert job_state(tmp_path, job) == "done"


def test_a_job_in_its_own_process_reports_its_error(small_data, tmp_path):
    said: list[str] = []
    run_jobs([tiny("bad", small_data, prototypes=1)], tmp_path, said.append, own_process=True)
    assert "prototypes=1" in said[-1]


def test_shards_share_all_jobs_without_overlap():
    whole = [Job(str(number), {}, ()) for number in range(10)]
    parts = [Shard.parse(f"{i}/3").take(whole) for i in (1, 2, 3)]
    assert sorted(job.name for part in parts for job in part) == sorted(job.name for job in whole)


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "2", "a/b", "/", "1/0", "²/4"])
def test_bad_shards_are_refused(text):
    with pytest.raises(UserError, match="2/4"):
        Shard.parse(text)


def test_the_epoch_of_a_collapse_is_the_first_of_its_unbroken_row():
    verdicts = ["collapsed", "healthy", "collapsed", "collapsed"]
    probes = [{"epoch": epoch, "verdict": verdict} for epoch, verdict in enumerate(verdicts, start=1)]
    assert collapsed_at(probes) == 3
    assert collapsed_at(probes[:2]) is None


@pytest.fixture
def named(small_data: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root in which the small data go by the name of cifar10."""
    monkeypatch.setattr(data_paths, "FILES", {"cifar10": ("cifar10-train.npz",)})
    root = tmp_path_factory.mktemp("data-root")
    shutil.copy(small_data, root / "cifar10-train.npz")
    return root


def test_experiments_add_to_each_others_outcomes(small_data, tmp_path):
    """`linear` and `transfer` ask different things of one run, and keep different encoders of it."""
    one = tiny("job", small_data)
    run_jobs([one], tmp_path, lambda line: None, own_process=False)
    layer = {**one.layer, "train": {**one.layer["train"], "keep_epochs": [1]}, "log": {"report": False, "every": 3}}
    other = Job(one.name, layer, (Measure("linear-cached"),))
    run_jobs([other], tmp_path, lambda line: None, own_process=False)
    found = read_outcome(tmp_path, one)
    assert found is not None
    assert set(found["measures"]) == {"knn", "linear-cached"}
    assert (job_state(tmp_path, one), job_state(tmp_path, other)) == ("done", "done")


def test_the_place_of_the_data_is_no_part_of_a_job(named, tmp_path):
    """Finished on one machine, it is finished on all; moved data are followed when there is more to measure."""
    job = tiny("job", Path("cifar10"))
    assert run_jobs([job], tmp_path, lambda line: None, own_process=False, data_root=named) == {}
    outcome = read_outcome(tmp_path, job)
    assert outcome is not None
    assert (outcome["data"], outcome["images"], outcome["measures"]["knn"]["data"]) == ("cifar10", 96, "cifar10")
    assert str(named) not in json.dumps(outcome)
    moved = named.rename(named.with_name("moved"))
    more = Job(job.name, job.layer, (*job.measures, Measure("linear-cached")))
    assert job_state(tmp_path, more) == "measures missing"
    assert run_jobs([more], tmp_path, lambda line: None, own_process=False, data_root=moved) == {}
    assert job_state(tmp_path, more) == "done"


def test_figures_of_images_seen_otherwise_are_measured_again_and_the_rest_is_kept(small_data, tmp_path):
    job = Job("job", tiny("job", small_data).layer, (Measure("knn"), Measure("linear-cached")))
    run_jobs([job], tmp_path, lambda line: None, own_process=False)
    path = tmp_path / "job/job.json"
    old = json.loads(path.read_text())
    for measure in old["measures"].values():
        measure |= {"centre": None, "seconds": -1}  # as from before it was written down: whole images
    path.write_text(json.dumps(old))
    assert job_state(tmp_path, job) == "measures missing"
    run_jobs([job], tmp_path, lambda line: None, own_process=False)
    found = read_outcome(tmp_path, job)
    assert found is not None
    assert found["measures"]["knn"]["seconds"] == -1
    assert (found["measures"]["linear-cached"]["centre"], job_state(tmp_path, job)) == (0.875, "done")


def test_other_images_under_the_same_name_are_refused(named, tmp_path):
    job = tiny("job", Path("cifar10"))
    run_jobs([job], tmp_path, lambda line: None, own_process=False, data_root=named)
    with np.load(named / "cifar10-train.npz") as whole:
        np.savez(named / "cifar10-train.npz", **{key: 255 - whole[key] if "x" in key else whole[key] for key in whole})
    more = Job(job.name, job.layer, (*job.measures, Measure("linear-cached")))
    failed = run_jobs([more], tmp_path, lambda line: None, own_process=False, data_root=named)
    assert "have changed" in failed["job"]
    assert job_state(tmp_path, job) == "done"


def test_the_data_root_holds_for_other_data_too(monkeypatch, named):
    asked = {}

    def evaluate(request):
        asked.update(data=request.data, settings=request.settings)
        return dict.fromkeys(
            (
                "protocol",
                "kind",
                "epochs",
                "hyperparameters",
                "centre",
                "data_fingerprint",
                "train_images",
                "test_images",
            )
        ) | {"accuracy": {}, "encoder_hash": "", "seconds": 1.0, "data": request.data}

    monkeypatch.setattr(jobs, "evaluate", evaluate)
    run = tiny("job", Path("cifar100"))
    jobs.measured(run, Measure("transfer", data="cifar10", limit=50), Path("run"), named)
    assert asked == {"data": str(named / "cifar10-train.npz"), "settings": {"data": {"limit": 50}}}
    found = jobs.measured(run, Measure("transfer", data="stl10", limit=50), Path("run"), named)
    assert asked == {"data": "stl10", "settings": {"data": {"limit": 50, "root": str(named)}}}
    assert found["data"] == "stl10"


def finished(job: Job, root: Path, **changes) -> None:
    files.write_json(jobs.outcome_file(root, job), {**invented(job), **changes})


def refuse(job: Job, root: Path, data_root: Path | None = None) -> None:
    raise UserError("no such data")


def test_a_finished_outcome_is_never_replaced_by_a_failure(monkeypatch, tmp_path):
    job = find_experiments("claims", SMOKE)[0].jobs[0]
    finished(job, tmp_path)
    more = Job(job.name, job.layer, (*job.measures, Measure("linear-cached")))
    monkeypatch.setattr(runner, "run_job", refuse)
    assert run_jobs([more], tmp_path, lambda line: None, own_process=False) == {job.name: "no such data"}
    assert job_state(tmp_path, job) == "done"


def test_any_error_of_a_job_lets_the_rest_run(monkeypatch, tmp_path):
    ran = []

    def run(job: Job, root: Path, data_root: Path | None = None) -> None:
        ran.append(job.name)
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(runner, "run_job", run)
    failed = run_jobs([Job("a", {}, ()), Job("b", {}, ())], tmp_path, lambda line: None, own_process=False)
    assert ran == ["a", "b"]
    assert failed == dict.fromkeys("ab", "ZeroDivisionError: division by zero")


def test_a_run_is_not_stretched_to_another_length(small_data, tmp_path):
    job = tiny("job", small_data)
    run_jobs([job], tmp_path, lambda line: None, own_process=False)
    longer = Job(job.name, {**job.layer, "train": {**job.layer["train"], "epochs": 2}}, job.measures)
    failed = run_jobs([longer], tmp_path, lambda line: None, own_process=False)
    assert "a run of 1 epochs, and 2 are asked for" in failed["job"]
    assert job_state(tmp_path, job) == "done"


def test_the_time_left_does_not_count_untrained_encoders_and_failures(tmp_path):
    done, failed, waiting = find_experiments("prior", CPU)[0].jobs[:3]
    random = next(job for job in find_experiments("linear", CPU)[0].jobs if not job.trains)
    together = [random, done, failed, waiting]
    assert time_left(together, [waiting], tmp_path) is None
    finished(random, tmp_path)
    files.write_json(jobs.outcome_file(tmp_path, failed), runner.failed_outcome(failed, "no"))
    assert time_left(together, [waiting], tmp_path) is None
    finished(done, tmp_path)
    assert time_left(together, [waiting, random], tmp_path) == pytest.approx(600 + 2 * 30)


def test_the_time_left_is_what_is_expected_corrected_by_what_was(tmp_path):
    done, small, large = find_experiments("prior", CPU)[0].jobs[:3]
    together = [done, small, large]
    training = {done.name: 330.0, small.name: 100.0, large.name: 1000.0}
    expected = Estimate(training, dict.fromkeys(training, 0.0), {}, training)
    assert time_left(together, together, tmp_path, expected) == pytest.approx(1430)
    finished(done, tmp_path)  # in 660 s
    assert time_left(together, [small, large], tmp_path, expected) == pytest.approx(2 * 1100)
    begun = replace(
        expected, training={**training, large.name: 0.0}, evaluation={**expected.evaluation, large.name: 7.0}
    )
    assert time_left(together, [small, large], tmp_path, begun) == pytest.approx(2 * 107)  # and not its whole 1000


DAMAGES = {
    "machine": None,
    "made": 5,
    "images": "many",
    "config": {"method": 5},
    "layer": {"data": 5},
    "measures": {"knn": None},
}


@pytest.mark.parametrize("name", DAMAGES)
def test_an_outcome_with_a_damaged_part_is_none(name, small_data, tmp_path):
    job = tiny("job", small_data)
    files.write_json(jobs.outcome_file(tmp_path, job), invented(job) | {name: DAMAGES[name]})
    assert job_state(tmp_path, job) == "waiting"
    lacking = {key: value for key, value in invented(job).items() if key != name}
    files.write_json(jobs.outcome_file(tmp_path, job), lacking)
    assert job_state(tmp_path, job) == "waiting"


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"state": "done"}', '{"state": "done", "layer": null, "measures": {}}', '{"layer": {}}']
)
def test_a_damaged_outcome_is_none(text, tmp_path):
    job = Job("a", {}, ())
    path = jobs.outcome_file(tmp_path, job)
    path.parent.mkdir()
    path.write_text(text)
    assert job_state(tmp_path, job) == "waiting"
    jobs.kept_file(tmp_path, job.name).parent.mkdir()
    jobs.kept_file(tmp_path, job.name).write_text(text)
    assert jobs.adopt_outcomes([job], tmp_path, tmp_path) == 0


def test_two_processes_are_never_at_one_job(small_data, tmp_path):
    """The second touches nothing of the first's, goes on with the rest, and this is no failure."""
    job, said = tiny("job", small_data), []
    with jobs.job_lock(job, tmp_path) as alone:
        assert alone
        before = sorted(tmp_path.rglob("*"))
        for own_process in (False, True):
            assert run_jobs([job], tmp_path, said.append, own_process) == {}
            assert "another process is at this run" in said[-1]
            assert [path for path in sorted(tmp_path.rglob("*")) if "logs" not in path.parts] == before
    assert run_jobs([job], tmp_path, lambda line: None, own_process=False) == {}
    assert job_state(tmp_path, job) == "done"


def test_who_merely_looks_at_a_job_keeps_no_one_from_it(small_data, tmp_path):
    job = tiny("job", small_data)
    assert not jobs.is_in_progress(job, tmp_path)
    assert not (tmp_path / job.name).exists()
    with jobs.job_lock(job, tmp_path) as alone:
        assert alone
        assert jobs.is_in_progress(job, tmp_path)
    looking, looked = threading.Event(), threading.Event()

    def look() -> None:
        with files.only_holder(tmp_path / job.name / jobs.JOB_LOCK):
            looking.set()
            looked.wait(0.05)

    thread = threading.Thread(target=look)
    thread.start()
    looking.wait()
    with jobs.job_lock(job, tmp_path) as alone:
        assert alone
    thread.join()


def test_machine_and_date_stay_those_of_the_training(small_data, tmp_path):
    job = tiny("job", small_data)
    run_jobs([job], tmp_path, lambda line: None, own_process=False)
    found = read_outcome(tmp_path, job)
    assert found is not None
    files.write_json(
        jobs.outcome_file(tmp_path, job), {**found, "made": "2020-01-01", "machine": {"processor": "another"}}
    )
    more = Job(job.name, job.layer, (*job.measures, Measure("linear-cached")))
    run_jobs([more], tmp_path, lambda line: None, own_process=False)
    found = read_outcome(tmp_path, more)
    assert found is not None
    assert (found["made"], found["machine"]["processor"]) == ("2020-01-01", "another")
    assert "linear-cached" in found["measures"]


def test_a_terminal_shows_what_the_job_said_last(monkeypatch, tmp_path):
    shown, seen = [], tmp_path / "seen"

    def show(text: str) -> None:
        shown.append(text)
        if "epoch 1/2" in text:
            seen.touch()

    monkeypatch.setattr(runner, "show_line", show)
    waiting = f"while not os.path.exists({str(seen)!r}): time.sleep(0.05)"
    child(monkeypatch, f"import os, time; print('epoch 1/2', flush=True)\n{waiting}")
    assert run_jobs([Job("a", {}, ())], tmp_path, lambda line: None, own_process=True) == {}
    assert "  epoch 1/2" in shown
    assert shown[-1] == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "8 epochs will take about 1m40s (64 images/s); --epochs 5 would take 1m03s",
            "; training all 3 runs that are left, about 6m40s",
        ),
        ("the rest will take about 1m40s (64 images/s)", ""),  # which says nothing about the other runs
    ],
)
def test_the_first_run_says_how_long_it_and_all_runs_take_in_a_log_too(line: str, said: str, monkeypatch, tmp_path):
    seen, lines = tmp_path / "seen", []
    waiting = f"while not os.path.exists({str(seen)!r}): time.sleep(0.05)"
    child(monkeypatch, f"import os, time; print({line!r}, flush=True)\n{waiting}")

    def say(text: str) -> None:
        lines.append(text)
        if "will take about" in text:
            seen.touch()

    todo = [Job(name, {"method": {}}, (), cost) for name, cost in (("a", 1.0), ("b", 1.0), ("c", 2.0))]
    assert run_jobs(todo, tmp_path, say, own_process=True) == {}
    assert lines[:3] == ["[1/3] a", f"  {line}{said}", "[2/3] b"]


def child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have jobs' processes run this instead."""
    monkeypatch.setattr(runner, "start_python", lambda arguments, **rest: start_python(["-c", code], **rest))


def send_once_it_is_there(path: Path, signum: int) -> None:
    """Send this process a signal as soon as a file has been written."""
    while not path.exists() or not path.read_text():
        time.sleep(0.05)
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_ends_the_jobs_process_and_the_rest(name, monkeypatch, tmp_path, request):
    signum = getattr(signal, name)
    number = tmp_path / "process"
    child(monkeypatch, f"import os, time; open({str(number)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    if name == "SIGINT":  # ignored where the tests run in the background of a shell
        before = signal.signal(signum, signal.default_int_handler)
        request.addfinalizer(lambda: signal.signal(signum, before))
    threading.Thread(target=send_once_it_is_there, args=(number, signum)).start()
    with pytest.raises((KeyboardInterrupt, SystemExit)) as ended:
        run_jobs([Job("a", {}, ()), Job("b", {}, ())], tmp_path, lambda line: None, own_process=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)
    assert isinstance(ended.value, KeyboardInterrupt) or ended.value.code == 128 + signum
    assert job_state(tmp_path, Job("a", {}, ())) == "waiting"


def test_what_an_earlier_attempt_said_is_not_this_ones_error(monkeypatch, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.txt").write_text("carl: an old error\n")
    child(monkeypatch, "import sys; sys.exit(3)")
    failed = run_jobs([Job("a", {}, ())], tmp_path, lambda line: None, own_process=True)
    assert "old error" not in failed["a"]
    assert "code 3" in failed["a"]


def test_speed_counts_the_clustering_before_each_epoch_and_no_probes():
    steps = [{"kind": "step", "step": step, "images_per_second": 100.0} for step in (10, 20)]
    records = [*steps, {"kind": "probe", "step": 20, "epoch": 1}]
    assert jobs.images_per_second(records, [], batch_size=10) == 100.0
    assert jobs.images_per_second(records, [1.0, 1.0], batch_size=10) == 50.0  # 200 images in 2 s and 2 s
    assert jobs.clustering_seconds([0.0, 1.0, 3.0]) == 2.0
    assert jobs.clustering_seconds([]) is None


def test_the_clustering_of_pcl_is_timed(small_data, tmp_path):
    job = tiny("job", small_data, name="pcl", clusters=[4], warmup_epochs=0, restarts=1, queue=32)
    assert run_jobs([job], tmp_path, lambda line: None, own_process=False) == {}
    found = read_outcome(tmp_path, job)
    assert found is not None
    assert found["clustering_seconds"] > 0
    assert found["images_per_second"] > 0


@pytest.mark.slow
def test_comparison_prints_every_method_and_goes_on_where_it_was(carl: Run, small_data):
    settings = ["--set", "model.backbone=test_resnet", "--set", "train.batch_size=32", "--set", "probe.images=32"]
    arguments = ["compare", small_data, "--methods", "carl,simclr", "--epochs", "1", "--out", "side", *settings]
    first = carl(*arguments)
    assert first.returncode == 0, first.stderr
    for name in (
        "carl",
        "simclr",
        "linear %",
        "kNN %",
        "Shared by all methods",
        "Each method's own",
        "comparison.html",
    ):
        assert name in first.stdout
    assert "|---" not in first.stdout
    assert "| carl | 1 |" in Path("side/comparison.md").read_text()
    again = carl(*arguments)
    assert "2 of 2 runs are finished already" in again.stdout
    rows = json.loads(Path("side/comparison.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["carl", "simclr"]
    assert all(row["knn_random"] > 0 and row["images_per_second"] > 0 for row in rows)
    page = Path("side/comparison.html").read_text()
    assert "No clear difference" in page or "is ahead of" in page or "No winner" in page


def test_comparison_refuses_unknown_methods_in_one_line(carl: Run, small_data):
    ended = carl("compare", small_data, "--methods", "carl,simclrr")
    assert ended.returncode == 2
    assert "simclr" in ended.stderr
    assert ended.stderr.count("\n") == 1
