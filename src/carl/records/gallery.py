"""gallery.npz: the arrays that a page needs, and checks of their kinds, shapes and ranges."""

from __future__ import annotations

import zipfile

import numpy as np

from carl.errors import UserError
from carl.records.regular_files import open_regular
from carl.records.run_directory import RunDirectory

Gallery = dict[str, np.ndarray]

GALLERY_FORMAT = 2  # written by training/gallery.py; the only one that is read
LARGEST_GALLERY = 2**30  # bytes; the thumbnails of the most images that it holds take 70 MB, their embeddings 40

WHOLE, REAL, PIXELS, TEXT = "i", "f", "u", "U"  # kinds of NumPy
# Shapes by letter: N images, V of them with views, K groups, J neighbours, D features, B best of a group, C classes,
# H and W pixels of a thumbnail, Y and X of a view, U views of an image.
NEEDED: dict[str, tuple[str, str]] = {
    "total_images": (WHOLE, ""),
    "rows": (WHOLE, "N"),
    "embeddings": (REAL, "ND"),
    "positions": (REAL, "N2"),
    "neighbours": (WHOLE, "NJ"),
    "similarities": (REAL, "NJ"),
    "random_neighbours": (WHOLE, "NJ"),
    "thumbnails": (PIXELS, "NHW3"),
    "views": (PIXELS, "VUYX3"),
    "view_places": (WHOLE, "V"),
}
GROUPS: dict[str, tuple[str, str]] = {
    "grouping": (TEXT, ""),
    "group": (WHOLE, "N"),
    "confidence": (REAL, "N"),
    "group_mean": (REAL, "K"),
    "group_best": (WHOLE, "KB"),
    "group_twin": (WHOLE, "K"),
    "group_cosine": (REAL, "K"),
}
LABELS: dict[str, tuple[str, str]] = {"labels": (WHOLE, "N"), "class_names": (TEXT, "C")}
NAMES: dict[str, tuple[str, str]] = {"names": (TEXT, "N")}
BELOW = {
    "neighbours": "N",
    "random_neighbours": "N",
    "view_places": "N",
    "group_best": "N",
    "group": "K",
    "group_twin": "K",
}
# A few times more than a run writes. Features are compared in pairs, and pictures of 25 thumbnails or 33 views side by
# side must stay below WebP's limit of 16,383 pixels.
MOST = {"N": 100_000, "D": 16_384, "K": 1_000_000, "V": 32, "U": 32, "H": 256, "W": 256, "Y": 256, "X": 256}
MOST_CLASSES = 65_536  # the limit of every data set


def remake_command(run: RunDirectory) -> str:
    """The command that makes the gallery of a run."""
    return f"carl pretrain --resume {run.quoted} --set log.report=true"


def read_gallery(run: RunDirectory) -> Gallery | None:
    """The arrays of a run's gallery, checked; None if they have another format."""
    file = run.gallery_file
    try:
        with open_regular(file) as opened:
            with zipfile.ZipFile(opened) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > LARGEST_GALLERY:
                raise ValueError(f"{size} bytes unpacked, and at most {LARGEST_GALLERY} are read")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as arrays:
                gallery = {name: arrays[name] for name in arrays.files}
        if int(gallery.get("format", np.zeros(()))) != GALLERY_FORMAT:
            return None
        check_gallery(gallery)
    except Exception as error:  # a damaged archive fails in many ways: zip, zlib, header, pickled content
        raise UserError(
            f"{file} cannot be read ({' '.join(str(error).split()[:12])}); delete it and make it again: "
            f"{remake_command(run)}"
        ) from None
    return gallery


def check_gallery(gallery: Gallery) -> None:
    """Raise a ValueError or a KeyError that names an array that is missing or wrong."""
    sides: dict[str, int] = {}
    for wanted in (NEEDED, GROUPS, LABELS, NAMES):
        if wanted is NEEDED or any(name in gallery for name in wanted):  # the others come whole or not at all
            for name, (kind, letters) in wanted.items():
                _check_array(name, gallery[name], kind, letters, sides)
    for name, letter in BELOW.items():
        if name in gallery and not _within(gallery[name], 0, sides[letter]):
            raise ValueError(f"{name} points to what is not there")
    if "labels" in gallery and not _within(gallery["labels"], -1, MOST_CLASSES):
        raise ValueError("labels are out of range")


def _check_array(name: str, array: np.ndarray, kind: str, letters: str, sides: dict[str, int]) -> None:
    if array.dtype.kind != kind or array.ndim != len(letters) or (kind == PIXELS and array.itemsize > 1):
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}")
    for letter, side in zip(letters, array.shape, strict=True):
        known = int(letter) if letter.isdigit() else sides.setdefault(letter, side)
        if side != known or side > MOST.get(letter, side) or (side < 1 and letter != "C"):
            raise ValueError(f"{name} has the shape {array.shape}")
    if kind == REAL and not np.isfinite(array).all():
        raise ValueError(f"{name} is not finite")


def _within(array: np.ndarray, lowest: int, end: int) -> bool:
    return bool(array.min(initial=lowest) >= lowest and array.max(initial=lowest) < end)
