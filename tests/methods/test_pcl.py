"""PCL: when it clusters, what it clusters, and what it makes of the clusters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from carl.clustering import kmeans
from carl.errors import UserError
from carl.methods import METHODS
from carl.methods.base import EmbedFn
from carl.methods.losses import info_nce, proto_nce, unit
from carl.methods.pcl import PCL
from tests.methods.examples import FACTS, IMAGES, PROGRESS, embedder, make, make_batch, settings
from tests.methods.test_runs import run


def made(epoch: int = 4, **options: object) -> PCL:
    method = make("pcl", epoch, **options)
    assert isinstance(method, PCL)
    return method


def test_it_clusters_before_an_epoch_only_after_the_warm_up():
    def refuse(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        raise AssertionError("no embeddings are needed yet")

    method = METHODS["pcl"](settings("pcl", warmup_epochs=2), FACTS)
    for epoch in (0, 1):
        method.before_epoch(epoch, refuse)
    assert method.prototype_vectors() is None
    assert method.log_assignments(make_batch("pcl").views[0]) is None
    method.before_epoch(2, embedder(method))
    vectors = method.prototype_vectors()
    assert vectors is not None
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(4))


def test_warm_up_is_info_nce_alone_and_then_the_mean_over_clusterings_is_added():
    method, batch = made(warmup_epochs=2), make_batch("pcl")
    represented = method.represent(batch)
    with torch.no_grad():
        instance = info_nce(*represented, method.keys.queue.rows, 0.2)
        loss, metrics = method.objective(represented, batch, 1.9 / 8)
        assert loss == instance
        assert metrics["proto_nce"] == 0
        loss, metrics = method.objective(represented, batch, 2 / 8)
        parts = method.clusterings
        terms = [
            proto_nce(represented[0], parts.centroids(m), parts.concentrations(m), parts.assignments[m][batch.indices])
            for m in range(2)
        ]
        torch.testing.assert_close(loss, instance + (terms[0] + terms[1]) / 2)


def test_negative_clusters_are_drawn_only_where_there_are_more_than_asked_for():
    method, batch = made(negative_prototypes=3), make_batch("pcl")
    with torch.no_grad():
        embeddings = method.embed(batch.views[0])
        found = {float(method.clusterings.proto_nce(embeddings, batch.indices, 3)) for _ in range(8)}
        all_of_them = {float(method.clusterings.proto_nce(embeddings, batch.indices, 7)) for _ in range(3)}
    assert len(found) > 1
    assert len(all_of_them) == 1
    assert max(found) < max(all_of_them)  # fewer negatives are easier


def test_keys_and_shapes_of_the_state_do_not_depend_on_how_far_a_run_has_come():
    before, after = made(epoch=0).state_dict(), made().state_dict()
    assert {key: value.shape for key, value in before.items()} == {key: value.shape for key, value in after.items()}


def test_the_buffers_are_those_of_a_clustering_of_the_slow_copys_embeddings():
    method = made()
    rows, embeddings = embedder(method)(lambda images: unit(method.keys.network(images)))
    parts = method.clusterings
    for number, count in enumerate((4, 8)):
        seed = 2 * 4 + number  # two clusterings, epoch 4, seed 0
        expected = kmeans(embeddings, count, seed, 20, 1)
        assert torch.equal(parts.assignments[number], expected.assignments[rows])
        torch.testing.assert_close(parts.centroids(number), unit(expected.centroids))
        assert (parts.concentrations(number) > 0).all()
        assert float(parts.concentrations(number).mean()) == pytest.approx(0.2, abs=1e-5)


def test_the_largest_cluster_is_logged_once_there_is_one():
    assert "largest_cluster" not in made(epoch=0).logged(0.0)  # zeros would look like a collapse
    method = made()
    sizes = method.clusterings.assignments[0].bincount(minlength=4)
    assert method.logged(PROGRESS)["largest_cluster"] == pytest.approx(int(sizes.max()) / IMAGES)


def test_embeddings_extracted_in_shuffled_order_are_those_in_order(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def note(self: PCL, epoch: int, embed_all: EmbedFn) -> None:
        rows, embeddings = embed_all(lambda images: unit(self.keys.network(images)))
        again, images = embed_all(lambda images: images)
        assert torch.equal(rows, again)
        self.eval()
        with torch.no_grad():
            ordered = unit(self.keys.network(images[rows.argsort()]))
        self.train()
        seen.append((rows, embeddings[rows.argsort()], ordered))

    monkeypatch.setattr(PCL, "before_epoch", note)
    run(small_data, "pcl", tmp_path / "run", train={"epochs": 1}, method={"warmup_epochs": 1})
    rows, shuffled, ordered = seen[0]
    assert rows.tolist() != list(range(32))
    assert sorted(rows.tolist()) == list(range(32))
    torch.testing.assert_close(shuffled, ordered, atol=1e-5, rtol=0)


def test_more_clusters_than_images_are_refused():
    with pytest.raises(UserError, match=r"method\.clusters=\(4, 65\) is over the 64 images; ask for fewer"):
        METHODS["pcl"](settings("pcl", clusters=[4, 65]), FACTS)
