"""gallery.npz: everything in the report that torch had to compute.

Arrays, N images of the sample and K prototypes (or k-means clusters, for methods without prototypes):
`embeddings` (N, D), `positions` (N, 2), `neighbours`, `similarities` and `random_neighbours` (N, 8), `thumbnails`,
`start_neighbours`, `start_embeddings` and `start_positions` by the encoder that the run started from, if it did,
`views` of the images at `view_places`, `labels`, `class_names`, `names`; `grouping` says what the K groups are,
`group` and `confidence` (N,) which one an image chose and how surely; of each group `group_mean`, `group_best`,
`group_twin` and `group_cosine` (K,) are its mean confidence, the images that want it most, and the group nearest to it.
`flags` (N,) has a bit for each quality check that flags an image, and `duplicate_of` (N,) the image that it repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from carl import files
from carl.data.batches.build import make_views
from carl.data.dataset import UNLABELLED, Dataset, Split
from carl.data.decoding.parallel import measure_all
from carl.data.listing import EncodedImage
from carl.evaluation.features import extract_features, frozen, map_images
from carl.evaluation.target import load_start
from carl.methods import Method
from carl.methods.build import random_encoder
from carl.quality import CHECKS, Value, measures
from carl.records.gallery import GALLERY_FORMAT
from carl.records.run_directory import RunDirectory
from carl.terminal import TimedProgress, throttled
from carl.training.plan import Plan
from carl.use.gallery_arrays import SAMPLE, Grouping, clusters, nearest, plane, resized, thumbnails
from carl.use.quality_flags import flag_arrays, flagged_by
from carl.views.views import Views

PART = 256  # images at full size in memory at once
VIEW_ROWS, VIEW_COLUMNS = 6, 8


def write_gallery(run: RunDirectory, plan: Plan, method: Method, device: torch.device) -> None:
    """Embeddings, groups, thumbnails and neighbours of a fixed sample of the training images."""
    config, dataset, facts, views = plan.config, plan.dataset, plan.facts, plan.views
    split = dataset.pretraining
    rows = np.sort(np.random.default_rng(0).permutation(len(split))[:SAMPLE])
    features = extract_features(method.encoder, split, dataset.statistics, facts.image_size, device, rows=rows)
    untrained = random_encoder(config, facts, device)
    random_features = extract_features(untrained, split, dataset.statistics, facts.image_size, device, rows=rows)
    neighbours, similarities = nearest(features)
    view_places = np.unique(np.linspace(0, len(rows) - 1, min(VIEW_ROWS, len(rows))).round().astype(np.int64))
    view_rows = rows[view_places]
    arrays: dict[str, Any] = {
        "format": np.int64(GALLERY_FORMAT),
        "total_images": np.int64(len(split)),
        "rows": rows,
        "embeddings": features.half().numpy(),
        "positions": plane(features).numpy(),
        "neighbours": neighbours.numpy(),
        "similarities": similarities.numpy(),
        "random_neighbours": nearest(random_features)[0].numpy(),
        "thumbnails": np.concatenate([thumbnails(split.images.gather(part), len(rows)) for part in _parts(rows)]),
        "views": view_grid(views, split, view_rows),
        "view_places": view_places,
    }
    if split.labelled and split.labels is not None:
        arrays["labels"] = split.labels[rows]
        arrays["class_names"] = np.array(dataset.class_names, dtype=np.str_)
    if split.names is not None:
        arrays["names"] = np.array([split.names[row] for row in rows], dtype=np.str_)
    arrays |= quality_flags(dataset, split, rows)
    start = load_start(run, config, facts, device)
    if start is not None:
        before = extract_features(start, split, dataset.statistics, facts.image_size, device, rows=rows)
        arrays |= {"start_neighbours": nearest(before)[0].numpy(), "start_positions": plane(before).numpy()}
        arrays["start_embeddings"] = before.half().numpy()
    vectors = method.prototype_vectors()
    if vectors is not None:
        grouping = Grouping(vectors)
        with frozen(method):
            map_images(_assigner(method, grouping), split, dataset.statistics, facts.image_size, device, rows=rows)
        arrays |= {"grouping": np.str_("prototypes"), **grouping.arrays()}
    else:
        arrays |= {"grouping": np.str_("k-means"), **clusters(features, facts.classes, facts.images)}
    with files.atomic_writer(run.gallery_file) as file:
        np.savez_compressed(file, **arrays)


def quality_flags(dataset: Dataset, split: Split, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Quality flags of the images at `rows`, seen in their files if training reads these, otherwise as packed pixels.

    Images that were scaled and cut to be packed no longer show their own size and shape, so those checks are left out.
    There are no flags if a file cannot be read any more.
    """
    photos, packed, progress = split.photos, split.images, TimedProgress()

    def images() -> Iterator[EncodedImage]:
        for row in rows.tolist():
            content = packed.gather(np.array([row]))[0] if photos is None else photos.folder / photos.names[row]
            yield EncodedImage(str(row), content, UNLABELLED)

    report, seen = throttled(progress), list[dict[str, Value]]()
    for _, (_, values) in measure_all(images(), len(rows), (packed.height, packed.width)):
        if values is None:
            progress.close()
            return {}
        seen.append(values)
        report("checking images", len(seen), len(rows))
    found = flagged_by({name: [values[name] for values in seen] for name in measures()})
    if photos is None and dataset.fitted:
        found = {name: flag for name, flag in found.items() if not CHECKS[name].measures.keys() <= {"width", "height"}}
    return flag_arrays(found, np.arange(len(rows)))


def _assigner(method: Method, grouping: Grouping) -> Callable[[Tensor], Tensor]:
    def assign(images: Tensor) -> Tensor:
        log_p = method.log_assignments(images)
        assert log_p is not None
        return grouping.add(log_p.float().cpu().exp())

    return assign


def _parts(rows: np.ndarray) -> list[np.ndarray]:
    """A few rows at a time: all images at full size may not fit in memory."""
    return np.array_split(rows, -(-len(rows) // PART))


def view_grid(views: Views, split: Split, rows: np.ndarray) -> np.ndarray:
    """Views as the run trains on them, undone to pixels: (images, columns, h, w, 3) uint8; small crops enlarged."""
    mean, std = torch.tensor(views.mean).view(-1, 1, 1), torch.tensor(views.std).view(-1, 1, 1)
    columns: list[np.ndarray] = []
    epoch = 0
    while len(columns) < VIEW_COLUMNS:
        for view in make_views(split, views, rows, epoch, torch.device("cpu")):
            shown = ((view * std + mean).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1)
            small = thumbnails(shown.numpy(), len(rows) * VIEW_COLUMNS)
            same = not columns or small.shape == columns[0].shape
            columns.append(small if same else resized(small, list(columns[0].shape[1:3])))
        epoch += 1
    return np.stack(columns[:VIEW_COLUMNS], axis=1)
