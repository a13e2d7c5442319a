"""report.html: one self-contained page about a run, or about several."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from carl import files
from carl.errors import UserError, suggestion
from carl.reporting.comparison import MOST_TOGETHER, conclusion, config_differences, ranking, same_images
from carl.reporting.curves import charts
from carl.reporting.gallery_page import average_purity, compared_data, gallery_data, image_data
from carl.reporting.pictures import thumbnail_sheets, view_picture
from carl.reporting.projections import PROJECTIONS
from carl.reporting.run_reader import Run, read_runs
from carl.reporting.verdict import facts, judge, scores, tiles

MARK = '<meta name="generator" content="carl report">'  # tells a report from other pages
DATA_BYTES = 12_800_000  # of all data in a page with its images, which leaves 2 MB of the 15 for the rest
# Other letters stay as they are, as escapes those outside of ASCII would take six bytes each; these could end the
# element or a line of a script, or are halves of letters, which UTF-8 cannot hold.
UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def write_report(run: Path, output: Path | None = None, projection: str = "pca", force: bool = False) -> Path:
    """Write the page of the run directory `run`, by default into it.

    The run's own report.html is always replaced; another file only with `force`, or if it is a report.
    """
    _check(projection)
    if output is not None:
        files.check_replaceable(output, force, MARK.encode())
    (found,) = read_runs([run])
    gallery = found.gallery
    command = found.environment["command"]
    page = _render(
        "run.html",
        _page_data([found], [gallery_data(gallery, projection)] if gallery else []),
        run=found,
        title=found.name,
        verdict=judge(found),
        tiles=tiles(found),
        facts=facts(found),
        scores=scores(found),
        purity=average_purity(gallery),
        views=view_picture(gallery["thumbnails"][gallery["view_places"]], gallery["views"]) if gallery else None,
        command=shlex.join([Path(command[0]).name, *command[1:]]) if command else "",
        again=shlex.join(["carl", "pretrain", "--config", str(run / "config.toml"), "--out", f"{run}-again"]),
    )
    return _written(output or run / "report.html", page)


def write_comparison(
    runs: Sequence[Path], output: Path | None = None, projection: str = "pca", force: bool = False
) -> Path:
    """Write a page that lays runs beside each other, by default comparison.html in the working directory."""
    _check(projection)
    target = output or Path("comparison.html")
    files.check_replaceable(target, force, MARK.encode())
    found = read_runs(runs)
    rows, shared = ranking(found)
    together = same_images(found)
    page = _render(
        "comparison.html",
        _page_data(found, [compared_data(run.gallery, projection) for run in found] if together else []),
        runs=found,
        title="Comparison of " + ", ".join(run.name for run in found),
        rows=rows,
        shared=shared,
        conclusion=conclusion(rows, shared),
        differences=config_differences(found),
        together=together,
        most_together=MOST_TOGETHER,
        highest=max((v for r in rows if r.score for v in (r.score.value, r.score.random or 0.0)), default=0.0) or 1.0,
    )
    return _written(target, page)


def _check(projection: str) -> None:
    if projection not in PROJECTIONS:
        raise UserError(f"--map {projection!r} is unknown{suggestion(projection, PROJECTIONS)}")


def _page_data(runs: Sequence[Run], galleries: list[dict[str, Any]]) -> dict[str, Any]:
    """What the page's script draws; thumbnails are as good as the rest leaves room for."""
    data: dict[str, Any] = {
        "charts": charts(runs),
        "runs": [run.name for run in runs],
        "images": None,
        "galleries": galleries,
    }
    if galleries:
        for gallery in galleries[1:]:
            if gallery["random"] == galleries[0]["random"]:  # the same random weights, as seed and encoder are
                del gallery["random"]
        data["images"] = image_data(runs[0].gallery)
        left = DATA_BYTES - len(embedded_json(data).encode())
        data["images"]["sheets"] = thumbnail_sheets(runs[0].gallery["thumbnails"], left * 3 // 4).as_data()  # in base64
    return data


def _render(template: str, data: dict[str, Any], **context: Any) -> str:
    environment = Environment(
        loader=PackageLoader("carl.reporting"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["sentence"] = lambda text: text[:1].upper() + text[1:]
    style, script = _asset("report.css"), _asset("report.js")
    return environment.get_template(template).render(
        **context,
        mark=Markup(MARK),
        style=Markup(style),
        script=Markup(script),
        # No request may leave the page, and no script except ours may run, whatever the data hold.
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
        data=embedded_json(data),
    )


def _asset(name: str) -> str:
    return resources.files("carl.reporting").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def embedded_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return Markup(UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def _written(target: Path, page: str) -> Path:
    files.write_text(target, page)
    return target
