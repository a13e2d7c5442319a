"""Images in: `open_dataset` reads whatever the user has into one typed object."""

from carl.data.dataset import UNLABELLED, Dataset, PackedImages, Split, Statistics
from carl.data.open import SOURCES, open_dataset

__all__ = ["SOURCES", "UNLABELLED", "Dataset", "PackedImages", "Split", "Statistics", "open_dataset"]
