"""Images in: `open_dataset` and `open_images` read whatever the user has."""

from carl.data.dataset import UNLABELLED, Dataset, PackedImages, Split, Statistics
from carl.data.open import SOURCES, open_dataset, open_images

__all__ = ["SOURCES", "UNLABELLED", "Dataset", "PackedImages", "Split", "Statistics", "open_dataset", "open_images"]
