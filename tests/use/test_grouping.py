"""Points, neighbours, heads and the number of groups, on features whose groups are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from carl import nearest as nearest_module
from carl.errors import UserError
from carl.evaluation.clusters import most_matched
from carl.methods.carl import CARLLoss
from carl.nearest import nearest_neighbours, neighbour_count
from carl.use.grouping import group_heads
from carl.use.grouping import points as points_module
from carl.use.grouping.assignment import assign
from carl.use.grouping.group_heads import HeadOptions, check_groups, train_heads
from carl.use.grouping.points import fit_projection, project
from carl.use.grouping.proposal import chosen, ladder, neighbour_agreement, propose
from carl.use.requests import GROUP_LOSSES, GroupLoss

QUICK = HeadOptions(heads=2, steps=40, rate=0.05)


def features(
    sizes: list[int], dimensions: int = 24, spread: float = 0.35, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Features after a ReLU around far centres, and the number of the centre of each."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((len(sizes), dimensions))
    numbers = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    noise = spread * generator.standard_normal((len(numbers), dimensions))
    return np.maximum(centres[numbers] + noise, 0).astype(np.float32), numbers


def points_of(values: np.ndarray) -> Tensor:
    def batches() -> list[np.ndarray]:
        return [values]

    return project(batches, fit_projection(batches), len(values))


def matched(groups: np.ndarray, truth: np.ndarray) -> float:
    table = np.zeros((int(groups.max()) + 1, int(truth.max()) + 1), int)
    np.add.at(table, (groups, truth), 1)
    return most_matched(table) / len(truth)


def test_points_are_the_same_in_any_batches_and_on_the_disk(monkeypatch: pytest.MonkeyPatch):
    values, _ = features([40, 40, 40])
    whole = points_of(values)

    def in_parts() -> list[np.ndarray]:
        return [values[:7], values[7:100], values[100:]]

    assert torch.allclose(project(in_parts, fit_projection(in_parts), 120), whole, atol=1e-4)
    monkeypatch.setattr(points_module, "IN_MEMORY", 100)
    assert torch.allclose(project(in_parts, fit_projection(in_parts), 120), whole, atol=1e-4)


def test_unwhitened_points_keep_the_angles_of_centred_features():
    values, _ = features([20, 20])
    projection = fit_projection(lambda: [values], dimensions=24, whitening=0.0)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    centred = unit - unit.mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    found = projection(values)
    assert np.allclose(found @ found.T, centred @ centred.T, atol=1e-4)


def test_equal_features_are_refused():
    with pytest.raises(UserError, match="all 5 images have the same features"):
        fit_projection(lambda: [np.ones((5, 8), np.float32)])


def transcribed_neighbours(points: Tensor, count: int) -> Tensor:
    similarity = points @ points.T
    similarity.fill_diagonal_(-2)
    return similarity.topk(count).indices


def test_neighbours_are_the_most_similar_others(monkeypatch: pytest.MonkeyPatch):
    points = points_of(features([50, 30])[0])
    monkeypatch.setattr(nearest_module, "QUERIES", 17)
    assert torch.equal(nearest_neighbours(points, 6), transcribed_neighbours(points, 6))


def test_copies_are_neighbours_of_each_other_but_not_of_themselves():
    points = points_of(features([30, 30])[0])
    points = torch.cat([points, points[:5], points[:5]])
    found = nearest_neighbours(points, 4)
    assert not (found == torch.arange(len(points))[:, None]).any()
    assert {60, 65} <= set(found[0].tolist())


def test_most_neighbours_are_found_within_cells(monkeypatch: pytest.MonkeyPatch):
    points = points_of(features([200] * 10, spread=0.8)[0])
    exact = nearest_neighbours(points, 20)
    monkeypatch.setattr(nearest_module, "EXACT", 100)
    monkeypatch.setattr(nearest_module, "CELL_POINTS", 60)
    found = nearest_neighbours(points, 20)
    assert not (found == torch.arange(len(points))[:, None]).any()
    shared = np.mean([len({*a} & {*b}) for a, b in zip(exact.tolist(), found.tolist(), strict=True)]) / 20
    assert shared > 0.9


@pytest.mark.parametrize("loss", GROUP_LOSSES)
def test_every_loss_finds_groups_that_are_there(loss: GroupLoss):
    values, truth = features([60, 60, 60, 60])
    points = points_of(values)
    options = HeadOptions(loss=loss, heads=3, steps=40, rate=0.05)
    found = assign(points, train_heads(points, nearest_neighbours(points, 10), 4, options))
    assert matched(found.groups, truth) > 0.95


def test_heads_group_better_than_their_start():
    values, truth = features([40] * 12, spread=0.6)
    points = points_of(values)
    near = nearest_neighbours(points, 10)
    none, some = (
        train_heads(points, near, 12, HeadOptions(heads=2, steps=steps, rate=0.05), seed=1) for steps in (0, 80)
    )
    assert some.scores.max() > none.scores.max()
    assert matched(assign(points, some).groups, truth) > matched(assign(points, none).groups, truth)


def test_without_neighbours_and_views_the_loss_is_carls_of_two_identical_views():
    points = points_of(features([20, 20])[0])
    options = HeadOptions(heads=1)
    weights = torch.randn(points.shape[1], 3, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(len(points))
    none = torch.empty(len(points), 0, dtype=torch.int64)
    positives = group_heads.positives(points, none, (), rows, torch.Generator())
    loss = group_heads.TRAINING["carl"](options, 3)(torch.stack([points, positives]), weights)
    logits = points @ torch.nn.functional.normalize(weights, dim=0) / options.temperature
    assert loss.item() == pytest.approx(CARLLoss(targets="joint")(logits, logits, options.prior).item(), abs=1e-6)


def test_positives_are_neighbours_and_views():
    points = points_of(features([20, 20])[0])
    near, view = nearest_neighbours(points, 2), -points
    rows = torch.arange(len(points))
    generator = torch.Generator().manual_seed(0)
    seen = [group_heads.positives(points, near, [view], rows, generator) for _ in range(30)]
    allowed = torch.stack([points[near[:, 0]], points[near[:, 1]], view])  # (3, N, d)
    which = torch.stack([(one == allowed).all(dim=-1).float().argmax(0) for one in seen])
    assert all((one == allowed).all(dim=-1).any(dim=0).all() for one in seen)
    assert {0, 1, 2} == set(which.flatten().tolist())


def test_the_same_seed_gives_the_same_groups_and_another_seed_other_starts():
    points = points_of(features([30, 30, 30], spread=1.0)[0])
    near = nearest_neighbours(points, 5)
    first, again, other = (train_heads(points, near, 5, QUICK, seed).prototypes for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_batches_smaller_than_all_points_group_them_too():
    values, truth = features([100, 100, 100])
    points = points_of(values)
    options = HeadOptions(heads=2, steps=60, rate=0.05, batch=64)
    found = assign(points, train_heads(points, nearest_neighbours(points, 5), 3, options))
    assert matched(found.groups, truth) > 0.95


def test_groups_are_numbered_by_size_and_confidence_is_the_share_of_the_group():
    points = points_of(features([80, 40, 20])[0])
    heads = train_heads(points, nearest_neighbours(points, 5), 3, QUICK)
    found = assign(points, heads)
    assert (np.diff(found.sizes) <= 0).all()
    assert found.sizes.sum() == 140
    p = heads.log_assignments(points, heads.best).exp()
    assert np.allclose(found.confidence, p.max(1).values)
    assert (found.runner_up != found.groups).all()
    assert np.allclose(found.nearness.max(), 1, atol=0.2)


@pytest.mark.parametrize(("groups", "images"), [(1, 50), (0, 50), (-3, 50)])
def test_fewer_than_two_groups_are_refused(groups: int, images: int):
    with pytest.raises(UserError, match=f"--groups {groups}: .* 2 or more"):
        check_groups(groups, images)


def test_more_groups_than_images_are_refused():
    with pytest.raises(UserError, match="--groups 51 of 50 images"):
        check_groups(51, 50)


def test_neighbours_are_half_a_group_within_bounds():
    assert neighbour_count(10_000, 10) == 20
    assert neighbour_count(1530, 102) == 7
    assert neighbour_count(695, 102) == 3
    assert neighbour_count(3, 3) == 2


def test_the_ladder_grows_by_a_factor_and_ends_where_groups_get_too_small():
    assert ladder(10_000)[:8] == [2, 3, 4, 6, 8, 11, 16, 23]
    assert ladder(10_000)[-1] == 256
    assert ladder(30) == [2, 3, 4, 5]
    assert ladder(5) == [2]


def test_the_number_of_clear_groups_is_proposed():
    points = points_of(features([50] * 6, spread=0.2)[0])
    found = propose(points, nearest_neighbours(points, 20))
    assert found.low <= 6 <= found.high
    assert found.groups in (6, 8)
    assert "6" in next(found.lines()) or "8" in next(found.lines())


def test_of_numbers_like_the_best_the_largest_is_proposed_and_the_range_is_told():
    found = chosen({2: 0.3, 4: 0.59, 8: 0.60, 16: 0.595, 32: 0.575, 64: 0.4})
    assert (found.groups, found.low, found.high) == (16, 4, 32)
    assert next(found.lines()).startswith("16 groups proposed (not sure: anything from 4 to 32")


def test_a_number_that_stands_alone_is_told_without_a_range():
    assert "no other number that was tried" in next(chosen({4: 0.4, 6: 0.6, 8: 0.5}).lines())


def test_images_without_groups_are_said_to_have_none():
    found = chosen({2: 0.2, 4: 0.1})
    assert "hardly fall into groups" in next(found.lines())


def test_agreement_of_neighbours_is_near_zero_for_random_groups_and_high_for_true_ones():
    values, truth = features([50] * 4, spread=0.2)
    near = nearest_neighbours(points_of(values), 3).numpy()
    shuffled = np.random.default_rng(0).permutation(truth)
    assert abs(neighbour_agreement(shuffled, near)) < 0.05
    assert neighbour_agreement(truth, near) == pytest.approx((1 + 0.75) / 2, abs=0.02)


def test_neighbour_information_is_ln_k_for_sure_even_groups():
    points = torch.eye(4).repeat_interleave(5, dim=0)
    near = nearest_neighbours(points, 3)
    found = group_heads.neighbour_information(points, near, torch.eye(4), temperature=0.01)
    assert found.item() == pytest.approx(math.log(4), abs=1e-4)
