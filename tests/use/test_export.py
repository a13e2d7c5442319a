"""An exported encoder gives the embeddings of its run, in the program it was exported for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

import carl
from carl.data.open import open_images
from carl.models.tiny_maps import ChannelsLastConv2d, TinyMapConv2d
from carl.records.weights_hash import file_hash
from carl.use.embed import embed
from carl.use.embedding_files import embeddings_of
from carl.use.encoder import TrainedModel, load_trained
from carl.use.export import FORMATS, Export, Format
from carl.use.export.export import export, plain_encoder
from carl.use.requests import EmbedOptions
from tests.conftest import Run
from tests.reliability.conftest import listed
from tests.use.conftest import QUICK


@pytest.fixture(scope="module")
def resnet(resnet_run: Path) -> TrainedModel:
    return load_trained(resnet_run)


def features_by(usage: str, images: object) -> np.ndarray:
    """Run the lines that the command prints, as a user would."""
    scope = {"images": images}
    with torch.no_grad():
        exec(usage, scope)
    return np.asarray(scope["features"])


@pytest.mark.parametrize("form", FORMATS)
def test_exported_features_equal_the_embeddings_of_the_run(
    resnet: TrainedModel, folder: Path, pixels: np.ndarray, form: str, tmp_path: Path
):
    embed(resnet, open_images(str(folder)), tmp_path / "e.parquet", options=EmbedOptions(precision="fp32"))
    embeddings = embeddings_of(pq.read_table(tmp_path / "e.parquet"))
    done = export(resnet, form, tmp_path / FORMATS[form].file_name)
    views = resnet.views(pixels)
    features = features_by(done.usage, views.numpy() if form == "onnx" else views)
    np.testing.assert_allclose(features, embeddings, atol=1e-4)
    assert np.abs(embeddings).max() > 0.1


@pytest.mark.parametrize("form", ["timm", "torchvision", "safetensors"])
def test_a_small_stem_and_other_channels_are_exported_too(small_data: Path, form: str, tmp_path: Path):
    with np.load(small_data) as arrays:
        np.save(tmp_path / "grey.npy", arrays["x_train"][:32, ..., :1])
    settings = {"model.stem": "small", "train.drop_last": False, **QUICK}
    run = carl.pretrain(
        tmp_path / "grey.npy", out=tmp_path / "run", epochs=1, batch_size=32, image_size=8, settings=settings
    )
    trained = load_trained(run)
    done = export(trained, form, tmp_path / FORMATS[form].file_name)
    views = trained.views(np.load(tmp_path / "grey.npy")[:4])
    with torch.no_grad():
        expected = trained.method.encoder(views).numpy()
    np.testing.assert_allclose(features_by(done.usage, views), expected, atol=1e-4)


def test_exported_models_hold_plain_convolutions_only(resnet: TrainedModel):
    own = {type(part) for part in resnet.method.encoder.modules()}
    assert own & {TinyMapConv2d, ChannelsLastConv2d}
    assert not {type(part) for part in plain_encoder(resnet).modules()} & {TinyMapConv2d, ChannelsLastConv2d}


@pytest.mark.parametrize("form", ["onnx", "torch-export"])
def test_a_graph_can_normalise_by_itself(trained: TrainedModel, pixels: np.ndarray, form: str, tmp_path: Path):
    done = export(trained, form, tmp_path / FORMATS[form].file_name, normalise=True)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (trained.data.mean, trained.data.std))
    views = trained.views(pixels[:7])
    images = views * std + mean
    with torch.no_grad():
        expected = trained.method.encoder(views).numpy()
    features = features_by(done.usage, images.numpy() if form == "onnx" else images)
    np.testing.assert_allclose(features, expected, atol=1e-4)
    assert "in [0, 1]; the graph" in done.card.read_text()


def test_a_wrong_export_is_noticed_and_not_left_behind(
    trained: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bad = replace(FORMATS["safetensors"], load=lambda made: lambda images: made.model(images) + 0.01)
    monkeypatch.setitem(FORMATS, "safetensors", bad)
    with pytest.raises(RuntimeError, match=r"differ by 0\.01"):
        export(trained, "safetensors", tmp_path / "e.safetensors")
    assert not list(tmp_path.iterdir())


def test_the_card_tells_data_method_input_and_results(carl: Run, run: Path, trained: TrainedModel, tmp_path: Path):
    done = carl("export", run, "--to", "safetensors", "-o", "e.safetensors")
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "e.safetensors.md").read_text()
    assert "test_resnet trained on `small.npz` with carl" in card
    assert f"float32 (B, 3, {trained.data.image_size}, {trained.data.image_size})" in card
    assert f"mean = [{trained.data.mean[0]:.4f}" in card
    assert "96 images" in card
    assert "prototypes 10" in card
    assert "licence: not known" in card
    assert "Not evaluated yet" in card
    usage = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert usage is not None
    assert usage[1].strip() in done.stdout


def test_the_card_labels_every_accuracy_with_its_protocol_and_leaves_out_other_weights(
    run: Path, trained: TrainedModel, tmp_path: Path
):
    known = {"data": "small.npz", "encoder_hash": file_hash(run / "encoder.safetensors"), "hyperparameters": {}}
    known |= {"data_fingerprint": trained.data.fingerprint, "target": str(run)}
    results: dict[str, dict[str, Any]] = {
        "knn": {
            "protocol": "knn",
            "kind": "offline: all vote",
            "trained": {"1": 40.0, "20": 41.5},
            "random": {"20": 30.25},
        },
        "cached": {
            "protocol": "linear-cached",
            "centre": 0.875,
            "kind": "cached: once",
            "trained": {"top-1": {"mean": 12.5, "std": 0.0}},
        },
        "linear": {
            "protocol": "linear",
            "kind": "offline: SGD",
            "epochs": 1,
            "centre": 0.875,
            "trained": {"top-1": 9.38},
        },
        "whole": {
            "protocol": "linear-cached",
            "centre": 1.0,
            "kind": "cached: once",
            "trained": {"top-1": 11.0},
        },
        "epoch-0001": {"protocol": "knn", "kind": "offline: all", "encoder_hash": "ab", "trained": {"20": 77.0}},
    }
    folder = run / "results"
    folder.mkdir(exist_ok=True)
    try:
        for name, result in results.items():
            accuracy = {"trained": result.pop("trained"), "random": result.pop("random", {})}
            (folder / f"{name}.json").write_text(json.dumps({**known, **result, "accuracy": accuracy}))
        (folder / "damaged.json").write_text("{")
        card = export(trained, "safetensors", tmp_path / "e.safetensors").card.read_text()
    finally:
        shutil.rmtree(folder)
    lines = card.partition("## Results\n\n")[2].partition("\n\n")[0].splitlines()
    assert lines == [
        "- linear, cached, on `small.npz`: top-1 12.50% \u00b1 0.00; once",
        "- kNN, offline, on `small.npz`: k = 1 40.00%, k = 20 41.50% (random weights 30.25%); all vote",
        "- linear, offline, 1 of 100 epochs, on `small.npz`: top-1 9.38%; SGD",
        "- linear, cached, whole images, on `small.npz`: top-1 11.00%; once",
    ]


def test_bad_input_of_export_is_one_line_and_writes_nothing(carl: Run, run: Path, tmp_path: Path):
    (tmp_path / "there").mkdir()
    for arguments, words in [
        (("--to", "torchvision"), "torchvision has no model 'test_resnet'"),
        (("--to", "timm", "--normalise", "-o", "x"), "--normalise adds to a graph"),
        (("--to", "timm", "-o", "there"), "there exists"),
        (("--to", "tim"), "unknown format 'tim'; did you mean 'timm'?"),
    ]:
        done = carl("export", run, *arguments)
        assert done.returncode == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert not (run / "export").exists()


def precious(place: Path) -> Path:
    place.mkdir(parents=True)
    (place / "photo.png").write_bytes(b"precious")
    return place


def other_model(place: Path) -> Path:
    """A model of the user's own, in files of the same names."""
    place.mkdir()
    save_file({"a": torch.zeros(2)}, place / "model.safetensors", metadata={"format": "pt"})
    (place / "config.json").write_text('{"architecture": "resnet18"}')
    return place


