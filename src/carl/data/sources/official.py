"""The data sets of the paper, in the files that their authors publish.

Each can be opened by its name, and is then downloaded if that is allowed, or by the folder of its files. Folders that
torchvision unpacked there are used as they are. Addresses and checksums are torchvision's, except for Tiny-ImageNet.
The readers are our own, because torchvision unpickles CIFAR as it is, and pickles can run anything.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from carl.data.decoding.decode import DecodeError, open_file
from carl.data.decoding.pickles import load_pickle
from carl.data.listing import (
    LARGEST_IMAGE,
    ArraySplit,
    Content,
    EncodedImage,
    EncodedSplit,
    Listing,
    Unusable,
    files_key,
)
from carl.data.sources.arrays import as_labels, npz_array, npz_rows
from carl.data.sources.base import Request, Source
from carl.data.sources.download import Archive, check_member, fetch, unpacked
from carl.errors import UserError
from carl.files import open_regular
from carl.records.known_data import KNOWN_DATA

CIFAR10_ARCHIVE = Archive(
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    "cifar-10-batches-py",
)
CIFAR100_ARCHIVE = Archive(
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    "eb9058c3a382ffc7106e4002c42a8d85",
    "cifar-100-python",
)
STL10_ARCHIVE = Archive(
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    "91f7769df0f17e558f3565bffb0c7dfb",
    "stl10_binary",
)
TINY_IMAGENET_ARCHIVE = Archive(
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    "90528d7ca1a48142e341f4ef8d21d0de",
    "tiny-imagenet-200",
)
IMAGENET64_FOLDER = "imagenet64"
IMAGENET64_BATCH = re.compile(r"train_data_batch_(\d+)(?:\.npz)?")
_PICKLED_BLOCK = 4096  # images copied at once, 50 MB at 64 pixels; the file itself is in memory as a whole
_STL_SIDE = KNOWN_DATA["stl10"].side
_STL_BLOCK = 500  # images, 14 MB
_LARGEST_TEXT = 16 * 2**20  # bytes; the official texts are lists of a few thousand names or numbers


def _located(asked: Request, archive: Archive) -> Path:
    """The folder that the user named, or the one that the archive unpacks to."""
    return unpacked(archive, asked.root, asked.progress) if asked.path is None else asked.place


def list_cifar10(folder: Path, name: str) -> Listing:
    train = [folder / f"data_batch_{i}" for i in range(1, 6) if (folder / f"data_batch_{i}").exists()]
    return _list_cifar(
        folder,
        name,
        train=train,
        test=folder / "test_batch",
        meta=folder / "batches.meta",
        labels="labels",
        class_names="label_names",
    )


def list_cifar100(folder: Path, name: str) -> Listing:
    return _list_cifar(
        folder,
        name,
        train=[folder / "train"],
        test=folder / "test",
        meta=folder / "meta",
        labels="fine_labels",
        class_names="fine_label_names",
    )


def _list_cifar(
    folder: Path, name: str, *, train: list[Path], test: Path, meta: Path, labels: str, class_names: str
) -> Listing:
    for path in (*train, test, meta):
        if not path.is_file():
            raise UserError(f"{path} is missing; delete {folder} and run this again")
    if not train:
        raise UserError(f"{folder} has no data_batch_1 to data_batch_5; delete it and run this again")
    names = _value(load_pickle(meta), class_names, meta)
    if not isinstance(names, list) or not all(isinstance(class_name, str) for class_name in names):
        raise UserError(f"{meta}[{class_names}] is not a list of names; download it again")
    return Listing(
        name=name,
        key=files_key((*train, test, meta)),
        splits={"train": _pickled_split(train, labels, 0), "test": _pickled_split([test], labels, 0)},
        class_names=tuple(names),
    )


def _pickled_split(paths: list[Path], labels: str, first_label: int) -> ArraySplit:
    """Batches {"data": (n, 3 * side * side) uint8, labels: [...]}. Counting them would mean loading them."""

    def read() -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        for path in paths:
            batch = load_pickle(path)
            images = _planes_to_images(_value(batch, "data", path), str(path))
            numbers = as_labels(_flat(_value(batch, labels, path), path), len(images), f"{path}[{labels}]")
            for start in range(0, len(images), _PICKLED_BLOCK):
                block = slice(start, start + _PICKLED_BLOCK)
                yield images[block], numbers[block] - first_label
            del batch, images  # before the next file is loaded

    return ArraySplit(0, read)


def _value(batch: Any, key: str, path: Path) -> Any:
    if not isinstance(batch, dict) or key not in batch:
        raise UserError(f"{path} has no {key!r}, so it does not belong to this data set; download it again")
    return batch[key]


def _flat(labels: Any, path: Path) -> np.ndarray:
    """The labels as an array. NumPy would turn lists in lists into an array of any size, so they are refused."""
    if isinstance(labels, np.ndarray):
        return labels
    if not isinstance(labels, list) or not all(isinstance(label, int | np.integer) for label in labels):
        raise UserError(f"{path} has labels that are not a list of whole numbers; download it again")
    return np.array(labels)


def _planes_to_images(rows: Any, where: str) -> np.ndarray:
    """Rows that hold a red, a green and a blue square, as images (n, side, side, 3)."""
    width = rows.shape[1] if isinstance(rows, np.ndarray) and rows.ndim == 2 else 0
    side = round((width / 3) ** 0.5)
    if not width or rows.dtype != np.uint8 or 3 * side**2 != width:
        raise UserError(f"{where} does not hold rows of three uint8 squares; download it again")
    images: np.ndarray = rows.reshape(-1, 3, side, side).transpose(0, 2, 3, 1)
    return images


def list_stl10(folder: Path, name: str) -> Listing:
    """`unlabeled`, `train` and `test`, and the ten official folds of the training images."""
    splits = {}
    for split in ("train", "test", "unlabeled"):
        pixels, labels = folder / f"{split}_X.bin", folder / f"{split}_y.bin"
        if pixels.is_file():
            splits[split] = _stl_split(pixels, labels if labels.is_file() else None)
    if "train" not in splits:
        raise UserError(f"{folder} has no train_X.bin; delete it and run this again")
    class_file, fold_file = folder / "class_names.txt", folder / "fold_indices.txt"
    return Listing(
        name=name,
        key=files_key((*sorted(folder.glob("*.bin")), *(f for f in (class_file, fold_file) if f.is_file()))),
        splits=splits,
        class_names=tuple(_file_text(class_file).split()) if class_file.is_file() else (),
        folds=_stl_folds(fold_file, splits["train"].count) if fold_file.is_file() else (),
    )


def _stl_split(path: Path, labels_file: Path | None) -> ArraySplit:
    image_bytes = 3 * _STL_SIDE**2
    if path.stat().st_size % image_bytes:
        raise UserError(f"{path} ends in the middle of an image, so it is partial; download it again")
    count = path.stat().st_size // image_bytes
    labels = None
    if labels_file is not None:
        with open_regular(labels_file) as file:
            numbers = np.fromfile(file, np.uint8, count + 1)  # one more than expected, to notice if there are too many
        labels = as_labels(numbers.astype(np.int64) - 1, count, str(labels_file))

    def read() -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        with open_regular(path) as file:
            for start in range(0, count, _STL_BLOCK):
                block = np.frombuffer(file.read(_STL_BLOCK * image_bytes), np.uint8)
                # Columns come first in the file: (n, 3, x, y).
                pixels = block.reshape(-1, 3, _STL_SIDE, _STL_SIDE).transpose(0, 3, 2, 1)
                yield pixels, None if labels is None else labels[start : start + len(pixels)]

    return ArraySplit(count, read)


def _stl_folds(path: Path, count: int) -> tuple[np.ndarray, ...]:
    lines = _file_text(path).splitlines()
    try:
        folds = tuple(np.array(line.split(), np.int64) for line in lines if line.strip())
    except (ValueError, OverflowError) as error:
        raise UserError(f"{path} holds something that is not the number of an image; download it again") from error
    if any(fold.min() < 0 or fold.max() >= count for fold in folds):
        raise UserError(f"{path} names images beyond the {count} of the training split; download it again")
    return folds


def list_tiny_imagenet(path: Path, name: str) -> Listing:
    """Training and validation images from the official zip, or from the folder it unpacks to.

    The 10,000 test images have no labels and are left out. Classes are in the order of their WordNet numbers.
    """
    read_member, members = _zip_members(path) if path.is_file() else _folder_members(path)
    wnids = sorted(_text(read_member, members, "wnids.txt", path).split())
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    train = sorted(
        (member, label_of[match[1]])
        for member in members
        if (match := re.fullmatch(r"train/(n\d+)/(?:images/)?[^/]+\.JPEG", member)) and match[1] in label_of
    )
    annotations = _text(read_member, members, "val/val_annotations.txt", path).splitlines()
    rows = [line.split("\t") for line in annotations if line.count("\t")]
    for row in rows:
        check_member(path, row[0])
    val = [(f"val/images/{row[0]}", label_of[row[1]]) for row in rows if row[1] in label_of]
    if not train:
        raise UserError(f"{path} has no training images in train/*/images; download it again")
    texts = ("wnids.txt", "words.txt", "val/val_annotations.txt")  # labels and names are data too
    parts = (*texts, *(member for member, _ in (*train, *val)))
    return Listing(
        name=name,
        key=files_key([path] if path.is_file() else [path / member for member in parts]),
        splits={"train": _member_split(train, read_member), "val": _member_split(val, read_member)},
        class_names=_tiny_class_names(wnids, _text(read_member, members, "words.txt", path, required=False)),
    )


ReadMember = Callable[[str], Content]


def _zip_members(path: Path) -> tuple[ReadMember, frozenset[str]]:
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not a readable zip file ({error}); delete it and run this again") from error
    for member in archive.namelist():
        check_member(path, member)
    prefix = f"{TINY_IMAGENET_ARCHIVE.folder}/"

    def read(member: str) -> bytes | Unusable:
        try:
            with archive.open(prefix + member) as file:
                content = file.read(LARGEST_IMAGE + 1)
        except (KeyError, zipfile.BadZipFile, zlib.error, OSError, RuntimeError, EOFError) as error:
            return Unusable(f"cannot be read from the zip file: {error}")
        return content if len(content) <= LARGEST_IMAGE else Unusable("too large to read")

    return read, frozenset(member.removeprefix(prefix) for member in archive.namelist())


def _folder_members(folder: Path) -> tuple[ReadMember, frozenset[str]]:
    members = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return lambda member: folder / member, frozenset(members)


def _text(read: ReadMember, members: frozenset[str], name: str, path: Path, required: bool = True) -> str:
    if name not in members:
        if required:
            raise UserError(f"{path} has no {name}, so it does not have the official layout; download it again")
        return ""
    content = read(name)
    if isinstance(content, Unusable | np.ndarray):
        raise UserError(f"{path} is damaged at {name}; download it again")
    return _file_text(content) if isinstance(content, Path) else _decoded(content, f"{path}/{name}")


def _file_text(path: Path) -> str:
    try:
        with open_file(path) as file:
            return _decoded(file.read(_LARGEST_TEXT + 1), str(path))
    except DecodeError as error:
        raise UserError(f"{path} cannot be read ({error}); download it again") from error


def _decoded(content: bytes, where: str) -> str:
    try:
        if len(content) > _LARGEST_TEXT:
            raise ValueError(f"longer than {_LARGEST_TEXT} bytes")
        return content.decode("utf-8")
    except ValueError as error:
        raise UserError(f"{where} is not the official text ({error}); download it again") from error


def _member_split(members: list[tuple[str, int]], read_member: ReadMember) -> EncodedSplit:
    def read() -> Iterator[EncodedImage]:
        for member, label in members:
            yield EncodedImage(member, read_member(member), label)

    return EncodedSplit(len(members), True, read)


def _tiny_class_names(wnids: list[str], words: str) -> tuple[str, ...]:
    meaning = dict(line.split("\t", 1) for line in words.splitlines() if "\t" in line)
    names = [meaning.get(wnid, wnid).split(",")[0] for wnid in wnids]
    return tuple(f"{name} ({wnid})" if names.count(name) > 1 else name for name, wnid in zip(names, wnids, strict=True))


def list_imagenet64(folder: Path, name: str) -> Listing:
    """Batches `train_data_batch_1` to `_10` and `val_data`, pickled or .npz, anywhere below `folder`.

    A pickled batch is read as a whole: an official one takes 1.6 GB. Labels 1 to 1000 become 0 to 999.
    """
    train, val = _imagenet64_files(folder)
    if not train:
        raise UserError(f"{folder} has no train_data_batch_1 and so on; unzip the official files there")
    splits = {"train": _imagenet64_split(train)}
    if val:
        splits["val"] = _imagenet64_split(val)
    names_file = next(iter(sorted(folder.rglob("map_clsloc.txt"))), None)
    return Listing(
        name=name,
        key=files_key((*train, *val, *([names_file] if names_file else []))),
        splits=splits,
        class_names=_imagenet_class_names(names_file) if names_file else tuple(str(i) for i in range(1000)),
    )


def _imagenet64_files(folder: Path) -> tuple[list[Path], list[Path]]:
    batches: dict[int, Path] = {}
    val: list[Path] = []
    for path in sorted(folder.rglob("*_data*")):
        if match := IMAGENET64_BATCH.fullmatch(path.name):
            batches.setdefault(int(match[1]), path)  # a batch in one of its two forms, not in both
        elif path.name in ("val_data", "val_data.npz"):
            val = val or [path]
    return [batches[number] for number in sorted(batches)], val


def _imagenet64_split(paths: list[Path]) -> ArraySplit:
    def read() -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        for path in paths:
            if path.suffix != ".npz":
                yield from _pickled_split([path], "labels", 1).read()
                continue
            numbers, start = npz_array(path, "labels").reshape(-1), 0
            for rows in npz_rows(path, "data"):
                labels = as_labels(numbers[start : start + len(rows)], len(rows), f"{path}[labels]")
                yield _planes_to_images(rows, str(path)), labels - 1
                start += len(rows)
            if start != len(numbers):
                raise UserError(f"{path} has {len(numbers)} labels for {start} images; download it again")

    return ArraySplit(0, read)


def _imagenet_class_names(path: Path) -> tuple[str, ...]:
    """Lines such as `n02119789 1 kit_fox`."""
    rows = [line.split() for line in _file_text(path).splitlines() if line.strip()]
    wrong = next((row for row in rows if len(row) < 3 or not re.fullmatch(r"[0-9]{1,9}", row[1])), None)
    if wrong is not None:
        raise UserError(
            f"{path} has the line {' '.join(wrong)[:60]!r}, which is not like `n02119789 1 kit_fox`; download it again"
        )
    return tuple(row[2].replace("_", " ") for row in sorted(rows, key=lambda row: int(row[1])))


def _imagenet64_folder(root: Path) -> Path:
    folder = root / IMAGENET64_FOLDER
    if not folder.is_dir():
        raise UserError(
            f"imagenet64 is not in {folder}, and its licence asks you to fetch it yourself: download Imagenet64 "
            "(train part 1 and 2, val) from https://image-net.org/download-images and unzip the files there"
        )
    return folder


def _tiny_imagenet_place(asked: Request) -> Path:
    """The folder that the user named, the unpacked archive, or the archive itself, which need not be unpacked."""
    if asked.path is not None:
        return asked.place
    folder = asked.root / TINY_IMAGENET_ARCHIVE.folder
    return folder if folder.is_dir() else fetch(TINY_IMAGENET_ARCHIVE, asked.root, asked.progress)


def _has_file(folder: str, name: str) -> bool:
    return os.path.isfile(os.path.join(folder, name))


CIFAR10 = Source(
    about=f"{KNOWN_DATA['cifar10'].in_words()} (170 MB).",
    list=lambda asked: list_cifar10(_located(asked, CIFAR10_ARCHIVE), asked.name),
    recognises=lambda path: _has_file(path, "data_batch_1"),
)
CIFAR100 = Source(
    about=f"{KNOWN_DATA['cifar100'].in_words()} (169 MB).",
    list=lambda asked: list_cifar100(_located(asked, CIFAR100_ARCHIVE), asked.name),
    recognises=lambda path: _has_file(path, "meta") and _has_file(path, "train"),
)
STL10 = Source(
    about=f"{KNOWN_DATA['stl10'].in_words()}, training images in ten folds (2.6 GB).",
    list=lambda asked: list_stl10(_located(asked, STL10_ARCHIVE), asked.name),
    recognises=lambda path: _has_file(path, "train_X.bin"),
)
TINY_IMAGENET = Source(
    about=f"{KNOWN_DATA['tiny-imagenet'].in_words()} (248 MB).",
    list=lambda asked: list_tiny_imagenet(_tiny_imagenet_place(asked), asked.name),
    recognises=lambda path: _has_file(path, "wnids.txt"),
)
IMAGENET64 = Source(
    about=f"{KNOWN_DATA['imagenet64'].in_words()}, scaled down from ImageNet, to be downloaded by hand (13 GB).",
    list=lambda asked: list_imagenet64(
        _imagenet64_folder(asked.root) if asked.path is None else asked.place, asked.name
    ),
    tells=lambda file: IMAGENET64_BATCH.fullmatch(file.name) is not None,
)
