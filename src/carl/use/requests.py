"""What the commands that use an encoder were asked to do. Importing this imports no torch, for the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from carl.defaults import LARGEST_SEED
from carl.errors import UserError
from carl.records.near_duplicates import NEAR_DUPLICATE

GroupLoss = Literal["carl", "temi", "scan"]
GROUP_LOSSES: tuple[GroupLoss, ...] = get_args(GroupLoss)


def check_seed(seed: int) -> None:
    if not 0 <= seed <= LARGEST_SEED:
        raise UserError(f"--seed {seed} is out of range; use 0 to {LARGEST_SEED}")


@dataclass(frozen=True)
class EmbedOptions:
    """How images are embedded, and how the rows are written."""

    batch_size: int | None = None  # images that go through the encoder together; as in evaluation if None
    # As in evaluation and for an image to search for, which must find its own copy. `carl embed` asks for `auto`.
    precision: str = "fp32"
    dtype: str = "float32"  # of the numbers that are written
    rows_per_file: int | None = None  # in a folder; see ROWS_PER_FILE


USUAL = EmbedOptions()
ROWS_PER_FILE = 250_000  # if the user names none: 1.3 GB for features of 1,280 numbers


@dataclass(frozen=True)
class EmbedRequest:
    """Embed images, one row per image."""

    encoder: str  # a run directory, a weights file, or timm:NAME
    images: str  # a folder, a file or a name
    output: Path  # .parquet, .npy or .csv, or a folder
    split: str | None = None  # of a data set; all of them if None
    force: bool = False
    backbone: str | None = None  # of a weights file
    device: str = "auto"
    options: EmbedOptions = USUAL


@dataclass(frozen=True)
class ExportRequest:
    """Write the encoder for another program."""

    encoder: str  # a run directory, a weights file, or timm:NAME
    format: str  # a name in FORMATS, or hub:USER/NAME
    output: Path | None = None  # in the run's folder `export` if None
    normalise: bool = False  # whether a graph takes images in [0, 1] and normalises them itself
    force: bool = False
    backbone: str | None = None  # of a weights file


@dataclass(frozen=True)
class SearchRequest:
    """Find the images most like each query."""

    encoder: str  # a run directory, a weights file, or timm:NAME
    images: str
    queries: tuple[str, ...]
    output: Path  # the sheet
    count: int = 10  # images for each query
    split: str | None = None
    force: bool = False
    backbone: str | None = None  # of a weights file


@dataclass(frozen=True)
class CurateRequest:
    """Choose a varied subset of images."""

    encoder: str  # a run directory, a weights file, or timm:NAME
    images: str
    keep: int
    output: Path  # the list
    links: Path | None = None  # a folder to link the images into
    duplicate: float = NEAR_DUPLICATE  # cosine of centred embeddings
    outliers: float = 0.01  # part of the images; ours
    split: str | None = None
    seed: int = 0  # of the clusterings
    force: bool = False
    backbone: str | None = None  # of a weights file


@dataclass(frozen=True)
class GroupRequest:
    """Find out which images belong together."""

    encoder: str
    images: str
    output: Path  # the table, .parquet or .csv; the sheet is beside it
    groups: int | None = None  # proposed from the data if None
    loss: GroupLoss = "carl"
    views: int = 0  # random views of each image that are positives too
    names: Path | None = None  # a file of names that people gave to the groups
    links: Path | None = None  # a folder to link the images into, one sub-folder per group
    split: str | None = None
    seed: int = 0
    force: bool = False
    backbone: str | None = None  # of a weights file


@dataclass(frozen=True)
class ImagesReportRequest:
    """Write a page about images seen through an encoder."""

    encoder: str  # a run directory, a weights file, or timm:NAME
    images: str
    output: Path
    split: str | None = None
    projection: str = "auto"
    names: Path | None = None  # of groups, as a page saved them
    force: bool = False
    backbone: str | None = None  # of a weights file
