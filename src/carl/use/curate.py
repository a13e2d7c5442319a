"""A small subset that stands for all images: every group is covered, with no near-duplicates and no outliers.

1. Groups are the prototypes that the images choose; without prototypes, or with more than are to be kept, k-means
   clusters of the embeddings.
2. Within a group, an image nearly parallel to one that is kept is a near-duplicate (SemDeDup, Abbas et al. 2023).
3. Images that are far from their nearest neighbours are outliers.
4. The images to keep are shared out equally over the groups, as far as these are large enough, so that rare kinds of
   image are kept too. Each group is cut into as many k-means clusters as its share, and the image nearest to each
   centre is kept: centres are spread over the group, and typical of it (TypiClust, Hacohen et al. 2022).

Embeddings are compared after their common mean is taken off: features after a ReLU all point into one corner,
where every cosine is high. N images, D features.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor
from torch.nn import functional as F

from carl import files
from carl.clustering import kmeans
from carl.errors import UserError, one_line
from carl.safe_pages import page_mark
from carl.terminal import TimedProgress
from carl.use.embed import embeddings_for, load_for_all_processes, only_main_goes_on
from carl.use.embedding_files import EmbeddingFile
from carl.use.links import KEPT, check_new_folder, link_or_copy, new_folder
from carl.use.requests import CurateRequest, check_seed
from carl.use.thumbnails import pages, pictures_of

NEIGHBOURS = 5  # whose similarity tells an outlier
GROUP_IMAGES = 50  # images per k-means group, where there are no prototypes
MOST_GROUPS = 1000  # by k-means; ours
LARGEST_GROUP = 5_000  # images: all pairs in a group are compared, so k-means cuts larger groups up
MOST_PAIRS = 25_000_000  # compared at once: 100 MB

MARK = page_mark("curate")  # tells a sheet from other pages
SHOWN_KEPT, SHOWN_LEFT_OUT = 300, 40  # images on the sheet: a few megabytes
MOST_READ = 100_000  # images that are read from one end to the other to find a few, where they are not files

TABLE_HEADER = "path,decision,group,like\n"
DUPLICATED, OUTLIER, REDUNDANT = "near-duplicate", "outlier", "not needed"


@dataclass(frozen=True, eq=False)
class Selection:
    """What became of each image."""

    decisions: np.ndarray  # (N,) of the words above
    likeness: np.ndarray  # (N,) for a near-duplicate the row that it is like, else -1
    groups: np.ndarray  # (N,) the group of each image

    @property
    def kept(self) -> np.ndarray:
        rows: np.ndarray = np.flatnonzero(self.decisions == KEPT)
        return rows

    def count(self, decision: str) -> int:
        return int((self.decisions == decision).sum())


def curate_images(request: CurateRequest) -> Iterator[str]:
    """Choose a subset, write its list and a sheet of pictures; yields lines about it."""
    check_seed(request.seed)
    is_table = request.output.suffix.lower() == ".csv"
    files.check_replaceable(request.output, request.force, TABLE_HEADER.encode() if is_table else None)
    sheet = sheet_of(request.output)
    if sheet is not None:
        files.check_replaceable(sheet, request.force, MARK.encode())
    if request.links is not None:
        check_new_folder(request.links)
    encoder = load_for_all_processes(request.encoder, request.backbone)
    index = embeddings_for(encoder, request.images, request.split, TimedProgress())
    if not only_main_goes_on():
        return
    chosen = select_rows(index, request)
    covered, groups = len(set(chosen.groups[chosen.kept])), chosen.groups.max() + 1
    yield f"{len(chosen.kept)} of {len(index)} images kept, from {covered} of {groups} groups"
    yield (
        f"left out: {chosen.count(DUPLICATED)} near-duplicates, {chosen.count(OUTLIER)} outliers, "
        f"{chosen.count(REDUNDANT)} not needed"
    )
    if request.links is not None:
        with new_folder(request.links) as made:
            count = link_images(index, chosen.kept, made)
        yield f"links: {count} in {request.links}"
    write_list(index, chosen, request.output)
    yield f"list: {request.output}"
    if sheet is None:
        return
    try:
        write_sheet(index, chosen, Path(request.images).name, sheet, encoder.data_root)
        yield f"pictures: {sheet}"
    except UserError as error:  # embeddings can outlive their images, and the list is what counts
        yield f"no pictures: {error}"


def sheet_of(output: Path) -> Path | None:
    """The page beside a list; none beside a pipe or a device, where nobody looks for it."""
    if files.is_special(output):
        return None
    sheet = output.with_suffix(".html")
    return sheet if sheet != output else output.with_name(f"{output.stem}-pictures.html")


def select_rows(index: EmbeddingFile, request: CurateRequest) -> Selection:
    """`select` for the rows of a file of embeddings."""
    prototypes = np.array(index.column("prototype")) if "prototype" in index.columns else None
    return select(
        index.embeddings(),
        request.keep,
        prototypes,
        duplicate=request.duplicate,
        outliers=request.outliers,
        seed=request.seed,
    )


def select(
    embeddings: np.ndarray,
    keep: int,
    prototypes: np.ndarray | None = None,
    duplicate: float = CurateRequest.duplicate,
    outliers: float = CurateRequest.outliers,
    seed: int = 0,
) -> Selection:
    """Choose `keep` of the images with `embeddings` (N, D); `prototypes` (N,) is the one that each image chose.

    If too few other images are left, near-duplicates are kept after all, and then outliers.
    """
    total = len(embeddings)
    if not 1 <= keep <= total:
        raise UserError(f"--keep {keep} of {total} images: keep 1 to {total}")
    if not 0 <= outliers < 1 or not 0 < duplicate <= 1:
        raise UserError(f"outliers={outliers} and duplicate={duplicate} are fractions; use values between 0 and 1")
    points = F.normalize(torch.from_numpy(embeddings) - torch.from_numpy(embeddings.mean(0)), dim=1)
    groups = _groups(points, prototypes, keep, seed)
    likeness, typicality = _compare(points, groups, duplicate, seed)
    decisions = np.full(total, REDUNDANT, dtype=object)
    decisions[likeness >= 0] = DUPLICATED
    decisions[_outliers(typicality, decisions == REDUNDANT, outliers)] = OUTLIER
    usable = np.flatnonzero(decisions == REDUNDANT)
    if len(usable) <= keep:
        back = np.lexsort((-typicality, decisions == OUTLIER))  # near-duplicates first: they do no harm
        chosen = [*usable, *back[np.isin(back, usable, invert=True)][: keep - len(usable)]]
        decisions[chosen] = KEPT
        return Selection(decisions, likeness, groups)
    shares = share_out(np.bincount(groups[usable], minlength=int(groups.max()) + 1), keep)
    for group in np.flatnonzero(shares):
        members = usable[groups[usable] == group]
        decisions[members[_spread(points[members], int(shares[group]), seed)]] = KEPT
    return Selection(decisions, likeness, groups)


def share_out(sizes: np.ndarray, total: int) -> np.ndarray:
    """Equal shares of `total` for groups of these sizes, none over its size; the largest groups get what is left over.

    A group that is smaller than its share gives the rest to the others.
    """
    shares = np.zeros_like(sizes)
    order = np.argsort(-sizes, kind="stable")
    while total:
        open_groups = order[shares[order] < sizes[order]]
        if not len(open_groups):
            break
        each = total // len(open_groups)
        if not each:
            shares[open_groups[:total]] += 1
            break
        given = np.minimum(each, sizes[open_groups] - shares[open_groups])
        shares[open_groups] += given
        total -= int(given.sum())
    return shares


def _groups(points: Tensor, prototypes: np.ndarray | None, keep: int, seed: int) -> np.ndarray:
    """Numbers of the groups (N,), from 0 without gaps, no more than images to keep: more could not all be covered."""
    if prototypes is None or len(np.unique(prototypes)) > keep:
        clusters = max(1, min(len(points) // GROUP_IMAGES, MOST_GROUPS, keep))
        numbers = kmeans(points, clusters, seed).assignments.numpy()
    else:
        numbers = prototypes.astype(np.int64)
    return np.unique(numbers, return_inverse=True)[1]


def _compare(points: Tensor, groups: np.ndarray, duplicate: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """For each image the earlier one that it nearly equals, or -1, and its mean similarity to its neighbours.

    Both are looked for within its group (or its piece of a large one); in a group too small for neighbours, those are
    any images. An image that is left out stands for none.
    """
    likeness = np.full(len(points), -1)
    typicality = np.zeros(len(points), np.float32)
    for members in _pieces(points, groups, seed):
        others = members if len(members) > NEIGHBOURS else np.arange(len(points))
        count = min(NEIGHBOURS, len(others) - 1)
        for block in np.array_split(members, -(-len(members) * len(others) // MOST_PAIRS)):
            similarity = points[block] @ points[others].T
            similarity[torch.arange(len(block)), torch.from_numpy(np.searchsorted(others, block))] = -1.0  # itself
            typicality[block] = similarity.topk(count, dim=1).values.mean(1).numpy() if count else 0.0
            close = (similarity > duplicate).numpy()
            for place in np.flatnonzero(close.any(1)):
                if likeness[block[place]] < 0:
                    later = others[close[place] & (others > block[place])]
                    later = later[(likeness[later] < 0) & np.isin(later, members)]
                    likeness[later] = block[place]
    return likeness, typicality


def _pieces(points: Tensor, groups: np.ndarray, seed: int) -> Iterator[np.ndarray]:
    """The rows of each group in order; a large group comes in parts of similar images.

    Images that are all the same cannot be told apart by k-means and stay one large part.
    """
    order = np.argsort(groups, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if len(members) <= LARGEST_GROUP:
            yield members
            continue
        numbers = kmeans(points[members], 2 * -(-len(members) // LARGEST_GROUP), seed).assignments.numpy()
        yield from (members[numbers == number] for number in np.unique(numbers))


def _outliers(typicality: np.ndarray, candidates: np.ndarray, part: float) -> np.ndarray:
    """The least typical of the candidates, by similarity to their neighbours: a `part` of all images."""
    rows = np.flatnonzero(candidates)
    count = min(int(part * len(typicality)), max(0, len(rows) - 1))
    least: np.ndarray = rows[np.argsort(typicality[rows], kind="stable")[:count]]
    return least


def _spread(points: Tensor, count: int, seed: int) -> np.ndarray:
    """`count` places: in each of as many k-means clusters the image nearest to the centre."""
    if count == len(points):
        return np.arange(count)
    found = kmeans(points, count, seed)
    places = []
    for cluster in range(count):
        members = (found.assignments == cluster).nonzero()[:, 0]
        if len(members):
            places.append(int(members[found.distances[members].argmin()]))
    rest = [place for place in found.distances.argsort().tolist() if place not in set(places)]
    return np.array([*places, *rest[: count - len(places)]])  # equal points can leave clusters empty


def write_list(index: EmbeddingFile, selection: Selection, output: Path) -> None:
    """The kept images, one per line; a .csv says for every image why it was kept or left out."""
    names = index.names()
    if output.suffix.lower() != ".csv":
        files.write_text(output, "".join(f"{one_line(names[row])}\n" for row in selection.kept))
        return
    lines = [TABLE_HEADER]
    for row, name in enumerate(names):
        like = selection.likeness[row]
        shown = names[like] if selection.decisions[row] == DUPLICATED else ""
        lines.append(f"{_quoted(name)},{selection.decisions[row]},{selection.groups[row]},{_quoted(shown)}\n")
    files.write_text(output, "".join(lines))


def write_sheet(index: EmbeddingFile, selection: Selection, title: str, output: Path, root: str | None) -> None:
    """One self-contained page: what was kept, group by group, and what was left out."""
    if len(index) > MOST_READ and index.file_of(index.names()[0]) is None:
        raise UserError(f"finding a few images among {len(index)} in {index.about.source} would take too long")
    kept = selection.kept
    order = kept[np.argsort(selection.groups[kept], kind="stable")]
    rows = order[np.unique(np.linspace(0, len(order) - 1, min(SHOWN_KEPT, len(order))).round().astype(np.int64))]
    copies = np.flatnonzero(selection.decisions == DUPLICATED)[:SHOWN_LEFT_OUT]
    odd = np.flatnonzero(selection.decisions == OUTLIER)[:SHOWN_LEFT_OUT]
    wanted = {int(row) for row in (*rows, *copies, *selection.likeness[copies], *odd)}
    pictures, names = pictures_of(index, wanted, root), index.names()

    def shown(row: int) -> tuple[str, str]:
        return names[row], pictures[int(row)]

    groups = {
        int(group): [shown(row) for row in rows[selection.groups[rows] == group]]
        for group in np.unique(selection.groups[rows])
    }
    page = (
        pages()
        .get_template("curate.html")
        .render(
            mark=Markup(MARK),
            title=title,
            kept=len(kept),
            total=len(index),
            shown=len(rows),
            groups=groups,
            sizes=np.bincount(selection.groups).tolist(),
            copies=[(shown(selection.likeness[row]), shown(row)) for row in copies],
            odd=[shown(row) for row in odd],
            counts={word: selection.count(word) for word in (DUPLICATED, OUTLIER, REDUNDANT)},
        )
    )
    files.write_text(output, page)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n\r') else text


def link_images(
    index: EmbeddingFile, rows: Sequence[int] | np.ndarray, folder: Path, under: Sequence[str] | None = None
) -> int:
    """Links to the images at `rows` in an empty folder, in the same sub-folders; returns how many.

    `under` names a folder for each row, in which its sub-folders begin. Where a file system has no links, the files
    are copied. Nothing is written outside the folder, and nothing is replaced.
    """
    names = index.names()
    paths = {row: path for row in range(len(names)) if (path := index.file_of(names[row])) is not None}
    missing = next((names[row] for row in rows if row not in paths or not paths[row].is_file()), None)
    if missing is not None:
        raise UserError(
            f"{missing!r} is not a file of {index.about.source}, so nothing can link to it; write a list with -o "
            "instead"
        )
    common = Path(os.path.commonpath([path.parent for path in paths.values()]))
    for place, row in enumerate(rows):
        link = folder / ("" if under is None else under[place]) / paths[row].relative_to(common)
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            link_or_copy(paths[row].absolute(), link)
        except FileExistsError:
            raise UserError(f"{link} is there already, for another image of that name; rename one of them") from None
    return len(rows)
