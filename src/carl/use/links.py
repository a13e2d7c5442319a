"""The images of a list as a folder of links, torch-free: the last step from a report's selection to files."""

from __future__ import annotations

import csv
import io
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from carl import files
from carl.errors import UserError, suggestion
from carl.records.given_names import read_names
from carl.records.regular_files import read_bytes
from carl.use.embedding_files import name_from_text

KEPT = "kept"  # what a table of `carl curate` decided on the images that stay


@dataclass(frozen=True)
class LinksRequest:
    """Link the images of a list into a new folder."""

    listing: Path  # .csv with a column `path`, .json with tags, or one path per line
    folder: Path
    base: Path | None = None  # folder that relative paths start from; the present one if None
    tag: str | None = None  # which images of a file of names
    copy: bool = False


def link_listed(request: LinksRequest) -> Iterator[str]:
    """Link or copy the images; yields a line about them. All of them appear, or none."""
    check_new_folder(request.folder)
    base = Path(os.path.abspath(request.base or Path.cwd()))
    if not base.is_dir():
        raise UserError(f"--base {request.base} is not a folder; give the one that the paths of the list start from")
    names = listed_names(request.listing, request.tag)
    targets = list(dict.fromkeys(Path(os.path.abspath(base / name)) for name in names))
    if not targets:
        raise UserError(f"{request.listing} lists no image; give a list with at least one path")
    missing = [target for target in targets if not target.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise UserError(
            f"{missing[0]}{more} not there; give the folder that the paths of {request.listing} start from: --base DIR"
        )
    within = all(target.is_relative_to(base) for target in targets)
    root = base if within else Path(os.path.commonpath([target.parent for target in targets]))
    with new_folder(request.folder) as made:
        for target in targets:
            place = made / target.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(target, place, request.copy)
    yield f"{'copies' if request.copy else 'links'}: {len(targets)} in {request.folder}"


def listed_names(path: Path, tag: str | None) -> Iterable[str]:
    """The names of images in a list that a report, `carl curate` or a person wrote; only those kept if it says so."""
    if path.suffix.lower() == ".json":
        tags = read_names(path).tags
        if tag is None or tag not in tags:
            said = "name a tag with --tag" if tag is None else f"--tag {tag!r} is unknown"
            raise UserError(f"{path} holds tags; {said}{suggestion(tag or '', tags)}")
        return map(name_from_text, tags[tag])
    if tag is not None:
        raise UserError(f"--tag {tag!r} needs a file of names that a report saved, such as names.json, not {path}")
    text = read_bytes(path).decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if path.suffix.lower() != ".csv":
        return map(name_from_text, filter(None, text.splitlines()))
    rows = csv.DictReader(io.StringIO(text, newline=""))
    try:
        if "path" not in (rows.fieldnames or ()):
            raise UserError(
                f"{path} has no column `path`; save a list from a report, or give one path per line as .txt"
            )
        stay = (row["path"] for row in rows if row.get("decision", KEPT) == KEPT)
        return [name_from_text(path) for path in stay if path]
    except csv.Error as error:
        raise UserError(f"{path} is not a table ({error}); save a list from a report") from None


def check_new_folder(folder: Path) -> None:
    """Refuse a folder for links that is not new: what is there already would be in the way, or be replaced."""
    if not files.end_of_links(folder).resolve().name:
        raise UserError(f"{folder} is no place for a new folder; choose another one for the links")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} exists and is not a folder; choose another one for the links")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} exists and is not empty; choose another folder for the links")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder that takes its name once all of it is there, and is gone if anything fails.

    Where `folder` is a link, the folder appears where that leads.
    """
    check_new_folder(folder)
    folder = files.end_of_links(folder).resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name[:32]}.", suffix=files.PARTIAL, dir=folder.parent))
    try:
        yield made
        made.chmod(0o777 & ~files.umask())  # mkdtemp makes folders that only the owner can read
        if folder.is_dir():
            folder.rmdir()  # it is empty
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def link_or_copy(target: Path, place: Path, copy: bool = False) -> None:
    """A link at `place`, or a copy where a file system has no links; nothing is replaced."""
    if not copy:
        try:
            place.symlink_to(target)
            return
        except FileExistsError:
            raise
        except (OSError, NotImplementedError):
            pass
    with target.open("rb") as source, place.open("xb") as file:
        shutil.copyfileobj(source, file)
