"""DeepCluster v2: deep clustering in the form of SwAV's paper (Caron et al. 2018; 2020, appendix D)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from carl import distributed
from carl.clustering import kmeans
from carl.config import Config, Layer, MethodOptions, merge
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.errors import UserError
from carl.methods.base import (
    FORWARD,
    EmbedFn,
    Method,
    Metrics,
    encoder_and_projection,
    forward_views,
    spread,
    through,
    usual_presets,
    view_passes,
)
from carl.methods.losses import log_assignments, unit
from carl.methods.paper import paper_values
from carl.precision import full_precision

BANKS = 2  # embeddings that are kept of each image: those of its first two views (--crops_for_assign 0 1)


class DeepclusterOptions(MethodOptions):
    """Defaults are those of the authors' script."""

    name: Literal["deepcluster"] = "deepcluster"
    clusters: tuple[int, ...] = Field(
        (3000, 3000, 3000), min_length=1, description="Number of clusters in each clustering."
    )
    temperature: float = Field(0.1, gt=0, description="Temperature of the similarities (--temperature).")
    iterations: int = Field(10, ge=1, description="Iterations of k-means before each epoch.")


# SwAV's repository has one script for both: LARS 4.8 for batches of 4096, which is 0.3 for 256, and decay 1e-6.
PAPER: Layer = {
    "views": {"pipeline": "swav"},
    "optim": {"name": "lars", "lr": 0.3, "lr_end": 0.0003, "scale_lr": True, "weight_decay": 1e-6, "exclude": "none"},
}
ROBUST: Layer = {"optim": {"weight_decay": 1e-6}}


class MemoryClusters(nn.Module):
    """The last embeddings of every image, and clusterings of them. All are buffers, so a checkpoint holds them."""

    memory: Tensor  # (BANKS, images, D) unit embeddings; zero before the first epoch
    assignments: Tensor  # (M, images): the cluster of each image in each clustering

    def __init__(self, counts: Sequence[int], images: int, dim: int) -> None:
        super().__init__()
        self.counts = tuple(counts)
        self.register_buffer("memory", torch.zeros(BANKS, images, dim))
        self.register_buffer("assignments", torch.zeros(len(self.counts), images, dtype=torch.int64))
        for number, count in enumerate(self.counts):
            self.register_buffer(f"centroids_{number}", torch.zeros(count, dim))

    def centroids(self, number: int) -> Tensor:
        return self.get_buffer(f"centroids_{number}")

    @property
    def fitted(self) -> bool:
        return bool(self.centroids(0).any())

    @torch.no_grad()
    def remember(self, indices: Tensor, embeddings: Tensor) -> None:
        """Embeddings (BANKS, B, D) of the images at `indices`, of all processes."""
        self.memory.index_copy_(1, indices, embeddings.to(self.memory.dtype))

    @torch.no_grad()
    def fit(self, seed: int, iterations: int) -> None:
        """Cluster the memory; the clusterings take its banks in turn."""
        images = self.memory.shape[1]
        # Laid end to end, the shares are in order, so that k-means starts from the same images however many there are.
        everything = torch.arange(images, device=self.memory.device)
        rows = everything.tensor_split(distributed.world_size())[distributed.rank()]
        for number, count in enumerate(self.counts):
            points = self.memory[number % BANKS].index_select(0, rows)
            found = kmeans(points, count, len(self.counts) * seed + number, iterations)
            self.assignments[number].copy_(distributed.laid_out(found.assignments, rows, images))
            self.centroids(number).copy_(unit(found.centroids))


