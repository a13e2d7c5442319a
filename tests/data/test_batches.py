"""Batches: as many steps at any number of processes, and shares that fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from carl.data.batches.packed import PackedBatches
from carl.data.dataset import PackedImages, Split
from carl.errors import UserError
from carl.views.recipes import pipeline
from carl.views.views import Views


def batches(images: int, drop_last: bool, rank: int = 0, ranks: int = 1, equal_shares: bool = True) -> PackedBatches:
    split = Split(PackedImages(np.zeros((images, 8, 8, 3), np.uint8)))
    views = Views(pipeline("eval", 8), (0.5,) * 3, (0.25,) * 3, seed=0)
    return PackedBatches(
        split,
        views,
        12,
        seed=0,
        device=torch.device("cpu"),
        drop_last=drop_last,
        rank=rank,
        ranks=ranks,
        equal_shares=equal_shares,
    )


@pytest.mark.parametrize(("images", "steps"), [(24, 2), (25, 2), (26, 3), (35, 3)])
def test_an_epoch_with_its_rest_has_as_many_steps_at_any_number_of_processes(images: int, steps: int):
    allowed = [ranks for ranks in (1, 2, 3, 6) if images % 12 < 2 or images % 12 >= 2 * ranks]
    assert {batches(images, drop_last=False, ranks=ranks).steps_per_epoch for ranks in allowed} == {steps}


def test_a_rest_with_fewer_than_two_images_a_process_is_refused_with_what_would_do():
    with pytest.raises(
        UserError, match="last batch of an epoch, 5 images, is too small for 3 processes; use at most 2"
    ):
        batches(29, drop_last=False, ranks=3)
    assert batches(29, drop_last=False, ranks=2).steps_per_epoch == 3
    assert batches(29, drop_last=True, ranks=3).steps_per_epoch == 2


@pytest.mark.parametrize("ranks", [1, 2, 5, 7])
def test_shares_that_need_not_be_equal_are_the_whole(ranks: int):
    shares = [batches(27, False, rank, ranks, equal_shares=False) for rank in range(ranks)]
    found = [batch.indices for share in shares for batch in share.epoch(0)]
    assert torch.cat(found).sort().values.tolist() == list(range(27))
    assert len(found) == 3 * ranks


def test_with_partners_the_first_view_shows_the_image_and_the_others_its_partner():
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3), dtype=np.uint8)
    views = Views(pipeline("simclr", 8), (0.5,) * 3, (0.25,) * 3, seed=0)
    made = PackedBatches(Split(PackedImages(pixels)), views, 12, seed=0, device=torch.device("cpu"))
    partners = np.roll(np.arange(24), 5)
    alone, paired = (list(made.epoch(3, partners=given)) for given in (None, partners))
    second = torch.empty(24, 3, 8, 8)
    for batch in alone:
        second[batch.indices] = batch.views[1]
    for before, batch in zip(alone, paired, strict=True):
        assert torch.equal(batch.indices, before.indices)
        assert torch.equal(batch.views[0], before.views[0])
        torch.testing.assert_close(batch.views[1], second[partners[batch.indices]], atol=1e-5, rtol=0)
        assert not torch.allclose(batch.views[1], before.views[1])
