"""Where images come from: a literal registry of names, and one function for whatever else the user has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from carl.data.batches.photos import with_photos
from carl.data.dataset import Dataset
from carl.data.listing import ArraySplit, Listing, Progress, files_key, silent, throttled
from carl.data.packing.cache import cache_folder
from carl.data.packing.pack import check_side, open_listing
from carl.data.sources.arrays import list_npy, list_npz
from carl.data.sources.folder import EXTENSIONS, list_folder, walk_files
from carl.data.sources.official import (
    IMAGENET64_BATCH,
    cifar10,
    cifar100,
    imagenet64,
    list_imagenet64,
    recognise,
    stl10,
    tiny_imagenet,
)
from carl.data.sources.parquet import holds_images, list_parquet
from carl.data.sources.python import list_python
from carl.errors import UserError, suggestion

if TYPE_CHECKING:
    import torch.utils.data


def shapes(root: Path, progress: Progress) -> Listing:
    """Built-in drawings: 10,000 training and 2,000 test images of 32 pixels in 10 classes (no download)."""
    from carl.data.sources import shapes as module

    def split(count: int, seed: int) -> ArraySplit:
        return ArraySplit(count, lambda: iter([module.make_shapes(count, seed)]))

    return Listing(
        name="shapes",
        key=files_key([Path(module.__file__)]),  # drawn anew when the drawing changes
        splits={"train": split(10_000, seed=0), "test": split(2_000, seed=1)},
        class_names=tuple(module.CLASS_NAMES),
    )


SOURCES: dict[str, Callable[[Path, Progress], Listing]] = {
    "shapes": shapes,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "stl10": stl10,
    "tiny-imagenet": tiny_imagenet,
    "imagenet64": imagenet64,
}


def open_dataset(
    source: str | Path | torch.utils.data.Dataset[Any],
    *,
    image_size: int | None = None,
    root: Path | None = None,
    max_bad: int | None = None,
    road: Literal["auto", "packed", "photos"] = "auto",
    progress: Progress | None = None,
) -> Dataset:
    """Open images of any kind as one typed object, packed and cached.

    `source` is a name of SOURCES, a folder of images, a Parquet file or folder of shards, a .npy or .npz file, or
    a Python data set with images of any size. Equal-sized images up to 256 pixels a side are packed as they are;
    others are scaled so that their shorter side is `image_size` (by default their usual one, but at most 96) and
    centrally cropped to a square. `root` is where the official archives lie or are downloaded to. More than
    `max_bad` images that cannot be decoded are an error (by default one in twenty). `road` says what training cuts
    its views from: `packed` images, the `photos` themselves (only for a folder of files), or whichever keeps the
    detail that crops need (see `photos.with_photos`). `progress` is called as `progress("decoding train", done, total)`
    some ten times a second; a total of 0 is one that is not known.
    """
    check_side(image_size)
    if max_bad is not None and max_bad < 0:
        raise UserError(f"max_bad={max_bad} is not a count; use 0 to allow no bad file")
    report = throttled(progress or silent)
    listing = list_source(source, (root or cache_folder() / "downloads").absolute(), report)
    return with_photos(open_listing(listing, image_size, max_bad, report), listing, road, report)


def list_source(source: str | Path | torch.utils.data.Dataset[Any], root: Path, progress: Progress) -> Listing:
    """What `source` holds, before any pixel of it is read; `root` is where official archives lie or go."""
    if isinstance(source, str) and source in SOURCES:
        return SOURCES[source](root, progress)
    if not isinstance(source, str | Path):
        return list_python(source)
    if not str(source):
        raise _unknown("")
    path = Path(source).expanduser().absolute()
    if path.is_dir():
        return _list_directory(path, str(source))
    if not path.exists():
        raise _unknown(str(source))
    readers = {".parquet": list_parquet, ".npy": list_npy, ".npz": list_npz}
    if path.suffix.lower() not in readers:
        raise UserError(
            f"{source} is a file of an unknown kind; give a folder of images, a file that ends in "
            f"{', '.join(readers)}, or one of the names {', '.join(SOURCES)}"
        )
    return readers[path.suffix.lower()](path, str(source))


def _list_directory(path: Path, name: str) -> Listing:
    """By the first file that tells, upper folders first, so that a million images are not searched for others."""
    official = recognise(path)
    if official is not None:
        return official(path, name)
    for file in walk_files(path):
        extension = Path(file.name).suffix.lower()
        if extension == ".parquet" and holds_images(Path(file.path)):
            return list_parquet(path, name)
        if IMAGENET64_BATCH.fullmatch(file.name):
            return list_imagenet64(path, name)
        if extension in EXTENSIONS:
            break
    return list_folder(path, name)


def _unknown(source: str) -> UserError:
    if "/" in source or "\\" in source or "." in source:
        return UserError(f"{source} does not exist; give a folder of images, or a .parquet, .npy or .npz file")
    return UserError(f"{source!r} is neither a data set's name nor a folder or file{suggestion(source, SOURCES)}")
