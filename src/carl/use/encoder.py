"""A run's encoder, ready for use; the training data need not be there any more."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from carl.config import Config
from carl.data.decoding.decode import DecodeError, decode, pixels_of, strict_decoding
from carl.data.facts import DataFacts, record_of
from carl.device import pick_device
from carl.errors import UserError
from carl.evaluation.features import frozen
from carl.methods import Method
from carl.methods.build import build_method, load_data_for, read_config, without_init
from carl.models.weights import read_weights_into
from carl.records.run_directory import DataRecord, RunDirectory
from carl.views.recipes import pipeline
from carl.views.views import Views

if TYPE_CHECKING:
    from PIL import Image

BATCH = 256  # images; as in evaluation, so that embeddings are its features


@dataclass(frozen=True, eq=False)
class Represented:
    """What a model computes for a batch of images, on the CPU."""

    features: np.ndarray  # (B, D) float32
    log_p: Tensor | None  # (B, K) log-probabilities of the prototypes, for methods that have them


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The model of a run, with everything needed to feed it images."""

    run: RunDirectory
    config: Config
    data: DataRecord
    method: Method
    device: torch.device

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width to which images are brought before they are views, as they were for training."""
        return self.data.height, self.data.width

    @property
    def has_prototypes(self) -> bool:
        return self.method.prototype_vectors() is not None

    @cached_property
    def digest(self) -> str:
        """Changes when the weights do."""
        digest = hashlib.blake2b(digest_size=16)
        for file in (self.run.encoder_file, self.run.head_file):
            digest.update(file.read_bytes() if file.is_file() else b"")
        digest.update(repr(self.data).encode())
        return digest.hexdigest()

    @cached_property
    def feature_size(self) -> int:
        """Length of an embedding, measured: timm's attributes differ among models."""
        side = self.data.image_size
        with torch.inference_mode():
            features = self.method.encoder(torch.zeros(1, self.data.channels, side, side, device=self.device))
        return int(features.shape[1])

    @cached_property
    def _views(self) -> Views:
        return Views(pipeline("eval", self.data.image_size), self.data.mean, self.data.std, seed=0)

    def views(self, pixels: np.ndarray) -> Tensor:
        """Images (B, H, W, C) uint8 as views (B, C, S, S), resized and normalised as in evaluation."""
        images = torch.from_numpy(np.require(pixels, requirements=["C", "W"])).to(self.device)
        (view,) = self._views(images, torch.arange(len(images), device=self.device), 0)
        return view

    def represent(self, pixels: np.ndarray) -> Represented:
        """Features and assignments of images (B, H, W, C) uint8, in one pass through the encoder."""
        with frozen(self.method):
            features, log_p = _features_and_assignments(self.method, self.views(pixels))
            features, log_p = features.float().cpu(), None if log_p is None else log_p.float().cpu()
        if not torch.isfinite(features).all():
            raise UserError(f"the encoder of {self.run.path} gives values that are not finite; train it again")
        return Represented(features.numpy(), log_p)


def _features_and_assignments(method: Method, views: Tensor) -> tuple[Tensor, Tensor | None]:
    """The encoder's output is caught on its way to the prototypes, which saves a second pass."""
    caught: list[Tensor] = []
    hook = method.encoder.register_forward_hook(lambda _module, _inputs, output: caught.append(output))
    try:
        log_p = method.log_assignments(views)
    finally:
        hook.remove()
    return (caught[0] if caught else method.encoder(views)), log_p


def load_trained(path: Path, device: str = "auto") -> TrainedModel:
    """The model of the run directory `path` with its trained weights."""
    run = RunDirectory.open(path)
    if not run.encoder_file.is_file():
        raise UserError(f"{run.path} has no encoder.safetensors yet; train it first: carl pretrain --resume {run.path}")
    config = without_init(read_config(run))
    config = config.model_copy(update={"train": config.train.model_copy(update={"compile": False})})
    data = run.read_data() or _record_from_data(config)
    where = pick_device(device)
    with torch.random.fork_rng(devices=[]):  # building seeds the generator, which is not ours here
        method = build_method(config, DataFacts.recorded(data), where)
    read_weights_into(run.encoder_file, method.encoder)
    if run.head_file.is_file():
        read_weights_into(run.head_file, method.head)
    method.eval().requires_grad_(False)
    return TrainedModel(run, config, data, method, where)


def _record_from_data(config: Config) -> DataRecord:
    dataset = load_data_for(config)
    return record_of(dataset, DataFacts.of(config.data, dataset))


class Encoder(nn.Module):
    """A trained encoder: normalised images (B, C, S, S) to features (B, D); `embed` takes images as they are."""

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.backbone = trained.method.encoder
        self.image_size = trained.data.image_size
        self.mean, self.std = trained.data.mean, trained.data.std
        self._trained = trained

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images)
        return features

    def embed(self, images: Sequence[str | Path | Image.Image | np.ndarray] | np.ndarray) -> np.ndarray:
        """Features (N, D) of image files, PIL images or arrays (H, W, C) uint8 of any size."""
        parts = [
            self._trained.represent(self._pixels(images[start : start + BATCH])).features
            for start in range(0, len(images), BATCH)
        ]
        return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)

    def _pixels(self, images: Sequence[str | Path | Image.Image | np.ndarray] | np.ndarray) -> np.ndarray:
        with strict_decoding():
            pixels = [self._fitted(image) for image in images]
        channels = {one.shape[2] for one in pixels}
        if channels != {self._trained.data.channels}:
            raise UserError(
                f"the images have {', '.join(map(str, sorted(channels)))} channels and the encoder reads "
                f"{self._trained.data.channels}; convert them first"
            )
        return np.stack(pixels)

    def _fitted(self, image: str | Path | Image.Image | np.ndarray) -> np.ndarray:
        if isinstance(image, np.ndarray) and (image.ndim != 3 or image.dtype != np.uint8):
            raise UserError(f"an image has shape {image.shape} and type {image.dtype}; give (H, W, C) uint8")
        if isinstance(image, str | Path):
            content: Path | np.ndarray = Path(image)
        else:
            content = image if isinstance(image, np.ndarray) else pixels_of(image)
        try:
            return decode(content, self._trained.shape)
        except DecodeError as error:
            raise UserError(f"{image} cannot be used ({error}); leave it out") from None


def load_encoder(run: str | Path, device: str = "auto") -> Encoder:
    """The trained encoder of a run directory, in eval mode and without gradients."""
    return Encoder(load_trained(Path(run), device))
