"""A folder of image files, with or without sub-folders for classes and for train, val and test."""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from carl.data.dataset import UNLABELLED
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
from carl.data.sources.base import Request, Source, is_file
from carl.errors import UserError
from carl.terminal import warn

EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".gif", ".avif", ".jp2"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
)
# Without TIFF, whose signature most cameras' raw files share, and BMP, whose signature is two letters of text.
NO_IMAGES = (
    "has no images in it; give a folder with files that end in .jpg, .png, .webp, .bmp, .tif or .gif, at any depth"
)
_SIGNATURE = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8|RIFF....WEBP", re.DOTALL)


def list_folder(root: Path, name: str) -> Listing:
    """The images below `root`.

    Sub-folders called train, val or test are splits if there is a train. So are folders of these names beside `root`
    if it has such a name itself. If all images of a split are in two or more sub-folders, these are taken for classes
    (`carl.data.labels` may decide otherwise). A sub-folder called train among others that are not splits is a class
    too.
    """
    splits, opened, notes = split_folders(root)
    closed: list[str] = []
    files = {split: walk_images(folder, closed) for split, folder in splits.items()}
    if not files["train"]:
        raise UserError(f"{splits['train']} {NO_IMAGES}")
    files = {split: names for split, names in files.items() if names}
    classes = _class_names(files)
    return Listing(
        name=name,
        key=files_key(f"{splits[split]}/{file}" for split, names in files.items() for file in names),
        splits={split: _split_listing(splits[split], names, classes) for split, names in files.items()},
        class_names=classes,
        classes_guessed=bool(classes),
        opened=opened,
        notes=(*notes, *_closed_folders(closed), *_loose_images(files["train"])),
    )


def list_image_files(asked: Request) -> Listing:
    """Every image below the folder once, named by its path as the user wrote it, without splits or classes."""
    folder = Path(asked.path or "")
    closed: list[str] = []
    names = walk_images(folder, closed)
    for note in _closed_folders(closed):
        warn(note)
    if not names:
        raise UserError(f"{asked.name} {NO_IMAGES}")

    def read() -> Iterator[EncodedImage]:
        for name in names:
            yield EncodedImage(str(folder / name), folder / name, UNLABELLED)

    key = files_key(folder.absolute() / name for name in names)
    return Listing(name=asked.name, key=key, splits={"train": EncodedSplit(len(names), False, read)})


def list_single_image(asked: Request) -> Listing:
    """One image file."""
    image = EncodedImage(asked.name, Path(asked.path or ""), UNLABELLED)
    only = EncodedSplit(1, False, lambda: iter([image]))
    return Listing(name=asked.name, key=files_key([asked.place]), splits={"train": only})


def _closed_folders(closed: list[str]) -> list[str]:
    """A note about folders that the user may not read, such as lost+found."""
    if not closed:
        return []
    first = closed[0] if len(closed) == 1 else f"{closed[0]} and {len(closed) - 1} more"
    return [f"sub-folders that cannot be read were left out ({first})"]


def _loose_images(names: list[str]) -> list[str]:
    """A note about images beside class folders: a single stray file means that no image gets a label."""
    loose = [name for name in names if "/" not in name]
    if not loose or len(loose) == len(names):
        return []
    first = f"{loose[0]!r}" if len(loose) == 1 else f"{loose[0]!r} and {len(loose) - 1} more"
    return [f"some images are in no sub-folder ({first}), so sub-folders are not used as classes"]


def walk_images(root: Path, closed: list[str] | None = None) -> list[str]:
    """Image files below `root`, named relative to it with slashes and sorted by folder.

    Files are recognised by their extension, or by their first bytes if they have none. Image files with another
    extension (a PNG called .txt) are included too, so that they are reported as bad and not overlooked. Sub-folders
    that cannot be read are added to `closed`.
    """
    start = len(str(root)) + 1
    found = [entry.path[start:].replace(os.sep, "/") for entry in walk_files(root, closed) if _is_image(entry)]
    return sorted(found, key=lambda name: name.split("/"))


def walk_files(root: Path, closed: list[str] | None = None) -> Iterator[os.DirEntry[str]]:
    """Every file below `root` that is not hidden, upper folders first; each folder once, however it is linked.

    A sub-folder that cannot be read is left out, and added to `closed`.
    """
    visited: set[tuple[int, int]] = set()
    waiting = deque([str(root)])
    while waiting:
        folder = waiting.popleft()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in visited:
                continue
            entries = _entries(folder)
        except (OSError, UserError):
            if folder == str(root):
                raise
            if closed is not None:
                closed.append(folder)
            continue
        visited.add((status.st_dev, status.st_ino))
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                waiting.append(entry.path)
            else:
                yield entry


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
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


