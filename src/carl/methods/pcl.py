"""PCL: prototypical contrastive learning of unsupervised representations (Li et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from carl import distributed
from carl.clustering import kmeans
from carl.config import Config, Layer, MethodOptions, merge
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.errors import UserError
from carl.methods.base import (
    FORWARD,
    SHAPES_BUDGET,
    EmbedFn,
    Method,
    Metrics,
    contrast_figures,
    encoder_and_projection,
    robust_preset,
    through,
    view_passes,
)
from carl.methods.losses import concentration, info_nce, log_assignments, proto_nce, unit
from carl.methods.moco import PAPER, SMALL_QUEUE, fitting_queue
from carl.methods.moco import ROBUST as MOCO_ROBUST
from carl.methods.moco import SHAPES as MOCO_SHAPES
from carl.methods.paper import fitting_clusters, paper_values
from carl.models.momentum import KeyEncoder

NEGATIVES = 16_384  # PCL's repository, --pcl-r: both the queue and the number of negative prototypes
MOST_WARMUP = 20  # epochs; PCL's repository, --warmup-epoch


class PclOptions(MethodOptions):
    """Defaults are those of the authors' repository unless CARL's paper names others."""

    name: Literal["pcl"] = "pcl"
    clusters: tuple[int, ...] = Field(
        (250, 500, 1000), min_length=1, description="Number of clusters in each clustering."
    )
    temperature: float = Field(0.2, gt=0)
    momentum: float = Field(0.999, ge=0, le=1, description="Momentum of the key encoder.")
    queue: int = Field(NEGATIVES, ge=1, description="Keys kept as negatives.")
    negative_prototypes: int = Field(NEGATIVES, ge=1, description="At most this many clusters are drawn as negatives.")
    warmup_epochs: int | None = Field(
        None, ge=0, description=f"Epochs with InfoNCE alone. Unset: {MOST_WARMUP}, or a tenth of a shorter run."
    )
    smoothing: float = Field(10.0, ge=0, description="Alpha of PCL's Eq. 12.")
    iterations: int = Field(20, ge=1, description="Iterations of k-means.")
    restarts: int = Field(5, ge=1, description="Number of times k-means is started. The best result is kept.")
    shuffle_groups: int = Field(8, ge=1, description="Same as for MoCo.")


# MoCo's values, with clustering from the middle of the run on: before that there is nothing to cluster.
SHAPES: Layer = merge([MOCO_SHAPES, {"method": {"restarts": 1, "warmup_epochs": 4}}])


class Clusterings(nn.Module):
    """Several clusterings of the whole training set: the E-step.

    Centroids, concentrations and the cluster of every image are buffers, so a checkpoint holds them. They are zero
    until the first `fit`: a checkpoint's keys and shapes do not depend on how far a run has come.
    """

    assignments: Tensor  # (M, images): the cluster of each image in each clustering

    def __init__(self, counts: Sequence[int], images: int, dim: int) -> None:
        super().__init__()
        self.counts = tuple(counts)
        for number, count in enumerate(self.counts):
            self.register_buffer(f"centroids_{number}", torch.zeros(count, dim))
            self.register_buffer(f"concentrations_{number}", torch.zeros(count))
        self.register_buffer("assignments", torch.zeros(len(self.counts), images, dtype=torch.int64))

    def centroids(self, number: int) -> Tensor:
        return self.get_buffer(f"centroids_{number}")

    def concentrations(self, number: int) -> Tensor:
        return self.get_buffer(f"concentrations_{number}")

    @property
    def fitted(self) -> bool:
        return bool(self.concentrations(0).any())

    @torch.no_grad()
    def fit(
        self,
        rows: Tensor,
        embeddings: Tensor,
        *,
        seed: int,
        iterations: int,
        restarts: int,
        temperature: float,
        smoothing: float,
    ) -> None:
        """Cluster unit embeddings (n, D) of the images at `rows`: this process's share of all images."""
        images = self.assignments.shape[1]
        for number, count in enumerate(self.counts):
            found = kmeans(embeddings, count, len(self.counts) * seed + number, iterations, restarts)
            own = distributed.laid_out(found.assignments, rows, images)
            gaps = distributed.laid_out(found.distances, rows, images)
            self.assignments[number].copy_(own)
            self.centroids(number).copy_(unit(found.centroids))
            self.concentrations(number).copy_(concentration(gaps, own, count, temperature, smoothing))

    def proto_nce(self, embeddings: Tensor, indices: Tensor, negatives: int) -> Tensor:
        """Mean over the clusterings of Eq. 11's inner term, for the images at `indices`: (B, D), (B,) -> ().

        Where a clustering has more than `negatives` other clusters, so many are drawn.
        """
        terms = []
        for number, count in enumerate(self.counts):
            drawn = None
            if count > negatives + 1:
                drawn = distributed.from_main(torch.randperm(count, device=embeddings.device)[:negatives])
            own = self.assignments[number].index_select(0, indices)
            terms.append(proto_nce(embeddings, self.centroids(number), self.concentrations(number), own, drawn))
        return torch.stack(terms).mean()

    def log_assignments(self, embeddings: Tensor) -> Tensor:
        """Log-probabilities of the clusters of the first clustering: (B, D) -> (B, K)."""
        return log_assignments(unit(embeddings) @ self.centroids(0).T / self.concentrations(0))

    def largest(self) -> float:
        """Share of the images in the fullest cluster of the first clustering."""
        sizes = self.assignments[0].bincount(minlength=self.counts[0])
        return float(sizes.max() / sizes.sum())


