"""Runs that start from an encoder: the start is the baseline, and the better of the two encoders is kept."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import adapt as benchmark
from safetensors.torch import load_file
from scipy.stats import sem

from carl.config import merge
from carl.methods.build import build_method
from carl.records.adaptation import KNN, KNN_AMONG, STABILITY, STABILITY_ERROR, Adaptation, adaptation
from carl.records.metrics import Record
from carl.reporting.run_reader import Run as RunRead
from carl.reporting.run_reader import read_run
from carl.reporting.verdict import judge, scores, tiles
from carl.training.plan import PretrainRequest, plan
from carl.training.probe import Probe
from tests.conftest import Run
from tests.training.test_run import begin, records, wait_for_step

TINY = ["--backbone", "test_resnet", "--set", "probe.images=32", "--set", "probe.train_images=64"]
OLD = ["--preset", "robust", "--epochs", "2", "--batch-size", "16", *TINY]  # what --init meant before there was `adapt`


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, small_data: Path) -> Path:
    """An encoder that knows the images well: it was trained with their labels."""
    folder = tmp_path_factory.mktemp("good")
    arguments = ["--method", "supervised", "--epochs", "40", "--batch-size", "16", "--set", "log.report=false", *TINY]
    process = begin(folder, small_data, *arguments, "--out", "good")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return folder / "good"


@pytest.fixture(scope="module")
def worse(good: Path, small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with the values of old, and what it said."""
    folder = tmp_path_factory.mktemp("worse")
    process = begin(folder, small_data, "--init", good, *OLD, "--out", "run")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return folder / "run", output


def same(first: Path, second: Path) -> bool:
    a, b = load_file(first), load_file(second)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_run_that_made_the_encoder_worse_says_so_and_keeps_the_start(worse: tuple[Path, str], good: Path):
    run, said = worse
    assert "the adapted encoder is worse than the one it started from: kNN probe" in said
    assert "encoder.safetensors is the one it started from; the adapted one is encoders/last.safetensors" in said
    assert "--method simclr --preset adapt changes less of the encoder" in said
    assert same(run / "encoder.safetensors", good / "encoder.safetensors")
    assert same(run / "encoders" / "start.safetensors", good / "encoder.safetensors")
    assert not same(run / "encoders" / "last.safetensors", good / "encoder.safetensors")


def test_the_report_says_that_the_result_is_worse_than_the_start(worse: tuple[Path, str]):
    run = read_run(worse[0], "run")
    verdict = judge(run)
    assert verdict.tone != "good"
    assert verdict.but == "but not better than the encoder it started from"
    assert verdict.figures.startswith("The adapted encoder is worse than the one it started from: kNN probe")
    assert any("--method simclr --preset adapt" in step.command for step in verdict.steps)
    (probed,) = scores(run)
    assert probed.baseline_name == "the start"
    assert probed.gain is not None
    assert probed.gain < 0
    page = (worse[0] / "report.html").read_text()
    assert "but not better than the encoder it started from" in page
    assert "the encoder it started from" in run.gallery_note or "start_neighbours" in run.gallery


def test_evaluation_lays_the_start_beside_the_encoder(worse: tuple[Path, str], carl: Run):
    run, _ = worse
    kept = carl("eval", run, "--protocol", "knn")
    assert kept.returncode == 0, kept.stderr
    assert "the start" in kept.stdout
    assert "+0.00" in kept.stdout  # it is the start
    last = carl("eval", run / "encoders" / "last.safetensors", "--protocol", "knn", "--out", "results")
    assert last.returncode == 0, last.stderr
    (file,) = Path("results").glob("*.json")
    result = json.loads(file.read_text())
    assert result["accuracy"]["trained"].keys() == result["accuracy"]["start"].keys()
    assert result["accuracy"]["trained"] != result["accuracy"]["start"]
    assert result["accuracy"]["random"]
    assert "(random weights: " in last.stdout
    assert result["intervals"]["gain_over_start"].keys() == result["accuracy"]["trained"].keys()


def test_the_model_card_of_a_run_that_kept_its_start_does_not_call_it_trained(worse: tuple[Path, str], carl: Run):
    done = carl("export", worse[0], "--to", "safetensors", "-o", "kept.safetensors")
    assert done.returncode == 0, done.stderr
    card = Path("kept.safetensors.md").read_text()
    assert card.startswith("# test_resnet, which training on `small.npz` with carl made no better")
    assert "these are the weights that the run started from" in card
    assert "learned without labels" not in card


