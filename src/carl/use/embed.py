"""Embeddings of any number of images in bounded memory: what is done stays done, whatever stops the work."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from carl import distributed, files
from carl.data.dataset import UNLABELLED
from carl.data.image_source import Decoded, ImageSource, decoded_images
from carl.data.listing import BadFile, EncodedImage
from carl.data.open import absolute_source, open_images
from carl.data.packing.cache import kept_folder, locked
from carl.defaults import FEATURE_BATCH, LARGEST_USUAL_SIDE
from carl.device import pick_device
from carl.errors import UserError, one_line
from carl.precision import PRECISIONS, computing_in, settled_precision
from carl.quality import Value, measures
from carl.terminal import Progress, TimedProgress, silent, throttled
from carl.use.embedding_files import (
    DTYPES,
    MEASURED,
    VERSION,
    WRITERS,
    About,
    EmbeddingFile,
    find_embeddings,
    is_folder_of_embeddings,
    name_as_text,
    rows_file,
    write_folder,
)
from carl.use.embedding_parts import PART, Parts
from carl.use.encoder import Represented, UsableEncoder, open_encoder
from carl.use.requests import ROWS_PER_FILE, USUAL, EmbedOptions, EmbedRequest
from carl.user_paths import expanded

KEEP_EVERY = 30.0  # seconds after which what is done of a part is kept, too
NOTHING_DONE = "interrupted before any images were done and kept; the same command starts again"


@dataclass(frozen=True)
class Embedded:
    """What `embed` did."""

    rows: int
    bad: tuple[BadFile, ...]
    resumed: int  # images that an earlier call had done
    bad_list: Path | None  # where the bad files are listed


def embed_images(request: EmbedRequest) -> Iterator[str]:
    """Write the embeddings that were asked for; yields lines about them."""
    _check_options(request.output, request.options)
    try:
        encoder = load_for_all_processes(request.encoder, request.backbone, request.device)
        source = open_images(request.images, request.split, encoder.data_root)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(NOTHING_DONE) from None
    progress = TimedProgress()
    try:
        done = embed(encoder, source, request.output, force=request.force, progress=progress, options=request.options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_what_is_kept(request.output, source.count)) from None
    finally:
        progress.close()
    if not only_main_goes_on():
        return
    if done.resumed:
        yield f"resumed after the {done.resumed} images that were done"
    if done.bad:
        yield f"{len(done.bad)} images cannot be used and have no row, listed in {done.bad_list}"
    beside = f" and {rows_file(request.output).name}" if request.output.suffix.lower() == ".npy" else ""
    if _is_folder(request.output):
        beside = f" ({len(list(request.output.iterdir()))} files)"
    yield f"{done.rows} embeddings: {request.output}{beside}"


def _what_is_kept(output: Path, total: int) -> str:
    """What an interrupted call says."""
    parts = Parts(output, "")
    done = parts.count() * PART + sum(parts.begun().values())
    if not done:
        return NOTHING_DONE
    known = f"{min(done, total):,} of {total:,}" if total else f"{done:,}"
    return f"interrupted; {known} images are done and kept in {parts.folder}: the same command resumes"


def load_for_all_processes(encoder: str, backbone: str | None = None, device: str = "auto") -> UsableEncoder:
    """The encoder on the device of this process: torchrun may have started several, each of which embeds its share."""
    where = distributed.start(pick_device(device, "--device"))
    return open_encoder(encoder, backbone=backbone, device=str(where))


def only_main_goes_on() -> bool:
    """Leave the other processes once everything is embedded; whether this is the main one, which goes on alone."""
    is_main = distributed.is_main()
    distributed.stop()
    return is_main


def embed(
    encoder: UsableEncoder,
    source: ImageSource,
    output: Path,
    force: bool = False,
    progress: Progress = silent,
    options: EmbedOptions = USUAL,
) -> Embedded:
    """Write one row per image of `source` to `output` (.parquet, .npy or .csv, or a folder of .parquet), in order.

    An image that cannot be decoded has no row; it is listed in OUTPUT.bad-files.txt. Rows are kept in OUTPUT.parts/
    until the file is whole, so that a call after an interruption resumes what was kept, with the same bits.
    Options that change bits must then be the same. Files that exist are replaced only with `force`. While one process
    writes `output`, others are refused.

    Where there are several processes, all of them must call this: they take turns with the parts, and the main one
    joins them.
    """
    _check_options(output, options)
    options = replace(options, precision=settled_precision(options.precision, encoder.device.type))
    size = options.batch_size or usual_batch(encoder)
    in_words = f"--batch-size {size} --precision {options.precision} --dtype {options.dtype}"
    parts = Parts(output, _key(encoder, source), in_words)
    main = distributed.is_main()
    if main:
        _check_outputs(parts, force)  # first without the lock: where the answer is no, nothing is touched
    with parts.alone() if main else nullcontext():
        return _embed_alone(encoder, source, parts, options=options, force=force, progress=progress)


def usual_batch(encoder: UsableEncoder) -> int:
    """FEATURE_BATCH images, fewer if they are larger than photos are in training: they would take gigabytes."""
    return min(FEATURE_BATCH, max(8, FEATURE_BATCH * LARGEST_USUAL_SIDE**2 // encoder.image_size**2))


def _embed_alone(
    encoder: UsableEncoder, source: ImageSource, parts: Parts, *, options: EmbedOptions, force: bool, progress: Progress
) -> Embedded:
    main = distributed.is_main()
    if main:
        _check_outputs(parts, force)  # another process may have finished since
    done = int(distributed.agreed(str(parts.begin()) if main else ""))
    begun = parts.begun()
    distributed.barrier()  # from here on they change
    made = _make_parts(encoder, source, parts, options=options, done=done, begun=begun, progress=throttled(progress))
    made = int(distributed.sum_over_processes(torch.tensor([made], device=encoder.device)))
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
        _join(parts, rows, about(encoder, source), options)
        bad_list = list_bad(parts.output, bad)
        parts.remove()
    distributed.barrier()
    resumed = min(done * PART + sum(begun.values()), rows + len(bad))
    return Embedded(rows, tuple(bad), resumed, bad_list)


def _join(parts: Parts, rows: int, said: About, options: EmbedOptions) -> None:
    """Write the output from its parts."""
    if not _is_folder(parts.output):
        WRITERS[parts.output.suffix.lower()](parts.output, parts.tables(), parts.schema(), rows, said)
        return
    shutil.rmtree(parts.joined, ignore_errors=True)  # half of them, from a call that was stopped here
    size = options.rows_per_file or ROWS_PER_FILE
    write_folder(parts.joined, parts.tables(), parts.schema(), rows=rows, about=said, rows_per_file=size)
    parts.give_folder_its_name()


def _is_folder(output: Path) -> bool:
    """Whether the output is to be a folder of files: its name has no ending, or it is there already."""
    return output.suffix.lower() not in WRITERS and (not output.suffix or output.is_dir())


def _check_options(output: Path, options: EmbedOptions) -> None:
    if output.name in ("", ".."):
        raise UserError(f"-o {output} has no name of its own; give a name, for example embeddings.parquet")
    folder = _is_folder(output)
    if not folder and output.suffix.lower() not in WRITERS:
        raise UserError(
            f"{output} ends in none of {', '.join(WRITERS)}; choose one, for example embeddings.parquet, or a folder, "
            "for example embeddings"
        )
    if options.batch_size is not None and not 1 <= options.batch_size <= PART:
        raise UserError(f"--batch-size {options.batch_size}: use 1 to {PART} images")
    if options.precision not in ("auto", *PRECISIONS):
        raise UserError(f"--precision {options.precision!r} is unknown; use auto, {', '.join(PRECISIONS)}")
    if options.dtype not in DTYPES:
        raise UserError(f"--dtype {options.dtype!r} is unknown; use {', '.join(DTYPES)}")
    if options.dtype != "float32" and output.suffix.lower() == ".csv":
        raise UserError(f"--dtype {options.dtype} saves nothing in a .csv, which is text; write .parquet or .npy")
    if options.rows_per_file is not None and not folder:
        raise UserError(f"--rows-per-file needs a folder for the files, and {output} is one file; give -o embeddings")
    if options.rows_per_file is not None and options.rows_per_file < 1:
        raise UserError(f"--rows-per-file {options.rows_per_file}: use at least 1")


def _check_outputs(parts: Parts, force: bool) -> None:
    """Refuse to replace the output, or a file that is written beside it, unless it is half of this very work.

    Refuse to start again, too, if it was begun with other options.
    """
    output, force = parts.output, force or parts.are_being_joined()
    beside = [rows_file(output)] if output.suffix.lower() == ".npy" else []
    if _is_folder(output):
        _check_folder(output, force)
    else:
        files.check_replaceable(output, force)
    for path in (*beside, bad_list_of(output)):
        files.check_replaceable(path, force)
    if not force:
        parts.refuse_other_options()


def _check_folder(output: Path, force: bool) -> None:
    """Refuse a folder that holds anything other than embeddings; with `force`, those are replaced."""
    if os.path.lexists(output) and not output.is_dir():
        raise UserError(f"{output} exists and is not a folder; choose another -o")
    if not output.is_dir() or not any(output.iterdir()):
        return
    if not is_folder_of_embeddings(output):
        raise UserError(f"{output} holds what carl embed did not make, so nothing is replaced; choose another -o")
    if not force:
        raise UserError(f"{output} holds embeddings; choose another -o, or replace them with --force")


def about(encoder: UsableEncoder, source: ImageSource) -> About:
    """What the file will say about itself."""
    split = next(iter(source.splits)) if len(source.splits) == 1 else None
    path = expanded(source.name)
    return About(
        version=VERSION,
        run=_named(encoder),
        weights=encoder.digest,
        source=str(path.absolute()) if os.path.exists(path) else absolute_source(source.name),
        base=str(Path.cwd()),
        split=None if source.files else split,
        class_names=source.class_names,
    )


def _named(encoder: UsableEncoder) -> str:
    """The encoder in words that name it from anywhere."""
    path = expanded(encoder.name)
    return str(path.absolute()) if os.path.exists(path) else encoder.name


def _key(encoder: UsableEncoder, source: ImageSource) -> str:
    parts = (VERSION, PART, encoder.digest, source.key, source.name, *measures())
    return hashlib.blake2b("\0".join(map(str, parts)).encode(errors="replace"), digest_size=16).hexdigest()


def _make_parts(
    encoder: UsableEncoder,
    source: ImageSource,
    parts: Parts,
    *,
    options: EmbedOptions,
    done: int,
    begun: Mapping[int, int],
    progress: Progress,
) -> int:
    """Make this process's share of the parts from number `done` on, some of which are `begun`; returns how many."""
    start, total = done * PART, source.count
    if total and start >= total:
        return 0
    rank, ranks = distributed.rank(), distributed.world_size()
    numbers = (number for number in count(done) if number % ranks == rank)

    def is_wanted(place: int) -> bool:
        number, within = divmod(place, PART)
        return number % ranks == rank and within >= begun.get(number, 0)

    kept = time.monotonic()
    stream = decoded_images(source, start, encoder.framing, encoder.channels, is_wanted)
    with closing(stream):  # stops the decoders, however this ends
        for made, number in enumerate(numbers):
            rows = _Rows(encoder, source, options)
            if number in begun:
                rows.resume(*parts.read_begun(number))
            for split, image, pixels, measured in islice(stream, PART - rows.seen):
                rows.add(split, image, pixels, measured)
                progress("embedding", number * PART + rows.seen, total)
                if rows.are_whole_batches and time.monotonic() - kept >= KEEP_EVERY:
                    parts.write_begun(number, rows.table(), rows.bad)
                    kept = time.monotonic()
            if not rows.seen:
                return made
            parts.write(number, rows.table(), rows.bad)
            kept = time.monotonic()
    raise AssertionError("numbers have no end")


