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
from carl.records.given_names import GivenNames
from carl.reporting.gallery_page import (
    MOST_GROUPS,
    almost_same,
    average_purity,
    gallery_data,
    groups,
    image_data,
    names_data,
)
from carl.reporting.pictures import SHEET_COLUMNS, Sheets, thumbnail_sheets, view_picture
from carl.reporting.projections import PLACES, map_places
from tests.reporting.conftest import CLASSES, flagged, listed, make_gallery


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


def test_dead_empty_and_twin_prototypes_are_marked():
    found = groups(make_gallery(prototypes=10))["shown"]
    assert found[0]["marks"] == [{"kind": "twin", "of": 1}]
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
    assert found["kinds"] == {"twin": 1, "empty": 49_604}
    numbers = [group["number"] for group in found["shown"]]
    assert numbers == sorted(numbers)
    assert {*gallery["group"].tolist()} <= {*numbers}
    assert len(found["shown"][-1]["members"]) == 5


def read_names(coded: dict[str, list[Any]]) -> list[str]:
    """As the page's script reads them: lengths count the halves of letters beyond 16 bits."""
    names, before = [], b""
    for shared, rest in zip(coded["shared"], coded["rest"], strict=True):
        before = before[: 2 * shared] + rest.encode("utf-16-le")
        names.append(before.decode("utf-16-le"))
    return names


def test_names_are_whole_however_long_and_odd_they_are():
    names = ["folder/" * 100 + "image.png", "folder/x.png", "folder/\U0001f600a.png", "folder/\U0001f600b.png", "z"]
    data = image_data(make_gallery(images=5, names=names), base="/photos")
    assert read_names(data["names"]) == names
    assert data["base"] == "/photos"


def test_names_that_are_too_many_keep_their_beginning_and_their_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("carl.reporting.gallery_page.NAMES_BYTES", 500)
    data = image_data(make_gallery(images=2, names=["folder/" * 100 + "image.png", "short.png"]), base="/photos")
    first, second = read_names(data["names"])
    assert second == "short.png"
    assert len(first) <= 60
    assert (first[:14], first[-9:]) == ("folder/folder/", "image.png")
    assert data["base"] is None  # no list of files can be made of them


def test_bytes_that_are_no_text_are_escaped_as_carl_embed_does():
    data = image_data(make_gallery(images=2, names=["a\udcff.png", "b.png"]))
    assert read_names(data["names"]) == ["a\\udcff.png", "b.png"]


def test_the_sample_comes_first_and_all_listed_images_are_in_their_group():
    gallery = flagged(listed(make_gallery(images=40), 200))
    data, drawn = image_data(gallery), gallery_data(gallery, "pca")
    assert (data["count"], data["listed"], data["total"]) == (40, 200, 200)
    assert data["rows"][:40] == gallery["rows"].tolist()
    assert sorted(data["rows"]) == list(range(200))
    names = read_names(data["names"])
    assert [names[place] for place in (0, 39, 40)] == [gallery["listed_names"][data["rows"][k]] for k in (0, 39, 40)]
    assert drawn["group"][:40] == gallery["group"].tolist()
    members = [place for group in drawn["groups"]["shown"] for place in group["members"]]
    assert sorted(members) == list(range(200))
    for group in drawn["groups"]["shown"]:
        assert all(drawn["group"][place] == group["number"] for place in group["members"])
        on_map = [place < 40 for place in group["members"]]
        assert on_map == sorted(on_map, reverse=True)
    assert [int(gallery["flags"][row]) for row in data["rows"]] == data["flags"]
    assert data["duplicate_of"] == [[data["rows"].index(199), data["rows"].index(0)]]
    assert data["flag_list"][0] == {"name": "too dark", "words": "What too dark means.", "count": 40}


def test_names_and_tags_find_their_images_and_keep_those_of_other_pages():
    gallery = make_gallery(images=3, names=["a.png", "b.png", "c.png"]) | {
        "group_names": np.array(["first"] + [""] * 9, dtype=np.str_)
    }
    found = names_data(gallery, GivenNames({1: "owls"}, {"odd": ("c.png", "elsewhere.png")}))
    assert found["groups"] == {"0": "first", "1": "owls"}
    assert found["tags"] == {"odd": [2]}
    assert found["elsewhere"] == {"odd": ["elsewhere.png"]}
    assert found["of"]


def test_clusters_are_never_called_dead():
    assert groups(make_gallery(grouping="k-means"))["shown"][9]["marks"] == [{"kind": "empty"}]


def test_purity_is_one_when_groups_are_classes_and_ignores_images_without_a_label():
    gallery = make_gallery(images=40)
    gallery["group"] = gallery["labels"].astype(np.int32)
    gallery["labels"] = np.where(np.arange(40) < 10, -1, gallery["labels"])
    assert average_purity(gallery) == 1.0
    assert average_purity(make_gallery(labels=False)) is None


def test_planted_pairs_that_are_almost_the_same_are_found_and_no_others():
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
    found = almost_same(gallery)
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
    places, _ = map_places(gallery, "pca")
    assert places.min() >= 0
    assert places.max() <= PLACES
    spread = places[1:].max(axis=0) - places[1:].min(axis=0)
    assert spread[0] > 0.7 * PLACES
    assert spread[0] / spread[1] == pytest.approx(4, rel=0.1)


def test_tsne_draws_classes_apart():
    pytest.importorskip("sklearn")
    gallery = make_gallery(images=120)
    places = map_places(gallery, "tsne")[0].astype(float)
    centres = np.stack([places[gallery["labels"] == c].mean(axis=0) for c in range(4)])
    nearest = np.linalg.norm(places[:, None] - centres, axis=2).argmin(axis=1)
    assert (nearest == gallery["labels"]).mean() > 0.9


def test_of_many_images_some_are_laid_out_and_the_others_lie_beside_their_like(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("carl.reporting.projections.LANDMARKS", 120)
    gallery = make_gallery(images=400)
    places, layout = map_places(gallery, "auto")
    assert "120 images" in layout
    centres = np.stack([places[gallery["labels"] == c].mean(axis=0) for c in range(4)])
    nearest = np.linalg.norm(places[:, None] - centres, axis=2).argmin(axis=1)
    assert (nearest == gallery["labels"]).mean() > 0.9


def test_a_handful_of_images_is_laid_out_by_pca():
    assert map_places(make_gallery(images=80), "auto")[1] == "PCA of its embeddings"
    assert map_places(make_gallery(images=120), "auto")[1] == "t-SNE of its embeddings"


def test_of_pairs_that_are_almost_the_same_one_image_always_stays():
    gallery = make_gallery(images=400)
    features = np.random.default_rng(3).normal(size=(400, 64)) + 5
    for a, b in ((7, 300), (300, 20), (9, 40)):  # 7, 300 and 20 are one picture
        features[b] = features[a]
        gallery["thumbnails"][b] = gallery["thumbnails"][a]
        gallery["neighbours"][a, 0], gallery["neighbours"][b, 0] = b, a
    gallery["neighbours"][7, 1] = 20
    gallery["embeddings"] = features.astype(np.float16)
    assert almost_same(gallery)["count"] == 4
    assert almost_same(gallery)["seconds"] == [40, 300]


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
