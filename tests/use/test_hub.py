"""An encoder goes to the Hugging Face hub and comes back; the hub is a stand-in on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import constants

import carl as package
from carl.use.encoder import TrainedModel
from tests.conftest import Run
from tests.use.conftest import QUICK
from tests.use.stand_in_hub import TOKEN, StandInHub, stand_in_hub

NAME = "someone/small"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    with stand_in_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)  # made from ENDPOINT, once
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the hub's other way for large files, by a service
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of the hub's client, about its own call
def test_what_is_uploaded_is_loaded_again_by_timm_and_by_carl(
    carl: Run, hub: StandInHub, run: Path, trained: TrainedModel, pixels: np.ndarray, tmp_path: Path
):
    done = carl("export", run, "--to", f"hub:{NAME}", "-o", "made")
    assert done.returncode == 0, done.stderr
    assert f"uploaded: {hub.address}/{NAME}" in done.stdout
    assert f"timm.create_model('hf-hub:{NAME}', pretrained=True)" in done.stdout
    assert hub.created[0].get("private") or hub.created[0].get("visibility") == "private"
    written = {f"{NAME}/{path.name}": path.read_bytes() for path in (tmp_path / "made").iterdir()}
    assert written == {name: content for name, content in hub.files.items() if not name.endswith(".gitattributes")}

    with torch.inference_mode():
        by_timm = timm.create_model(f"hf-hub:{NAME}", pretrained=True).eval()(trained.views(pixels[:8]))
    expected = trained.represent(pixels[:8]).features
    np.testing.assert_allclose(by_timm.numpy(), expected, atol=1e-4)
    encoder = package.load_encoder(f"hf-hub:{NAME}", device="cpu")
    np.testing.assert_allclose(encoder.embed(pixels[:8]), expected, atol=1e-4)


def test_the_folder_is_loaded_by_timm_from_the_disk_and_its_card_is_one_of_the_hub(
    carl: Run, run: Path, trained: TrainedModel, pixels: np.ndarray, tmp_path: Path
):
    done = carl("export", run, "--to", "hub", "-o", "made")
    assert done.returncode == 0, done.stderr
    assert "uploaded" not in done.stdout
    with torch.inference_mode():
        found = timm.create_model(f"local-dir:{tmp_path / 'made'}", pretrained=True).eval()(trained.views(pixels[:8]))
    np.testing.assert_allclose(found.numpy(), trained.represent(pixels[:8]).features, atol=1e-4)
    card = (tmp_path / "made" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\ntags: [timm, carl]\nlibrary_name: timm\n")
    assert "\n# test_resnet trained on" in card
    config = json.loads((tmp_path / "made" / "config.json").read_text(encoding="utf-8"))
    assert config["pretrained_cfg"]["license"] == trained.licence


@pytest.mark.parametrize(
    ("address", "token", "words"),
    [
        ("hub:", TOKEN, "does not name a repository; write --to hub:USER/NAME"),
        ("hub:alone", TOKEN, "does not name a repository"),
        ("hub:some one/x", TOKEN, "does not name a repository"),
        ("timm:x/y", TOKEN, "timm is not uploaded anywhere; write --to timm"),
        (f"hub:{NAME}", None, "needs a login; run `hf auth login`"),
        (f"hub:{NAME}", "hf_wrong", "was not uploaded to someone/small: "),
    ],
)
def test_what_cannot_be_uploaded_is_said_in_one_line(
    carl: Run,
    hub: StandInHub,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    token: str | None,
    words: str,
):
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN")
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    done = carl("export", run, "--to", address, "-o", "made")
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not hub.files


def test_a_small_stem_has_no_name_that_timm_could_load(carl: Run, small_data: Path, tmp_path: Path):
    settings = {"model.stem": "small", **QUICK}
    package.pretrain(small_data, out=tmp_path / "run", epochs=1, batch_size=48, image_size=8, settings=settings)
    done = carl("export", "run", "--to", "hub", "-o", "made")
    assert done.returncode == 2
    assert "model.stem=small" in done.stderr
    assert not (tmp_path / "made").exists()
