"""CARL with more than two views: each against the mean of the others, small views, a teacher, frozen prototypes."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from carl.config import resolve
from carl.data.batches.base import Batch
from carl.errors import UserError
from carl.methods import METHODS
from carl.methods.carl import CARL, CARLLoss, CarlOptions
from carl.methods.losses import Against, Negatives, Targets, chance_agreement, mean_of_others, uniform_prior
from carl.optim import build_optimizer
from carl.training.accumulation import backward_in_parts
from carl.training.learner import Learner
from carl.training.plan import PretrainRequest, plan
from carl.training.run import carry_out
from carl.views.configured import build_views
from tests.methods.examples import PROGRESS, SIZE, make, settings, shapes
from tests.methods.test_runs import differing, run, state

IN_PARTS: dict[str, Any] = {
    "parts": 4, "targets": "joint", "beyond_chance": True, "embedding_norm": "batch-l2", "prototype_norm": True,
    "temperature": 0.1,
}  # fmt: skip
MANY: dict[str, Any] = {**IN_PARTS, "against": "mean", "negatives": "means"}
VIEWS: dict[str, Any] = {"count": 3, "small_count": 2, "small_size": 8}
TARGETS: tuple[Targets, ...] = ("joint", "sum", "average")


def log_p(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=generator, dtype=torch.float64)).log_softmax(dim=-1)


def many_views(size: int = 8, first: int = 0) -> Batch:
    """Three large views and two small ones."""
    config = settings("carl")
    layer = {"data": {"source": "shapes", "image_size": SIZE}, "views": {**config.views.model_dump(), **VIEWS}}
    views = build_views(resolve([layer], CarlOptions), (0.5,) * 3, (0.2,) * 3)
    rows = torch.arange(first, first + size)
    return Batch(views(shapes()[0][rows], rows, 0), rows)


def carl(**options: Any) -> CARL:
    method = make("carl", **options)
    assert isinstance(method, CARL)
    return method


# Against the mean


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 3, 5)])
def test_two_views_against_their_mean_are_the_pair(targets: Targets, shape: tuple[int, ...]):
    found = []
    for against in ("pairs", "mean"):
        values = log_p(*shape).requires_grad_()
        terms = CARLLoss(targets, beyond_chance=targets == "joint", against=against).terms(values)
        (gradient,) = torch.autograd.grad(terms.weighted(1.3), values)
        found.append((terms.weighted(1.3).detach(), gradient))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)


def test_certain_views_of_which_one_disagrees_have_the_loss_worked_out_by_hand():
    """Views choose A, A and B: two find half of the others at A, and the third finds none at B but a rest."""
    rest = 1e-3
    a, b = torch.tensor([1 - rest, rest]), torch.tensor([rest, 1 - rest])
    log = torch.stack([a, a, b]).double().log()[:, None]
    same, differ = (1 - rest) ** 2 + rest**2, 2 * rest * (1 - rest)
    expected = -(2 * math.log((same + differ) / 2) + math.log(differ)) / 3
    assert CARLLoss("joint", against="mean").terms(log).consistency.item() == pytest.approx(expected, rel=1e-6)


def literal_terms(p: Tensor, large: int, negatives: Negatives) -> tuple[float, float]:
    """Agreement with the mean of the others and with chance, written with loops: (V, B, G, K)."""
    views, images, parts, _ = p.shape
    consistency, chance = [], []
    for view in range(views):
        others = [u for u in range(large) if u != view]
        for i in range(images):
            found = 1.0
            for g in range(parts):
                mean = sum((p[u, i, g] for u in others), start=torch.zeros_like(p[0, i, g])) / len(others)
                found *= float(p[view, i, g] @ mean)
            consistency.append(-math.log(found))
            agreement = []
            for j in (j for j in range(images) if j != i):
                mean = p[:large, j].mean(dim=0)
                compared = [mean] if negatives == "means" else list(p[:, j])
                agreement += [math.prod(float(p[view, i, g] @ q[g]) for g in range(parts)) for q in compared]
            chance.append(math.log(sum(agreement) / len(agreement)))
    return sum(consistency) / len(consistency), sum(chance) / len(chance)


@pytest.mark.parametrize("negatives", ["views", "means"])
def test_many_views_have_the_terms_of_a_literal_transcription(negatives: Negatives):
    log = log_p(5, 4, 2, 3)
    terms = CARLLoss("joint", beyond_chance=True, against="mean", negatives=negatives).terms(log, large=3)
    consistency, chance = literal_terms(log.exp(), 3, negatives)
    assert terms.consistency.item() == pytest.approx(consistency, rel=1e-10)
    assert terms.chance is not None
    assert terms.chance.item() == pytest.approx(chance, rel=1e-10)
    assert terms.prior.item() == pytest.approx(uniform_prior(log).item())


def test_gradients_of_many_views_are_those_of_finite_differences():
    def loss(logits: Tensor) -> Tensor:
        criterion = CARLLoss("joint", beyond_chance=True, against="mean", negatives="means")
        return criterion.terms(logits.log_softmax(dim=-1), large=3).weighted(0.7)

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, 2, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, logits)


def test_the_mean_of_others_stays_exact_where_the_view_itself_outweighs_them_by_far():
    """A sum from which the view is taken away again would be 0, and its logarithm infinite."""
    log = torch.tensor([[[-1e-30, -70.0]], [[-80.0, -1e-30]], [[-90.0, -1e-30]]])
    found = mean_of_others(log, 3)
    assert found[0, 0, 0].item() == pytest.approx(-80 + math.log1p(math.exp(-10)) - math.log(2), rel=1e-6)
    assert found.isfinite().all()


def test_in_one_part_the_means_of_other_images_are_all_their_views():
    log = log_p(4, 5, 1, 6)
    means = log.logsumexp(dim=0, keepdim=True) - math.log(4)
    assert chance_agreement(log, means).item() == pytest.approx(chance_agreement(log).item(), rel=1e-12)


# A teacher


def test_a_teacher_that_has_not_moved_gives_the_loss_and_gradient_of_added_targets():
    log = log_p(2, 6, 5)
    for against in ("pairs", "mean"):
        values = log.clone().requires_grad_()
        added = CARLLoss("sum", against=against).terms(values)
        taught = CARLLoss("joint", against=against).terms(values, log_taught=log)
        assert taught.weighted(2.0).item() == pytest.approx(added.weighted(2.0).item(), rel=1e-12)
        gradients = [
            torch.autograd.grad(terms.weighted(2.0), values, retain_graph=True)[0] for terms in (added, taught)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("against", ["pairs", "mean"])
def test_the_teachers_assignments_of_other_views_are_the_targets(against: Against):
    """Two large views and a small one: for both ways the targets are the teacher's two."""
    p, taught = log_p(3, 4, 5), log_p(2, 4, 5, seed=1)
    agreement = lambda v, t: -(p[v].exp() * t).sum(dim=1).log().mean().item()  # noqa: E731
    q = taught.exp()
    if against == "pairs":
        expected = [agreement(1, q[0]), agreement(2, q[0]), agreement(0, q[1]), agreement(2, q[1])]
    else:
        expected = [agreement(0, q[1]), agreement(1, q[0]), agreement(2, q.mean(dim=0))]
    found = CARLLoss("average", against=against).terms(p, 2, taught).consistency.item()
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-12)


