"""A folder of image files, with or without class sub-folders, with or without train/val/test sub-folders."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from carl.data.images import UNLABELLED
from carl.data.listing import (
    SPLIT_WORDS,
    EncodedImage,
    EncodedSplit,
    Listing,
    Unusable,
    as_splits,
    files_key,
    splits_beside,
)
from carl.errors import UserError

EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".gif", ".avif", ".jp2"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
)
# Not TIFF's, which is that of most cameras' raw files, nor BMP's, which is two letters of text.
_SIGNATURE = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8|RIFF....WEBP", re.DOTALL)


def list_folder(root: Path, name: str) -> Listing:
    """The images below `root`.

    Sub-folders called train, val or test (at least train) are splits, as are such folders beside `root` if its
    own name is one. In a split whose images all lie in two or more sub-folders, these are the classes.
    """
    splits, opened = _split_folders(root)
    files = {split: walk_images(folder) for split, folder in splits.items()}
    if not files["train"]:
        raise UserError(
            f"{splits['train']} has no images in it; give a folder with files that end in .jpg, .png, .webp, .bmp, "
            ".tif or .gif, at any depth"
        )
    files = {split: paths for split, paths in files.items() if paths}
    classes = _class_names(files)
    return Listing(
        name=name,
        key=files_key((splits[split] / path for split, paths in files.items() for path in paths)),
        splits={split: _split_listing(splits[split], paths, classes) for split, paths in files.items()},
        class_names=classes,
        opened=opened,
    )


def walk_images(root: Path) -> list[Path]:
    """Paths of image files below `root`, relative to it and sorted; each folder once, however it is linked.

    Files count by their extension; those without any by their first bytes. Image files under a foreign extension
    (a PNG called .txt) come along too, so that they are listed as bad and not overlooked.
    """
    found: list[Path] = []
    visited: set[tuple[int, int]] = set()
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        status = folder.stat()
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        for entry in _entries(folder):
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                waiting.append(Path(entry.path))
            elif _is_image(entry):
                found.append(Path(entry.path).relative_to(root))
    return sorted(found, key=lambda path: path.parts)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be read ({error.strerror}); check its permissions") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_image(entry: os.DirEntry[str]) -> bool:
    extension = os.path.splitext(entry.name)[1].lower()
    if extension in EXTENSIONS:
        return True
    try:
        if not stat.S_ISREG(entry.stat().st_mode):
            return False
        with open(entry.path, "rb") as file:
            return _SIGNATURE.match(file.read(12)) is not None
    except OSError:
        return False


def _split_folders(root: Path) -> tuple[dict[str, Path], str]:
    inside: dict[str, Path] = {}
    for entry in sorted(_entries(root), key=lambda entry: entry.name):
        if entry.name.lower() in SPLIT_WORDS and _is_folder(entry):
            inside.setdefault(SPLIT_WORDS[entry.name.lower()], Path(entry.path))
    if "train" in inside:
        found, opened = {split: [folder] for split, folder in inside.items()}, "train"
        splits, opened = as_splits(found, opened)
        return {split: folders[0] for split, folders in splits.items()}, opened
    path = root.resolve()
    siblings = [(Path(entry.path), entry.name) for entry in _entries(path.parent) if _is_folder(entry)]
    beside = splits_beside(root, path.name, siblings)
    if not beside:
        return {"train": root}, "train"
    splits, opened = as_splits(beside, next(iter(beside)))
    return {split: folders[0] for split, folders in splits.items()}, opened


def _in_classes(paths: list[Path]) -> bool:
    return all(len(path.parts) > 1 for path in paths) and len({path.parts[0] for path in paths}) > 1


def _class_names(files: dict[str, list[Path]]) -> tuple[str, ...]:
    if not _in_classes(files["train"]):
        return ()
    labelled = [paths for paths in files.values() if all(len(path.parts) > 1 for path in paths)]
    return tuple(sorted({path.parts[0] for paths in labelled for path in paths}))


def _split_listing(folder: Path, paths: list[Path], classes: tuple[str, ...]) -> EncodedSplit:
    labelled = bool(classes) and all(len(path.parts) > 1 for path in paths)
    label_of = {name: label for label, name in enumerate(classes)} if labelled else {}

    def read() -> Iterator[EncodedImage]:
        for path in paths:
            yield EncodedImage(path.as_posix(), _content(folder / path), label_of.get(path.parts[0], UNLABELLED))

    return EncodedSplit(len(paths), labelled, read)


def _content(path: Path) -> Path | Unusable:
    if path.suffix and path.suffix.lower() not in EXTENSIONS:
        return Unusable(f"an image whose name ends in {path.suffix}; rename it")
    return path
