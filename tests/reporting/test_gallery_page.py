"""What the page shows of the images, against galleries whose answer is known."""

from __future__ import annotations

import base64
import builtins
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from carl.errors import UserError
from carl.reporting.gallery_page import MOST_GROUPS, average_purity, gallery_data, groups, image_data, near_duplicates
from carl.reporting.pictures import SHEET_COLUMNS, Sheets, thumbnail_sheets, view_picture
from carl.reporting.projections import PLACES, map_places
from tests.reporting.conftest import CLASSES, make_gallery


def test_groups_hold_their_images_the_surest_first_with_purity():
    gallery = make_gallery(images=40)
    gallery["group"][:] = 1
    gallery["group"][[4, 8, 9]] = 6  # of classes 0, 0 and 1
    gallery["confidence"][[4, 8, 9]] = [0.3, 0.9, 0.6]
    group = groups(gallery)["shown"][6]
    assert group["members"] == [8, 9, 4]
    assert group["confidence"] == 0.6
    assert group["purity"] == pytest.approx(2 / 3, abs=1e-3)
    assert group["classes"] == [(0, 0.667), (1, 0.333)]


def test_dead_empty_and_near_duplicate_prototypes_are_marked():
    found = groups(make_gallery(prototypes=10))["shown"]
    assert found[0]["marks"] == [{"kind": "near-duplicate", "of": 1}]
    assert found[1]["marks"] == []
    assert found[8]["marks"] == [{"kind": "empty"}]
    assert found[9]["marks"] == [{"kind": "dead"}]
    assert found[9]["best"]


def test_groups_without_a_labelled_image_have_no_purity():
    gallery = make_gallery(images=40)
    gallery["labels"] = np.where(gallery["group"] == 2, -1, gallery["labels"])
    assert [group["purity"] is None for group in groups(gallery)["shown"]] == [k in (2, 8, 9) for k in range(10)]
    gallery["labels"][:] = -1
    assert average_purity(gallery) is None


def test_of_very_many_groups_the_largest_are_shown_and_all_are_counted():
    gallery = make_gallery(images=400, prototypes=50_000)
    gallery["group"][:] = 100 * np.arange(400)
    gallery["group"][:5] = 49_999
    found = groups(gallery)
    assert (found["count"], found["used"], len(found["shown"])) == (50_000, 396, MOST_GROUPS)
    assert found["kinds"] == {"near-duplicate": 1, "empty": 49_604}
    numbers = [group["number"] for group in found["shown"]]
    assert numbers == sorted(numbers)
    assert {*gallery["group"].tolist()} <= {*numbers}
    assert len(found["shown"][-1]["members"]) == 5


def test_long_names_keep_their_beginning_and_their_end():
    name = "folder/" * 100 + "image.png"
    shown = image_data(make_gallery(images=2, names=[name, "short.png"]))["names"]
    assert shown[1] == "short.png"
    assert len(shown[0]) <= 200
    assert (shown[0][:14], shown[0][-9:]) == ("folder/folder/", "image.png")


def test_clusters_are_never_called_dead():
    assert groups(make_gallery(grouping="k-means"))["shown"][9]["marks"] == [{"kind": "empty"}]


def test_purity_is_one_when_groups_are_classes_and_ignores_images_without_a_label():
    gallery = make_gallery(images=40)
    gallery["group"] = gallery["labels"].astype(np.int32)
    gallery["labels"] = np.where(np.arange(40) < 10, -1, gallery["labels"])
    assert average_purity(gallery) == 1.0
    assert average_purity(make_gallery(labels=False)) is None


def test_planted_near_duplicates_are_found_and_no_others():
    gallery = make_gallery(images=400)
    rng = np.random.default_rng(3)
    features = rng.normal(size=(400, 64)) + 5  # a common direction, as in young encoders: plain cosines are near 1
    features[7] = features[300] + 0.02 * rng.normal(size=64)
    gallery["embeddings"] = features.astype(np.float16)
    gallery["neighbours"][7, 0], gallery["neighbours"][300, 0] = 300, 7
    features[9] = features[40]  # alike to the encoder, but another picture
    gallery["neighbours"][9, 0] = 40
    gallery["thumbnails"][7] = gallery["thumbnails"][300] // 2 * 2
    gallery["embeddings"] = features.astype(np.float16)
    found = near_duplicates(gallery)
    assert found["count"] == 1
    a, b, cosine, correlation = found["shown"][0]
    assert (a, b) == (7, 300)
    assert min(cosine, correlation) > 0.95