def cluster_prediction(embeddings: Tensor, centroids: Tensor, assignments: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of the cluster of each image, from each of its views: (V, B, D), (K, D), (B,) -> ()."""
    with full_precision(embeddings.device.type):
        scores = unit(embeddings).flatten(0, 1) @ centroids.to(embeddings.dtype).T / temperature  # (VB, K)
        return F.cross_entropy(scores, assignments.repeat(len(embeddings)))


class DeepCluster(Method):
    """Each view predicts the cluster of its image. Clusters are found before each epoch, in what training saw last.

    The first DeepCluster sends all images through the encoder for that, which CARL's paper counts against it. Here only
    the first epoch does.
    """

    Options = DeepclusterOptions
    most_views = None

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        self.options, self.seed = DeepclusterOptions.of(config), config.train.seed
        if max(self.options.clusters) > facts.images:
            raise UserError(f"method.clusters={self.options.clusters} is over the {facts.images} images; ask for fewer")
        self.encoder, projection = encoder_and_projection(config, facts, batch_norm=True)
        clusterings = MemoryClusters(self.options.clusters, facts.images, projection.output_dim)
        self.head = nn.ModuleDict({"projection": projection, "clusterings": clusterings})
        self._newest: tuple[Tensor, Tensor] | None = None  # indices and embeddings of the batch, until the step is done

    @property
    def clusterings(self) -> MemoryClusters:
        found = self.head.get_submodule("clusterings")
        assert isinstance(found, MemoryClusters)
        return found

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        """As many clusters as CARL's paper has prototypes for such data, three times; the authors' 3000 at most."""
        count = min(3000, max(2, min(paper_values(facts).prototypes, facts.images // 2)))
        method: Layer = {"method": {"clusters": (count,) * 3}}
        return usual_presets(facts, merge([PAPER, method]), merge([ROBUST, method]))

    @classmethod
    def probed_prototypes(cls, config: Config) -> int:
        return DeepclusterOptions.of(config).clusters[0]

    @classmethod
    def clustering_distances(cls, config: Config, images: int) -> int:
        options = DeepclusterOptions.of(config)
        return config.train.epochs * (options.iterations + 1) * images * sum(options.clusters)

    @classmethod
    def passes(cls, config: Config, sides: Sequence[int]) -> float:
        """All images go through the encoder once without gradients, before the first epoch."""
        return super().passes(config, sides) + FORWARD * view_passes(sides[:1]) / config.train.epochs

    def represent(self, batch: Batch) -> Tensor:
        return unit(forward_views(self.embed, batch.views, together=True))  # (V, B, D)

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head.get_submodule("projection"))

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        terms = []
        for number in range(len(self.options.clusters)):
            own = self.clusterings.assignments[number].index_select(0, batch.indices)
            centroids = self.clusterings.centroids(number)
            terms.append(cluster_prediction(represented, centroids, own, self.options.temperature))
        loss = torch.stack(terms).mean()
        banks = represented[:BANKS].detach().transpose(0, 1).contiguous()  # (B, BANKS, D)
        self._newest = distributed.gather(batch.indices), distributed.gather(banks).transpose(0, 1)
        return loss, {"loss": loss, "spread": spread(represented[0])}

    def before_epoch(self, epoch: int, embed_all: EmbedFn) -> None:
        """Cluster what the views of the last epoch were; before the first, what the encoder makes of whole images."""
        if epoch == 0 or not self.clusterings.fitted:
            rows, embeddings = embed_all(lambda images: unit(self.embed(images)))
            whole = distributed.laid_out(embeddings, rows, self.clusterings.memory.shape[1])
            self.clusterings.memory.copy_(whole.expand_as(self.clusterings.memory))
        self.clusterings.fit((1_000_003 * self.seed + epoch) % 2**40, self.options.iterations)

    def after_step(self, progress: float) -> None:
        assert self._newest is not None, "a step comes before its end"
        self.clusterings.remember(*self._newest)

    def log_assignments(self, images: Tensor) -> Tensor | None:
        if not self.clusterings.fitted:
            return None
        scores = unit(self.embed(images)) @ self.clusterings.centroids(0).T
        return log_assignments(scores / self.options.temperature)

    def prototype_vectors(self) -> Tensor | None:
        """Centroids of the first clustering, once there is one."""
        return self.clusterings.centroids(0).cpu() if self.clusterings.fitted else None
