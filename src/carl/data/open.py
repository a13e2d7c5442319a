"""The one door to images: whatever a command or a script names is recognised here, with the entries of SOURCES.

`open_dataset` is for training and evaluation: images are packed and cached, with the photos or a stream beside them
if training cuts its views from those. `open_images` is for using an encoder: images are listed, never packed, and
decoded as they are needed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from carl.config import ViewsFrom
from carl.data.dataset import Dataset
from carl.data.image_source import ImageSource
from carl.data.labels import check_labels, with_labels
from carl.data.listing import Listing, split_in_name
from carl.data.packing.pack import PackingRequest, check_side, open_listing
from carl.data.photo_images import check_of_photos, with_photos
from carl.data.sources import official
from carl.data.sources.arrays import NPY, NPZ
from carl.data.sources.base import Request, Source
from carl.data.sources.folder import FOLDER, IMAGE, walk_files, walk_images
from carl.data.sources.parquet import PARQUET
from carl.data.sources.python import list_python
from carl.data.sources.shapes import SHAPES
from carl.data.sources.shards import SHARDS, Shards, has_tar_files, list_sample, names_shards
from carl.defaults import Labels
from carl.errors import UserError, suggestion
from carl.files import is_special
from carl.framing import Interpolation
from carl.terminal import Progress, silent, throttled
from carl.user_paths import cache_folder, expanded

if TYPE_CHECKING:
    import torch.utils.data

# The first entry that recognises a path is asked to list it.
SOURCES: dict[str, Source] = {
    "shapes": SHAPES,
    "cifar10": official.CIFAR10,
    "cifar100": official.CIFAR100,
    "stl10": official.STL10,
    "tiny-imagenet": official.TINY_IMAGENET,
    "imagenet64": official.IMAGENET64,
    "FOLDER": FOLDER,
    "IMAGE.jpg": IMAGE,
    "FILE.parquet": PARQUET,
    "FILE.npy": NPY,
    "FILE.npz": NPZ,
    "SHARDS.tar": SHARDS,
}


def open_dataset(
    source: str | Path | torch.utils.data.Dataset[Any],
    *,
    image_size: int | None = None,
    interpolation: Interpolation = "bicubic",
    root: Path | None = None,
    max_bad: int | None = None,
    views_from: ViewsFrom = "auto",
    labels: Labels = "auto",
    progress: Progress | None = None,
) -> Dataset:
    """Open images of any kind as one typed object, packed and cached.

    `source` is a name such as "shapes", a folder of images, a Parquet file or a folder of them, a .npy or .npz file,
    tar or Parquet shards given as a pattern or an address, or a Python data set with images of any size. Images of
    equal size, up to 256 pixels per side, are packed as they are. Others are scaled so that their shorter side is
    `image_size` (by default their usual shorter side, at most 96), by `interpolation`, and cropped to the square in the
    middle. For shards, a sample is packed, and training reads everything as it goes.

    `root` is the folder of the official archives; missing ones are downloaded to it. If more than `max_bad` images (by
    default one in twenty) cannot be decoded, that is an error. `views_from` says what training cuts its views from:
    `packed` images, the `photos` themselves (only for a folder of files), a `stream` of shards, or by default whichever
    keeps the detail that crops need (see `photo_images.with_photos`). `labels` is `none` to do without labels, and
    `folders` to take sub-folders for classes even if they are named like dates or numbers. `progress` is called as
    `progress("decoding train", done, total)` about ten times per second; a total of 0 means that it is not known.
    """
    check_side(image_size)
    if max_bad is not None and max_bad < 0:
        raise UserError(f"max_bad={max_bad} is not a number of files; use 0 or more")
    if views_from not in get_args(ViewsFrom):
        raise UserError(f"views_from={views_from!r} is unknown{suggestion(views_from, get_args(ViewsFrom))}")
    check_labels(labels)
    report = throttled(progress or silent)
    asked = PackingRequest(image_size, max_bad, interpolation, report)
    listing = list_source(source, _archives(root), report, as_shards=views_from == "stream")
    if listing.shards is not None and views_from in ("auto", "stream"):
        return _with_stream(listing.name, listing.shards, asked)
    if views_from == "photos":
        check_of_photos(listing)
    dataset = open_listing(listing, asked)
    dataset = with_labels(dataset, labels, listing.classes_guessed)
    return dataset if views_from == "packed" else with_photos(dataset, listing, views_from == "photos", report)


def open_images(
    source: str | Path, split: str | None = None, root: str | Path | None = None, progress: Progress = silent
) -> ImageSource:
    """The images of anything that `open_dataset` opens by name or path, one by one, decoded as they are needed.

    A folder of images gives every image in it, at any depth. From a data set with splits come all splits, or only the
    one that the file or folder is named after, or the one that `split` names.
    """
    name = str(source)
    kind, path = _recognised(source)
    asked = Request(name, path, _archives(root), throttled(progress))
    if split is None and kind.list_files is not None:
        files = kind.list_files(asked)
        return ImageSource(name, str(files.key), files.splits, files=True)
    listing = kind.list(asked)
    splits = dict(listing.splits)
    if split is not None and split not in splits:
        raise UserError(f"{name} has no split {split!r}{suggestion(split, splits)}")
    one = path is not None and os.path.isfile(path) and not kind.holds_splits  # other splits are beside it
    named = path is not None and os.path.isdir(path) and split_in_name(Path(path).resolve().name) is not None
    if split is not None or one or named:
        chosen = split or listing.opened
        splits = {chosen: splits[chosen]}
    key = hashlib.blake2b(f"{listing.key} {list(splits)}".encode(), digest_size=16).hexdigest()
    return ImageSource(name, key, splits, class_names=listing.class_names, by_split=not one)


def list_source(
    source: str | Path | torch.utils.data.Dataset[Any], root: Path, progress: Progress, as_shards: bool = False
) -> Listing:
    """What `source` holds, before any pixel is read; with `as_shards`, its files are shards, read as training goes."""
    if not isinstance(source, str | Path):
        if as_shards:
            raise UserError(f"views_from='stream' needs shards, and a {type(source).__name__} has none; use 'packed'")
        return list_python(source)
    name = str(source)
    kind, path = (SHARDS, _located(name)) if as_shards else _recognised(source)
    return kind.list(Request(name, path, root, progress))


def known_names() -> list[str]:
    """The data sets that are known by name."""
    return [name for name, source in SOURCES.items() if source.known_by_name]


def recognised_name(source: str) -> str:
    """The known data set that `source` names, or that its file is named after; otherwise the source itself."""
    stem = re.sub(r"[^a-z0-9]", "", Path(source).name.lower())
    for name in sorted(set(known_names()) - {"shapes"}, key=len, reverse=True):  # cifar100 before cifar10
        if stem.startswith(name.replace("-", "")):
            return name
    return source


def absolute_source(source: str) -> str:
    """The source with files and folders as absolute paths, so that a run can be resumed from anywhere."""
    if source in known_names():
        return source
    path = Path(_located(source))
    if source and os.path.exists(path):
        return str(path.resolve())
    return str(path.absolute()) if names_shards(source) and "://" not in source else source


def _located(source: str) -> str:
    """The path of a source, with `~` expanded; addresses and patterns stay exactly as they are."""
    return str(expanded(source)) if source.startswith("~") else source


def _archives(root: str | Path | None) -> Path:
    return Path(root or cache_folder() / "downloads").absolute()


def _recognised(source: str | Path) -> tuple[Source, str | None]:
    """The entry for what the user named, and its path (None for a data set that is known by name)."""
    if isinstance(source, str) and source in known_names():
        return SOURCES[source], None
    path = _located(str(source))
    kind = next((kind for kind in SOURCES.values() if path and kind.recognises(path)), None)
    if kind is None and os.path.isdir(path):
        kind = _kind_of_folder(path)
    if kind is None:
        raise _unknown(str(source))
    return kind, path


def _kind_of_folder(path: str) -> Source:
    """The kind of the first file that tells, upper folders first, so that not all of a million images are looked at."""
    for file in walk_files(Path(path)):
        kind = next((kind for kind in SOURCES.values() if kind.tells(file)), None)
        if kind is not None:
            return kind
    return SHARDS if has_tar_files(path) and not walk_images(Path(path)) else FOLDER


def _with_stream(name: str, shards: Shards, asked: PackingRequest) -> Dataset:
    """Shards as a data set: a packed sample, and the stream of all images."""
    dataset = open_listing(list_sample(shards, name), asked)
    if dataset.train.images.channels != 3:
        raise UserError(f"{name} holds images that are not in colour, which cannot be streamed; give them as a folder")
    note = (
        f"training reads {shards.images} images from {len(shards)} shards as it goes; "
        f"{len(dataset.train)} of them are packed for statistics and probes"
    )
    fingerprint = f"{shards.key}-{dataset.fingerprint}"
    return dataclasses.replace(dataset, stream=shards, fingerprint=fingerprint, notes=(*dataset.notes, note))


def _unknown(source: str) -> UserError:
    if source and Path(_located(source)).exists():
        if is_special(Path(_located(source))):
            return UserError(
                f"{source} is a pipe or a device and cannot be read as images; give a regular file or a folder"
            )
        kinds = [kind for kind, entry in SOURCES.items() if not entry.known_by_name]
        return UserError(
            f"{source} is a file of an unknown kind; give one of {', '.join(kinds)}, or one of the names "
            f"{', '.join(known_names())}"
        )
    if "/" in source or "\\" in source or "." in source:
        return UserError(f"{source} does not exist; give a folder of images, or a .parquet, .npy or .npz file")
    return UserError(f"{source!r} is neither a data set's name nor a folder or file{suggestion(source, known_names())}")
