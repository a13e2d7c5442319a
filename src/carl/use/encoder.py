"""An encoder ready for use, whatever it is: a run directory, a weights file, or a model of timm."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from carl.config import Config, ModelConfig
from carl.data.decoding.decode import DecodeError, decode, pixels_of, strict_decoding
from carl.data.facts import DataFacts, record_of
from carl.defaults import FEATURE_BATCH
from carl.device import pick_device
from carl.errors import UserError
from carl.evaluation.features import frozen, in_fastest_order, normalised
from carl.framing import Framing
from carl.memory import keep_freed_memory
from carl.methods import Method
from carl.methods.build import build_method, without_init
from carl.methods.run_config import read_config
from carl.methods.training_data import load_data_for
from carl.models.encoders import build_encoder
from carl.models.pretrained import WantedInput, check_backbone, find_weights, source_of_run, wanted_by_run
from carl.models.state_dicts import put_into
from carl.models.weights import read_weights_into, weights_hash
from carl.records.run_directory import DataRecord, RunDirectory
from carl.user_paths import expanded
from carl.views.recipes import pipeline
from carl.views.views import Views

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, eq=False)
class Represented:
    """What an encoder computes for a batch of images, on the CPU."""

    features: np.ndarray  # (B, D) float32
    log_p: Tensor | None  # (B, K) log-probabilities of the prototypes, for methods that have them


@dataclass(frozen=True, eq=False, kw_only=True)
class UsableEncoder:
    """An encoder on a device, with everything needed to feed it images; `open_encoder` makes it."""

    name: str  # as the user gave it
    encoder: nn.Module  # in eval mode and without gradients: views (B, C, S, S) to features (B, D)
    model: ModelConfig  # its architecture
    wanted: WantedInput  # the images that its weights were trained on
    origin: str  # of the weights, in words
    licence: str
    device: torch.device
    run: RunDirectory | None = None  # where it was trained, if that was here

    @property
    def framing(self) -> Framing:
        """How images of any size are brought to `shape`; `carl.data.decoding.decode.decode` takes it."""
        return self.wanted.framing

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width to which images are brought before they are views, as they were for training."""
        return self.framing.shape

    @property
    def interpolation(self) -> str:
        return self.framing.interpolation

    @property
    def image_size(self) -> int:
        """Side of what the encoder sees."""
        return self.wanted.image_size

    @property
    def channels(self) -> int:
        return self.wanted.channels

    @property
    def mean(self) -> tuple[float, ...]:
        return self.wanted.mean

    @property
    def std(self) -> tuple[float, ...]:
        return self.wanted.std

    @property
    def has_prototypes(self) -> bool:
        return False

    @property
    def trained(self) -> TrainedModel | None:
        """The model of the run, if it is the encoder of one."""
        return None

    @property
    def data_root(self) -> str | None:
        """Folder with the data sets known by name, if the encoder's run had its own."""
        return None

    @cached_property
    def digest(self) -> str:
        """Changes when the weights do, or what they want to see."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{weights_hash(self.encoder)} {self.wanted!r} {self.model.backbone}".encode())
        return digest.hexdigest()

    @cached_property
    def feature_size(self) -> int:
        """Length of an embedding, measured: timm's attributes differ among models."""
        with torch.inference_mode():
            blank = np.zeros((1, *self.shape, self.channels), np.uint8)
            features = self.encoder(self.views(blank))
        return int(features.shape[1])

    @cached_property
    def _views(self) -> Views:
        return Views(pipeline("eval", self.image_size), self.mean, self.std, seed=0)

    def views(self, pixels: np.ndarray) -> Tensor:
        """Images (B, H, W, C) uint8 of `shape` as views (B, C, S, S), normalised for the encoder."""
        if self.framing.scaled is not None:
            return normalised(pixels, self.mean, self.std, self.device)
        images = torch.from_numpy(np.require(pixels, requirements=["C", "W"])).to(self.device)
        (view,) = self._views(images, torch.arange(len(images), device=self.device), 0)  # resized as in training
        return view

    def represent(self, pixels: np.ndarray) -> Represented:
        """Features and assignments of images (B, H, W, C) uint8 of `shape`, in one pass through the encoder."""
        with torch.inference_mode():
            features, log_p = self._compute(in_fastest_order(self.views(pixels)))
            features, log_p = features.float().cpu(), None if log_p is None else log_p.float().cpu()
        if not torch.isfinite(features).all():
            raise UserError(f"the encoder {self.name} gives values that are not finite; use another one")
        return Represented(features.numpy(), log_p)

    def _compute(self, views: Tensor) -> tuple[Tensor, Tensor | None]:
        with frozen(self.encoder):
            return self.encoder(views), None


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainedModel(UsableEncoder):
    """The model of a run; the training data need not be there any more."""

    run: RunDirectory
    config: Config
    data: DataRecord
    method: Method

    @property
    def has_prototypes(self) -> bool:
        """False also for a run that keeps the encoder it started from, which the prototypes do not belong to."""
        return self.run.head_file.is_file() and self.method.prototype_vectors() is not None

    @property
    def trained(self) -> TrainedModel:
        return self

    @property
    def data_root(self) -> str | None:
        return self.config.data.root

    @cached_property
    def digest(self) -> str:
        """Changes when the weights do."""
        digest = hashlib.blake2b(digest_size=16)
        for file in (self.run.encoder_file, self.run.head_file):
            digest.update(file.read_bytes() if file.is_file() else b"")
        digest.update(_stable_text(self.data).encode())
        return digest.hexdigest()

    def _compute(self, views: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.run.head_file.is_file():
            return super()._compute(views)
        with frozen(self.method):
            return _features_and_assignments(self.method, views)


def _stable_text(data: DataRecord) -> str:
    """The record as text, without what is at its default: a field added later leaves older digests as they are."""
    pairs = ((one.name, getattr(data, one.name), one.default) for one in dataclasses.fields(data))
    return f"DataRecord({', '.join(f'{name}={value!r}' for name, value, default in pairs if value != default)})"


def _features_and_assignments(method: Method, views: Tensor) -> tuple[Tensor, Tensor | None]:
    """The encoder's output is caught on its way to the prototypes, which saves a second pass."""
    caught: list[Tensor] = []
    hook = method.encoder.register_forward_hook(lambda _module, _inputs, output: caught.append(output))
    try:
        log_p = method.log_assignments(views)
    finally:
        hook.remove()
    return (caught[0] if caught else method.encoder(views)), log_p


def open_encoder(given: str | Path, *, backbone: str | None = None, device: str = "auto") -> UsableEncoder:
    """The encoder that the user names, with the input that its weights were trained with.

    `given` is a run directory, a weights file (.safetensors or a state dict, of the architecture `backbone`),
    `timm:NAME`, `timm:NAME@FILE` with weights that are on the disk, or `hf-hub:ORG/NAME`.
    """
    path = expanded(str(given))
    if RunDirectory(path).exists and path.is_dir():
        trained = load_trained(path, device)
        check_backbone(backbone, trained.model.backbone, path)
        return trained
    weights, where = find_weights(str(given), backbone), pick_device(device)
    if where.type == "cpu":
        keep_freed_memory()
    model = ModelConfig(backbone=weights.backbone, stem=weights.stem)
    wanted = weights.wanted
    with torch.random.fork_rng(devices=[]):
        encoder = build_encoder(model, wanted.channels, wanted.image_size)
    put_into(encoder, weights.state(wanted.channels, wanted.image_size), weights.name)
    return UsableEncoder(
        name=weights.name,
        encoder=encoder.to(where).eval().requires_grad_(False),
        model=model,
        wanted=wanted,
        origin=weights.origin,
        licence=weights.licence,
        device=where,
    )


def load_trained(path: Path, device: str = "auto") -> TrainedModel:
    """The model of the run directory `path` with its trained weights."""
    run = RunDirectory.open(path)
    run.trained_encoder()
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
    source = source_of_run(run, data)
    return TrainedModel(
        name=str(path),
        encoder=method.encoder,
        model=config.model,
        wanted=wanted_by_run(data),
        origin=source.origin,
        licence=source.licence,
        device=where,
        run=run,
        config=config,
        data=data,
        method=method,
    )


def _record_from_data(config: Config) -> DataRecord:
    dataset = load_data_for(config)
    return record_of(dataset, DataFacts.of(config.data, dataset))


class Encoder(nn.Module):
    """An encoder: normalised images (B, C, S, S) to features (B, D); `embed` takes images as they are."""

    def __init__(self, usable: UsableEncoder) -> None:
        super().__init__()
        self.backbone = usable.encoder
        self.image_size = usable.image_size
        self.mean, self.std = usable.mean, usable.std
        self._usable = usable

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images)
        return features

    def embed(self, images: Sequence[str | Path | Image.Image | np.ndarray] | np.ndarray) -> np.ndarray:
        """Features (N, D) of image files, PIL images or arrays (H, W, C) uint8 of any size."""
        parts = [
            self._usable.represent(self._pixels(images[start : start + FEATURE_BATCH])).features
            for start in range(0, len(images), FEATURE_BATCH)
        ]
        return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)

    def _pixels(self, images: Sequence[str | Path | Image.Image | np.ndarray] | np.ndarray) -> np.ndarray:
        with strict_decoding():
            pixels = [self._fitted(image) for image in images]
        channels = {one.shape[2] for one in pixels}
        if channels != {self._usable.channels}:
            raise UserError(
                f"the images have {', '.join(map(str, sorted(channels)))} channels and the encoder reads "
                f"{self._usable.channels}; convert them first"
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
            return decode(content, self._usable.framing)
        except DecodeError as error:
            raise UserError(f"{image} cannot be used ({error}); leave it out") from None


def load_encoder(encoder: str | Path, device: str = "auto", *, backbone: str | None = None) -> Encoder:
    """An encoder in eval mode and without gradients, ready to embed images.

    `encoder` is a run directory, a weights file of the architecture `backbone`, `timm:NAME`, `timm:NAME@FILE` with
    weights that are on the disk, or `hf-hub:ORG/NAME`.
    """
    return Encoder(open_encoder(encoder, backbone=backbone, device=device))
