"""SwAV: unsupervised learning by contrasting cluster assignments (Caron et al. 2020)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from carl import distributed
from carl.config import Config, Layer, MethodOptions, merge
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.methods.base import (
    SHAPES_BUDGET,
    Method,
    Metrics,
    assignment_figures,
    encoder_and_projection,
    forward_views,
    learned_prototypes,
    robust_preset,
    spread,
    through,
)
from carl.methods.losses import cross_entropy_of_codes, log_assignments, sinkhorn, unit
from carl.methods.moco import fitting_queue
from carl.methods.paper import paper_values
from carl.models.heads import Prototypes
from carl.models.momentum import Queue

QUEUE = 3840  # SwAV's scripts for batches of 256, --queue_length


class SwavOptions(MethodOptions):
    """Defaults are those of SwAV's paper, and of its script for batches of 256 where that is named."""

    name: Literal["swav"] = "swav"
    prototypes: int = Field(100, ge=2, description="K, as for CARL (CARL's paper, appendix A).")
    temperature: float = Field(0.1, gt=0, description="Temperature of the predicted assignments.")
    epsilon: float = Field(0.05, gt=0, description="Softness of the codes, as in SwAV's scripts for batches of 256.")
    iterations: int = Field(3, ge=1, description="Iterations of Sinkhorn-Knopp.")
    queue: int = Field(QUEUE, ge=0, description="Embeddings of each large view kept for the codes; 0 keeps none.")
    queue_epoch: int = Field(15, ge=0, description="Epoch from which the queue is used (SwAV's script: 15).")
    frozen_epochs: float = Field(1.0, ge=0, description="Epochs at the start in which the prototypes do not move.")


# Rate and decay of SwAV's repository for batches of 256, with LARS. CARL's paper also uses 0.6 down to 0.0006.
PAPER: Layer = {
    "views": {"pipeline": "swav"},
    "optim": {"name": "lars", "lr": 0.6, "lr_end": 0.0006, "weight_decay": 1e-6, "exclude": "none"},
}
SHAPES: Layer = {
    "method": {"prototypes": 100, "queue": 0, "frozen_epochs": 0.0, "epsilon": 0.01},  # codes of 0.05 are still flat
    "optim": {"name": "sgd", "lr": 0.1, "exclude": "1d"},
}
# Without a queue, as the authors train with large batches, and with the decay of `paper`. Two values are ours: codes of
# 0.05 stay flat in a few hundred steps, and an epoch in which the prototypes do not move costs a short run too much.
ROBUST: Layer = {
    "method": {"prototypes": 100, "queue": 0, "frozen_epochs": 0.0, "epsilon": 0.01},
    "optim": {"weight_decay": 1e-6},
}


class SwAV(Method):
    """From one view predict the code of the other. Codes use all prototypes equally."""

    Options = SwavOptions
    most_views = None

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        self.options, self.epochs = SwavOptions.of(config), config.train.epochs
        self.encoder, projection = encoder_and_projection(config, facts, batch_norm=True)
        dim = projection.output_dim
        prototypes = Prototypes(dim, self.options.prototypes)
        self.head = nn.Sequential(OrderedDict(projection=projection, prototypes=prototypes))
        self.queues = nn.ModuleList(Queue(self.options.queue, dim) for _ in range(2 if self.options.queue else 0))
        self._newest: list[Tensor] = []  # embeddings of the batch, until the step is done
        self._normalise_prototypes()

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        method = {"prototypes": paper_values(facts).prototypes, "queue": min(QUEUE, fitting_queue(facts.images))}
        return {
            "paper": merge([PAPER, {"method": method}]),
            "robust": robust_preset(facts, ROBUST),
            "shapes": merge([PAPER, SHAPES_BUDGET, SHAPES]),
        }

    @classmethod
    def remarks(cls, config: Config, facts: DataFacts) -> list[str]:
        options, epochs = SwavOptions.of(config), config.train.epochs
        queue, start = options.queue, options.queue_epoch
        late = f"the queue would come in at epoch {start}, after the last of {epochs}: method.queue_epoch"
        found = [] if queue == QUEUE else [f"a queue of {queue} embeddings, not {QUEUE}: {facts.images} images"]
        return found + ([late] if queue and start >= epochs else [])

    @classmethod
    def prototype_count(cls, config: Config) -> int:
        return SwavOptions.of(config).prototypes

    def choosing_parts(self) -> list[nn.Module]:
        return [self.head.get_submodule("prototypes"), self.queues]

    def represent(self, batch: Batch) -> Tensor:
        features = forward_views(self.encoder, batch.views, together=True)  # (V, B, F)
        embeddings = self.head.get_submodule("projection")(
            features.flatten(0, 1)
        )  # all sizes at once, as in SwAV's code
        return unit(embeddings.unflatten(0, features.shape[:2]))  # (V, B, D)

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head.get_submodule("projection"))

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        scores = self.head.get_submodule("prototypes")(represented.flatten(0, 1)).unflatten(0, represented.shape[:2])
        terms = []
        for large in range(2):
            code = self._codes(represented[large].detach(), scores[large].detach(), large, progress)
            others = [view for view in range(len(scores)) if view != large]
            terms += [cross_entropy_of_codes(code, scores[other], self.options.temperature) for other in others]
        loss = torch.stack(terms).mean()
        self._newest = [distributed.gather(view.detach()) for view in represented[: len(self.queues)]]
        figures = assignment_figures(log_assignments(scores.detach() / self.options.temperature))
        return loss, {"loss": loss, **figures, "spread": spread(represented[0])}

    def _codes(self, embeddings: Tensor, scores: Tensor, large: int, progress: float) -> Tensor:
        """Codes of a large view. The queue takes part from `queue_epoch` on, once it is full (SwAV, section 3.1)."""
        count, absent = len(scores), None
        if self.queues and self._epochs_done(progress) >= self.options.queue_epoch:
            # Each process takes its share of the queue, so that all of it counts once.
            rows = self._queue(large).rows[distributed.rank() :: distributed.world_size()]
            scores = torch.cat([scores, self.head.get_submodule("prototypes")(rows).detach()])
            absent = (torch.arange(len(scores), device=scores.device) >= count) & (self._queue(large).filled < 1)
        return sinkhorn(scores, self.options.epsilon, self.options.iterations, absent)[:count]

    def log_assignments(self, images: Tensor) -> Tensor:
        scores = self.head.get_submodule("prototypes")(unit(self.embed(images)))
        return log_assignments(scores / self.options.temperature)

    def prototype_vectors(self) -> Tensor:
        return learned_prototypes(self.head)

    def logged(self, progress: float) -> dict[str, float]:
        return {"queue_filled": float(self._queue(0).filled)} if self.queues else {}

    def after_backward(self, progress: float) -> None:
        if self._epochs_done(progress) < self.options.frozen_epochs:
            self.head.get_parameter("prototypes.linear.weight").grad = None

    def _epochs_done(self, progress: float) -> float:
        return progress * self.epochs + 1e-6  # progress is a fraction of steps: guard against 0.9999999

    def after_step(self, progress: float) -> None:
        self._normalise_prototypes()
        for large in range(len(self.queues)):
            self._queue(large).push(self._newest[large])

    def _queue(self, large: int) -> Queue:
        queue = self.queues[large]
        assert isinstance(queue, Queue)
        return queue

    @torch.no_grad()
    def _normalise_prototypes(self) -> None:
        weight = self.head.get_parameter("prototypes.linear.weight")
        weight.copy_(F.normalize(weight, dim=1))
