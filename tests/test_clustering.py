"""k-means against scikit-learn's, at its edges, and over two processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from sklearn import cluster
from torch import Tensor

from carl import clustering
from carl.clustering import kmeans, lloyd
from carl.errors import UserError


def blobs(count: int, far: float = 0.0) -> Tensor:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(6, 5)) * 4
    points = centres[generator.integers(0, 6, count)] + generator.normal(size=(count, 5)) + far
    return torch.from_numpy(points).float()


@pytest.mark.parametrize("clusters", [1, 4, 6, 25])
def test_same_start_gives_scikit_learns_clusters(clusters: int):
    points = blobs(400)
    start = points[:clusters]
    expected = cluster.KMeans(clusters, init=start.numpy(), n_init=1, max_iter=100, tol=0).fit(points.numpy())
    found = lloyd(points, start, 100)
    assert (found.assignments.numpy() == expected.labels_).all()
    assert np.allclose(found.centroids.numpy(), expected.cluster_centers_, atol=1e-4)
    assert found.inertia == pytest.approx(expected.inertia_, rel=1e-5)
    assert found.distances.sum().item() == pytest.approx(found.inertia, rel=1e-5)


def test_points_far_from_the_origin_keep_their_digits():
    near, far = kmeans(blobs(300), 6, seed=3), kmeans(blobs(300, far=2000.0), 6, seed=3)
    assert torch.equal(near.assignments, far.assignments)
    assert far.inertia == pytest.approx(near.inertia, rel=1e-2)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch):
    whole = kmeans(blobs(300), 7, seed=1)
    monkeypatch.setattr(clustering, "CHUNK_VALUES", {"cpu": 70})
    monkeypatch.setattr(clustering, "LEAST_ROWS", 1)
    parts = kmeans(blobs(300), 7, seed=1)
    assert torch.equal(whole.assignments, parts.assignments)
    assert torch.allclose(whole.centroids, parts.centroids, atol=1e-5)


def test_same_seed_same_bits_and_more_restarts_are_never_worse():
    points = blobs(300)
    assert torch.equal(kmeans(points, 6, seed=5).centroids, kmeans(points, 6, seed=5).centroids)
    assert not torch.equal(kmeans(points, 6, seed=5).centroids, kmeans(points, 6, seed=6).centroids)
    one, many = (kmeans(points, 6, seed=5, restarts=n).inertia for n in (1, 8))
    assert many <= one


def test_as_many_clusters_as_points_are_the_points():
    points = blobs(40)
    found = kmeans(points, 40, seed=0)
    assert found.inertia == pytest.approx(0.0, abs=1e-6)
    assert sorted(found.assignments.tolist()) == list(range(40))


def test_one_cluster_is_the_mean():
    points = blobs(50)
    assert torch.allclose(kmeans(points, 1, seed=0).centroids[0], points.mean(0), atol=1e-5)


def test_empty_clusters_take_half_of_the_largest():
    points = blobs(300)
    start = torch.cat([points[:5], torch.full((3, 5), 1e6)])  # three that no point is near
    found = lloyd(points, start, 50)
    assert found.assignments.bincount(minlength=8).min() > 0
    assert found.inertia < lloyd(points, points[:5], 50).inertia


def test_the_largest_is_split_again_and_again_where_many_are_empty():
    places = torch.tensor([[10.0], [-10.0]])
    points = places.repeat_interleave(torch.tensor([8, 5]), dim=0)
    start = torch.cat([places, torch.full((4, 1), 1e6)])  # four that no point is near
    found = lloyd(points, start, 1).centroids
    # 8 -> 4 + 4, then 5 -> 2.5 + 2.5, then each 4 -> 2 + 2.
    near = torch.cdist(found, places) < 0.5
    assert near.sum(dim=0).tolist() == [4, 2]
    assert len(found.unique()) == 6  # the halves are apart, so that they can part further


@pytest.mark.parametrize("clusters", [3, 1000, 100_000])
def test_a_chunk_has_some_hundred_points_whatever_the_number_of_clusters(clusters: int):
    centroids = torch.empty(1, 1).expand(clusters, 1)
    assert clustering.rows_per_chunk(centroids) >= 256
    assert clustering.rows_per_chunk(centroids.to("meta")) * clusters >= 2**25


@pytest.mark.parametrize("clusters", [1, 3, 60])
def test_identical_points_do_no_harm(clusters: int):
    points = torch.cat([torch.ones(50, 4), torch.zeros(10, 4)])
    found = kmeans(points, clusters, seed=0)
    assert torch.isfinite(found.centroids).all()
    if clusters > 1:
        assert found.assignments[0] != found.assignments[-1]
    assert kmeans(torch.ones(20, 3), 5, seed=0).inertia == pytest.approx(0.0, abs=1e-6)


def test_it_ends_when_nothing_changes():
    """All of these iterations would take years."""
    found = lloyd(torch.tensor([[0.0], [0.1], [9.0], [9.1]]), torch.tensor([[0.0], [9.0]]), 10**12)
    torch.testing.assert_close(found.centroids, torch.tensor([[0.05], [9.05]]))


def test_wrong_requests_name_the_value_and_the_rule():
    with pytest.raises(UserError, match="clusters=11 of 10 points"):
        kmeans(blobs(10), 11, seed=0)
    with pytest.raises(UserError, match="clusters=0"):
        kmeans(blobs(10), 0, seed=0)
    with pytest.raises(UserError, match="not finite"):
        kmeans(torch.full((10, 2), torch.nan), 2, seed=0)


def share(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    points = blobs(300)
    found = kmeans(points[:110] if rank == 0 else points[110:], 9, seed=4)
    torch.save([found.centroids, found.assignments, torch.tensor(found.inertia)], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_with_unequal_shares_find_what_one_finds(tmp_path: Path):
    mp.spawn(share, args=(str(tmp_path),), nprocs=2)
    whole = kmeans(blobs(300), 9, seed=4)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.allclose(first[0], whole.centroids, atol=1e-5)
    assert torch.equal(torch.cat([first[1], second[1]]), whole.assignments)
    assert first[2].item() == second[2].item() == pytest.approx(whole.inertia, rel=1e-5)
