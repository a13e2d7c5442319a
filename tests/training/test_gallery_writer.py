"""gallery.npz: what torch computes for the report."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from carl.training import gallery_writer
from carl.use.gallery_arrays import usual_clusters
from tests.conftest import SMALL, Run


def test_neighbours_are_the_most_similar_others():
    features = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    places, cosines = gallery_writer.nearest(features, count=2)
    assert places.tolist() == [[1, 3], [0, 3], [3, 1], [2, 1]]
    expected = F.cosine_similarity(features[0], features[1], dim=0)
    assert cosines[0, 0].item() == pytest.approx(expected.item())


def test_groups_name_the_choice_the_surest_images_and_the_nearest_group():
    scores = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.8, 0.1, 0.1]])
    grouping = gallery_writer.Grouping(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1]]))
    assert grouping.add(scores).tolist() == pytest.approx([0.7, 0.6, 0.8])
    found = grouping.arrays()
    assert found["group"].tolist() == [0, 1, 0]
    assert found["confidence"].tolist() == pytest.approx([0.7, 0.6, 0.8])
    assert found["group_best"][0].tolist() == [2, 0, 1]
    assert found["group_twin"].tolist()[0] == 2
    assert found["group_cosine"][0] > 0.99
    assert found["group_mean"].tolist() == pytest.approx(scores.mean(0).tolist())


def test_groups_are_the_same_from_all_images_at_once_and_from_parts():
    generator = torch.Generator().manual_seed(0)
    scores, vectors = torch.rand(50, 7, generator=generator), torch.randn(7, 4, generator=generator)
    whole, parts = gallery_writer.Grouping(vectors), gallery_writer.Grouping(vectors)
    whole.add(scores)
    for part in scores.split(6):
        parts.add(part)
    for name, expected in whole.arrays().items():
        assert np.allclose(parts.arrays()[name], expected), name


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")
def test_fifty_thousand_prototypes_are_never_compared_all_with_all_at_once():
    code = (
        "import torch; from pathlib import Path; from carl.training.gallery_writer import Grouping;"
        "g = Grouping(torch.randn(50_000, 4)); g.add(torch.rand(64, 50_000)); g.arrays();"
        "print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 1024 * int(done.stdout) < 2e9  # all pairs would take 10 GB


def test_the_main_process_of_many_clusters_by_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("carl.distributed.dist.is_initialized", lambda: True)
    monkeypatch.setattr("carl.distributed.dist.get_world_size", lambda: 2)
    monkeypatch.setattr("carl.distributed.dist.get_rank", lambda: 0)
    features = torch.eye(8).repeat(5, 1)
    assert len(gallery_writer.clusters(features, classes=0, images=400)["group_mean"]) == 14


def test_methods_without_prototypes_get_clusters_that_follow_the_features():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 4
    features = 5 * torch.eye(16)[labels] + 0.1 * torch.randn(200, 16, generator=generator)
    found = gallery_writer.clusters(features, classes=4, images=200)
    assert len(found["group_mean"]) == 40
    for number in range(40):
        assert len(set(labels[found["group"] == number].tolist())) <= 1
    assert len(gallery_writer.clusters(features[:6], classes=0, images=600)["group_mean"]) == 3


def test_photos_without_labels_get_as_many_groups_from_a_run_as_from_an_encoder():
    features = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    assert len(gallery_writer.clusters(features, classes=0, images=60)["group_mean"]) == usual_clusters(60) == 5
    assert len(gallery_writer.clusters(features[:4], classes=0, images=4)["group_mean"]) == 2


def test_thumbnails_of_few_images_may_be_larger():
    large = np.zeros((3, 200, 100, 3), np.uint8)
    assert gallery_writer.thumbnails(large, 10_000).shape == (3, 48, 24, 3)
    assert gallery_writer.thumbnails(large, 100).shape == (3, 96, 48, 3)
    assert gallery_writer.thumbnails(np.zeros((2, 8, 8, 1), np.uint8), 2).shape == (2, 8, 8, 3)


@pytest.mark.parametrize(("method", "grouping"), [("carl", "prototypes"), ("simclr", "k-means")])
def test_a_run_of_any_method_leaves_a_gallery_and_a_report(
    carl: Run, small_data: Path, tmp_path: Path, method: str, grouping: str
):
    sizes = [word for word in SMALL if word not in ("--prototypes", "10")]
    done = carl("pretrain", small_data, "--method", method, *sizes, "--epochs", "1", "--out", "run")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "run" / "gallery.npz", allow_pickle=False) as arrays:
        assert str(arrays["grouping"]) == grouping
        assert arrays["neighbours"].shape == arrays["random_neighbours"].shape == (96, 8)
        assert arrays["views"].shape[:2] == (6, 8)
        assert len(arrays["labels"]) == len(arrays["group"]) == 96
    assert (tmp_path / "run" / "report.html").stat().st_size > 50_000


def stored(side: int, count: int, tmp_path: Path) -> Path:
    """A folder of noisy photos: the second nearly black, the third a copy of the first, and the last a long strip."""
    rng, folder = np.random.default_rng(0), tmp_path / "photos"
    folder.mkdir()
    photos = [rng.integers(0, 255, (side, side, 3)).astype(np.uint8) for _ in range(count)]
    photos[1] //= 16
    photos[2] = photos[0]
    photos[-1] = rng.integers(0, 255, (side, 4 * side, 3)).astype(np.uint8)
    for number, pixels in enumerate(photos):
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return folder


@pytest.mark.parametrize(("views_from", "strips"), [("photos", [19]), ("packed", None)])
def test_a_run_finds_what_may_be_wrong_with_its_images(
    carl: Run, tmp_path: Path, views_from: str, strips: list[int] | None
):
    source, views = stored(24, 20, tmp_path), f"data.views_from={views_from}"
    done = carl("pretrain", source, *SMALL, "--epochs", "1", "--image-size", "16", "--set", views, "--out", "run")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "run" / "gallery.npz", allow_pickle=False) as arrays:
        titles, flags, first = arrays["flag_names"].tolist(), arrays["flags"], arrays["duplicate_of"]
    found = {title: np.flatnonzero(flags >> bit & 1).tolist() for bit, title in enumerate(titles)}
    assert found["Too dark"] == [1]
    assert found["Exact copies"] == [2]
    assert first[2] == 0
    assert found.get("Odd shape") == strips  # images that were cut to a square have no shape of their own
    assert 'href="#quality"' in (tmp_path / "run" / "report.html").read_text()


def test_the_command_that_the_report_names_makes_a_missing_gallery(carl: Run, small_data: Path, tmp_path: Path):
    assert carl("pretrain", small_data, *SMALL, "--set", "log.report=false", "--out", "run").returncode == 0
    assert carl("report", "run").returncode == 0
    page = (tmp_path / "run" / "report.html").read_text()
    (command,) = re.findall(r"Make it with: carl (.*?)</p>", page)
    done = carl(*command.split())
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "gallery.npz").is_file()