def _has_images(folder: Path) -> bool:
    return any(_is_image(file) for file in walk_files(folder))


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


def split_folders(root: Path) -> tuple[dict[str, Path], str, list[str]]:
    """The folder of each split, the split that `root` itself is, and notes for the user."""
    folders = {e.name: Path(e.path) for e in _entries(root) if not e.name.startswith(".") and _is_folder(e)}
    inside = {SPLIT_WORDS[name.lower()]: folders[name] for name in sorted(folders) if name.lower() in SPLIT_WORDS}
    if inside:
        others = [name for name in sorted(folders) if name.lower() not in SPLIT_WORDS and _has_images(folders[name])]
        if len(inside) > 1 and "train" not in inside and not others:
            names = " and ".join(sorted(folder.name for folder in inside.values()))
            raise UserError(f"{root} has {names} but no train; give one of them, or call the one to train on train")
        # A single folder of this name among others is a class: CIFAR-100 and COCO have pictures of trains.
        is_class = others and len(inside) == 1 and not any(_is_folder(e) for e in _entries(next(iter(inside.values()))))
        if "train" in inside and not is_class:
            splits, opened = as_splits({split: [folder] for split, folder in inside.items()}, "train")
            note = f"{', '.join(others)} left out: {', '.join(splits)} are splits, and the others are not"
            return {split: paths[0] for split, paths in splits.items()}, opened, [note] if others else []
    path = root.resolve()
    beside = splits_beside(root, path.name, _sibling_folders(path))
    if not beside:
        return {"train": root}, "train", []
    splits, opened = as_splits(beside, next(iter(beside)))
    return {split: folders[0] for split, folders in splits.items()}, opened, []


def _sibling_folders(path: Path) -> list[tuple[Path, str]]:
    try:
        return [(Path(entry.path), entry.name) for entry in _entries(path.parent) if _is_folder(entry)]
    except UserError:  # the parent cannot be listed, as in a home folder that only lets its owner look around
        return []


def _class_names(files: dict[str, list[str]]) -> tuple[str, ...]:
    if not _in_folders(files["train"]) or len({_class_of(name) for name in files["train"]}) < 2:
        return ()
    return tuple(sorted({_class_of(name) for names in files.values() if _in_folders(names) for name in names}))


def labels_by_folder(names: list[str]) -> tuple[tuple[str, ...], list[int]]:
    """The classes of files with these relative names, and the label of each; none if sub-folders are not classes."""
    classes = _class_names({"train": names})
    label_of = {name: label for label, name in enumerate(classes)}
    return classes, [label_of.get(_class_of(name), UNLABELLED) for name in names]


def _in_folders(names: list[str]) -> bool:
    return all("/" in name for name in names)


def _class_of(name: str) -> str:
    return name.partition("/")[0]


def _split_listing(folder: Path, names: list[str], classes: tuple[str, ...]) -> EncodedSplit:
    labelled = bool(classes) and _in_folders(names)
    label_of = {name: label for label, name in enumerate(classes)} if labelled else {}

    def read() -> Iterator[EncodedImage]:
        for name in names:
            yield EncodedImage(name, _content(folder / name), label_of.get(_class_of(name), UNLABELLED))

    return EncodedSplit(len(names), labelled, read, folder=folder)


def _content(path: Path) -> Path | Unusable:
    if path.suffix and path.suffix.lower() not in EXTENSIONS:
        return Unusable(f"an image whose name ends in {path.suffix}; rename it")
    return path


FOLDER = Source(
    about="Images in .jpg, .png, .webp, .bmp, .tif, .gif and others, at any depth; sub-folders may be classes.",
    list=lambda asked: list_folder(asked.place, asked.name),
    tells=lambda file: os.path.splitext(file.name)[1].lower() in EXTENSIONS,
    known_by_name=False,
    list_files=list_image_files,
)
IMAGE = Source(
    about="One image file, to embed it.",
    list=list_single_image,
    recognises=lambda path: is_file(path, *EXTENSIONS),
    known_by_name=False,
    list_files=list_single_image,
)