def test_a_run_without_its_head_is_used_without_prototypes(worse: tuple[Path, str], small_data: Path):
    from carl.use.encoder import open_encoder

    encoder = open_encoder(worse[0])
    assert not encoder.has_prototypes
    assert not (worse[0] / "head.safetensors").exists()


def test_adapt_is_the_preset_of_a_run_with_init_and_keeps_statistics_and_first_layers(
    good: Path, small_data: Path, tmp_path: Path, carl: Run
):
    done = carl("pretrain", small_data, "--init", good, *TINY, "--epochs", "1", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "simclr (adapt preset)" in done.stdout
    assert "simclr adapts the encoder" in done.stdout
    assert "--method carl is possible too" in done.stdout
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["model"]["keep_statistics"]
    trained = load_file(next(f for f in (tmp_path / "run" / "encoders" / "last.safetensors",
                                         tmp_path / "run" / "encoder.safetensors") if f.exists()))  # fmt: skip
    start = load_file(tmp_path / "run" / "encoders" / "start.safetensors")
    changed = {name for name in start if not torch.equal(start[name], trained[name])}
    assert changed
    assert all(name.startswith("layer4") for name in changed)
    assert not any("running" in name for name in changed)


@pytest.mark.parametrize("method", ["carl", "simclr"])
def test_without_labels_the_stability_of_neighbours_decides(
    good: Path, small_data: Path, tmp_path: Path, carl: Run, method: str
):
    arguments = ["--init", good, "--method", method, *TINY, "--epochs", "1", "--labels", "none", "--out", "run"]
    done = carl("pretrain", small_data, *arguments)
    assert done.returncode == 0, done.stderr
    found = adaptation(records(tmp_path / "run"))
    assert found is not None
    assert found.measure == STABILITY
    assert found.in_words() in done.stdout
    first, *_, last = (record for record in records(tmp_path / "run") if record["kind"] == "probe")
    before, after = ([20 * int(digit) for digit in probe["neighbours_shared"]] for probe in (first, last))
    assert (found.start, found.trained) == (pytest.approx(np.mean(before)), pytest.approx(np.mean(after)))
    assert found.error == pytest.approx(sem(np.subtract(after, before)))
    assert (tmp_path / "run" / "encoders" / "last.safetensors").exists() != found.is_better
    assert "before training: neighbour stability" in done.stdout


@pytest.mark.slow
def test_killed_and_resumed_an_adapting_run_ends_with_the_same_files(
    good: Path, small_data: Path, tmp_path: Path, carl: Run
):
    arguments = [small_data, "--init", good, *TINY, "--epochs", "3", "--batch-size", "16", "--set", "log.every=2"]
    assert carl("pretrain", *arguments, "--out", "whole").returncode == 0
    process = begin(tmp_path, *arguments, "--out", "run")
    wait_for_step(tmp_path / "run", 8, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = carl("pretrain", "--resume", "run")
    assert done.returncode == 0, done.stderr
    for file in sorted((tmp_path / "whole").rglob("*.safetensors")):
        assert file.read_bytes() == (tmp_path / "run" / file.relative_to(tmp_path / "whole")).read_bytes(), file.name
    assert adaptation(records(tmp_path / "whole")) == adaptation(records(tmp_path / "run"))


def test_the_probe_counts_the_images_that_became_right_and_wrong(worse: tuple[Path, str]):
    first, *_, last = (record for record in records(worse[0]) if record["kind"] == "probe")
    judged = 32
    assert last["knn_gained"] - last["knn_lost"] == pytest.approx((last[KNN] - first[KNN]) / 100 * judged)
    assert last["knn_lost"] > 0


@pytest.mark.parametrize(
    ("gained", "lost", "chance"),
    [(5, 3, True), (4, 0, True), (6, 0, False), (40, 20, False), (20, 40, False), (33, 30, True), (None, None, False)],
)
def test_a_difference_that_few_images_make_is_called_chance(gained: int | None, lost: int | None, chance: bool):
    gain = 1.0 if gained is None or lost is None else float(gained - lost)
    found = Adaptation(KNN, 50.0, 50.0 + gain, gained, lost)
    assert found.may_be_chance == chance
    assert ("That may be chance" in found.in_words()) == chance


@pytest.mark.parametrize(("gain", "chance"), [(0.1, True), (-0.5, True), (1.1, False), (-1.1, False), (0.0, False)])
def test_without_labels_too_a_difference_within_its_error_is_called_chance(gain: float, chance: bool):
    found = Adaptation(STABILITY, 32.9, 32.9 + gain, error=0.55)
    assert found.may_be_chance == chance
    words = f"That may be chance: the difference of {abs(gain):.2f} points has a standard error of 0.55"
    assert (words in found.in_words()) == chance


def test_the_report_calls_a_difference_in_stability_chance_and_reads_runs_that_do_not_know_its_error(
    worse: tuple[Path, str], tmp_path: Path, carl: Run
):
    run = Path(shutil.copytree(worse[0], tmp_path / "run"))
    told = [{key: value for key, value in record.items() if key != KNN} for record in records(run)]
    last = next(record for record in reversed(told) if record["kind"] == "probe")
    last[STABILITY] = next(record for record in told if record["kind"] == "probe")[STABILITY] + 0.5
    for error in (0.5, None):
        last[STABILITY_ERROR] = error
        (run / "metrics.jsonl").write_text("".join(json.dumps(without_none(record)) + "\n" for record in told))
        verdict = judge(read_run(run, "run"))
        assert ("That may be chance" in verdict.figures) == (error is not None)
        assert (verdict.but == "but not clearly better than the encoder it started from") == (error is not None)
        done = carl("pretrain", "--resume", "run")
        assert done.returncode == 0, done.stderr
        assert ("That may be chance: the difference of 0.50 points" in done.stdout) == (error is not None)
        assert ("the report shows the neighbours that both find" in done.stdout) == (error is not None)


def without_none(record: Record) -> Record:
    return {key: value for key, value in record.items() if value is not None}


@pytest.fixture(scope="module")
def only_training_images(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled images without test images, as in a folder of classes."""
    arrays = np.load(small_data)
    file = tmp_path_factory.mktemp("unsplit") / "unsplit.npz"
    np.savez(file, images=arrays["x_train"], labels=arrays["y_train"])
    return file


def test_labels_without_test_images_judge_by_the_nearest_other_training_images(
    good: Path, only_training_images: Path, tmp_path: Path, carl: Run
):
    done = carl("pretrain", only_training_images, "--init", good, *TINY, "--epochs", "1", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "before training: kNN among the training images" in done.stdout
    found = adaptation(records(tmp_path / "run"))
    assert found is not None
    assert found.measure == KNN_AMONG
    assert found.in_words() in done.stdout
    first, *_, last = (record for record in records(tmp_path / "run") if record["kind"] == "probe")
    assert last["knn_gained"] - last["knn_lost"] == pytest.approx(found.gain / 100 * 64)
    assert last["knn_voters"] == 64
    assert KNN not in first
    run = read_run(tmp_path / "run", "run")
    verdict = judge(run)
    assert "how often the nearest other training images name the right label" in verdict.figures
    if found.is_better:
        assert any("--set data.held_out=9" in step.command for step in verdict.steps)
    refused = carl("eval", "run", "--protocol", "knn")
    assert refused.returncode == 2
    assert "--set data.held_out=N" in refused.stderr


def test_the_training_images_judge_each_other_only_if_their_labels_say_something_new(
    good: Path, small_data: Path, only_training_images: Path, tmp_path: Path
):
    images = np.load(only_training_images)["images"]
    np.savez(tmp_path / "one.npz", images=images, labels=np.zeros(len(images), dtype=int))

    def judges_itself(source: Path, method: str, init: Path | None) -> bool:
        model = {"backbone": "test_resnet", "init": None if init is None else str(init)}
        layer = {"data": {"source": str(source)}, "method": {"name": method}, "model": model}
        ready = plan(PretrainRequest(layer))
        return Probe(ready.config, ready.dataset, ready.views, torch.device("cpu")).judges_itself

    assert judges_itself(only_training_images, "simclr", good)
    assert not judges_itself(only_training_images, "simclr", None)  # there is nothing to compare with
    assert not judges_itself(only_training_images, "supervised", good)  # it has learned these labels
    assert not judges_itself(small_data, "simclr", good)  # there are test images
    assert not judges_itself(tmp_path / "one.npz", "simclr", good)  # one class, so every encoder is right


CARLS_OWN = {"prototypes": 50}


@pytest.mark.parametrize(
    ("asked", "init", "method", "preset"),
    [
        ({}, True, "simclr", "adapt"),
        ({}, False, "carl", "robust"),
        ({"name": "carl"}, True, "carl", "adapt"),
        ({"name": "scan"}, True, "scan", "adapt"),
        ({"preset": "adapt"}, True, "simclr", "adapt"),
        ({"preset": "robust"}, True, "carl", "robust"),
        ({"preset": "robust", "name": "simclr"}, True, "simclr", "robust"),
        ({"temperature": 0.1}, True, "simclr", "adapt"),  # both have one
        (CARLS_OWN, True, "carl", "adapt"),
    ],
)
def test_simclr_adapts_an_encoder_unless_another_method_is_named_or_meant(
    good: Path, small_data: Path, asked: dict[str, object], init: bool, method: str, preset: str
):
    model: dict[str, object] = {"init": str(good)} if init else {"backbone": "test_resnet"}
    planned = plan(PretrainRequest({"data": {"source": str(small_data)}, "method": asked, "model": model}))
    assert (planned.config.method.name, planned.config.method.preset) == (method, preset)
    told = "simclr adapts the encoder" in " ".join(planned.notes)
    assert told == (method == "simclr" and "name" not in asked)


def test_the_method_of_a_run_stays_when_it_is_resumed_with_the_command_that_began_it(
    worse: tuple[Path, str], good: Path, small_data: Path
):
    layer = {"data": {"source": str(small_data)}, "model": {"init": str(good)}}
    resumed = plan(PretrainRequest(layer, out=worse[0], resume="auto"))
    assert resumed.config.method.name == "carl"
    assert not any("adapts the encoder" in note for note in resumed.notes)


def test_the_rates_are_those_that_were_measured(good: Path, small_data: Path):
    def rate(method: str) -> float:
        layer = {"data": {"source": str(small_data)}, "method": {"name": method}, "model": {"init": str(good)}}
        return plan(PretrainRequest(layer)).config.optim.lr

    assert (rate("carl"), rate("simclr"), rate("scan")) == (3e-4, 1e-4, 1e-4)


def test_the_report_of_a_run_that_kept_its_start_measures_the_adapted_encoder_and_says_whose_figures_are_whose(
    worse: tuple[Path, str],
):
    run = dataclasses.replace(read_run(worse[0], "run"), results=[])
    commands = [step.command for step in judge(run).steps]
    assert f"carl eval {worse[0] / 'encoders' / 'last.safetensors'}" in commands
    assert f"carl eval {worse[0]}" not in commands
    (probed,) = scores(run)
    assert probed.whose == "adapted, not kept"
    assert any("adapted, not kept" in tile.note for tile in tiles(run))
    assert "adapted, not kept" in (worse[0] / "report.html").read_text()


def test_once_the_adapted_encoder_is_measured_the_report_does_not_ask_for_it_again(
    worse: tuple[Path, str], tmp_path: Path, carl: Run
):
    shutil.copytree(worse[0], tmp_path / "run")
    assert carl("eval", "run", "--protocol", "knn").returncode == 0  # the kept one, which is the start

    def asks() -> bool:
        return any(step.command.startswith("carl eval") for step in judge(read_run(tmp_path / "run", "run")).steps)

    assert asks()
    assert carl("eval", "run/encoders/last.safetensors", "--protocol", "knn").returncode == 0
    assert not asks()


def test_the_report_says_how_many_images_really_voted(worse: tuple[Path, str]):
    run = read_run(worse[0], "run")
    many = dataclasses.replace(run, config={**run.config, "probe": {**run.config["probe"], "train_images": 2000}})
    (probed,) = (score for score in scores(many) if score.protocol == "probe")
    assert probed.how.startswith("online: 64 training images vote")
    uncounted = [{key: value for key, value in record.items() if key != "knn_voters"} for record in run.records]
    (probed,) = (score for score in scores(dataclasses.replace(many, records=uncounted)) if score.protocol == "probe")
    assert probed.how.startswith("online: 96 training images vote")  # all that there are


def test_a_run_with_a_start_is_not_told_that_its_batch_norm_has_not_settled(worse: tuple[Path, str]):
    run = read_run(worse[0], "run")
    gallery = {**run.gallery, "grouping": np.str_("prototypes"), "group": np.zeros(4, dtype=int)}
    last = {**run.of_kind("probe")[-1], "step": 12, "used": 90, "prototypes": 128}
    few = dataclasses.replace(run, gallery=gallery, records=[*run.records[:-1], last, run.records[-1]])

    def is_told(found: RunRead) -> bool:
        return any("have not settled yet" in step.advice for step in judge(found).steps)

    assert not is_told(few)
    from_random = {**run.config, "model": {key: v for key, v in run.config["model"].items() if key != "init"}}
    assert is_told(dataclasses.replace(few, config=from_random))


def test_early_on_only_the_new_head_of_an_encoder_with_a_start_is_seen_by_the_statistics_of_its_batch(
    good: Path, small_data: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[object] = []

    @contextmanager
    def spy(module: object) -> Iterator[None]:
        seen.append(module)
        yield

    monkeypatch.setattr("carl.training.probe.by_batch_statistics", spy)
    for init, whole in ((str(good), False), (None, True)):
        model = {"init": init, "backbone": "test_resnet"}
        layer = {"data": {"source": str(small_data)}, "method": {"name": "carl", "preset": "robust"}, "model": model}
        ready = plan(PretrainRequest(merge([layer])))
        method = build_method(ready.config, ready.facts, torch.device("cpu"))
        Probe(ready.config, ready.dataset, ready.views, torch.device("cpu")).run(method, 1, 5)
        assert seen[0] is (method if whole else method.head)
        seen.clear()


def test_a_result_file_of_the_benchmark_has_the_values_that_a_task_sets():
    settings = benchmark.as_assignments(benchmark.settings_of("tissues", ["probe.images=100"]))
    assert {"views.hue=0.5", "views.brightness=0.8", "probe.images=100", "probe.train_images=800"} <= set(settings)


def test_a_run_whose_difference_may_be_chance_names_the_command_that_measures_more(
    worse: tuple[Path, str], tmp_path: Path, carl: Run
):
    run = Path(shutil.copytree(worse[0], tmp_path / "run"))
    told = records(run)
    last = next(record for record in reversed(told) if record["kind"] == "probe")
    for gained, lost in ((3, 4), (0, 30)):
        last["knn_gained"], last["knn_lost"] = gained, lost
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in told))
        done = carl("pretrain", "--resume", "run")
        assert done.returncode == 0, done.stderr
        assert ("That may be chance: 3 test images became right, and 4 wrong" in done.stdout) == (lost == 4)
        command = "`carl eval run/encoders/last.safetensors` measures both on all test images"
        assert (command in done.stdout) == (lost == 4)


def test_the_report_does_not_praise_a_gain_that_may_be_chance(worse: tuple[Path, str]):
    run = read_run(worse[0], "run")
    last = {**run.of_kind("probe")[-1], "verdict": "healthy", KNN: 99.0, "knn_gained": 5, "knn_lost": 3}
    others = [record for record in run.records if record["kind"] != "probe"]
    lucky = dataclasses.replace(run, records=[run.of_kind("probe")[0], last, *others])
    verdict = judge(lucky)
    assert verdict.tone == "warn"
    assert verdict.but == "but not clearly better than the encoder it started from"
    assert "5 test images became right, and 3 wrong" in verdict.figures


def test_labels_decide_before_anything_else_and_a_run_without_probes_decides_nothing():
    first = {"kind": "probe", "epoch": 0, KNN: 50.0, STABILITY: 20.0}
    last = {"kind": "probe", "epoch": 4, KNN: 49.0, STABILITY: 30.0}
    assert adaptation([first, last]) == Adaptation(KNN, 50.0, 49.0)
    assert not Adaptation(KNN, 50.0, 50.0).is_better
    without = [{key: value for key, value in record.items() if key != KNN} for record in (first, last)]
    found = adaptation(without)
    assert found is not None
    assert found.is_better
    assert adaptation([first]) is None
    assert adaptation([last, last]) is None


def test_a_method_without_values_for_an_encoder_that_exists_says_so_before_it_trains(good: Path, small_data: Path):
    def notes(method: str) -> str:
        layer = {"data": {"source": str(small_data)}, "method": {"name": method}, "model": {"init": str(good)}}
        return " ".join(plan(PretrainRequest(layer)).notes)

    assert "byol has no preset for an encoder that exists" in notes("byol")
    assert "--method simclr has one (adapt)" in notes("byol")
    assert not any("no preset for an encoder" in notes(method) for method in ("carl", "simclr", "supervised"))


def test_the_report_of_a_run_that_kept_its_start_does_not_advise_to_judge_what_was_trained(worse: tuple[Path, str]):
    run = read_run(worse[0], "run")
    probes = [{key: value for key, value in record.items() if key != KNN} for record in run.of_kind("probe")]
    probes[-1] |= {STABILITY: 0.0}
    others = [record for record in run.records if record["kind"] != "probe"]
    unlabelled = dataclasses.replace(run, records=[*probes, *others], results=[])
    advice = {step.advice: step.command for step in judge(unlabelled).steps}
    assert "carl search" in advice["Find images like one of yours with the encoder that is kept:"]
    assert not any("Judge by eye" in text or "train longer" in text for text in advice)
    assert not any("--resume" in command for command in advice.values())