class PCL(Method):
    """MoCo, and each image must also be more similar to its cluster's centroid than to other centroids."""

    Options = PclOptions

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        self.options = options = PclOptions.of(config)
        self.epochs, self.seed = config.train.epochs, config.train.seed
        if max(options.clusters) > facts.images:
            raise UserError(f"method.clusters={options.clusters} is over the {facts.images} images; ask for fewer")
        self.encoder, projection = encoder_and_projection(config, facts, batch_norm=False)
        dim = projection.output_dim
        self.keys = KeyEncoder(
            self.encoder,
            projection,
            dim,
            queue=options.queue,
            momentum=options.momentum,
            groups=options.shuffle_groups,
        )
        clusterings = Clusterings(options.clusters, facts.images, dim)
        self.head = nn.ModuleDict({"projection": projection, "clusterings": clusterings})

    @property
    def clusterings(self) -> Clusterings:
        found = self.head.get_submodule("clusterings")
        assert isinstance(found, Clusterings)
        return found

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        small = {"queue": min(NEGATIVES, fitting_queue(facts.images)), "clusters": fitting_clusters(facts)}
        few = {"clusters": tuple(max(2, min(count, facts.images // 2)) for count in (50, 100, 200))}
        # MoCo's values for small images; clusters by the paper's rule for the data, and one start of k-means for speed.
        robust = {**small, "queue": min(SMALL_QUEUE, fitting_queue(facts.images)), "restarts": 1}
        return {
            "paper": merge([PAPER, {"method": small}]),
            "robust": robust_preset(facts, merge([MOCO_ROBUST, {"method": robust}])),
            "shapes": merge([PAPER, SHAPES_BUDGET, SHAPES, {"method": few}]),
        }

    @classmethod
    def completed(cls, config: Config) -> Config:
        options = PclOptions.of(config)
        if options.warmup_epochs is not None:
            return config
        epochs = min(MOST_WARMUP, max(1, config.train.epochs // 10))
        return config.model_copy(update={"method": options.model_copy(update={"warmup_epochs": epochs})})

    @classmethod
    def remarks(cls, config: Config, facts: DataFacts) -> list[str]:
        options, usual = PclOptions.of(config), paper_values(facts).clusters
        found, queue = options.clusters, options.queue
        data = f"the data have {facts.images} images"
        clusters = [] if found == usual else [f"clusterings of {found} clusters, not {usual}: {data}"]
        return clusters + ([f"a queue of {queue} keys, not PCL's {NEGATIVES}: {data}"] if queue < NEGATIVES else [])

    @classmethod
    def probed_prototypes(cls, config: Config) -> int:
        return PclOptions.of(config).clusters[0]

    @classmethod
    def clustering_distances(cls, config: Config, images: int) -> int:
        options = PclOptions.of(config)
        clustered = max(0, config.train.epochs - (options.warmup_epochs or 0))
        return clustered * options.iterations * options.restarts * images * sum(options.clusters)

    def choosing_parts(self) -> list[nn.Module]:
        return [self.clusterings]

    @classmethod
    def passes(cls, config: Config, sides: Sequence[int]) -> float:
        """Keys and the clustering of all images have no gradients."""
        return super().passes(config, sides[:1]) + FORWARD * view_passes([*sides[1:2], sides[0]])

    def represent(self, batch: Batch) -> Tensor:
        """Queries of the first view and keys of the second: (2, B, D)."""
        queries = self.embed(batch.views[0])
        return torch.stack([queries, self.keys(batch.views[1]).to(queries.dtype)])

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head.get_submodule("projection"))

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        queries, keys = represented
        instance = info_nce(queries, keys, self.keys.queue.rows, self.options.temperature)
        self.keys.remember(unit(keys))
        prototypes = torch.zeros_like(instance)
        if self._clusters_at(int(progress * self.epochs + 1e-6)):
            prototypes = self.clusterings.proto_nce(queries, batch.indices, self.options.negative_prototypes)
        loss = instance + prototypes
        figures = contrast_figures(queries, keys)
        return loss, {"loss": loss, "info_nce": instance, "proto_nce": prototypes, **figures}

    def _clusters_at(self, epoch: int) -> bool:
        return epoch >= (self.options.warmup_epochs or 0)

    def before_epoch(self, epoch: int, embed_all: EmbedFn) -> None:
        """The E-step: cluster what the key encoder makes of all images."""
        if not self._clusters_at(epoch):
            return
        rows, embeddings = embed_all(lambda images: unit(self.keys.network(images)))
        self.cluster(rows, embeddings, seed=(1_000_003 * self.seed + epoch) % 2**40)

    def cluster(self, rows: Tensor, embeddings: Tensor, seed: int) -> None:
        """Cluster unit embeddings (n, D) of the images at `rows` with the method's options."""
        options = self.options
        self.clusterings.fit(
            rows,
            embeddings,
            seed=seed,
            iterations=options.iterations,
            restarts=options.restarts,
            temperature=options.temperature,
            smoothing=options.smoothing,
        )

    def log_assignments(self, images: Tensor) -> Tensor | None:
        return self.clusterings.log_assignments(self.embed(images)) if self.clusterings.fitted else None

    def prototype_vectors(self) -> Tensor | None:
        """Centroids of the coarsest clustering, once there is one."""
        return self.clusterings.centroids(0).cpu() if self.clusterings.fitted else None

    def logged(self, progress: float) -> dict[str, float]:
        clusters = {"largest_cluster": self.clusterings.largest()} if self.clusterings.fitted else {}
        return {**self.keys.figures(self.encoder), **clusters}

    def after_step(self, progress: float) -> None:
        self.keys.follow(self.encoder, self.head.get_submodule("projection"))