@dataclass(eq=False)
class _Rows:
    """The rows of one part, computed batch by batch. `earlier` are those that an interrupted call kept."""

    encoder: UsableEncoder
    source: ImageSource
    options: EmbedOptions
    names: list[str] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    measured: list[dict[str, Value]] = field(default_factory=list)
    bad: list[BadFile] = field(default_factory=list)
    waiting: list[np.ndarray] = field(default_factory=list)
    results: list[Represented] = field(default_factory=list)
    earlier: pa.Table | None = None

    @property
    def seen(self) -> int:
        return (0 if self.earlier is None else self.earlier.num_rows) + len(self.names) + len(self.bad)

    @property
    def are_whole_batches(self) -> bool:
        """Whether the next image begins a batch, so that work that resumes here computes the same batches."""
        return bool(self.results) and not self.waiting

    def resume(self, rows: pa.Table, bad: Sequence[BadFile]) -> None:
        self.earlier = rows
        self.bad += bad

    def add(self, split: str, image: EncodedImage, pixels: Decoded, measured: dict[str, Value] | None) -> None:
        name = name_as_text(image.name)
        if isinstance(pixels, str):
            self.bad.append(BadFile(name, pixels))
            return
        self.names.append(name)
        self.labels.append(None if image.label == UNLABELLED else image.label)
        self.splits.append(split)
        self.measured.append(measured or {})
        self.waiting.append(pixels)
        if len(self.waiting) == (self.options.batch_size or usual_batch(self.encoder)):
            self._compute()

    def _compute(self) -> None:
        if self.waiting:
            self.results.append(self._represent(np.stack(self.waiting)))
            self.waiting.clear()

    def _represent(self, pixels: np.ndarray) -> Represented:
        precision = self.options.precision
        with computing_in(precision, self.encoder.device.type):
            try:
                return self.encoder.represent(pixels)
            except UserError as error:
                raise error if precision == "fp32" else UserError(f"{error}, or use --precision fp32") from None

    def table(self) -> pa.Table:
        self._compute()
        if self.earlier is not None:
            if not self.results:
                return self.earlier
            new = self._table()
            return pa.concat_tables([self.earlier.cast(new.schema), new]).combine_chunks()
        if not self.results:  # a part of bad files only: one image tells the columns
            self.results.append(self._represent(_blank(self.encoder)))
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
        flat = pa.array(_rounded(features, self.options.dtype).reshape(-1), DTYPES[self.options.dtype])
        columns["embedding"] = pa.FixedSizeListArray.from_arrays(flat, features.shape[1])
        columns |= assignment_columns([result.log_p for result in self.results])
        for name, one in measures().items():
            values = [row[name] for row in self.measured] + [None] * empty
            columns[name] = pa.array(values, MEASURED[one.kind])
        return pa.table(columns)


