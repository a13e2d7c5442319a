"""Encoders: timm models, stems, channels, and weights from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from carl.config import MethodOptions, ModelConfig, resolve
from carl.errors import UserError
from carl.models.encoders import build_encoder, feature_size
from carl.models.weights import write_weights


def settings(**values: object) -> ModelConfig:
    return resolve([{"data": {"source": "shapes"}, "model": values}], MethodOptions).model


def test_resnet18_gives_512_pooled_features():
    encoder = build_encoder(settings(), channels=3, image_size=32)
    assert encoder(torch.zeros(2, 3, 32, 32)).shape == (2, 512)
    assert feature_size(encoder, 3, 32) == 512
    assert encoder.training


def test_residual_branches_start_at_full_strength_as_in_torchvision():
    encoder = build_encoder(settings(), channels=3, image_size=32)
    assert encoder.get_parameter("layer1.0.bn2.weight").eq(1).all()


def test_small_stem_keeps_the_resolution_of_the_first_stage():
    encoder = build_encoder(settings(stem="small"), channels=3, image_size=32)
    assert encoder.get_parameter("conv1.weight").shape == (64, 3, 3, 3)
    seen = {}
    encoder.get_submodule("layer1").register_forward_hook(lambda m, i, o: seen.update(shape=o.shape))
    encoder(torch.zeros(1, 3, 32, 32))
    assert seen["shape"] == (1, 64, 32, 32)


def test_small_stem_is_refused_for_what_is_not_a_resnet():
    with pytest.raises(UserError, match="--stem small is for ResNets"):
        build_encoder(settings(backbone="test_vit", stem="small"), 3, 32)


@pytest.mark.parametrize("channels", [1, 4, 12])
def test_other_numbers_of_channels_work(channels: int):
    encoder = build_encoder(settings(backbone="test_resnet"), channels, 32)
    assert encoder(torch.zeros(2, channels, 32, 32)).ndim == 2


@pytest.mark.parametrize("backbone", ["test_vit", "test_convnext", "test_efficientnet", "mobilenetv3_small_050"])
def test_other_timm_models_give_their_pooled_features(backbone: str):
    encoder = build_encoder(settings(backbone=backbone), 3, 48)
    assert encoder(torch.zeros(2, 3, 48, 48)).shape == (2, feature_size(encoder, 3, 48))


def test_an_unknown_backbone_is_named_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'resnet18'"):
        build_encoder(settings(backbone="resnet-18"), 3, 32)


def test_weights_of_torchvision_load_without_their_classifier(tmp_path: Path):
    reference = torchvision.models.resnet18(num_classes=7)
    torch.save(reference.state_dict(), tmp_path / "weights.pth")
    encoder = build_encoder(settings(init=str(tmp_path / "weights.pth")), 3, 64).eval()
    reference.fc = torch.nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    assert torch.allclose(encoder(images), reference.eval()(images), atol=1e-4)


@pytest.mark.parametrize("prefix", ["module.", "encoder.", "backbone."])
def test_weights_behind_a_prefix_load(tmp_path: Path, prefix: str):
    source = timm.create_model("test_resnet", num_classes=0)
    save_file({prefix + key: value for key, value in source.state_dict().items()}, tmp_path / "w.safetensors")
    encoder = build_encoder(settings(backbone="test_resnet", init=str(tmp_path / "w.safetensors")), 3, 32)
    assert all(torch.equal(value, source.state_dict()[key]) for key, value in encoder.state_dict().items())


def test_weights_that_do_not_fit_are_refused_and_never_loaded_in_part(tmp_path: Path):
    torch.save(torchvision.models.resnet34().state_dict(), tmp_path / "other.pth")
    with pytest.raises(UserError, match="does not fit the encoder"):
        build_encoder(settings(init=str(tmp_path / "other.pth")), 3, 32)
    weights = timm.create_model("resnet18", num_classes=0).state_dict()
    del weights["layer4.1.bn2.bias"]
    torch.save(weights, tmp_path / "part.pth")
    with pytest.raises(UserError, match=r"'layer4\.1\.bn2\.bias' is missing"):
        build_encoder(settings(init=str(tmp_path / "part.pth")), 3, 32)
    torch.save(timm.create_model("resnet18", num_classes=0).state_dict(), tmp_path / "rgb.pth")
    with pytest.raises(UserError, match=r"'conv1\.weight' is \(64, 3, 7, 7\)"):
        build_encoder(settings(init=str(tmp_path / "rgb.pth")), 1, 32)


class Payload:
    """Unpickling this would run code."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (open, ("/tmp/carl-was-executed", "w"))  # type: ignore[return-value]


def test_a_pickle_in_a_weights_file_is_refused_and_not_executed(tmp_path: Path):
    torch.save({"state_dict": Payload()}, tmp_path / "evil.pth")
    with pytest.raises(UserError, match="holds no weights"):
        build_encoder(settings(init=str(tmp_path / "evil.pth")), 3, 32)
    assert not Path("/tmp/carl-was-executed").exists()


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(UserError, match=r"nowhere\.pth does not exist; give a run directory"):
        build_encoder(settings(init="nowhere.pth"), 3, 32)


def test_a_file_with_facts_has_the_same_bytes_each_time_and_is_read_as_usual(tmp_path: Path):
    encoder, facts = nn.Linear(3, 2), {letter: f"{letter} ü" for letter in "zyxwvutsr"}
    for name in ("a", "b", "c"):
        write_weights(tmp_path / name, encoder, facts)
        facts = dict(reversed(facts.items()))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    with safe_open(tmp_path / "a", framework="pt") as file:
        assert file.metadata() == facts
    assert torch.equal(load_file(tmp_path / "a")["weight"], encoder.weight)
