"""The public names: which they are, what they cost, and that the examples run."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file

import carl
from carl.methods.losses import kl_to_uniform

EXAMPLES = Path(__file__).parents[1] / "examples"
PUBLIC = [  # stable: a name is only removed with a deprecation before it
    "CARLLoss",
    "Prototypes",
    "UserError",
    "Views",
    "__version__",
    "group",
    "knn_accuracy",
    "lambda_schedule",
    "linear_probe",
    "load_encoder",
    "open_dataset",
    "pretrain",
    "prior_threshold",
    "view_pipeline",
]


def test_the_public_names_are_these_and_all_can_be_had():
    assert carl.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(carl, name) is not None
        assert name == "__version__" or getattr(carl, name).__doc__, name
    assert set(PUBLIC) <= set(dir(carl))
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        _ = carl.pretrian


def test_importing_carl_imports_nothing_heavy():
    code = "import sys, carl; assert not {'torch', 'numpy', 'pydantic', 'timm'} & set(sys.modules), 'heavy import'"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_loss_is_the_papers_equation():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 6, 4, generator=generator, dtype=torch.double)
    p, q = a.softmax(1), b.softmax(1)
    consistency = -sum(math.log(float((p[i] * q[i]).sum())) for i in range(6)) / 6
    prior = kl_to_uniform(torch.cat([p, q]).mean(0).log()).item()
    for targets, times in (("joint", 1), ("average", 1), ("sum", 2)):
        loss = carl.CARLLoss(targets)(a, b, 2.5).item()
        assert loss == pytest.approx(times * consistency + 2.5 * prior), targets


@pytest.mark.parametrize("targets", ["joint", "average", "sum"])
def test_the_loss_reaches_both_views(targets: Literal["joint", "average", "sum"]):
    a, b = torch.randn(2, 8, 5, requires_grad=True).unbind(0)
    loss = carl.CARLLoss(targets, prior_mean="each")(a, b, 1.0)
    gradients = torch.autograd.grad(loss, [a, b])
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("targets", ["average", "sum"])
def test_fixed_targets_are_refused_where_agreement_is_relative_to_chance(targets: Literal["average", "sum"]):
    with pytest.raises(carl.UserError, match=f"'{targets}'.*use joint"):
        carl.CARLLoss(targets, beyond_chance=True)


def test_evaluation_takes_plain_arrays():
    generator = np.random.default_rng(0)
    labels = np.arange(200) % 4
    features = (3 * np.eye(4)[labels] + generator.standard_normal((200, 4))).astype(np.float32)
    train, test = slice(0, 150), slice(150, None)
    arguments = (features[train], labels[train], features[test], labels[test])
    assert carl.knn_accuracy(*arguments)[20] > 80
    assert carl.linear_probe(*arguments).accuracy.top1 > 80


def test_pretrain_returns_the_run_and_takes_any_setting(small_data: Path, tmp_path: Path):
    settings = {"method.prototypes": 7, "probe.every": 0, "log.report": False}
    run = carl.pretrain(
        small_data, out=tmp_path / "run", backbone="test_resnet", epochs=1, batch_size=48, settings=settings
    )
    assert run == tmp_path / "run"
    assert "prototypes = 7" in (run / "config.toml").read_text()
    with pytest.raises(carl.UserError, match=r"run directory .* exists"):
        carl.pretrain(small_data, out=run)
    with pytest.raises(carl.UserError, match="names no section"):
        carl.pretrain(small_data, settings={"prototypes": 7})


def test_pretrain_starts_from_weights_and_from_a_preset(small_data: Path, tmp_path: Path):
    start = timm.create_model("test_resnet", num_classes=0)
    torch.save(start.state_dict(), tmp_path / "start.pth")
    settings = {"method.prototypes": 7, "probe.every": 0, "log.report": False, "optim.lr": 1e-9}
    run = carl.pretrain(
        small_data,
        out=tmp_path / "run",
        preset="paper",
        init=tmp_path / "start.pth",
        backbone="test_resnet",
        epochs=1,
        batch_size=48,
        settings=settings,
    )
    assert tomllib.loads((run / "config.toml").read_text())["method"]["preset"] == "paper"
    learned = load_file(run / "encoder.safetensors")
    for name, weight in start.named_parameters():
        torch.testing.assert_close(learned[name], weight.detach(), atol=1e-5, rtol=0)


def test_pretrain_adapts_an_encoder_with_simclr_unless_a_method_is_named(small_data: Path, tmp_path: Path):
    torch.save(timm.create_model("test_resnet", num_classes=0).state_dict(), tmp_path / "start.pth")
    for name, method in (("simclr", None), ("carl", "carl")):
        run = carl.pretrain(
            small_data,
            out=tmp_path / name,
            method=method,
            init=tmp_path / "start.pth",
            backbone="test_resnet",
            epochs=1,
            settings={"probe.every": 0, "log.report": False},
        )
        found = tomllib.loads((run / "config.toml").read_text())["method"]
        assert (found["name"], found["preset"]) == (name, "adapt")


@pytest.fixture
def example_data(tmp_path: Path) -> Path:
    from carl.data.sources.shapes import make_shapes

    images, labels = make_shapes(300, 0)
    np.savez(tmp_path / "images.npz", images=images, labels=labels)
    return tmp_path / "images.npz"


def run_script(code: str, folder: Path, *arguments: str) -> str:
    """As a user would: a script of its own in a process of its own."""
    (folder / "script.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "script.py", *arguments], cwd=folder, capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def shortened(code: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in code, f"the example no longer has {old}"
        code = code.replace(old, new)
    return code


def test_the_plain_loop_runs(example_data: Path, tmp_path: Path):
    code = (EXAMPLES / "plain_pytorch.py").read_text()
    code = shortened(code, {'"shapes"': f'"{example_data}"', "range(10)": "range(2)"})
    output = run_script(code, tmp_path)
    assert "epoch 1: loss" in output
    assert math.isfinite(float(output.split()[-1]))


@pytest.mark.slow
def test_the_lightning_example_runs(example_data: Path, tmp_path: Path):
    pytest.importorskip("pytorch_lightning", reason="Lightning comes with the test extra")
    code = (EXAMPLES / "lightning.py").read_text()
    run_script(code, tmp_path, str(example_data), "--epochs", "1")
    assert set(torch.load(tmp_path / "encoder.pth", weights_only=True)) >= {"conv1.weight"}


def test_pretrain_takes_a_python_data_set_and_its_run_can_be_evaluated(tmp_path, monkeypatch):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))

    class Squares(torch.utils.data.Dataset):
        classes = ("dark", "light")

        def __len__(self):
            return 40

        def __getitem__(self, index):
            return torch.full((3, 16, 16), (index % 2) * 200 + index, dtype=torch.uint8), index % 2

    settings = {"model.backbone": "test_resnet", "train.device": "cpu", "probe.images": 10, "log.report": False}
    run = carl.pretrain(Squares(), out=tmp_path / "run", epochs=1, batch_size=8, settings=settings)
    assert (run / "encoder.safetensors").is_file()
    source = tomllib.loads((run / "config.toml").read_text())["data"]["source"]
    again = carl.open_dataset(source)
    assert again.class_names == ("dark", "light")
    assert again.train.labels is not None
    assert again.train.labels.tolist() == [0, 1] * 20
    with pytest.raises(carl.UserError, match="map-style"):
        carl.pretrain(object(), out=tmp_path / "other")
