"""What the commands on a trained encoder do and say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from carl import distributed
from carl.data.open import open_images
from carl.device import pick_device
from carl.terminal import show_progress
from carl.use import curate, doctor
from carl.use.embed import embed, embeddings_for
from carl.use.embedding_files import WRITERS
from carl.use.encoder import Trained, load_trained
from carl.use.export.export import export
from carl.use.search import answer_lines, search, write_sheet


def _load(run: Path) -> Trained:
    """The model on the device of this process: all that torchrun started embed, each its share."""
    return load_trained(run, str(distributed.start(pick_device("auto"))))


def _has_done_its_share() -> bool:
    """Part from the other processes once all is embedded; the main one alone goes on."""
    done = not distributed.is_main()
    distributed.stop()
    return done


def embed_images(run: Path, images: str, output: Path, split: str | None, force: bool) -> Iterator[str]:
    """Write the embeddings; yields lines about it."""
    trained = _load(run)
    source = open_images(images, split, trained.config.data.root, show_progress)
    done = embed(trained, source, output, force, show_progress)
    if _has_done_its_share():
        return
    if done.resumed:
        yield f"went on after the {done.resumed} images that were done"
    if done.bad:
        yield f"{len(done.bad)} images cannot be used and have no row, listed in {done.bad_list}"
    beside = f" and {output.stem}.rows.csv" if WRITERS[output.suffix.lower()] is WRITERS[".npy"] else ""
    yield f"{done.rows} embeddings: {output}{beside}"


def export_encoder(run: Path, form: str, output: Path | None, normalise: bool, force: bool) -> Iterator[str]:
    """Write the encoder for another program; yields lines about it."""
    done = export(load_trained(run, device="cpu"), form, output, normalise, force)
    yield f"written: {done.path}"
    yield f"checked: loaded again, features differ by at most {done.difference:.1e}"
    yield f"card: {done.card}"
    yield ""
    yield done.usage


def search_images(
    run: Path, images: str, queries: Sequence[str], count: int, split: str | None, output: Path
) -> Iterator[str]:
    """Find the images most like the queries; yields lines about them."""
    trained = _load(run)
    index, answers = search(trained, images, queries, count, split, show_progress)
    if _has_done_its_share():
        return
    yield from answer_lines(answers)
    write_sheet(trained, index, answers, f"Most like in {Path(images).name}", output)
    yield f"sheet: {output}"


def curate_images(
    run: Path,
    images: str,
    keep: int,
    output: Path,
    links: Path | None,
    duplicate: float,
    outliers: float,
    split: str | None,
    seed: int,
) -> Iterator[str]:
    """Choose a subset; yields lines about it."""
    index = embeddings_for(_load(run), images, split, show_progress)
    if _has_done_its_share():
        return
    chosen = curate.selected_from(index, keep, duplicate, outliers, seed)
    covered, used = len(set(chosen.groups[chosen.kept])), chosen.groups.max() + 1
    yield f"{len(chosen.kept)} of {len(index)} images kept, from {covered} of {used} groups"
    yield (
        f"left out: {chosen.count(curate.DUPLICATED)} near-duplicates, {chosen.count(curate.OUTLIER)} outliers, "
        f"{chosen.count(curate.REDUNDANT)} not needed"
    )
    if links is not None:
        yield f"links: {curate.link_images(index, chosen.kept, links)} in {links}"
    curate.write_list(index, chosen, output)
    yield f"list: {output}"


def examine(speed: bool) -> Iterator[tuple[str, str]]:
    """What there is to know about this machine and installation."""
    yield from doctor.examine_environment()
    yield from doctor.examine_extras()
    if speed:
        yield doctor.examine_speed()
