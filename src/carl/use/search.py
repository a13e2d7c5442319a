"""The images most like a query, by cosine similarity of embeddings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from carl import files
from carl.data.decoding.decode import DecodeError, decode, strict_decoding
from carl.errors import UserError
from carl.safe_pages import page_mark
from carl.terminal import Progress, TimedProgress, silent
from carl.use.embed import embeddings_for, load_for_all_processes, only_main_goes_on
from carl.use.embedding_files import EmbeddingFile, name_as_text
from carl.use.encoder import UsableEncoder
from carl.use.requests import SearchRequest
from carl.use.thumbnails import pages, picture, pictures_of
from carl.user_paths import expanded

MARK = page_mark("search")  # tells a sheet from other pages


@dataclass(frozen=True)
class Neighbour:
    """An image that was found."""

    row: int  # of the file of embeddings
    name: str
    similarity: float


@dataclass(frozen=True)
class Answer:
    """A query and what is most like it, the most similar first."""

    query: str
    row: int | None  # of the query, where it is itself one of the images
    neighbours: tuple[Neighbour, ...]


def search_images(request: SearchRequest) -> Iterator[str]:
    """Find the images most like the queries and write a sheet; yields lines about them."""
    files.check_replaceable(request.output, request.force, MARK.encode())
    encoder = load_for_all_processes(request.encoder, request.backbone)
    index, answers = search(
        encoder, request.images, request.queries, request.count, request.split, progress=TimedProgress()
    )
    if not only_main_goes_on():
        return
    yield from answer_lines(answers)
    write_sheet(encoder, index, answers, f"Most like in {Path(request.images).name}", request.output)
    yield f"sheet: {request.output}"


def search(
    encoder: UsableEncoder,
    images: str,
    queries: Sequence[str],
    count: int = SearchRequest.count,
    split: str | None = None,
    progress: Progress = silent,
) -> tuple[EmbeddingFile, list[Answer]]:
    """The `count` images of `images` nearest to each query, an image file or the name of one of the images.

    `images` may be a file of embeddings that `carl embed` wrote; other images are embedded, and their embeddings
    kept in the cache. A query that is one of the images is not its own answer.
    """
    if count < 1:
        raise UserError(f"{count} neighbours cannot be shown; ask for at least 1")
    index = embeddings_for(encoder, images, split, progress)
    names = index.names()
    rows = {name: row for row, name in enumerate(names)}
    own = [_row_of(query, rows, index) for query in queries]
    vectors = _query_vectors(encoder, index, queries, own)
    found = _nearest(vectors, index, count + 1)
    answers = []
    for query, row, (similarity, places) in zip(queries, own, found, strict=True):
        pairs = [(place, value) for place, value in zip(places, similarity, strict=True) if place != row]
        neighbours = tuple(Neighbour(place, names[place], value) for place, value in pairs[:count])
        answers.append(Answer(query, row, neighbours))
    return index, answers


def _row_of(query: str, rows: dict[str, int], index: EmbeddingFile) -> int | None:
    """The row of a query that is one of the images, by its name or by its file."""
    path = expanded(query).absolute()
    names = [query, str(path)]
    with suppress(ValueError):  # on Windows there is no way from one drive to another
        names.append(os.path.relpath(path, index.about.base))
    for name in map(name_as_text, names):
        if name in rows:
            return rows[name]
    if not path.is_file():
        example = next(iter(rows), "")
        raise UserError(
            f"query {query!r} is neither a file nor the name of one of the images; give an image file, or a name such "
            f"as {example!r}"
        )
    return None


def _query_vectors(
    encoder: UsableEncoder, index: EmbeddingFile, queries: Sequence[str], rows: Sequence[int | None]
) -> np.ndarray:
    """(Q, D): stored embeddings where a query is one of the images, else computed."""
    stored = dict(_stored(index, {row for row in rows if row is not None}))
    vectors = []
    for query, row in zip(queries, rows, strict=True):
        vectors.append(_embedded_file(encoder, expanded(query)) if row is None else stored[row])
    return np.stack(vectors)


def _stored(index: EmbeddingFile, wanted: set[int]) -> Iterator[tuple[int, np.ndarray]]:
    start = 0
    for batch in index.batches() if wanted else ():
        for row in wanted & set(range(start, start + len(batch))):
            yield row, batch[row - start].copy()
        start += len(batch)


def _embedded_file(encoder: UsableEncoder, path: Path) -> np.ndarray:
    try:
        with strict_decoding():
            pixels = decode(path, encoder.framing)
    except DecodeError as error:
        raise UserError(f"query {path} cannot be decoded ({error}); give another image") from None
    if pixels.shape[2] != encoder.channels:
        raise UserError(
            f"query {path} has {pixels.shape[2]} channels and the encoder reads {encoder.channels}; convert it first"
        )
    features: np.ndarray = encoder.represent(pixels[None]).features[0]
    return features


def _nearest(queries: np.ndarray, index: EmbeddingFile, count: int) -> list[tuple[list[float], list[int]]]:
    """Similarities and rows of the `count` nearest to each query; the file is read once, in pieces."""
    unit = _unit(queries)
    best = np.empty((len(unit), 0), np.float32)
    rows = np.empty((len(unit), 0), np.int64)
    start = 0
    for batch in index.batches():
        similarity = unit @ _unit(batch).T
        best = np.concatenate([best, similarity], axis=1)
        places = np.broadcast_to(np.arange(start, start + len(batch)), similarity.shape)
        rows = np.concatenate([rows, places], axis=1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :count]
        best, rows = np.take_along_axis(best, order, 1), np.take_along_axis(rows, order, 1)
        start += len(batch)
    return [(values.tolist(), places.tolist()) for values, places in zip(best, rows, strict=True)]


def _unit(vectors: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit


def answer_lines(answers: Sequence[Answer]) -> list[str]:
    """The answers for a terminal."""
    lines = []
    for answer in answers:
        lines.append(answer.query)
        lines += [f"  {n.similarity:6.3f}  {n.name}" for n in answer.neighbours]
    return lines


def write_sheet(
    encoder: UsableEncoder, index: EmbeddingFile, answers: Sequence[Answer], title: str, output: Path
) -> None:
    """One self-contained page: one row per query, with small pictures."""
    rows = {n.row for answer in answers for n in answer.neighbours} | {a.row for a in answers if a.row is not None}
    pictures = pictures_of(index, rows, encoder.data_root)
    with strict_decoding():
        shown = [
            {
                "query": answer.query,
                "picture": picture(expanded(answer.query)) if answer.row is None else pictures[answer.row],
                "neighbours": [(n.name, n.similarity, pictures[n.row]) for n in answer.neighbours],
            }
            for answer in answers
        ]
    template = pages().get_template("search.html")
    files.write_text(output, template.render(mark=Markup(MARK), title=title, answers=shown))
