"""The labels of embedded images: those that the data came with, or class folders. They only serve for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from carl.data.dataset import UNLABELLED
from carl.data.labels import named_like_numbers
from carl.data.sources.folder import labels_by_folder
from carl.defaults import MOST_CLASSES
from carl.errors import UserError
from carl.use.embedding_files import EmbeddingFile, name_from_text


@dataclass(frozen=True, eq=False)
class ImageLabels:
    """A label for each image, UNLABELLED where it has none."""

    values: np.ndarray  # (N,) int64
    class_names: tuple[str, ...]
    of_folders: bool = False  # whether the classes are sub-folders

    @property
    def tell_classes(self) -> bool:
        """Whether the classes say what is in the images: not folders named like dates or numbers."""
        return bool((self.values != UNLABELLED).any()) and not (
            self.of_folders and named_like_numbers(self.class_names)
        )


def labels_of(index: EmbeddingFile) -> ImageLabels | None:
    """The labels of the images of a file of embeddings; None without any."""
    if "label" in index.columns:
        given = np.array([UNLABELLED if label is None else label for label in index.column("label")], np.int64)
        if given.min() < UNLABELLED or given.max() >= MOST_CLASSES:
            raise UserError(
                f"the labels of {index.path} run from {given.min()} to {given.max()}; number the classes from 0 to at "
                f"most {MOST_CLASSES - 1}, and write {UNLABELLED} for an image without a label"
            )
        return ImageLabels(given, index.about.class_names)
    if not Path(index.about.source).is_dir():
        return None
    classes, labels = labels_by_folder(relative_names(index))
    return ImageLabels(np.array(labels, np.int64), classes, of_folders=True) if classes else None


def relative_names(index: EmbeddingFile) -> list[str]:
    """The names of the images; those of files in a folder begin there."""
    names = index.names()
    file, source = index.file_of(names[0]), Path(index.about.source)
    beginning = ""
    if file is not None and source.is_dir() and file.is_relative_to(source):
        beginning = names[0].removesuffix(file.relative_to(source).as_posix())
    return [name_from_text(name.removeprefix(beginning)) for name in names]
