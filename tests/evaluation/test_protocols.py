"""Protocols: one that is added from outside is measured, reported and exported by its own title."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from carl.errors import UserError
from carl.evaluation.evaluation_data import EvaluationData
from carl.evaluation.protocols import (
    PROTOCOLS,
    EvaluationRequest,
    Outcome,
    Protocol,
    check_request,
    each_fraction,
    usual_values,
)
from carl.methods import Method
from tests.conftest import SMALL, Run


def spread(
    encoder: nn.Module, method: Method | None, data: EvaluationData, request: EvaluationRequest, seed: int
) -> Outcome:
    """How much features differ from image to image, and that the whole method was given."""
    features = data.cached_features(encoder, data.test)
    return Outcome({"spread": min(100.0, 100 * features.std(0).mean().item())}, {"with_method": method is not None})


TOY = Protocol("toy spread", "offline: a toy", spread, beside_random=True, needs_method=True)


def test_a_protocol_from_outside_is_measured_reported_and_on_the_card(
    carl: Run, small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(PROTOCOLS, "toy", TOY)
    done = carl("pretrain", small_data, *SMALL, "--epochs", "1", "--set", "log.report=false", "--out", "run")
    assert done.returncode == 0, done.stderr
    shown = carl("eval", "run", "--protocol", "toy")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("toy spread on small.npz, offline: a toy (96 / 32 images)")
    result = json.loads((tmp_path / "run" / "results" / "toy-small.json").read_text())
    assert result["per_seed"][0]["with_method"]
    assert set(result["accuracy"]) == {"trained", "random"}
    assert carl("report", "run").returncode == 0
    assert "<td>toy spread, offline</td>" in (tmp_path / "run" / "report.html").read_text()
    assert carl("export", "run", "--to", "safetensors", "-o", "made.safetensors").returncode == 0
    card = next(path.read_text() for path in tmp_path.rglob("*.md"))
    assert "- toy spread, offline, on `small.npz`: spread" in card


def test_a_name_that_is_unknown_is_refused_with_the_nearest(carl: Run):
    done = carl("eval", "run", "--protocol", "lineer")
    assert done.returncode == 2
    assert "'lineer' is unknown; did you mean 'linear'?" in done.stderr


def test_a_protocol_that_has_no_such_value_refuses_the_option():
    request = EvaluationRequest("run", "finetune")
    check_request(replace(request, epochs=3))
    with pytest.raises(UserError, match="--fraction is for --protocol semi, not finetune; leave it out"):
        check_request(replace(request, fraction=0.1))
    with pytest.raises(UserError, match="--rates is for --protocol linear and transfer, not finetune; leave it out"):
        check_request(replace(request, rates=(1.0,)))


def test_parts_of_the_labels_are_measured_one_after_the_other_unless_one_is_asked_for():
    request = EvaluationRequest("run", "semi")
    assert [part.fraction for part in each_fraction(request)] == [0.01, 0.1]
    assert each_fraction(replace(request, fraction=0.5)) == [replace(request, fraction=0.5)]
    assert each_fraction(EvaluationRequest("run", "knn")) == [EvaluationRequest("run", "knn")]


def test_help_groups_protocols_by_their_usual_value(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(PROTOCOLS, "toy", replace(TOY, epochs=7))
    said = usual_values(lambda protocol: str(protocol.epochs or ""))
    assert said == "100 for linear, 50 for finetune, semi and transfer, 7 for toy"