def linked(place: Path) -> Path:
    precious(place.parent / "photos")
    place.symlink_to("photos")
    return place


PLACES = {"folder": precious, "other model": other_model, "link": linked}


@pytest.mark.parametrize("kind", [*PLACES, "export and more"])
@pytest.mark.parametrize("form", ["timm", "safetensors"])
def test_force_replaces_no_folder_but_an_earlier_export(carl: Run, run: Path, tmp_path: Path, kind: str, form: str):
    place = tmp_path / "x"
    if kind == "export and more":
        assert carl("export", run, "--to", "timm", "-o", "x").returncode == 0
        (place / "photo.png").write_bytes(b"precious")
    else:
        PLACES[kind](place)
    before = listed(tmp_path)
    done = carl("export", run, "--to", form, "-o", "x", "--force")
    assert done.returncode == 2
    assert f"x is not an export to {form}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert listed(tmp_path) == before


@pytest.mark.parametrize("form", ["timm", "safetensors"])
@pytest.mark.parametrize("place", [".", "..", "a/..", ""])
def test_an_export_without_a_name_of_its_own_is_refused(carl: Run, run: Path, tmp_path: Path, form: str, place: str):
    (tmp_path / "a").mkdir()
    before = listed(tmp_path)
    done = carl("export", run, "--to", form, "-o", place, "--force")
    assert done.returncode == 2
    assert "no name of its own" in done.stderr
    assert listed(tmp_path) == before


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes or devices in folders")
@pytest.mark.parametrize("kind", ["pipe", "link to a device"])
@pytest.mark.parametrize("form", FORMATS)
def test_force_replaces_no_pipe_and_no_device(carl: Run, run: Path, tmp_path: Path, kind: str, form: str):
    place = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(os.devnull)
    before = place.lstat()
    done = carl("export", run, "--to", form, "-o", "x", "--force")
    assert done.returncode == 2
    assert f"x is not an export to {form}" in done.stderr
    assert place.lstat() == before


