"""report.html: one self-contained page about a run, or about several."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from carl import files
from carl.errors import UserError, suggestion
from carl.reporting.comparison import conclusion, config_differences, ranking, same_images
from carl.reporting.curves import charts
from carl.reporting.exhibits import average_purity, compared_data, gallery_data, image_data
from carl.reporting.glance import facts, judge, measures, own_data, tiles
from carl.reporting.pictures import view_picture
from carl.reporting.projections import PROJECTIONS
from carl.reporting.run_files import read_runs


def write_report(run: Path, output: Path | None = None, projection: str = "pca") -> Path:
    """Write the page of the run directory `run`, by default into it."""
    _check(projection)
    (found,) = read_runs([run])
    gallery = found.gallery
    command = [str(word) for word in found.environment.get("command", [])]
    page = _render(
        "run.html",
        {
            "charts": charts([found]),
            "runs": [found.name],
            "images": image_data(gallery) if gallery else None,
            "galleries": [gallery_data(gallery, projection)] if gallery else [],
        },
        run=found,
        title=found.name,
        verdict=judge(found),
        tiles=tiles(found),
        facts=facts(found),
        measures=measures(found),
        own_data=own_data(found),
        purity=average_purity(gallery),
        views=view_picture(gallery["thumbnails"][gallery["view_places"]], gallery["views"]) if gallery else None,
        command=shlex.join([Path(command[0]).name, *command[1:]]) if command else "",
    )
    return _written(output or run / "report.html", page)


def write_comparison(runs: Sequence[Path], output: Path | None = None, projection: str = "pca") -> Path:
    """Write a page that lays runs beside each other, by default comparison.html in the working directory."""
    _check(projection)
    found = read_runs(runs)
    rows, shared = ranking(found)
    together = same_images(found)
    page = _render(
        "comparison.html",
        {
            "charts": charts(found),
            "runs": [run.name for run in found],
            "images": image_data(found[0].gallery) if together else None,
            "galleries": [compared_data(run.gallery, projection) for run in found] if together else [],
        },
        runs=found,
        title="Comparison of " + ", ".join(run.name for run in found),
        rows=rows,
        shared=shared,
        conclusion=conclusion(rows, shared),
        differences=config_differences(found),
        together=together,
        highest=max([row.score.value for row in rows if row.score] or [100.0]),
    )
    return _written(output or Path("comparison.html"), page)


def _check(projection: str) -> None:
    if projection not in PROJECTIONS:
        raise UserError(f"--map {projection!r} is unknown{suggestion(projection, PROJECTIONS)}")


def _render(template: str, data: dict[str, Any], **context: Any) -> str:
    environment = Environment(
        loader=PackageLoader("carl.reporting"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    style, script = _asset("report.css"), _asset("report.js")
    return environment.get_template(template).render(
        **context,
        style=Markup(style),
        script=Markup(script),
        # No request may leave the page, and no script but ours may run, whatever the data hold.
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
        data=embedded_json(data),
    )


def _asset(name: str) -> str:
    return resources.files("carl.reporting").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def embedded_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _written(target: Path, page: str) -> Path:
    # File names need not be valid Unicode; what cannot be written is shown escaped.
    files.write_text(target, page.encode("utf-8", "backslashreplace").decode("utf-8"))
    return target
