"""The arrays that a page about images needs, with checks of their kinds, shapes and ranges.

A run keeps them in gallery.npz; `carl report ENCODER IMAGES` makes them in memory. Letters: N images of the sample,
the only ones on the map and with neighbours; M images that the page lists (all of them, up to MOST["M"]); K groups; F
flags.

Without the arrays `listed_*`, the images listed are those of the sample, and M = N. With them, `listed_rows` (M,) are
rows of the data set in rising order, `rows` (N,) of the sample among them, and `listed_names`, `listed_group` and small
`listed_thumbnails` are theirs. So any image of a large set can be reached by its group, its flags or its name, while
the map shows a sample.

Flags say what may be wrong with an image. They come whole or not at all:

- `flags` (M,) uint32: bit f is set if flag f holds for the image;
- `flag_names` (F,): a word or two, such as `blurry`, and `flag_words` (F,): a sentence on what it means;
- `flag_counts` (F,): how many of all `total_images` have it, also of those that are not listed;
- `duplicate_of` (M,) int: place among the M of the image that this one repeats (the one to keep), or -1. Flags of
  duplicates are set for the repetitions only, so that a list of them can be deleted.

`group_names` (K,): a name for each group, or an empty text. All texts are shown as text, whatever they hold.
"""

from __future__ import annotations

import zipfile

import numpy as np

from carl.defaults import MOST_CLASSES
from carl.errors import UserError
from carl.files import open_regular
from carl.records.run_directory import RunDirectory

Gallery = dict[str, np.ndarray]

GALLERY_FORMAT = 2  # written by training/gallery_writer.py; the only one that is read
LARGEST_GALLERY = 2**30  # bytes; the thumbnails of the most images that it holds take 70 MB, their embeddings 40

WHOLE, REAL, PIXELS, TEXT, BITS = "i", "f", "u", "U", "u4"  # kinds of NumPy
# Shapes by letter: N images, V of them with views, K groups, J neighbours, D features, B best of a group, C classes,
# H and W pixels of a thumbnail, Y and X of a view, U views of an image, M images listed, h and w theirs, F flags.
NEEDED: dict[str, tuple[str, str]] = {
    "total_images": (WHOLE, ""),
    "rows": (WHOLE, "N"),
    "embeddings": (REAL, "ND"),
    "positions": (REAL, "N2"),
    "neighbours": (WHOLE, "NJ"),
    "similarities": (REAL, "NJ"),
    "thumbnails": (PIXELS, "NHW3"),
}
RANDOM: dict[str, tuple[str, str]] = {"random_neighbours": (WHOLE, "NJ")}  # by the same encoder with random weights
START: dict[str, tuple[str, str]] = {  # by the encoder that the run started from
    "start_neighbours": (WHOLE, "NJ"),
    "start_embeddings": (REAL, "ND"),
    "start_positions": (REAL, "N2"),
}
VIEWS: dict[str, tuple[str, str]] = {"views": (PIXELS, "VUYX3"), "view_places": (WHOLE, "V")}
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
GROUP_NAMES: dict[str, tuple[str, str]] = {"group_names": (TEXT, "K")}
LISTED: dict[str, tuple[str, str]] = {
    "listed_rows": (WHOLE, "M"),
    "listed_names": (TEXT, "M"),
    "listed_group": (WHOLE, "M"),
    "listed_thumbnails": (PIXELS, "Mhw3"),
}
FLAGS: dict[str, tuple[str, str]] = {
    "flags": (BITS, "M"),
    "flag_names": (TEXT, "F"),
    "flag_words": (TEXT, "F"),
    "flag_counts": (WHOLE, "F"),
    "duplicate_of": (WHOLE, "M"),
}
BLOCKS = (NEEDED, GROUPS, RANDOM, START, VIEWS, LABELS, NAMES, GROUP_NAMES, LISTED, FLAGS)  # each whole or not at all
BELOW = {
    "neighbours": "N",
    "random_neighbours": "N",
    "start_neighbours": "N",
    "view_places": "N",
    "group_best": "N",
    "group": "K",
    "group_twin": "K",
    "listed_group": "K",
}
# A few times more than a run writes. Features are compared in pairs, and pictures of 25 thumbnails or 33 views side by
# side must stay below WebP's limit of 16,383 pixels.
MOST = {"N": 100_000, "M": 100_000, "F": 32, "D": 16_384, "K": 1_000_000, "V": 32, "U": 32, "H": 256, "W": 256,
        "h": 64, "w": 64, "Y": 256, "X": 256}  # fmt: skip


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
    for wanted in BLOCKS:
        if wanted is NEEDED or any(name in gallery for name in wanted):
            for name, (kind, letters) in wanted.items():
                _check_array(name, gallery[name], kind, letters, sides)
        if wanted is LISTED and LISTED.keys().isdisjoint(gallery):
            sides["M"] = sides["N"]
    for name, letter in BELOW.items():
        if name in gallery and not _within(gallery[name], 0, sides[letter]):
            raise ValueError(f"{name} points to what is not there")
    if "labels" in gallery and not _within(gallery["labels"], -1, MOST_CLASSES):
        raise ValueError("labels are out of range")
    if "flags" in gallery:
        _check_flags(gallery, sides)
    if "listed_rows" in gallery and not (
        (np.diff(gallery["listed_rows"]) > 0).all() and np.isin(gallery["rows"], gallery["listed_rows"]).all()
    ):
        raise ValueError("listed_rows do not rise, or lack a row of the sample")


def _check_flags(gallery: Gallery, sides: dict[str, int]) -> None:
    if int(gallery["flags"].max()) >= 2 ** sides["F"]:
        raise ValueError("flags has bits that are not named")
    if not _within(gallery["duplicate_of"], -1, sides["M"]):
        raise ValueError("duplicate_of points to what is not there")
    if not _within(gallery["flag_counts"], 0, int(gallery["total_images"]) + 1):
        raise ValueError("flag_counts counts more than all images")


def _check_array(name: str, array: np.ndarray, kind: str, letters: str, sides: dict[str, int]) -> None:
    wrong_size = (kind == PIXELS and array.itemsize > 1) or (kind == BITS and array.itemsize != 4)
    if array.dtype.kind != kind[0] or array.ndim != len(letters) or wrong_size:
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}")
    for letter, side in zip(letters, array.shape, strict=True):
        known = int(letter) if letter.isdigit() else sides.setdefault(letter, side)
        if side != known or side > MOST.get(letter, side) or (side < 1 and letter != "C"):
            raise ValueError(f"{name} has the shape {array.shape}")
    if kind == REAL and not np.isfinite(array).all():
        raise ValueError(f"{name} is not finite")


def _within(array: np.ndarray, lowest: int, end: int) -> bool:
    return bool(array.min(initial=lowest) >= lowest and array.max(initial=lowest) < end)