def test_a_wrong_export_through_a_link_is_removed_and_the_link_stays(
    trained: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bad = replace(FORMATS["safetensors"], load=lambda made: lambda images: made.model(images) + 0.01)
    monkeypatch.setitem(FORMATS, "safetensors", bad)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(RuntimeError, match=r"differ by 0\.01"):
        export(trained, "safetensors", tmp_path / "link", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_an_export_to_timm_is_replaced_by_force_and_nothing_is_left_beside_it(carl: Run, run: Path, tmp_path: Path):
    assert carl("export", run, "--to", "timm", "-o", "deep/x").returncode == 0
    (tmp_path / "deep" / "x" / "config.json").write_text("{}")
    done = carl("export", run, "--to", "timm", "-o", "deep/x", "--force")
    assert done.returncode == 0, done.stderr
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    inside = [f"deep/x/{name}" for name in ("README.md", "config.json", "model.safetensors")]
    assert names == ["deep", "deep/x", *inside]
    assert json.loads((tmp_path / "deep" / "x" / "config.json").read_text())["architecture"] == "test_resnet"


def test_a_text_where_the_card_would_go_is_only_replaced_by_force(carl: Run, run: Path, tmp_path: Path):
    (tmp_path / "e.safetensors.md").write_text("precious")
    done = carl("export", run, "--to", "safetensors", "-o", "e.safetensors")
    assert done.returncode == 2
    assert "e.safetensors.md exists" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["e.safetensors.md"]
    assert carl("export", run, "--to", "safetensors", "-o", "e.safetensors", "--force").returncode == 0


def toy_format() -> Format:
    """What someone outside of the package would write to add a format of their own."""

    def write(export: Export) -> None:
        torch.save(export.weights, export.path)

    def load(export: Export):
        export.model.load_state_dict(torch.load(export.path, weights_only=True))
        return export.model.eval()

    return Format(
        words="a toy",
        file_name="encoder.toy",
        write=write,
        load=load,
        usage=lambda export: f"weights = torch.load({str(export.path)!r})",
    )


def test_a_format_added_from_outside_works_through_the_command(
    carl: Run, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(FORMATS, "toy", toy_format())
    done = carl("export", run, "--to", "toy", "-o", "mine.toy")
    assert done.returncode == 0, done.stderr
    assert "weights = torch.load('mine.toy')" in done.stdout
    assert "exported as toy" in (tmp_path / "mine.toy.md").read_text()
    assert torch.load(tmp_path / "mine.toy", weights_only=True)
    refused = carl("export", run, "--to", "toi")
    assert (refused.returncode, refused.stderr) == (2, "carl: unknown format 'toi'; did you mean 'toy'?\n")
    refused = carl("export", run, "--to", "toy", "--normalise", "-o", "other.toy")
    assert "toy holds only weights; leave it out, or use onnx or torch-export" in refused.stderr


def test_the_formats_are_listed_without_torch():
    code = "import sys; from carl.cli import cli; cli(['export', '--help'], standalone_mode=False); "
    code += "assert not {'torch', 'timm', 'torchvision', 'numpy', 'pydantic'} & set(sys.modules), 'heavy import'"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    for name, form in FORMATS.items():  # a line may end within a word that has a hyphen
        assert f"{name}: {form.words}" in " ".join(shown.split()).replace("- ", "-")
