"""MoCo: the key of an image against the queue as it was before the step."""

from __future__ import annotations

import pytest
import torch
from lightly.loss import NTXentLoss

from carl.methods.losses import unit
from carl.methods.moco import MoCo
from tests.methods.examples import PROGRESS, make, make_batch


def made(**options: object) -> MoCo:
    method = make("moco", **options)
    assert isinstance(method, MoCo)
    return method


def test_the_loss_is_lightlys_with_the_queue_as_its_memory_bank():
    method, batch = made().eval(), make_batch("moco")
    loss, _ = method(batch, PROGRESS)
    theirs = NTXentLoss(temperature=0.2, memory_bank_size=(20, 32))
    with torch.no_grad():
        queries, keys = method.embed(batch.views[0]), method.keys.network(batch.views[1])
        theirs(queries, keys)  # it makes its bank at the first call
        theirs.memory_bank.bank.copy_(method.keys.queue.rows)
        expected = theirs(queries, keys)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)


def test_keys_of_successive_batches_line_up_and_wrap_around_a_queue_they_do_not_fill_evenly():
    method = made()
    wanted = torch.empty(0, 32)
    for first in (0, 8, 16):
        batch = make_batch("moco", first=first)
        represented = method.represent(batch)
        method.objective(represented, batch, PROGRESS)
        wanted = torch.cat([wanted, unit(represented[1])])
        method.after_step(PROGRESS)
    queue = method.keys.queue
    torch.testing.assert_close(queue.rows[4:], wanted[4:20])
    torch.testing.assert_close(queue.rows[:4], wanted[20:])  # 24 keys in a queue of 20: the last four come first
    torch.testing.assert_close(queue.rows.norm(dim=1), torch.ones(20))
    assert method.logged(PROGRESS)["queue_age"] == pytest.approx(2.5)


def test_keys_are_normalised_in_groups_of_the_batch_unless_there_is_one_group():
    batch = make_batch("moco", 16)
    torch.manual_seed(3)
    with torch.no_grad():
        apart, whole = (made(shuffle_groups=groups).represent(batch)[1] for groups in (4, 1))
        again = made(shuffle_groups=1).keys.network(batch.views[1])
    assert torch.equal(whole, again)
    assert not torch.allclose(apart, whole, atol=1e-3)
