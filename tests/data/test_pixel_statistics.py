"""Mean, standard deviation and checksum, also of arrays much larger than memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from carl.data import open_dataset
from carl.data.packing import pixel_statistics
from carl.data.packing.pixel_statistics import pixels_digest, statistics_and_digest


def test_statistics_equal_numpys(monkeypatch):
    monkeypatch.setattr(pixel_statistics, "CHUNK_BYTES", 2_000)  # so that there are many chunks, the last one short
    pixels = np.random.default_rng(0).integers(0, 256, (61, 9, 7, 3), np.uint8)
    found, digest = statistics_and_digest(pixels)
    assert digest == pixels_digest(pixels)
    np.testing.assert_allclose(found.mean, pixels.mean(axis=(0, 1, 2)) / 255, rtol=1e-12)
    np.testing.assert_allclose(found.std, pixels.std(axis=(0, 1, 2)) / 255, rtol=1e-12)


def test_sums_of_the_brightest_image_are_exact():
    found, _ = statistics_and_digest(np.full((40, 300, 33, 1), 255, np.uint8))
    assert found.mean == (1.0,)


def test_a_constant_channel_can_be_divided_by():
    assert statistics_and_digest(np.full((2, 3, 3, 2), 9, np.uint8))[0].std == (1 / 255, 1 / 255)


def test_the_checksum_notices_one_pixel_and_the_order_of_images():
    pixels = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 3), np.uint8)
    changed = pixels.copy()
    changed[30, 1, 2, 0] ^= 1
    assert len({pixels_digest(some) for some in (pixels, changed, pixels[::-1])}) == 3
    assert pixels_digest(pixels) == pixels_digest(pixels.copy())


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_imagenet64_goes_through_statistics_and_an_epoch_within_a_gigabyte(tmp_path):
    """The issue's "must show" 5: 15.7 GB on paper, a sparse file on the disk."""
    count, batch = 1_281_167, 512
    path = tmp_path / "imagenet64.npy"
    pixels = np.lib.format.open_memmap(path, "w+", np.uint8, (count, 64, 64, 3))
    pixels[0], pixels[-1] = 255, 255
    pixels.flush()
    del pixels
    before, most = anonymous_bytes(), 0
    dataset = open_dataset(path, progress=lambda *step: None)
    most = max(most, anonymous_bytes())
    np.testing.assert_allclose(dataset.statistics.mean, [2 / count] * 3)
    order = np.random.default_rng(0).permutation(count)
    for start in range(0, count, batch):
        gathered = dataset.train.images.gather(order[start : start + batch])
        if start % (100 * batch) == 0:
            most = max(most, anonymous_bytes())
    assert gathered.shape == (count % batch, 64, 64, 3)
    assert most - before < 1e9