def test_outliers_are_the_least_wanted_and_the_loneliest():
    gallery = make_gallery(images=60)
    gallery["confidence"][17] = 0.01
    gallery["similarities"][23] = 0.1
    data = gallery_data(gallery, "pca")
    assert data["unwanted"][0] == 17
    assert data["lonely"][0] == 23


def test_neighbours_that_share_the_label_are_counted_beside_random_and_chance():
    same = gallery_data(make_gallery(images=80), "pca")["same_label"]
    assert same["trained"] > 0.95
    assert same["random"] == pytest.approx(0.25, abs=0.1)
    assert same["chance"] == pytest.approx(0.25)


def test_queries_are_of_all_classes():
    data = image_data(make_gallery(images=80))
    assert len(set(data["queries"])) == 10
    assert {data["labels"][query] for query in data["queries"]} == set(range(len(CLASSES)))


def test_labels_without_class_names_are_numbered():
    gallery = make_gallery() | {"class_names": np.array([], dtype=np.str_)}
    assert image_data(gallery)["classes"] == ["0", "1", "2", "3"]


def pixels(sheets: Sheets, place: int) -> np.ndarray:
    encoded = sheets.images[place // (sheets.columns * sheets.rows)].partition(",")[2]
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB"))
    row, column = divmod(place % (sheets.columns * sheets.rows), sheets.columns)
    top, left = row * sheets.cell_height, column * sheets.cell_width
    return sheet[top : top + sheets.height, left : left + sheets.width]


def test_sheets_hold_each_thumbnail_at_its_place():
    thumbnails = np.random.default_rng(0).integers(0, 255, (600, 12, 20, 3)).astype(np.uint8)
    sheets = thumbnail_sheets(thumbnails, budget=8_000_000)
    for place in (0, SHEET_COLUMNS, 499, 500, 599):
        assert np.array_equal(pixels(sheets, place), thumbnails[place])


def test_sheets_keep_to_their_budget_at_the_cost_of_quality():
    thumbnails = np.random.default_rng(0).integers(0, 255, (600, 48, 48, 3)).astype(np.uint8)
    sheets = thumbnail_sheets(thumbnails, budget=200_000)
    assert sum(len(image) for image in sheets.images) < 1.4 * 200_000
    assert sheets.width < 48
    means = pixels(sheets, 17).mean(), thumbnails[17].mean()
    assert means[0] == pytest.approx(means[1], abs=12)


def test_the_grid_of_views_has_the_image_first():
    originals, views = np.full((2, 8, 8, 3), 200, np.uint8), np.zeros((2, 3, 16, 16, 3), np.uint8)
    picture = view_picture(originals, views)
    decoded = Image.open(io.BytesIO(base64.b64decode(picture["address"].partition(",")[2])))
    assert decoded.size == (picture["width"], picture["height"])
    assert decoded.convert("RGBA").getpixel((3, 3)) == (200, 200, 200, 255)
    assert decoded.convert("RGBA").getpixel((picture["width"] - 3, 3)) == (0, 0, 0, 255)


def test_places_keep_the_shape_of_the_cloud_and_a_stray_point_does_not_squeeze_it():
    gallery = make_gallery(images=1000)
    gallery["positions"] = np.random.default_rng(0).uniform(-1, 1, (1000, 2)) * [4, 1]
    gallery["positions"][0] = [4000, 0]
    places = map_places(gallery, "pca")
    assert places.min() >= 0
    assert places.max() <= PLACES
    spread = places[1:].max(axis=0) - places[1:].min(axis=0)
    assert spread[0] > 0.7 * PLACES
    assert spread[0] / spread[1] == pytest.approx(4, rel=0.1)


def test_tsne_draws_classes_apart():
    pytest.importorskip("sklearn")
    gallery = make_gallery(images=120)
    places = map_places(gallery, "tsne").astype(float)
    centres = np.stack([places[gallery["labels"] == c].mean(axis=0) for c in range(4)])
    nearest = np.linalg.norm(places[:, None] - centres, axis=2).argmin(axis=1)
    assert (nearest == gallery["labels"]).mean() > 0.9


def test_a_map_whose_library_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] in ("umap", "sklearn"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    for projection in ("umap", "tsne"):
        with pytest.raises(UserError, match=r"carl-ssl\[map\]"):
            map_places(make_gallery(), projection)
