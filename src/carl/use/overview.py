"""What a page shows of images seen through an encoder: map, neighbours, groups, labels, flags and thumbnails.

Memory does not grow with the number of images beyond LISTED: embeddings are read in pieces, a sample of them is laid
out on the map, and groups are found on the sample and then given to all.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from carl.data.decoding.decode import shown_bands
from carl.data.decoding.parallel import decode_all
from carl.data.listing import EncodedImage
from carl.errors import UserError
from carl.quality import Flagged
from carl.records.gallery import MOST, Gallery
from carl.terminal import Progress, silent, throttled
from carl.use.embedding_files import EmbeddingFile
from carl.use.gallery_arrays import SAMPLE, clusters_with_centres, largest_side, nearest, plane, usual_clusters
from carl.use.image_labels import labels_of, relative_names
from carl.use.quality_flags import flag_arrays, flagged
from carl.use.thumbnails import contents_of

LISTED = MOST["M"]  # images that a page lists; of more, a sample with all that are flagged
GROUPS = (2, 300)  # fewest and most groups
SMALL, SMALLEST, FEW = 32, 16, 20_000  # sides of the thumbnails beyond the sample, for a FEW images and for more


def overview(
    index: EmbeddingFile, shape: tuple[int, int], root: str | None = None, progress: Progress = silent
) -> Gallery:
    """The arrays of carl/records/gallery.py for the images of `index`.

    `shape` is the height and width at which the encoder sees images; thumbnails have its proportions.
    """
    total = len(index)
    if total < 2:
        raise UserError(f"{index.about.source} has one image that can be used; a report compares images, so give more")
    found = flagged(index)
    rows = np.sort(np.random.default_rng(0).permutation(total)[:SAMPLE])
    listed = listed_rows(total, rows, found)
    features = torch.from_numpy(_embeddings_at(index, rows))
    labels = labels_of(index)
    class_names = () if labels is None else labels.class_names
    count = len(class_names) or usual_clusters(total)
    count = min(max(count, GROUPS[0]), GROUPS[1], max(1, len(rows) // 2))
    progress("grouping", 0, 0)
    groups, centres = clusters_with_centres(features, count)
    neighbours, similarities = nearest(features)
    gallery: Gallery = {
        "total_images": np.array(total),
        "rows": rows,
        "embeddings": features.half().numpy(),
        "positions": plane(features).numpy(),
        "neighbours": neighbours.numpy(),
        "similarities": similarities.numpy(),
        "grouping": np.array("k-means"),
        **groups,
    }
    names = np.array(relative_names(index), np.str_)
    if labels is not None:
        gallery |= {"labels": labels.values[rows], "class_names": np.array(class_names, np.str_)}
    gallery["names"] = names[rows]
    large, small = _thumbnails(index, rows, listed, shape, root, progress)
    gallery["thumbnails"] = large
    if len(listed) > len(rows):
        gallery |= {
            "listed_rows": listed,
            "listed_names": names[listed],
            "listed_group": _groups_at(index, listed, centres),
            "listed_thumbnails": small,
        }
    if found is not None:
        gallery |= flag_arrays(found, listed)
    return gallery


def listed_rows(total: int, sample: np.ndarray, found: dict[str, Flagged] | None) -> np.ndarray:
    """The rows to list, rising: all, or of very many the sample, what is flagged, and others at random."""
    if total <= LISTED:
        return np.arange(total)
    flags = [flag.rows for flag in (found or {}).values()]
    order = np.concatenate([sample, *flags, np.random.default_rng(1).permutation(total)])
    _, first = np.unique(order, return_index=True)
    return np.sort(order[np.sort(first)[:LISTED]])


def _embeddings_at(index: EmbeddingFile, rows: np.ndarray) -> np.ndarray:
    """The embeddings of the rows, which rise; the file is read in pieces."""
    parts, start = [], 0
    for batch in index.batches():
        low, high = np.searchsorted(rows, (start, start + len(batch)))
        parts.append(batch[rows[low:high] - start].astype(np.float32))
        start += len(batch)
    return np.concatenate(parts)


def _groups_at(index: EmbeddingFile, rows: np.ndarray, centres: torch.Tensor) -> np.ndarray:
    """The group whose centre is nearest, for each of the rows."""
    parts, start = [], 0
    for batch in index.batches():
        low, high = np.searchsorted(rows, (start, start + len(batch)))
        unit = F.normalize(torch.from_numpy(batch[rows[low:high] - start].astype(np.float32)), dim=1)
        parts.append((unit @ centres.T).argmax(1).int().numpy())
        start += len(batch)
    return np.concatenate(parts)


def _thumbnails(
    index: EmbeddingFile,
    sample: np.ndarray,
    listed: np.ndarray,
    shape: tuple[int, int],
    root: str | None,
    progress: Progress,
) -> tuple[np.ndarray, np.ndarray]:
    """Small copies of the sample (N, H, W, 3), and smaller ones of all that are listed beyond it (M, h, w, 3)."""
    large = _scaled(shape, min(largest_side(len(sample)), _usual_side(index)))
    small = _scaled(shape, min(max(large), SMALL if len(listed) <= FEW else SMALLEST))
    pictures = np.zeros((len(sample), *large, 3), np.uint8)
    others = np.zeros((len(listed) if len(listed) > len(sample) else 0, *small, 3), np.uint8)
    places = {int(row): place for place, row in enumerate(sample)}
    report = throttled(progress)
    images = (EncodedImage(str(row), content, row) for row, content in contents_of(index, set(listed.tolist()), root))
    for done, (image, pixels) in enumerate(decode_all(images, len(listed), large), 1):
        report("thumbnails", done, len(listed))
        if not isinstance(pixels, np.ndarray):
            continue  # it changed since it was embedded: its place stays black
        pixels = shown_bands(pixels)
        row = image.label
        if row in places:
            pictures[places[row]] = pixels
        if len(others):
            shrunk = Image.fromarray(np.ascontiguousarray(pixels)).resize(small[::-1], Image.Resampling.BOX)
            others[np.searchsorted(listed, row)] = np.asarray(shrunk)
    return pictures, others


def _scaled(shape: tuple[int, int], longest: int) -> tuple[int, int]:
    """Height and width with the proportions of `shape`."""
    height, width = (max(1, round(side * min(1.0, longest / max(shape)))) for side in shape)
    return height, width


def _usual_side(index: EmbeddingFile) -> int:
    """The usual shorter side of the images: larger copies would show nothing more."""
    if not {"width", "height"} <= set(index.columns):
        return largest_side(1)
    sides = np.minimum(np.array(index.column("width")), np.array(index.column("height")))
    return max(8, int(np.median(sides)))
