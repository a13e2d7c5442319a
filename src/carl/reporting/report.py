"""report.html: one self-contained page about a run."""

from __future__ import annotations

import base64
import io
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader
from PIL import Image

from carl import files
from carl.errors import UserError
from carl.reporting.curves import curve

CURVES = (
    ("step", "loss", "Loss"),
    ("step", "consistency", "Consistency (Eq. 4)"),
    ("step", "kl", "KL to uniform (Eq. 5)"),
    ("step", "lambda", "Weight of the prior, lambda"),
    ("step", "lr", "Learning rate"),
    ("probe", "knn", "kNN probe, online (%)"),
    ("probe", "used", "Prototypes in use"),
    ("probe", "entropy", "Entropy of an assignment (nats)"),
    ("probe", "mean_entropy", "Entropy of the mean assignment (nats)"),
    ("probe", "agreement", "Views that agree (part)"),
    ("probe", "rank_me", "RankMe of the features"),
)
IMAGES_A_PROTOTYPE = 10
MOST_PROTOTYPES = 120


def write_report(run: Path, output: Path | None = None) -> Path:
    """Write the page of the run directory `run`, by default into it."""
    if not (run / "config.toml").is_file():
        raise UserError(f"{run} is not a run directory (it has no config.toml); give what `carl pretrain` made")
    records = files.read_json_lines(run / "metrics.jsonl")
    probes = [r for r in records if r.get("kind") == "probe"]
    gallery = _gallery(run / "gallery.npz")
    target = output or run / "report.html"
    template = Environment(loader=PackageLoader("carl.reporting"), autoescape=True).get_template("report.html")
    page = template.render(
        name=run.name,
        verdict=_verdict(records, probes),
        warnings=probes[-1].get("warnings", []) if probes else [],
        probes=probes,
        curves=[
            curve(title, [(r["epoch"], r[key]) for r in records if r.get("kind") == kind and key in r])
            for kind, key, title in CURVES
            if any(r.get("kind") == kind and key in r for r in records)
        ],
        prototypes=_prototypes(gallery),
        views=_views(gallery),
        results=[json.loads(path.read_text(encoding="utf-8")) for path in sorted(run.glob("results/*.json"))],
        config=tomllib.loads((run / "config.toml").read_text(encoding="utf-8")),
        environment=json.loads((run / "environment.json").read_text(encoding="utf-8")),
        has_gallery=bool(gallery),
    )
    files.write_text(target, page)
    return target


def _gallery(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _verdict(records: list[dict[str, Any]], probes: list[dict[str, Any]]) -> str:
    if not records or records[-1].get("event") != "finished":
        return "stopped early"
    return str(probes[-1].get("verdict", "not probed")) if probes else "not probed"


def _png(pixels: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _prototypes(gallery: dict[str, Any]) -> list[dict[str, Any]]:
    """The fullest prototypes, each with its most confident images in one strip."""
    if "prototype" not in gallery:
        return []
    chosen, sure = gallery["prototype"], gallery["probability"]
    sizes = np.bincount(chosen, minlength=int(gallery["prototypes"]))
    shown = []
    for prototype in np.argsort(-sizes, kind="stable")[:MOST_PROTOTYPES]:
        members = np.flatnonzero(chosen == prototype)
        if not len(members):
            break
        best = members[np.argsort(-sure[members])][:IMAGES_A_PROTOTYPE]
        strip = np.concatenate(list(gallery["thumbnails"][best]), axis=1)
        shown.append(
            {
                "number": int(prototype),
                "size": int(sizes[prototype]),
                "confidence": float(sure[members].mean()),
                "classes": _classes(gallery, members),
                "strip": _png(strip),
                "count": len(best),
            }
        )
    return shown


def _classes(gallery: dict[str, Any], members: np.ndarray) -> str:
    if "labels" not in gallery or not len(gallery["class_names"]):
        return ""
    labels = gallery["labels"][members]
    counts = np.bincount(labels[labels >= 0], minlength=len(gallery["class_names"]))
    top = np.argsort(-counts, kind="stable")[:2]
    return ", ".join(f"{gallery['class_names'][c]} {100 * counts[c] / len(members):.0f}%" for c in top if counts[c])


def _views(gallery: dict[str, Any]) -> str:
    """A picture of the grid: an image a row, its views along it."""
    if "views" not in gallery:
        return ""
    rows = [np.concatenate(list(row), axis=1) for row in gallery["views"]]
    return _png(np.concatenate(rows, axis=0))
