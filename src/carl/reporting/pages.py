"""report.html: one self-contained page about a run, or about several."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from carl import files
from carl.defaults import PROJECTIONS
from carl.errors import UserError, suggestion
from carl.evaluation.results import RANDOM_WEIGHTS, START
from carl.records.gallery import Gallery, check_gallery
from carl.records.given_names import GivenNames, read_names
from carl.records.run_directory import RunDirectory
from carl.reporting.comparison import (
    MOST_TOGETHER,
    conclusion,
    config_differences,
    ranking,
    same_images,
    shared_values,
)
from carl.reporting.curves import charts
from carl.reporting.gallery_page import (
    average_purity,
    compared_data,
    gallery_data,
    groups_fingerprint,
    image_data,
    listed_order,
    names_data,
)
from carl.reporting.pictures import thumbnail_sheets, view_picture
from carl.reporting.run_reader import Run, read_run, read_runs
from carl.reporting.verdict import facts, judge, scores, tiles
from carl.safe_pages import content_policy, embedded_json, page_mark

MARK = page_mark("report")  # tells a report from other pages
DATA_BYTES = 12_800_000  # of all data in a page with its sample, which leaves 2 MB of the 15 for the rest
LISTED_BYTES = 14_000_000  # for images that are listed beyond the sample, so that a page stays under 30 MB
TRAINING_FOLDERS = ("train", "training")  # names of images start from these, where a data set has them
# The script of a page, in the order in which its parts need each other.
SCRIPT = (
    "elements", "curves", "thumbnails", "colours", "plane", "selection", "names", "images", "groups", "map_section",
    "neighbours", "quality", "keys", "page",
)  # fmt: skip


def write_report(
    run: Path, output: Path | None = None, projection: str = "auto", force: bool = False, names: Path | None = None
) -> Path:
    """Write the page of the run directory `run`, by default into it.

    The run's own report.html is always replaced; another file only with `force`, or if it is a report. `names` is a
    file of names for the groups, as the page saves it.
    """
    _check(projection)
    if output is not None:
        files.check_replaceable(output, force, MARK.encode())
    return _written(output or RunDirectory(run).report_file, run_page(run, projection, names))


def run_page(run: Path, projection: str = "auto", names: Path | None = None, live: str = "") -> str:
    """The page of a run. A `live` one has a version, is served while the run trains, and asks its server for news."""
    (found,) = read_runs([run])
    gallery = found.gallery
    command, from_random_weights = found.environment["command"], found.value("model", "init") is None
    data = _page_data(charts([found]), [found.name])
    if gallery:
        _add_images(data, [gallery], [gallery_data(gallery, projection)], _folder_of(found))
        data["names"] = names_data(gallery, _given_names(gallery, names))
    return _render(
        "run.html",
        data,
        live,
        run=found,
        gallery=gallery,
        method=str(found.value("method", "name", "of this run")),
        before=RANDOM_WEIGHTS if from_random_weights else START,
        from_random_weights=from_random_weights,
        title=found.name,
        verdict=judge(found, training=bool(live)),
        tiles=tiles(found),
        facts=facts(found),
        scores=scores(found),
        purity=average_purity(gallery),
        views=view_picture(gallery["thumbnails"][gallery["view_places"]], gallery["views"])
        if "views" in gallery
        else None,
        command=shlex.join([Path(command[0]).name, *command[1:]]) if command else "",
        everything=_command_for_all(found),
        again=shlex.join(["carl", "pretrain", "--config", str(RunDirectory(run).config_file), "--out", f"{run}-again"]),
    )


def write_images_report(
    gallery: Gallery,
    output: Path,
    *,
    title: str,
    facts: Sequence[tuple[str, str]],
    folder: Path | None = None,
    projection: str = "auto",
    force: bool = False,
    names: Path | None = None,
) -> Path:
    """Write a page about images seen through an encoder, without a run.

    `gallery` is made in memory (carl/records/gallery.py says what is in it; views and random neighbours may be
    missing), `facts` are a few words about data and encoder, and `folder` is what the names of the images start from if
    they are files. Check `output` with `check_output` before long work.
    """
    _check(projection)
    check_output(output, force)
    check_gallery(gallery)
    data = _page_data([], [title])
    _add_images(
        data, [gallery], [gallery_data(gallery, projection)], None if folder is None else str(folder.absolute())
    )
    data["names"] = names_data(gallery, _given_names(gallery, names))
    views = (
        view_picture(gallery["thumbnails"][gallery["view_places"]], gallery["views"]) if "views" in gallery else None
    )
    page = _render(
        "images.html", data, gallery=gallery, title=title, facts=facts, purity=average_purity(gallery), views=views,
        everything="",
        method="", run=None,
    )  # fmt: skip
    return _written(output, page)


def check_output(output: Path, force: bool) -> None:
    """Refuse to replace a file that is not a report."""
    files.check_replaceable(output, force, MARK.encode())


def _given_names(gallery: Gallery, names: Path | None) -> GivenNames:
    return GivenNames() if names is None else read_names(names, groups_fingerprint(gallery))


def _command_for_all(run: Run) -> str:
    """The command that lists all images, where the gallery of a run is a sample of them."""
    source = run.value("data", "source")
    if (
        not run.gallery
        or len(listed_order(run.gallery)) >= int(run.gallery["total_images"])
        or not isinstance(source, str)
    ):
        return ""
    return f"carl report {run.quoted} {shlex.quote(source)} -o {shlex.quote(f'{run.name}-images.html')}"


def _folder_of(run: Run) -> str | None:
    """The folder that the names of a run's images start from, if they are files that are still there."""
    source, names = run.value("data", "source"), run.gallery.get("names")
    if not isinstance(source, str) or not Path(source).is_absolute() or names is None:
        return None
    folders = (Path(source), *(Path(source) / split for split in TRAINING_FOLDERS))
    return next((str(folder) for folder in folders if os.path.isfile(folder / str(names[0]))), None)


