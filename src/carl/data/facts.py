"""What a method, its presets and the records of a run may know about the data."""

from __future__ import annotations

from dataclasses import dataclass

from carl.config import DataConfig
from carl.data.dataset import Dataset
from carl.data.open import recognised_name
from carl.records.known_data import KNOWN_DATA
from carl.records.run_directory import DataRecord


@dataclass(frozen=True)
class DataFacts:
    """What a method and its presets may know about the data."""

    name: str  # a known name ("cifar10") if the source is recognised, otherwise what the user gave
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

    @classmethod
    def known(cls, name: str) -> DataFacts:
        """The facts about a data set that is known by name, with all its images; it is not opened."""
        data = KNOWN_DATA[name]
        return cls(name, data.images, 3, data.side, data.classes)

    @classmethod
    def recorded(cls, record: DataRecord) -> DataFacts:
        """The facts about data that may be gone by now."""
        return cls(record.name, record.images, record.channels, record.image_size, len(record.class_names))


def record_of(dataset: Dataset, facts: DataFacts) -> DataRecord:
    """What a run writes down about its data."""
    images, statistics = dataset.pretraining.images, dataset.statistics
    return DataRecord(
        name=facts.name,
        images=facts.images,
        channels=facts.channels,
        height=images.height,
        width=images.width,
        image_size=facts.image_size,
        mean=statistics.mean,
        std=statistics.std,
        class_names=dataset.class_names,
        fingerprint=dataset.fingerprint,
        interpolation=dataset.interpolation,
    )