@pytest.mark.parametrize("negatives", ["views", "means"])
def test_with_a_teacher_chance_is_agreement_with_its_assignments_of_other_images(negatives: Negatives):
    p, taught = log_p(2, 4, 2, 3), log_p(2, 4, 2, 3, seed=1)
    criterion = CARLLoss("joint", beyond_chance=True, negatives=negatives)
    found = criterion.terms(p, 2, taught).chance
    compared = taught if negatives == "views" else taught.exp().mean(dim=0, keepdim=True).log()
    expected = []
    for view in range(2):
        for i in range(4):
            q = [one[j].exp() for one in compared for j in range(4) if j != i]
            each = [math.prod(float(p[view, i, g].exp() @ rows[g]) for g in range(2)) for rows in q]
            expected.append(math.log(sum(each) / len(each)))
    assert found is not None
    assert found.item() == pytest.approx(2 * sum(expected) / len(expected), rel=1e-10)


def test_the_teacher_starts_as_the_network_follows_it_and_gets_no_gradient():
    method, batch = carl(teacher=0.9, **MANY), many_views()
    assert method.teacher is not None
    before = {key: value.clone() for key, value in method.state_dict().items()}
    for key, value in method.teacher.state_dict().items():
        assert torch.equal(value, before[key])
    optimizer = build_optimizer(method, settings("carl").optim)
    method(batch, PROGRESS)[0].backward()
    assert all(p.grad is None for p in method.teacher.parameters())
    optimizer.step()
    method.after_step(0.0)
    for key in ("encoder.conv1.0.weight", "head.prototypes.linear.weight", "head.projection.0.weight"):
        now = method.state_dict()
        expected = 0.9 * before[key] + 0.1 * now[key]
        torch.testing.assert_close(now[f"teacher.{key}"], expected, rtol=1e-5, atol=1e-7)
        assert not torch.equal(now[key], before[key])
    assert method.momentum(1.0) == 1.0
    assert method.logged(0.5).keys() == {"lambda", "momentum", "target_distance"}