def _rounded(features: np.ndarray, dtype: str) -> np.ndarray:
    largest = float(np.finfo(dtype).max)
    if not (np.abs(features) <= largest).all():
        raise UserError(f"an embedding has a number beyond {largest:g}, the largest {dtype}; use --dtype float32")
    return features.astype(dtype, copy=False)


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


def _blank(encoder: UsableEncoder) -> np.ndarray:
    return np.zeros((1, *encoder.shape, encoder.channels), np.uint8)


def bad_list_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.bad-files.txt")


def bad_files(index: EmbeddingFile) -> list[str]:
    """The images that have no row in the file because they cannot be used, each with the reason."""
    path = bad_list_of(index.path)
    if not path.is_file():
        return []
    return [line.replace("\t", ": ", 1) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]


def list_bad(output: Path, bad: Sequence[BadFile]) -> Path | None:
    """Write OUTPUT.bad-files.txt, one line per file; one left over from an earlier call is removed."""
    path = bad_list_of(output)
    if not bad:
        remove_list(path)
        return None
    lines = (f"{one_line(one.name)}\t{one_line(one.reason)}\n" for one in bad)
    files.write_text(path, "".join(lines))
    return path


def remove_list(path: Path) -> None:
    """Remove a list of bad files that is out of date; what is not a file is not ours."""
    if path.is_file():
        path.unlink(missing_ok=True)