def write_comparison(
    runs: Sequence[Path], output: Path | None = None, projection: str = "auto", force: bool = False
) -> Path:
    """Write a page that lays runs beside each other, by default comparison.html in the working directory."""
    _check(projection)
    target = output or Path("comparison.html")
    files.check_replaceable(target, force, MARK.encode())
    return _compared(target, read_runs(runs), None, projection)


@dataclass(frozen=True)
class Contestant:
    """A method in a comparison: its runs, which differ in their seed."""

    name: str
    runs: Sequence[Path]


def write_contestants(contestants: Sequence[Contestant], target: Path, projection: str = "pca") -> Path:
    """Write a page that lays methods beside each other, each with its seeds. The first seed has curves and images."""
    groups = [[read_run(path, one.name) for path in one.runs] for one in contestants]
    return _compared(target, [group[0] for group in groups], groups, projection)


def _compared(target: Path, found: list[Run], seeds: list[list[Run]] | None, projection: str) -> Path:
    rows, shared = ranking(found, seeds)
    answer, footnote = conclusion(rows, shared)
    together = same_images(found)
    data = _page_data(charts(found), [run.name for run in found])
    if together:
        galleries = [run.gallery for run in found]
        _add_images(data, galleries, [compared_data(gallery, projection) for gallery in galleries], None)
    known = [row.score for row in rows if row.score is not None]
    ends = [s.interval.high for s in known if s.interval is not None]
    page = _render(
        "comparison.html",
        data,
        runs=found,
        title="Comparison of " + ", ".join(run.name for run in found),
        rows=rows,
        shared=shared,
        conclusion=answer,
        footnote=footnote,
        differences=[
            (key, values) for key, values in config_differences(found) if seeds is None or key != "train.seed"
        ],
        same=shared_values(found),
        together=together,
        most_together=MOST_TOGETHER,
        several=max(row.seeds for row in rows) > 1,
        highest=max((v for s in known for v in (s.value, s.baseline or 0.0, *ends)), default=0.0) or 1.0,
    )
    return _written(target, page)


def _check(projection: str) -> None:
    if projection not in PROJECTIONS:
        raise UserError(f"--map {projection!r} is unknown{suggestion(projection, PROJECTIONS)}")


def _page_data(charts: list[dict[str, Any]], runs: list[str]) -> dict[str, Any]:
    """What the page's script draws."""
    return {"charts": charts, "runs": runs, "images": None, "galleries": [], "names": None}


def _add_images(
    data: dict[str, Any], galleries: Sequence[Gallery], drawn: list[dict[str, Any]], folder: str | None
) -> None:
    """Add the images, which all galleries share; thumbnails are as good as the rest leaves room for."""
    for other in drawn[1:]:
        if other["before"] == drawn[0]["before"]:  # the same random weights, as seed and encoder are, or the same start
            del other["before"]
    gallery = galleries[0]
    data["galleries"] = drawn
    data["images"] = images = image_data(gallery, folder)
    left = DATA_BYTES - len(embedded_json(data).encode())
    order = listed_order(gallery)
    others = order[len(gallery["rows"]) :]
    if len(others):
        left += LISTED_BYTES
        share = min(left // 2, DATA_BYTES // 2)
        images["small"] = thumbnail_sheets(gallery["listed_thumbnails"][others], (left - share) * 3 // 4).as_data()
        left = left - sum(map(len, images["small"]["images"]))
    images["sheets"] = thumbnail_sheets(gallery["thumbnails"], min(left, DATA_BYTES) * 3 // 4).as_data()  # in base64


def _render(template: str, data: dict[str, Any], live: str = "", **context: Any) -> str:
    environment = Environment(
        loader=PackageLoader("carl.reporting"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["sentence"] = lambda text: text[:1].upper() + text[1:]
    style, script = _asset("report.css"), _script(bool(live))
    return environment.get_template(template).render(
        **context,
        mark=Markup(MARK),
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(style, script, asks_its_server=bool(live)),
        data=embedded_json(data),
        live=live,
        live_images=_gallery_mark(data) if live else "",
    )


def _gallery_mark(data: dict[str, Any]) -> str:
    """Tells the images of one page from those of the next."""
    shown = data["images"] and [data["images"]["sheets"]["images"][0], data["galleries"][0]["places"]]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]


def _script(live: bool) -> str:
    parts = [_asset(f"script/{name}.js") for name in (*SCRIPT, *(["live"] if live else []))]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def _asset(name: str) -> str:
    return resources.files("carl.reporting").joinpath("templates", *name.split("/")).read_text(encoding="utf-8")


def _written(target: Path, page: str) -> Path:
    files.write_text(target, page)
    return target
