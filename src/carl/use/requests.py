"""What the commands that use an encoder were asked to do. Importing this imports no torch, for the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EmbedRequest:
    """Embed images, one row per image."""

    run: Path
    images: str  # a folder, a file or a name
    output: Path  # .parquet, .npy or .csv
    split: str | None = None  # of a data set; all of them if None
    force: bool = False


@dataclass(frozen=True)
class ExportRequest:
    """Write the encoder for another program."""

    run: Path
    format: str  # a name in FORMATS
    output: Path | None = None  # in the run's folder `export` if None
    normalise: bool = False  # whether a graph takes images in [0, 1] and normalises them itself
    force: bool = False


@dataclass(frozen=True)
class SearchRequest:
    """Find the images most like each query."""

    run: Path
    images: str
    queries: tuple[str, ...]
    output: Path  # the sheet
    count: int = 10  # images for each query
    split: str | None = None
    force: bool = False


@dataclass(frozen=True)
class CurateRequest:
    """Choose a varied subset of images."""

    run: Path
    images: str
    keep: int
    output: Path  # the list
    links: Path | None = None  # a folder to link the images into
    # Cosine of centred embeddings. With CARL's ResNet-18 after 12 epochs on 20,000 images of CIFAR-10, 0.99 leaves out
    # 1.5%, 0.98 10% and 0.95 half: images that a hardly trained encoder finds equal often are not.
    duplicate: float = 0.99
    outliers: float = 0.01  # part of the images; ours
    split: str | None = None
    seed: int = 0  # of the clusterings
    force: bool = False
