"""Slow copies follow and are not trained, queues forget the oldest first, shuffled groups come back in order."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from carl.models.momentum import KeyEncoder, Queue, average_into, distance, forward_shuffled, momentum_copy


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))


def rows(*numbers: int) -> Tensor:
    """Rows that show their number."""
    return torch.tensor([[float(number), 0.0] for number in numbers])


# Copies


def test_a_copy_shares_nothing_and_no_gradient_reaches_it():
    source = network()
    twin = momentum_copy(source)
    for mine, theirs in zip(source.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()
        assert mine.requires_grad
        assert not theirs.requires_grad


def test_the_average_is_momentum_times_the_copy_and_the_rest_of_the_source():
    source, twin = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    expected = {key: 0.9 * value + 0.1 * source.state_dict()[key] for key, value in twin.state_dict().items()}
    before = [p.clone() for p in source.parameters()]
    average_into(twin, source, 0.9)
    for key, value in twin.state_dict().items():
        torch.testing.assert_close(value, expected[key], atol=1e-12, rtol=0)
    assert all(torch.equal(a, b) for a, b in zip(before, source.parameters(), strict=True))


def test_momentum_1_stands_still_and_momentum_0_copies():
    source, twin = network(), momentum_copy(network())
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(1)
    still = [p.clone() for p in twin.parameters()]
    average_into(twin, source, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(still, twin.parameters(), strict=True))
    average_into(twin, source, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), twin.parameters(), strict=True))


def test_batch_statistics_are_the_copys_own():
    source = network()
    twin = momentum_copy(source)
    source(images(6))
    average_into(twin, source, 0.5)
    assert torch.equal(twin[1].running_mean, torch.zeros(4))
    twin(images(6))
    assert not torch.equal(twin[1].running_mean, torch.zeros(4))


def test_distance_is_the_norm_of_the_gap_over_that_of_the_source():
    source, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    flat, other = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (source, twin))
    assert float(distance(twin, source)) == pytest.approx(float((other - flat).norm() / flat.norm()), rel=1e-5)
    assert float(distance(source, source)) == 0.0


# Queue


def test_a_queue_starts_with_random_unit_vectors_and_counts_none_of_them():
    queue = Queue(50, 8)
    torch.testing.assert_close(queue.rows.norm(dim=1), torch.ones(50))
    assert float(queue.filled) == 0.0
    assert not any(p.requires_grad for p in queue.parameters())
    assert set(queue.state_dict()) == {"rows", "seen"}


def test_a_queue_keeps_order_wraps_around_and_overwrites_the_oldest_first():
    queue = Queue(5, 2)
    queue.push(rows(1, 2))
    queue.push(rows(3, 4))
    assert queue.rows[:4, 0].tolist() == [1, 2, 3, 4]
    assert float(queue.filled) == pytest.approx(0.8)
    queue.push(rows(5, 6))  # the size is not a multiple of the batch: 6 takes the place of 1
    assert queue.rows[:, 0].tolist() == [6, 2, 3, 4, 5]
    queue.push(rows(7, 8, 9))
    assert queue.rows[:, 0].tolist() == [6, 7, 8, 9, 5]
    assert float(queue.filled) == 1.0


@pytest.mark.parametrize("size", [1, 3, 5, 7, 12])
def test_a_queue_always_holds_the_latest_whatever_its_size(size: int):
    queue, seen = Queue(size, 2), []
    for start in range(0, 40, 4):
        batch = list(range(start + 1, start + 5))
        seen += batch
        queue.push(rows(*batch))
        if len(seen) >= size:
            assert sorted(queue.rows[:, 0].tolist()) == seen[-size:]


def test_a_queue_goes_on_from_its_state():
    queue, other = Queue(5, 2), Queue(5, 2)
    queue.push(rows(1, 2, 3))
    other.load_state_dict(queue.state_dict())
    for each in (queue, other):
        each.push(rows(4, 5, 6))
    assert torch.equal(queue.rows, other.rows)


# Shuffled batch norm


@pytest.mark.parametrize("count", [2, 3, 8, 13, 57])
@pytest.mark.parametrize("groups", [1, 6, 8])
def test_shuffled_outputs_come_back_in_order_for_any_batch(count: int, groups: int):
    module = network().eval()  # without batch statistics the groups cannot be seen
    batch = images(count)
    torch.testing.assert_close(forward_shuffled(module, batch, groups), module(batch), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("count", [4, 13, 57])
def test_no_group_is_left_with_a_single_image(count: int):
    sizes: list[int] = []

    class Noting(nn.Module):
        def forward(self, part: Tensor) -> Tensor:
            sizes.append(len(part))
            return part

    forward_shuffled(Noting(), images(count), 8)
    assert sum(sizes) == count
    assert min(sizes) >= 2
    assert max(sizes) - min(sizes) <= 1


def test_groups_have_batch_statistics_of_their_own_and_are_drawn_anew():
    module, batch = network(), images(16)
    whole = module(batch)
    torch.manual_seed(1)
    first, second = forward_shuffled(module, batch, 4), forward_shuffled(module, batch, 4)
    assert not torch.allclose(first, whole, atol=1e-3)
    assert not torch.allclose(first, second, atol=1e-3)
    assert torch.equal(forward_shuffled(module, batch, 1), whole)
    torch.manual_seed(1)
    assert torch.equal(first, forward_shuffled(module, batch, 4))


def test_running_statistics_move_by_the_mean_over_the_groups():
    # Means of groups of one size average to the mean of the batch: one batch norm sees groups, one the whole.
    norm, whole = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    batch = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    forward_shuffled(norm, batch, 4)
    whole(batch)
    assert norm.running_mean is not None
    assert whole.running_mean is not None
    torch.testing.assert_close(norm.running_mean, whole.running_mean)
    assert norm.momentum == 0.1


# Key encoder


def key_encoder(queue: int = 6) -> tuple[nn.Module, nn.Module, KeyEncoder]:
    torch.manual_seed(0)
    encoder, head = nn.Sequential(nn.Flatten(), nn.Linear(48, 5)), nn.Linear(5, 2)
    return encoder, head, KeyEncoder(encoder, head, dim=2, queue=queue, momentum=0.9, groups=2)


def test_keys_carry_no_gradient_and_the_key_network_is_not_trained():
    _, _, keys = key_encoder()
    assert not keys(images(4).requires_grad_()).requires_grad
    assert [p for p in keys.parameters() if p.requires_grad] == []


def test_keys_come_into_the_queue_only_after_the_step():
    encoder, head, keys = key_encoder()
    before, batch = keys.queue.rows.clone(), F.normalize(keys(images(4)), dim=1)
    keys.remember(batch)
    assert torch.equal(keys.queue.rows, before)
    keys.follow(encoder, head)
    torch.testing.assert_close(keys.queue.rows[:4], batch)
    assert torch.equal(keys.queue.rows[4:], before[4:])


def test_following_moves_the_key_network_by_its_momentum():
    encoder, head, keys = key_encoder()
    old = {key: value.clone() for key, value in keys.network.state_dict().items()}
    with torch.no_grad():
        for parameter in [*encoder.parameters(), *head.parameters()]:
            parameter.add_(1)
    keys.remember(F.normalize(keys(images(4)), dim=1))
    keys.follow(encoder, head)
    new = nn.Sequential(OrderedDict(encoder=encoder, head=head)).state_dict()
    for key, value in keys.network.state_dict().items():
        torch.testing.assert_close(value, 0.9 * old[key] + 0.1 * new[key])


def test_figures_tell_how_full_and_how_old_the_queue_is_and_how_far_the_copy_lags():
    encoder, head, keys = key_encoder(queue=6)
    for filled, age in [(4 / 6, 1.0), (1.0, 1.5), (1.0, 1.5)]:
        keys.remember(F.normalize(keys(images(4)), dim=1))
        keys.follow(encoder, head)
        found = keys.figures(encoder)
        assert found["queue_filled"] == pytest.approx(filled)
        assert found["queue_age"] == pytest.approx(age)
        assert found["target_distance"] == pytest.approx(0.0, abs=1e-6)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(2)
    assert keys.figures(encoder)["target_distance"] == pytest.approx(0.5, abs=1e-6)


def test_following_without_keys_is_a_mistake_that_is_named():
    encoder, head, keys = key_encoder()
    with pytest.raises(AssertionError, match="remember"):
        keys.follow(encoder, head)
