"""What is on top of the encoder during training: the projection head and the prototypes."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from carl.precision import full_precision

EmbeddingNorm = Literal["none", "l2", "batch", "batch-l2"]


class ProjectionHead(nn.Sequential):
    """Multilayer perceptron from representation to embedding, 512 -> 512 -> 128 in the paper (appendix A).

    Batch norm follows each hidden layer, before its ReLU; a linear layer before a batch norm needs no bias.
    """

    def __init__(self, input_dim: int, hidden_dim: int, output_dim: int, hidden_layers: int, batch_norm: bool) -> None:
        layers: list[nn.Module] = []
        for _ in range(hidden_layers):
            layers.append(nn.Linear(input_dim, hidden_dim, bias=not batch_norm))
            if batch_norm:
                layers.append(nn.BatchNorm1d(hidden_dim))
            layers.append(nn.ReLU(inplace=True))
            input_dim = hidden_dim
        layers.append(nn.Linear(input_dim, output_dim))
        super().__init__(*layers)
        self.output_dim = output_dim


class NoProjection(ProjectionHead):
    """Nothing: the embedding is the representation itself.

    A head protects features that are still to be learned from the loss. Features that are good already, and are used as
    they are, gain more if the loss compares what will be compared (results/adapt/README.md).
    """

    def __init__(self, dim: int) -> None:
        nn.Sequential.__init__(self)
        self.output_dim = dim


class Prototypes(nn.Module):
    """K learnable prototypes: embeddings (B, D) -> energies q (B, K), q[j] = <z, c_j> / temperature (Eq. 2).

    The paper says "a linear layer" and no more, so each reading is an option; the defaults are Eq. 2 as written:
    no bias, no normalisation, temperature 1. Computed in float32 under autocast too, as in CARP.

    `parts` cuts embeddings and prototypes into as many equal parts, for `by_part`.
    """

    def __init__(
        self,
        dim: int,
        count: int,
        bias: bool = False,
        normalize: bool = False,
        embedding_norm: EmbeddingNorm = "none",
        temperature: float = 1.0,
        scale: float | None = None,
        parts: int = 1,
    ) -> None:
        super().__init__()
        self.parts = parts
        self.linear = nn.Linear(dim, count, bias=bias)
        if scale is not None:
            nn.init.normal_(self.linear.weight, std=scale)
        self.normalize = normalize
        self.temperature = temperature
        self.embedding_norm = embedding_norm
        self.batch_norm = nn.BatchNorm1d(dim, affine=False) if embedding_norm in ("batch", "batch-l2") else None

    def forward(self, embeddings: Tensor) -> Tensor:
        with full_precision(embeddings.device.type):
            z, weight = self._normalised(embeddings)
            return F.linear(z, weight, self.linear.bias) / self.temperature

    def by_part(self, embeddings: Tensor) -> Tensor:
        """What each part of the dimensions adds to the energies: (B, D) -> (B, parts, K)."""
        if self.parts == 1:
            energies: Tensor = self(embeddings)
            return energies[:, None]
        with full_precision(embeddings.device.type):
            z, weight = (rows.unflatten(1, (self.parts, -1)).transpose(0, 1) for rows in self._normalised(embeddings))
            energies = (z @ weight.mT).transpose(0, 1)
            if self.linear.bias is not None:
                energies = energies + self.linear.bias / self.parts
            return energies / self.temperature

    def _normalised(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        z = embeddings.float() if embeddings.dtype.itemsize < 4 else embeddings
        if self.batch_norm is not None:
            z = self.batch_norm(z)
        if self.embedding_norm in ("l2", "batch-l2"):
            z = F.normalize(z, dim=1)
        return z, F.normalize(self.linear.weight, dim=1) if self.normalize else self.linear.weight
