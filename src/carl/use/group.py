"""`carl group`: which images belong together, found on the features of any encoder."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from carl import files
from carl.errors import UserError, one_line, suggestion
from carl.nearest import nearest_neighbours, neighbour_count
from carl.records.given_names import GivenNames, read_names
from carl.terminal import Progress, TimedProgress, silent, throttled
from carl.use.curate import link_images
from carl.use.embed import bad_list_of, embeddings_for, load_for_all_processes, only_main_goes_on, remove_list
from carl.use.embedding_files import EmbeddingFile, find_embeddings
from carl.use.encoder import UsableEncoder, open_encoder
from carl.use.grouping.assignment import Assignment, assign
from carl.use.grouping.group_heads import HeadOptions, check_groups, head_count, train_heads
from carl.use.grouping.judged import Judged, judge
from carl.use.grouping.points import FeatureRows, fit_projection, project
from carl.use.grouping.proposal import Proposal, propose
from carl.use.grouping.sheet import MARK, sheet_page
from carl.use.grouping.views import seen_differently
from carl.use.image_labels import ImageLabels, labels_of
from carl.use.links import check_new_folder, new_folder
from carl.use.requests import GROUP_LOSSES, GroupLoss, GroupRequest, check_seed

TABLE_HEADER = '"path","group","name","confidence","runner_up"'  # begins every .csv of this command
MOST_NEIGHBOURS = 20  # that any number of groups asks for
MOST_VIEWS = 16
UNSURE = 0.5  # confidence below which an image belongs to its group by less than half


@dataclass(frozen=True, eq=False)
class Groups:
    """Images and their groups, numbered from 0, the largest first."""

    paths: list[str]
    groups: np.ndarray  # (N,) int32
    confidence: np.ndarray  # (N,) float32, from 0 to 1
    runner_up: np.ndarray  # (N,) int32, the group that comes second
    count: int  # of groups
    proposal: Proposal | None  # how the number was found, if it was not given
    judged: Judged | None  # how the groups match the labels, if there are any


def group(
    encoder: str | Path,
    images: str | Path,
    groups: int | None = None,
    *,
    loss: GroupLoss = "carl",
    views: int = 0,
    split: str | None = None,
    seed: int = 0,
    backbone: str | None = None,
) -> Groups:
    """Group images as `carl group` does, and return the groups instead of writing them."""
    request = GroupRequest(
        encoder=str(encoder),
        images=str(images),
        output=Path(),
        groups=groups,
        loss=loss,
        views=views,
        split=split,
        seed=seed,
        backbone=backbone,
    )
    _check_values(request)
    index, seen = _embedded(open_encoder(request.encoder, backbone=backbone), request, silent)
    found, proposal = find_groups(index, groups, views=seen, loss=loss, seed=seed)
    labels = labels_of(index)
    judged = None
    if labels is not None and labels.tell_classes:
        judged = judge(index, found.groups, found.count, labels, seed=seed)
    return Groups(
        paths=index.names(),
        groups=found.groups,
        confidence=found.confidence,
        runner_up=found.runner_up,
        count=found.count,
        proposal=proposal,
        judged=judged,
    )


def group_images(request: GroupRequest) -> Iterator[str]:
    """Group the images and write table, sheet and links; yields lines about them."""
    names = _check(request)
    encoder = load_for_all_processes(request.encoder, request.backbone)
    index, views = _embedded(encoder, request, TimedProgress())
    if not only_main_goes_on():
        return
    started = time.monotonic()
    progress = TimedProgress(unit="")
    found, proposal = find_groups(
        index, request.groups, views=views, loss=request.loss, seed=request.seed, progress=progress
    )
    if request.names is not None:
        names = read_names(request.names, found.fingerprint)
        _check_numbers(names, found.count, request.names)
    if proposal is not None:
        yield from proposal.lines()
    yield from _summary(found, names, time.monotonic() - started)
    labels = labels_of(index)
    if labels is not None and labels.tell_classes:
        yield from judge(index, found.groups, found.count, labels, seed=request.seed).lines()
    yield from _write(request, index, found, names, labels, encoder.data_root)


def _embedded(
    encoder: UsableEncoder, request: GroupRequest, progress: Progress
) -> tuple[EmbeddingFile, list[EmbeddingFile]]:
    """The embeddings of the images, and of random views of them; all are kept in the cache."""
    index = embeddings_for(encoder, request.images, request.split, progress)
    check_groups(request.groups or 2, len(index))
    views = [
        embeddings_for(seen_differently(encoder, number), request.images, request.split, progress)
        for number in range(request.views)
    ]
    return index, views


def find_groups(
    features: FeatureRows,
    groups: int | None,
    *,
    views: Sequence[FeatureRows] = (),
    loss: GroupLoss = "carl",
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[Assignment, Proposal | None]:
    """The groups of images by their features, and how their number was found if it is not given."""
    projection = fit_projection(features.batches)
    points = project(features.batches, projection, len(features))
    seen = [project(view.batches, projection, len(features)) for view in views]
    most = min(MOST_NEIGHBOURS, len(points) - 1)
    neighbours = nearest_neighbours(points, most, seed, throttled(progress))
    proposal = propose(points, neighbours, seed, progress) if groups is None else None
    count = proposal.groups if proposal is not None else groups
    assert count is not None
    check_groups(count, len(points))
    near = neighbours[:, : neighbour_count(len(points), count)]
    options = HeadOptions(loss=loss, heads=head_count(count))
    heads = train_heads(points, near, count, options, seed, views=seen, progress=throttled(progress))
    return assign(points, heads), proposal


def _check(request: GroupRequest) -> GivenNames:
    """Refuse what cannot be done before anything is computed; returns the names that were given."""
    _check_values(request)
    output = request.output
    if output.suffix.lower() not in (".parquet", ".csv"):
        raise UserError(f"{output} ends in neither .parquet nor .csv; choose one, for example groups.parquet")
    is_table = output.suffix.lower() == ".csv"
    files.check_replaceable(output, request.force, TABLE_HEADER.encode() if is_table else None)
    files.check_replaceable(_sheet_of(output), request.force, MARK.encode())
    files.check_replaceable(bad_list_of(output), request.force)
    if request.links is not None:
        check_new_folder(request.links)
    return GivenNames() if request.names is None else read_names(request.names)


def _check_values(request: GroupRequest) -> None:
    if request.loss not in GROUP_LOSSES:
        raise UserError(f"loss {request.loss!r} is unknown{suggestion(request.loss, GROUP_LOSSES)}")
    if request.groups is not None:
        check_groups(request.groups, request.groups)
    check_seed(request.seed)
    if not 0 <= request.views <= MOST_VIEWS:
        raise UserError(f"--views {request.views}: each view embeds all images again; use 0 to {MOST_VIEWS}")
    if request.views and find_embeddings(request.images) is not None:
        raise UserError(f"--views {request.views}: {request.images} holds embeddings and no images; name the images")


def _sheet_of(output: Path) -> Path:
    """The page beside a table."""
    return output.with_suffix(".html")


def _check_numbers(names: GivenNames, count: int, path: Path) -> None:
    beyond = next((number for number in names.groups if number >= count), None)
    if beyond is not None:
        raise UserError(
            f"--names {path} names group {beyond}, and the {count} groups are numbered from 0 to {count - 1}; correct "
            "the number, or name the groups again in the page"
        )


def _summary(found: Assignment, names: GivenNames, seconds: float) -> Iterator[str]:
    sizes = found.sizes
    used = int((sizes > 0).sum())
    empty = f", {found.count - used} of {found.count} groups stay empty" if used < found.count else ""
    yield (
        f"{len(found.groups)} images in {used} groups of {sizes[sizes > 0].min()} to {sizes.max()} images{empty}, "
        f"found in {seconds:.0f} s"
    )
    unsure = float((found.confidence < UNSURE).mean())
    yield f"mean confidence {found.confidence.mean():.2f}; below {UNSURE} for {unsure:.0%} of the images"
    named = [f"{names.groups[number]} ({sizes[number]})" for number in sorted(names.groups)]
    if named:
        yield "named: " + ", ".join(map(one_line, named))


def _write(
    request: GroupRequest,
    index: EmbeddingFile,
    found: Assignment,
    names: GivenNames,
    labels: ImageLabels | None,
    root: str | None,
) -> Iterator[str]:
    """Everything that was asked for; what may fail for want of a file comes before the first file is written."""
    sheet = _sheet_of(request.output)
    again = ["carl", "group", request.encoder, request.images, "--groups", str(found.count)]
    again += ["--backbone", request.backbone] if request.backbone else []
    again += ["--split", request.split] if request.split else []
    again += ["--seed", str(request.seed)] if request.seed else []
    again += ["--loss", request.loss] if request.loss != GroupRequest.loss else []
    again += ["--views", str(request.views)] if request.views else []
    again += ["-o", str(request.output), "--force", "--names"]
    title = f"Groups in {Path(request.images).name}"
    page = sheet_page(index, found, names, title=title, command=again, output=sheet, root=root)
    if request.links is not None:
        yield f"links: {link_groups(index, found, names, request.links)} in {request.links}"
    write_table(index, found, names, labels, request.output)
    files.write_text(sheet, page)
    if bad := _bad_files(index, request.output):
        yield f"{bad} images cannot be used and have no row, listed in {bad_list_of(request.output)}"
    yield f"table: {request.output}"
    yield f"sheet: {sheet}"


def write_table(
    index: EmbeddingFile, found: Assignment, names: GivenNames, labels: ImageLabels | None, output: Path
) -> None:
    """One row per image: path, group, its name, confidence, runner-up, and the label where there are labels."""
    given = [names.groups.get(number, "") for number in range(found.count)]
    columns: dict[str, pa.Array] = {
        "path": pa.array(index.names(), pa.string()),
        "group": pa.array(found.groups, pa.int32()),
        "name": pa.array([given[number] for number in found.groups], pa.string()),
        "confidence": pa.array(found.confidence, pa.float32()),
        "runner_up": pa.array(found.runner_up, pa.int32()),
    }
    if labels is not None and labels.tell_classes and not labels.of_folders:  # the path has the folder
        columns["label"] = pa.array([None if label < 0 else int(label) for label in labels.values], pa.int64())
    table = pa.table(columns)
    with files.atomic_writer(output) as file:
        if output.suffix.lower() == ".csv":
            pyarrow.csv.write_csv(table, file)
        else:
            pq.write_table(table, file, compression="zstd")


def link_groups(index: EmbeddingFile, found: Assignment, names: GivenNames, folder: Path) -> int:
    """Links to all images in a new folder, one sub-folder per group; the folder appears whole or not at all."""
    folders = group_folders(found.count, names)
    rows = np.arange(len(found.groups))
    with new_folder(folder) as made:
        return link_images(index, rows, made, [folders[number] for number in found.groups])


def group_folders(count: int, names: GivenNames) -> list[str]:
    """A folder name for each group: its number, all of one width so that they sort, and its name."""
    width = len(str(count - 1))
    return [files.portable_name(f"{number:0{width}} {names.groups.get(number, '')}".strip()) for number in range(count)]


def _bad_files(index: EmbeddingFile, output: Path) -> int:
    """Copy the list of images that have no embedding to the output; returns how many there are."""
    listed, target = bad_list_of(index.path), bad_list_of(output)
    if not listed.is_file():
        remove_list(target)
        return 0
    text = listed.read_text(encoding="utf-8", errors="replace")
    files.write_text(target, text)
    return len(text.splitlines())
