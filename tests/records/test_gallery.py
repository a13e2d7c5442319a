"""What is checked in the arrays of a page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from carl.records.gallery import check_gallery
from tests.reporting.conftest import flagged, listed, make_gallery


def test_a_gallery_needs_neither_views_nor_random_weights_nor_groups():
    gallery = make_gallery()
    for name in ("views", "view_places", "random_neighbours", "labels", "class_names"):
        del gallery[name]
    check_gallery(gallery)


def test_flags_are_of_the_sample_or_of_all_listed_images():
    check_gallery(flagged(make_gallery(images=40)))
    check_gallery(flagged(listed(make_gallery(images=40), 200)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flags", np.zeros(39, np.uint32)),
        ("flags", np.zeros(40, np.uint8)),
        ("flags", np.full(40, 1 << 20, np.uint32)),
        ("duplicate_of", np.full(40, 40)),
        ("flag_counts", np.full(3, 41)),
        ("flag_words", np.array(["one"])),
        ("group_names", np.array(["one"])),
        ("listed_rows", np.arange(200)),  # without the others
    ],
)
def test_wrong_flags_and_names_are_refused(name: str, value: Any):
    gallery = flagged(make_gallery(images=40))
    gallery[name] = value
    with pytest.raises((ValueError, KeyError)):
        check_gallery(gallery)


def test_listed_rows_rise_and_hold_the_sample():
    gallery = listed(make_gallery(images=40), 200)
    check_gallery(gallery)
    with pytest.raises(ValueError, match="listed_rows"):
        check_gallery(gallery | {"listed_rows": gallery["listed_rows"][::-1]})
    with pytest.raises(ValueError, match="listed_rows"):
        check_gallery(gallery | {"rows": gallery["rows"] + 200})
