"""A view operation that the package does not have, added from here: one class and one line in a dict."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import Field
from torch import Tensor
from torch._subclasses import FakeTensorMode

from carl.config import Probability
from carl.views.operations import OPERATIONS
from carl.views.operations.operation import Drawn, Operation
from carl.views.operations.solarise import Solarise
from carl.views.recipes import ViewRecipe
from carl.views.views import Views, make_grouped, make_masked
from tests.conftest import SMALL, Run

PLAIN = ViewRecipe(24, solarise=0.4)
COUNT = 300


class Toy(Operation):
    """Turns views upside down."""

    toy: Probability = Field(0.0, description="Probability of a view that stands on its head.")

    @property
    def probability(self) -> float:
        return self.toy

    def apply(self, views: Tensor, drawn: Drawn) -> Tensor:
        return views.flip(2)


@pytest.fixture
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATIONS, "toy", Toy)


def photos(channels: int = 3) -> Tensor:
    return torch.randint(0, 256, (COUNT, 32, 32, channels), generator=torch.Generator().manual_seed(0)).byte()


def drawn(recipe: ViewRecipe) -> list[int]:
    """Samples that the toy was drawn for."""
    parameters = Views([recipe], (0.0,) * 3, (1.0,) * 3, seed=1).draw(torch.arange(COUNT), 0, 32, 32)[0]
    return parameters.operations["toy"].chosen.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("make", [make_grouped, make_masked])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.usefixtures("_toy")
def test_it_changes_the_views_it_is_drawn_for_and_no_bit_of_the_others(make, channels: int):
    images, parameters = photos(channels), []
    recipes = [PLAIN, PLAIN.changed(toy=0.3)]
    for recipe in recipes:
        views = Views([recipe], (0.0,) * 3, (1.0,) * 3, seed=1)
        parameters.append(views.draw(torch.arange(COUNT), 0, 32, 32)[0])
    before, after = (make(images, recipe, p) for recipe, p in zip(recipes, parameters, strict=True))
    chosen = parameters[1].operations["toy"].chosen
    assert chosen.float().mean().item() == pytest.approx(0.3, abs=0.1)
    assert torch.equal(after[chosen], before[chosen].flip(2))
    assert torch.equal(after[~chosen], before[~chosen])


@pytest.mark.usefixtures("_toy")
def test_what_is_drawn_for_it_does_not_depend_on_its_place_among_the_operations(monkeypatch: pytest.MonkeyPatch):
    last = drawn(PLAIN.changed(toy=0.3))
    monkeypatch.delitem(OPERATIONS, "toy")
    monkeypatch.delitem(OPERATIONS, "solarise")
    monkeypatch.setitem(OPERATIONS, "toy", Toy)
    monkeypatch.setitem(OPERATIONS, "solarise", Solarise)
    assert list(OPERATIONS)[-2:] == ["toy", "solarise"]
    assert drawn(ViewRecipe(24, solarise=0.4, toy=0.3)) == last


@pytest.mark.usefixtures("_toy")
def test_it_asks_a_gpu_for_no_value():
    with FakeTensorMode():
        images = torch.empty(8, 32, 32, 3, dtype=torch.uint8, device="cuda")
        views = Views([ViewRecipe(32, toy=0.5)], (0.5,) * 3, (0.5,) * 3, seed=0)
        (view,) = views(images, torch.arange(8, device="cuda"), 0)
        assert view.shape == (8, 3, 32, 32)


@pytest.mark.usefixtures("_toy")
def test_a_recipe_names_it():
    assert PLAIN.changed(toy=0.5).in_words().endswith("; solarise 0.4; toy 0.5")


def test_the_command_line_knows_it(carl: Run, small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    short = ["pretrain", small_data, *SMALL, "--epochs", "1", "--set", "log.report=false", "--set", "probe.every=0"]
    done = carl(*short, "--out", "plain")
    assert done.returncode == 0, done.stderr
    with monkeypatch.context() as patch:
        patch.setitem(OPERATIONS, "toy", Toy)
        for value, run in (("0.0", "off"), ("1.0", "on")):
            done = carl(*short, "--out", run, "--set", f"views.toy={value}")
            assert done.returncode == 0, done.stderr
            assert f"toy = {value}" in (tmp_path / run / "config.toml").read_text()
        for wrong, message in (
            ("views.toy=2", "views.toy=2: input should be less than or equal to 1"),
            ("views.tooy=1", "unknown key views.tooy; did you mean 'toy'?"),
        ):
            done = carl(*short, "--out", "wrong", "--set", wrong)
            assert done.returncode == 2
            assert message in done.stderr
    plain, off, on = ((tmp_path / run / "encoder.safetensors").read_bytes() for run in ("plain", "off", "on"))
    assert plain == off != on


def test_a_run_is_not_resumed_without_an_operation_that_it_uses(
    carl: Run, small_data: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setitem(OPERATIONS, "toy", Toy)
        done = carl("pretrain", small_data, *SMALL, "--epochs", "1", "--out", "run", "--set", "views.toy=0.5")
        assert done.returncode == 0, done.stderr
    done = carl("pretrain", "--resume", "run", "--epochs", "2")
    assert done.returncode == 2
    assert "unknown key views.toy" in done.stderr
    assert carl("eval", "run").returncode == 0, "an encoder needs no views to be used"
