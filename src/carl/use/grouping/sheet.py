"""One self-contained page that shows each group and lets people name it."""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from carl.records.given_names import LONGEST_NAME, VERSION, GivenNames
from carl.safe_pages import content_policy, embedded_json, page_mark
from carl.use.embedding_files import EmbeddingFile
from carl.use.grouping.assignment import Assignment
from carl.use.thumbnails import pages, pictures_of

MARK = page_mark("group")  # tells a sheet from other pages
TYPICAL, UNSURE = 9, 6  # images of each group
MOST_PICTURES = 2400  # on a page: about 10 MB; with many groups each shows fewer


def sheet_page(
    index: EmbeddingFile,
    found: Assignment,
    names: GivenNames,
    *,
    title: str,
    command: list[str],
    output: Path,
    root: str | None,
) -> str:
    """The page; `command` is the call that reads the names it saves, up to the name of their file."""
    chosen = [chosen_rows(found, group) for group in range(found.count)]
    rows = {int(row) for typical, unsure in chosen for row in (*typical, *unsure)}
    pictures = pictures_of(index, rows, root)
    paths = index.names()

    def shown(row: int) -> dict[str, Any]:
        second = int(found.runner_up[row])
        return {
            "name": paths[row],
            "picture": pictures[row],
            "confidence": float(found.confidence[row]),
            "second": f"{second} {names.groups[second]}" if second in names.groups else str(second),
        }

    groups = [
        {
            "number": group,
            "name": names.groups.get(group, ""),
            "size": int(found.sizes[group]),
            "confidence": float(found.confidence[found.groups == group].mean()),
            "typical": [shown(int(row)) for row in typical],
            "unsure": [shown(int(row)) for row in unsure],
        }
        for group, (typical, unsure) in enumerate(chosen)
        if len(typical)
    ]
    file = f"{output.stem}.names.json"
    style, script = _asset("groups.css"), _asset("groups.js")
    tags = {tag: list(tagged) for tag, tagged in names.tags.items()}
    return (
        pages()
        .get_template("groups.html")
        .render(
            mark=Markup(MARK),
            title=title,
            summary=f"{len(found.groups)} images in {len(groups)} groups, the largest first.",
            command=shlex.join([*command, file]),
            groups=groups,
            longest=LONGEST_NAME,
            style=Markup(style),
            script=Markup(script),
            policy=content_policy(style, script),
            data=embedded_json({"version": VERSION, "of": found.fingerprint, "file": file, "tags": tags}),
        )
    )


def chosen_rows(found: Assignment, group: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows that a page shows for a group: the most typical ones, and of the rest the least sure ones."""
    share = min(1.0, MOST_PICTURES / (found.count * (TYPICAL + UNSURE)))
    typical, unsure = max(3, int(share * TYPICAL)), max(1, int(share * UNSURE))
    members = np.flatnonzero(found.groups == group)
    # Of the many images with a confidence of almost one, the most typical lie nearest to the prototype.
    members = members[np.argsort(-found.nearness[members], kind="stable")]
    rest = members[typical:]
    return members[:typical], rest[np.argsort(found.confidence[rest], kind="stable")][:unsure]


def _asset(name: str) -> str:
    return resources.files("carl.use").joinpath("templates", name).read_text(encoding="utf-8")