def embeddings_for(encoder: UsableEncoder, images: str, split: str | None, progress: Progress) -> EmbeddingFile:
    """The embeddings of `images`: files of `carl embed` by this run, or made now and kept in the cache."""
    path = expanded(images)
    if (written := find_embeddings(images)) is not None:
        found = EmbeddingFile(written)
        if found.about.weights != encoder.digest:
            raise UserError(
                f"{images} was made with other weights than those of {encoder.name}; name the encoder "
                f"{found.about.run}, or make it again with carl embed"
            )
        if found.size != encoder.feature_size:
            raise UserError(
                f"{images} has {found.size} numbers per embedding and {encoder.name} gives {encoder.feature_size}; "
                "make it again with carl embed"
            )
        return found
    named = str(path.absolute()) if os.path.exists(path) else absolute_source(images)
    source = open_images(named, split, encoder.data_root, progress)
    key = _key(encoder, source)
    kept = kept_folder("embeddings", "the embeddings") / f"{key}.parquet"
    with locked(f"embeddings-{key}", "embeds the same images") if distributed.is_main() else nullcontext():
        if not distributed.agreed("kept" if kept.is_file() else ""):
            try:
                embed(encoder, source, kept.absolute(), progress=progress)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(_what_is_kept(kept.absolute(), source.count)) from None
    return EmbeddingFile(kept, source.name, str(path)) if path.is_dir() else EmbeddingFile(kept)
