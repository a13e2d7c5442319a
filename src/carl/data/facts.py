"""What a method, its presets and the records of a run may know of the data."""

from __future__ import annotations

from dataclasses import dataclass

from carl.config import DataConfig
from carl.data.dataset import Dataset
from carl.data.open import recognised_name


@dataclass(frozen=True)
class DataFacts:
    """What a method and its presets may know of the data."""

    name: str  # a known name ("cifar10") where the source is recognised, else what the user gave
    images: int
    channels: int
    image_size: int
    classes: int  # 0 without labels

    @classmethod
    def of(cls, data: DataConfig, dataset: Dataset) -> DataFacts:
        images = dataset.pretraining.images
        return cls(
            name=recognised_name(data.source),
            images=dataset.training_images,
            channels=images.channels,
            image_size=data.image_size or min(images.height, images.width),
            classes=len(dataset.class_names),
        )
