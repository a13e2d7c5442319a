"""`carl eval`: every protocol leaves a result that says what it is, and the usual mistakes are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from carl.config import resolve
from carl.data.sources.shapes import make_shapes
from carl.errors import UserError
from carl.evaluation import evaluation_data, prepare
from carl.evaluation.evaluate import evaluate
from carl.evaluation.features import frozen
from carl.evaluation.protocols import PROTOCOLS, EvaluationRequest, Protocol
from carl.evaluation.result_files import to_json
from carl.evaluation.table import table
from carl.evaluation.target import find_target, load_encoder
from carl.methods.carl import CarlOptions
from carl.methods.training_data import load_data_for
from carl.training.plan import PretrainRequest, plan
from carl.training.run import carry_out
from tests.conftest import Run

SHORT = {"linear": 2, "transfer": 2, "semi": 2, "finetune": 1}
SAID = {
    "protocol", "kind", "data", "data_fingerprint", "seed", "seeds", "epochs", "hyperparameters", "encoder_hash",
    "accuracy", "per_seed", "seconds", "machine", "made", "train_images", "test_images", "normalisation",
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, small_data: Path) -> Path:
    layer = {
        "data": {"source": str(small_data)},
        "model": {"backbone": "test_resnet"},
        "method": {"name": "carl", "prototypes": 10},
        "train": {"epochs": 1, "batch_size": 16, "keep_epochs": [1]},
        "probe": {"every": 0},
        "log": {"report": False},
    }
    path = tmp_path_factory.mktemp("runs") / "run"
    carry_out(plan(PretrainRequest(layer, path)))
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def other_data(tmp_path: Path) -> Path:
    (images, labels), (test, truth) = make_shapes(60, 7), make_shapes(30, 8)
    np.savez(tmp_path / "other.npz", x_train=images // 2, y_train=labels, x_test=test // 2, y_test=truth)
    return tmp_path / "other.npz"


def results(folder: Path) -> list[Path]:
    return sorted(folder.glob("results/*.json"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_leaves_a_result_that_says_what_it_is(protocol: str, run: Path, other_data: Path, carl: Run):
    words = ["eval", run, "--protocol", protocol]
    words += ["--epochs", str(SHORT[protocol])] if protocol in SHORT else []
    words += ["--data", other_data] if protocol == "transfer" else []
    done = carl(*words)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    files = results(run)
    assert len(files) == (2 if protocol == "semi" else 1)
    for file in files:
        result = json.loads(file.read_text())
        assert set(result) >= SAID
        assert result["kind"].split(":")[0] == ("cached" if protocol == "linear-cached" else "offline")
        assert result["kind"] in done.stdout
        assert all(0 <= value <= 100 for name, value in result["accuracy"]["trained"].items() if "ARI" not in name)
        assert bool(result["accuracy"]["random"]) == PROTOCOLS[protocol].beside_random
        if "top-1" in result["accuracy"]["trained"]:
            confusion = np.array(result["per_seed"][0]["confusion"])
            assert confusion.sum() == result["test_images"]
            assert len(result["per_seed"][0]["per_class"]) == len(confusion) == 10
    made = [file.read_text() for file in files]
    again = carl(*words)
    assert again.stdout == done.stdout
    assert [file.read_text() for file in files] == made
    assert results(run) == files


@pytest.mark.parametrize(("protocol", "answered"), [("knn", True), ("linear-cached", False)])
def test_results_from_before_the_centre_was_written_down_are_of_whole_images(protocol: str, answered: bool, run: Path):
    evaluate(EvaluationRequest(str(run), protocol))
    (path,) = results(run)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"centre": None, "made": "long ago"}))
    assert (evaluate(EvaluationRequest(str(run), protocol))["made"] == "long ago") == answered


def test_force_repeats_and_other_weights_make_another_result(run: Path):
    def marked() -> bool:
        """Whether the answer is the file that was marked, not a new measurement."""
        return evaluate(EvaluationRequest(str(run), "knn")).get("made") == "long ago"

    first = evaluate(EvaluationRequest(str(run), "knn"))
    (path,) = results(run)
    path.write_text(json.dumps(first | {"made": "long ago"}))
    assert marked()
    evaluate(EvaluationRequest(str(run), "knn", force=True))
    assert not marked()
    path.write_text(json.dumps(first | {"made": "long ago"}))
    save_file(timm.create_model("test_resnet", num_classes=0).state_dict(), run / "encoder.safetensors")
    assert evaluate(EvaluationRequest(str(run), "knn"))["encoder_hash"] != first["encoder_hash"]
    assert not marked()


def test_runs_of_one_name_have_a_result_each_in_one_folder(run: Path, tmp_path: Path):
    other = tmp_path / "elsewhere" / run.name
    shutil.copytree(run, other)
    save_file(timm.create_model("test_resnet", num_classes=0).state_dict(), other / "encoder.safetensors")
    for each in (run, other):
        evaluate(EvaluationRequest(str(each), "knn", out=tmp_path / "results"))
    assert len(list((tmp_path / "results").iterdir())) == 2


def test_data_too_large_to_look_for_test_images_in_are_said_to_be(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluation_data, "MOST_BYTES", 10)
    result = evaluate(EvaluationRequest(str(run), "knn"))
    assert any("too large to look for test images" in line for line in table(result))


def test_seeds_give_mean_and_deviation(run: Path, carl: Run):
    result = evaluate(EvaluationRequest(str(run), "semi", fraction=0.2, seeds=3, epochs=1))
    single = [entry["accuracy"]["top-1"] for entry in result["per_seed"]]
    assert result["seeds"] == [0, 1, 2]
    assert result["accuracy"]["trained"]["top-1"]["mean"] == pytest.approx(np.mean(single), abs=0.02)
    assert result["accuracy"]["trained"]["top-1"]["std"] == pytest.approx(np.std(single, ddof=1), abs=0.02)
    assert len({tuple(entry["rows"]) for entry in result["per_seed"]}) == 3
    shown = carl("eval", run, "--protocol", "semi", "--fraction", "0.2", "--seeds", "3", "--epochs", "1").stdout
    assert "3 seeds" in shown
    assert "±" in shown
    knn = evaluate(EvaluationRequest(str(run), "knn", seeds=2))
    assert knn["accuracy"]["trained"]["20"]["std"] == 0


def test_the_rows_of_a_part_are_places_in_the_data_with_its_classes(run: Path, small_data: Path):
    result = evaluate(EvaluationRequest(str(run), "semi", fraction=0.2, epochs=1))
    labels = np.load(small_data)["y_train"]
    rows = result["per_seed"][0]["rows"]
    assert len(rows) == len(set(rows)) == result["per_seed"][0]["labels"]
    wanted = [max(1, round(0.2 * count)) for count in np.bincount(labels)]
    assert np.bincount(labels[rows]).tolist() == wanted


@pytest.mark.parametrize("protocol", ["linear", "finetune"])
def test_an_interrupted_evaluation_leaves_nothing(protocol: str, run: Path, carl: Run, monkeypatch: pytest.MonkeyPatch):
    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "show_progress", interrupt)
    before = sorted(run.rglob("*"))
    assert carl("eval", run, "--protocol", protocol, "--epochs", "30").returncode == 130
    assert sorted(run.rglob("*")) == before


def test_an_evaluation_that_changes_the_encoder_is_void(run: Path, monkeypatch: pytest.MonkeyPatch):
    def meddle(encoder: torch.nn.Module, *given: Any) -> Any:
        encoder.train()(torch.rand(4, 3, 32, 32))

    monkeypatch.setitem(PROTOCOLS, "knn", Protocol("meddling", "offline", meddle))
    with pytest.raises(RuntimeError, match="changed the encoder"):
        evaluate(EvaluationRequest(str(run), "knn"))
    assert not results(run)


def test_normalisation_and_size_are_those_of_the_runs_training_data(run: Path, other_data: Path):
    own = evaluate(EvaluationRequest(str(run), "knn"))
    other = evaluate(EvaluationRequest(str(run), "knn", data=str(other_data)))
    assert other["normalisation"] == own["normalisation"]
    assert other["image_size"] == own["image_size"]
    assert other["data_fingerprint"] != own["data_fingerprint"]
    (run / "data.json").unlink()  # as runs were before
    again = evaluate(EvaluationRequest(str(run), "knn", data=str(other_data), force=True))
    assert again["normalisation"] == own["normalisation"]


def test_files_of_a_run_know_their_encoder_and_other_files_are_told_it(
    run: Path, tmp_path: Path, small_data: Path, carl: Run
):
    whole = evaluate(EvaluationRequest(str(run), "knn"))
    kept = evaluate(EvaluationRequest(str(run / "encoders" / "epoch-0001.safetensors"), "knn"))
    assert kept["accuracy"] == whole["accuracy"]
    assert kept["encoder_hash"] == whole["encoder_hash"]
    (tmp_path / "away").mkdir()
    alone = shutil.copy(run / "encoder.safetensors", tmp_path / "away")
    assert "--data" in carl("eval", alone).stderr
    refused = carl("eval", alone, "--data", small_data, "--backbone", "resnet18", "--out", "out")
    assert refused.returncode == 2
    assert "does not fit the encoder" in refused.stderr
    assert not (tmp_path / "out").exists()
    done = carl("eval", alone, "--data", small_data, "--out", "out")
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "out").iterdir()
    found = json.loads(file.read_text())
    assert found["accuracy"]["trained"] == whole["accuracy"]["trained"]
    assert found["normalisation"]["from"] == "of the weights (the file encoder.safetensors)"


@pytest.mark.parametrize("wrapped", [False, True])
def test_timm_state_dicts_load_with_their_classifier_and_wrappings(wrapped: bool, tmp_path: Path, small_data: Path):
    model = timm.create_model("test_resnet", num_classes=7)
    state = {f"module.{key}": value for key, value in model.state_dict().items()} if wrapped else model.state_dict()
    torch.save({"state_dict": state}, tmp_path / "model.pth")
    request = EvaluationRequest(str(tmp_path / "model.pth"), data=str(small_data), backbone="test_resnet")
    prepared = prepare.prepare(request)
    encoder = load_encoder(prepared.target, prepared.facts, torch.device("cpu"))
    model.reset_classifier(0)
    images = torch.rand(2, 3, 32, 32)
    with frozen(model), frozen(encoder):
        assert torch.allclose(model(images), encoder(images), atol=1e-5)


def test_a_file_with_the_small_stem_is_recognised(tmp_path: Path, small_data: Path):
    from carl.config import ModelConfig
    from carl.models.encoders import build_encoder

    small = build_encoder(ModelConfig(stem="small"), 3, 32)
    torch.save(small.state_dict(), tmp_path / "small.pth")
    target = find_target(EvaluationRequest(str(tmp_path / "small.pth"), data=str(small_data)))
    assert target.config.model.stem == "small"


def test_random_weights_are_asked_for_by_name_and_labelled(tmp_path: Path, small_data: Path, carl: Run):
    words = ["eval", "random", "--data", small_data, "--backbone", "test_resnet", "--out", "out"]
    done = carl(*words)
    assert done.returncode == 0, done.stderr
    assert "random weights" in done.stdout
    result = json.loads(next((tmp_path / "out").glob("random-test_resnet-knn-small-*.json")).read_text())
    assert set(result["accuracy"]) == {"random"}
    assert result["weights"] == "random"
    several = evaluate(
        EvaluationRequest("random", seeds=2, data=str(small_data), backbone="test_resnet", out=tmp_path / "out")
    )
    assert several["per_seed"][0]["accuracy"] == result["per_seed"][0]["accuracy"]
    assert several["per_seed"][0]["accuracy"] != several["per_seed"][1]["accuracy"]


def test_a_run_without_weights_is_never_random(run: Path, carl: Run):
    (run / "encoder.safetensors").unlink()
    done = carl("eval", run)
    assert done.returncode == 2
    assert "no encoder.safetensors" in done.stderr
    (run / "encoder.safetensors").write_bytes(b"no weights")
    assert "holds no weights" in carl("eval", run).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--protocol", "transfer"], ["--data"]),
        (["--protocol", "transfer", "--data", "OWN", "--epochs", "1"], ["trained on", "linear"]),
        (["--fraction", "0.1"], ["--fraction", "semi"]),
        (["--protocol", "semi", "--fraction", "1.5"], ["1.5", "between 0 and 1"]),
        (["--epochs", "3"], ["--epochs", "knn"]),
        (["--protocol", "linear", "--epochs", "0"], ["--epochs 0"]),
        (["--protocol", "linear", "--rates", "30,x"], ["30,x", "numbers"]),
        (["--protocol", "linear", "--rates", "-1"], ["-1", "above 0"]),
        (["--rates", "3"], ["--rates", "linear"]),
        (["--seeds", "0"], ["--seeds 0"]),
        (["--centre", "1.2"], ["--centre 1.2", "0.875"]),
        (["--centre", "0"], ["--centre 0", "0.875"]),
        (["--backbone", "resnet18"], ["resnet18", "test_resnet"]),
        (["--set", "model.stem=small"], ["model.stem", "data.*"]),
        (["--data", "unlabelled.npy"], ["unlabelled.npy", "has no labels", "--data"]),
        (["--data", "grey.npz"], ["1 channels", "3"]),
    ],
)
def test_what_cannot_be_measured_is_one_line_with_a_remedy(
    words: list[str], said: list[str], run: Path, tmp_path: Path, small_data: Path, carl: Run
):
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), np.uint8)
    np.save(tmp_path / "unlabelled.npy", images)
    labels = np.arange(40) % 4
    np.savez(tmp_path / "grey.npz", x_train=images[..., :1], y_train=labels, x_test=images[..., :1], y_test=labels)
    done = carl("eval", run, *[str(small_data) if word == "OWN" else word for word in words])
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("carl: ")
    assert done.stderr.count("\n") == 1
    for word in said:
        assert word in done.stderr, done.stderr
    assert not results(run)


def test_test_images_that_were_trained_on_are_counted(run: Path, tmp_path: Path, carl: Run):
    images, labels = make_shapes(60, 3)
    np.savez(tmp_path / "leak.npz", x_train=images, y_train=labels, x_test=images[:12], y_test=labels[:12])
    done = carl("eval", run, "--data", "leak.npz")
    assert "12 test images are among the training images" in done.stdout


def test_unlabelled_images_among_the_labelled_are_left_out(run: Path, tmp_path: Path):
    (images, labels), (test, truth) = make_shapes(80, 3), make_shapes(40, 4)
    labels[::2] = -1
    np.savez(tmp_path / "part.npz", x_train=images, y_train=labels, x_test=test, y_test=truth)
    result = evaluate(EvaluationRequest(str(run), "semi", data=str(tmp_path / "part.npz"), fraction=0.5, epochs=1))
    assert result["train_images"] == 40
    assert all(labels[row] != -1 for row in result["per_seed"][0]["rows"])


def test_stl10_is_judged_on_its_own_labelled_splits(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from carl.data.dataset import Dataset, PackedImages, Split, Statistics

    def split(count: int, seed: int, labelled: bool = True) -> Split:
        images, labels = make_shapes(count, seed)
        return Split(PackedImages(images), labels if labelled else None)

    splits = {"train": split(50, 0), "test": split(30, 1), "unlabeled": split(90, 2, labelled=False)}
    names = tuple("abcdefghij")
    stl10 = Dataset("stl10", splits, Statistics((0.5,) * 3, (0.2,) * 3), "mark", names)
    monkeypatch.setattr(prepare, "load_data_for", lambda config: stl10)
    result = evaluate(EvaluationRequest(str(run), "knn", data="stl10"))
    assert (result["train_images"], result["test_images"]) == (50, 30)


def test_rows_of_numbers_are_one_line_and_read_back_the_same():
    result = {"a": [[1, 2], [3, 4]], "b": [0.5, None, -1e-05], "c": ["x", "y"], "d": []}
    text = to_json(result)
    assert json.loads(text) == result
    assert "[1, 2]" in text
    assert "[0.5, null, -1e-05]" in text


def test_features_are_kept_for_the_next_seed_and_extracted_anew_for_another_encoder(run: Path):
    evaluation = prepare.prepare(EvaluationRequest(str(run), "linear-cached", seeds=3))
    data, encoders = evaluation.data, [timm.create_model("test_resnet", num_classes=0) for _ in range(2)]
    first = data.cached_features(encoders[0], data.train)
    assert data.cached_features(encoders[0], data.train) is first
    assert len(data.cached_features(encoders[0], data.test)) == len(data.test)
    assert not torch.equal(data.cached_features(encoders[1], data.train), first)


def test_data_of_one_name_in_two_places_have_a_result_each(tmp_path: Path, run: Path):
    for number in range(2):
        (images, labels), (test, truth) = make_shapes(60, number), make_shapes(30, 8)
        (tmp_path / str(number)).mkdir()
        file = tmp_path / str(number) / "data.npz"
        np.savez(file, x_train=images, y_train=labels, x_test=test, y_test=truth)
        evaluate(EvaluationRequest(str(run), "knn", data=str(file)))
    assert len(list((run / "results").glob("knn-data-*.json"))) == 2


def test_a_shortened_protocol_and_the_number_of_labels_are_said(run: Path, carl: Run):
    done = carl("eval", run, "--protocol", "semi", "--fraction", "0.2", "--epochs", "1")
    assert "1 epochs instead of the protocol's 50" in done.stdout
    labels = json.loads(results(run)[0].read_text())["per_seed"][0]["labels"]
    assert f"20% of the labels ({labels})" in done.stdout


def test_values_can_be_chosen_without_the_test_images(small_data: Path, tmp_path: Path, carl: Run):
    arguments = [
        "pretrain", small_data, "--backbone", "test_resnet", "--epochs", "1", "--batch-size", "16",
        "--prototypes", "10", "--out", tmp_path / "run", "--set", "log.report=false", "--set", "data.held_out=24",
    ]  # fmt: skip
    assert carl(*arguments).returncode == 0
    said = carl("eval", tmp_path / "run", "--protocol", "knn")
    assert said.returncode == 0
    assert "72 / 24 held-out training images" in said.stdout
    assert (tmp_path / "run/results/knn-small-held-out-24.json").is_file()
    # The last word is the test images'.
    said = carl("eval", tmp_path / "run", "--protocol", "knn", "--set", "data.held_out=0")
    assert "96 / 32 images" in said.stdout
    assert len(results(tmp_path / "run")) == 2


@pytest.mark.parametrize("protocol", ["knn", "linear-cached", "linear", "cluster"])
def test_the_centre_is_another_measurement(protocol: str, run: Path, carl: Run):
    short = ["--epochs", "1"] if protocol == "linear" else []
    assert carl("eval", run, "--protocol", protocol, *short).returncode == 0
    said = carl("eval", run, "--protocol", protocol, *short, "--centre", "0.5")
    assert said.returncode == 0
    assert "the central 50% of each side" in said.stdout
    centre, usual = sorted((json.loads(path.read_text()) for path in results(run)), key=lambda r: r["centre"])
    assert (centre["centre"], usual["centre"]) == (0.5, 0.875 if protocol.startswith("linear") else 1)
    assert usual["accuracy"] != centre["accuracy"]
    assert carl("eval", run, "--protocol", protocol, *short, "--centre", usual["centre"]).returncode == 0
    assert len(results(run)) == 2  # the protocol's own centre, said aloud, is the same measurement


def test_held_out_images_are_spread_over_the_classes_and_never_trained_on(small_data: Path):
    config = resolve([{"data": {"source": str(small_data), "held_out": 20, "limit": 50}}], CarlOptions)
    whole = load_data_for(resolve([{"data": {"source": str(small_data)}}], CarlOptions))
    dataset = load_data_for(config)
    assert dataset.test is not None
    assert (len(dataset.train), len(dataset.test)) == (50, 20)
    assert evaluation_data.count_shared(dataset.train, dataset.test) == 0
    assert evaluation_data.count_shared(whole.train, dataset.test) == 20  # of the training images, none of the test's
    pixels = whole.train.images.pixels
    places = [np.flatnonzero((pixels == image).all((1, 2, 3)))[0] for image in dataset.test.images.pixels]
    assert set(np.diff(places)) <= {4, 5}


@pytest.mark.parametrize("count", [96, 500])
def test_holding_out_everything_is_an_error(count: int, small_data: Path):
    with pytest.raises(UserError, match=f"data.held_out={count} leaves none of the 96"):
        load_data_for(resolve([{"data": {"source": str(small_data), "held_out": count}}], CarlOptions))
