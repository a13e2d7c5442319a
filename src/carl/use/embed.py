"""Embeddings of any number of images in bounded memory: what is done stays done, whatever stops the work."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from carl import distributed, files
from carl.data.dataset import UNLABELLED
from carl.data.image_source import Decoded, ImageSource, decoded_images
from carl.data.listing import EncodedImage, Progress, silent, throttled
from carl.data.open import absolute_source, open_images
from carl.data.packing.cache import cache_folder, locked
from carl.device import pick_device
from carl.errors import UserError
from carl.terminal import show_progress
from carl.use.embedding_files import (
    VERSION,
    WRITERS,
    About,
    EmbeddingFile,
    Writer,
    holds_embeddings,
    name_as_text,
    one_line,
    rows_file,
)
from carl.use.embedding_parts import PART, BadFile, Parts
from carl.use.encoder import BATCH, Represented, TrainedModel, load_trained
from carl.use.requests import EmbedRequest
from carl.user_paths import expanded


@dataclass(frozen=True)
class Embedded:
    """What `embed` did."""

    rows: int
    bad: tuple[BadFile, ...]
    resumed: int  # images that an earlier call had done
    bad_list: Path | None  # where the bad files are listed


def embed_images(request: EmbedRequest) -> Iterator[str]:
    """Write the embeddings that were asked for; yields lines about them."""
    trained = load_for_all_processes(request.run)
    source = open_images(request.images, request.split, trained.config.data.root)
    done = embed(trained, source, request.output, request.force, show_progress)
    if not only_main_goes_on():
        return
    if done.resumed:
        yield f"resumed after the {done.resumed} images that were done"
    if done.bad:
        yield f"{len(done.bad)} images cannot be used and have no row, listed in {done.bad_list}"
    beside = f" and {rows_file(request.output).name}" if request.output.suffix.lower() == ".npy" else ""
    yield f"{done.rows} embeddings: {request.output}{beside}"


def load_for_all_processes(run: Path) -> TrainedModel:
    """The model on the device of this process: torchrun may have started several, each of which embeds its share."""
    return load_trained(run, str(distributed.start(pick_device("auto"))))


def only_main_goes_on() -> bool:
    """Leave the other processes once everything is embedded; whether this is the main one, which goes on alone."""
    is_main = distributed.is_main()
    distributed.stop()
    return is_main


def embed(
    trained: TrainedModel, source: ImageSource, output: Path, force: bool = False, progress: Progress = silent
) -> Embedded:
    """Write one row per image of `source` to `output` (.parquet, .npy or .csv), in order.

    An image that cannot be decoded has no row; it is listed in OUTPUT.bad-files.txt. Rows are kept in OUTPUT.parts/
    until the file is whole, so that a call after an interruption resumes after the last part. Files that exist are
    replaced only with `force`. While one process writes `output`, others are refused.

    Where there are several processes, all of them must call this: they take turns with the parts, and the main one
    joins them.
    """
    writer = WRITERS.get(output.suffix.lower())
    if writer is None:
        raise UserError(f"{output} ends in none of {', '.join(WRITERS)}; choose one, for example embeddings.parquet")
    parts = Parts(output, _key(trained, source))
    main = distributed.is_main()
    if main:
        _check_outputs(parts, force)  # first without the lock: where the answer is no, nothing is touched
    with parts.alone() if main else nullcontext():
        return _embed_alone(trained, source, parts, writer, force, progress)


def _embed_alone(
    trained: TrainedModel, source: ImageSource, parts: Parts, writer: Writer, force: bool, progress: Progress
) -> Embedded:
    main = distributed.is_main()
    if main:
        _check_outputs(parts, force)  # another process may have finished since
    done = int(distributed.agreed(str(parts.begin()) if main else ""))
    made = _make_parts(trained, source, parts, done, throttled(progress))
    made = int(distributed.sum_over_processes(torch.tensor([made], device=trained.device)))
    bad, rows, found = parts.bad(), parts.rows(), parts.count()
    distributed.barrier()  # all have read what the main process removes in the end
    if found < done + made:
        raise UserError(f"{parts.folder} lacks parts that other processes made; write to a disk that all machines see")
    if not rows:
        if main:
            parts.remove()
        first = f": {bad[0].name}: {bad[0].reason}" if bad else ""
        raise UserError(f"{source.name}: none of the {len(bad)} images can be used{first}; give other images")
    bad_list = None
    if main:
        parts.begin_joining()
        writer(parts.output, parts.tables(), parts.schema(), rows, about(trained, source))
        bad_list = _list_bad(parts.output, bad)
        parts.remove()
    distributed.barrier()
    return Embedded(rows, tuple(bad), min(done * PART, rows + len(bad)), bad_list)


def _check_outputs(parts: Parts, force: bool) -> None:
    """Refuse to replace the output, or a file that is written beside it, unless it is half of this very work."""
    output = parts.output
    beside = [rows_file(output)] if output.suffix.lower() == ".npy" else []
    for path in (output, *beside, _bad_list(output)):
        files.check_replaceable(path, force or parts.are_being_joined())


def about(trained: TrainedModel, source: ImageSource) -> About:
    """What the file will say about itself."""
    split = next(iter(source.splits)) if len(source.splits) == 1 else None
    path = expanded(source.name)
    return About(
        version=VERSION,
        run=str(trained.run.path.absolute()),
        weights=trained.digest,
        source=str(path.absolute()) if os.path.exists(path) else absolute_source(source.name),
        base=str(Path.cwd()),
        split=None if source.files else split,
        class_names=source.class_names,
    )


def _key(trained: TrainedModel, source: ImageSource) -> str:
    parts = (VERSION, PART, trained.digest, source.key, source.name)
    return hashlib.blake2b("\0".join(map(str, parts)).encode(errors="replace"), digest_size=16).hexdigest()


def _make_parts(trained: TrainedModel, source: ImageSource, parts: Parts, done: int, progress: Progress) -> int:
    """Make this process's share of the parts from number `done` on; returns how many."""
    start, total = done * PART, source.count
    if total and start >= total:
        return 0
    rank, ranks = distributed.rank(), distributed.world_size()
    numbers = (number for number in count(done) if number % ranks == rank)
    stream = decoded_images(
        source, start, trained.shape, trained.data.channels, lambda place: place // PART % ranks == rank
    )
    with closing(stream):  # stops the decoders, however this ends
        for made, number in enumerate(numbers):
            rows = _Rows(trained, source)
            for split, image, pixels in islice(stream, PART):
                rows.add(split, image, pixels)
                progress("embedding", number * PART + rows.seen, total)
            if not rows.seen:
                return made
            parts.write(number, rows.table(), rows.bad)
    raise AssertionError("numbers have no end")