# The whole method


@pytest.mark.parametrize("options", [MANY, {**MANY, "teacher": 0.9}, {"teacher": 0.9}, {"against": "mean"}])
def test_large_and_small_views_train_and_parts_of_a_batch_add_up(options: dict[str, Any]):
    method, batch = carl(**options).double().eval(), many_views(16)
    assert [view.shape[2] for view in batch.views] == [16, 16, 16, 8, 8]
    batch = Batch([view.double() for view in batch.views], batch.indices)
    loss, figures = method(batch, PROGRESS)
    loss.backward()
    whole = {key: p.grad.clone() for key, p in method.named_parameters() if p.grad is not None}
    assert all(value.isfinite() for value in figures.values())
    method.zero_grad()
    backward_in_parts(method, batch, PROGRESS, 2, torch.autocast("cpu", enabled=False), 1.0)
    for key, parameter in method.named_parameters():
        if key in whole:
            torch.testing.assert_close(parameter.grad, whole[key], rtol=1e-6, atol=1e-10)


def test_frozen_prototypes_stay_and_all_else_learns():
    method = carl(frozen_prototypes=True, **MANY)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    optimizer = build_optimizer(method, settings("carl").optim)
    method(many_views(), PROGRESS)[0].backward()
    optimizer.step()
    after = method.state_dict()
    assert torch.equal(after["head.prototypes.linear.weight"], before["head.prototypes.linear.weight"])
    assert not torch.equal(after["encoder.conv1.0.weight"], before["encoder.conv1.0.weight"])


def test_options_for_many_views_leave_the_start_of_a_run_as_it_is():
    plain = carl().state_dict()
    for options in ({"teacher": 0.9}, {"frozen_prototypes": True}, {"against": "mean", "negatives": "means"}):
        found = carl(**options).state_dict()
        assert all(torch.equal(found[key], value) for key, value in plain.items())


OPTIONS: dict[str, Any] = {"method": {"prototypes": 10, **MANY, "teacher": 0.9}, "views": VIEWS}


def test_a_run_with_many_views_and_a_teacher_resumes_with_the_same_bits(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = run(small_data, "carl", tmp_path / "whole", **OPTIONS)
    assert "teacher.encoder.conv1.0.weight" in whole
    plain_step: Callable[..., Any] = Learner.take_step

    def step_then_signal(learner: Learner, batch: Batch) -> Any:
        metrics = plain_step(learner, batch)
        if learner.steps_done == 6:
            signal.raise_signal(signal.SIGINT)
        return metrics

    monkeypatch.setattr(Learner, "take_step", step_then_signal)
    with pytest.raises(SystemExit):
        run(small_data, "carl", tmp_path / "run", **OPTIONS)
    monkeypatch.undo()
    carry_out(plan(PretrainRequest({}, resume=str(tmp_path / "run"))))
    assert differing(state(tmp_path / "run"), whole) == []


@pytest.mark.parametrize(
    ("method", "views", "message"),
    [
        ("simclr", {"count": 4}, "4 views of an image are asked for .* and simclr compares 2; ask for 2"),
        ("byol", {"small_count": 1}, "3 views of an image are asked for .* byol compares 2"),
        ("carl", {"count": 1, "small_count": 3}, "makes 1 large view of an image, carl needs 2; set views.count=2"),
        ("carl", {"small_size": 8}, "simclr has none; set views.small_count too"),
        ("carl", {"small_count": 2, "small_size": 16}, "views.small_size=16 is not below the 16 px"),
    ],
)
def test_views_that_do_not_fit_the_method_are_refused(
    small_data: Path, tmp_path: Path, method: str, views: dict[str, int], message: str
):
    with pytest.raises(UserError, match=message):
        run(small_data, method, tmp_path / "run", views={"pipeline": "simclr", **views})
    assert not (tmp_path / "run").exists()


def test_passes_count_pixels_and_forward_passes_a_third():
    def passes(name: str, sides: list[int], **method: Any) -> float:
        return METHODS[name].passes(settings(name, **method), sides)

    assert passes("simclr", [32, 32]) == 2
    assert passes("simclr", [64, 64]) == 8
    assert passes("carl", [32, 32, 32, 16, 16]) == 3.5
    assert passes("carl", [32, 32, 16], teacher=0.9) == pytest.approx(2.25 + 2 / 3)
    assert passes("byol", [32, 32]) == pytest.approx(2 + 2 / 3)
    assert passes("moco", [32, 32]) == pytest.approx(1 + 1 / 3)
    assert passes("pcl", [32, 32]) == pytest.approx(1 + 2 / 3)
    assert passes("supervised", [32]) == 1