@dataclass(eq=False)
class _Rows:
    """The rows of one part, computed batch by batch."""

    trained: TrainedModel
    source: ImageSource
    names: list[str] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    bad: list[BadFile] = field(default_factory=list)
    waiting: list[np.ndarray] = field(default_factory=list)
    results: list[Represented] = field(default_factory=list)

    @property
    def seen(self) -> int:
        return len(self.names) + len(self.bad)

    def add(self, split: str, image: EncodedImage, pixels: Decoded) -> None:
        name = name_as_text(image.name)
        if isinstance(pixels, str):
            self.bad.append(BadFile(name, pixels))
            return
        self.names.append(name)
        self.labels.append(None if image.label == UNLABELLED else image.label)
        self.splits.append(split)
        self.waiting.append(pixels)
        if len(self.waiting) == BATCH:
            self._compute()

    def _compute(self) -> None:
        if self.waiting:
            self.results.append(self.trained.represent(np.stack(self.waiting)))
            self.waiting.clear()

    def table(self) -> pa.Table:
        self._compute()
        if not self.results:  # a part of bad files only: one image tells the columns
            self.results.append(self.trained.represent(_blank(self.trained)))
            return self._table().slice(0, 0)
        return self._table()

    def _table(self) -> pa.Table:
        features = np.concatenate([result.features for result in self.results])
        empty = len(features) - len(self.names)  # 1 for a part of bad files only
        columns: dict[str, pa.Array] = {"path": pa.array(self.names + [""] * empty, pa.string())}
        if len(self.source.splits) > 1:
            columns["split"] = pa.array(self.splits + [""] * empty, pa.string())
        if self.source.labelled:
            columns["label"] = pa.array(self.labels + [None] * empty, pa.int64())
        flat = pa.array(features.reshape(-1), pa.float32())
        columns["embedding"] = pa.FixedSizeListArray.from_arrays(flat, features.shape[1])
        columns |= assignment_columns([result.log_p for result in self.results])
        return pa.table(columns)


def assignment_columns(log_p: Sequence[torch.Tensor | None]) -> dict[str, pa.Array]:
    """The chosen prototype, its probability, and the entropy of the assignment in nats; none without prototypes."""
    given = [part for part in log_p if part is not None]
    if not given:
        return {}
    best = [part.max(1) for part in given]
    entropy = torch.cat([-(part.exp() * part).nan_to_num(0).sum(1) for part in given])
    return {
        "prototype": pa.array(torch.cat([values.indices for values in best]).numpy(), pa.int32()),
        "probability": pa.array(torch.cat([values.values for values in best]).exp().numpy(), pa.float32()),
        "entropy": pa.array(entropy.numpy(), pa.float32()),
    }


def _blank(trained: TrainedModel) -> np.ndarray:
    return np.zeros((1, *trained.shape, trained.data.channels), np.uint8)


def _bad_list(output: Path) -> Path:
    return output.with_name(f"{output.name}.bad-files.txt")


def _list_bad(output: Path, bad: Sequence[BadFile]) -> Path | None:
    """Write OUTPUT.bad-files.txt, one line per file; one left over from an earlier call is removed."""
    path = _bad_list(output)
    if not bad:
        path.unlink(missing_ok=True)
        return None
    lines = (f"{one_line(one.name)}\t{one_line(one.reason)}\n" for one in bad)
    files.write_text(path, "".join(lines))
    return path


def embeddings_for(trained: TrainedModel, images: str, split: str | None, progress: Progress) -> EmbeddingFile:
    """The embeddings of `images`: a file of `carl embed` by this run, or made now and kept in the cache."""
    path = expanded(images)
    if path.suffix.lower() == ".parquet" and path.is_file() and holds_embeddings(path):
        found = EmbeddingFile(path)
        if found.about.weights != trained.digest:
            raise UserError(
                f"{images} was made with other weights than those of {trained.run.path}; name the run "
                f"{found.about.run}, or make it again with carl embed"
            )
        if found.size != trained.feature_size:
            raise UserError(
                f"{images} has {found.size} numbers per embedding and {trained.run.path} gives {trained.feature_size}; "
                "make it again with carl embed"
            )
        return found
    named = str(path.absolute()) if os.path.exists(path) else absolute_source(images)
    source = open_images(named, split, trained.config.data.root, progress)
    key = _key(trained, source)
    kept = cache_folder() / "embeddings" / f"{key}.parquet"
    with locked(f"embeddings-{key}", "embeds the same images") if distributed.is_main() else nullcontext():
        if not distributed.agreed("kept" if kept.is_file() else ""):
            embed(trained, source, kept.absolute(), progress=progress)
    return EmbeddingFile(kept, source.name, str(path)) if path.is_dir() else EmbeddingFile(kept)
