"""`carl report`: which page was asked for. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from carl.errors import UserError
from carl.records.given_names import read_names
from carl.records.run_directory import RunDirectory
from carl.reporting.images_report import report_images
from carl.reporting.pages import write_comparison, write_report
from carl.reporting.watch import watch
from carl.terminal import Say
from carl.use.requests import ImagesReportRequest

MODELS = ("timm:", "hf-hub:")  # encoders that are no paths


@dataclass(frozen=True)
class ReportRequest:
    """What the user asked `carl report` for."""

    what: tuple[str, ...]  # runs, or an encoder and images
    output: Path | None = None
    projection: str = "auto"  # a name in PROJECTIONS
    names: Path | None = None  # of groups, as a page saved them
    watching: bool = False
    port: int = 0  # for watching; 0 takes a free one
    split: str | None = None  # of the images; all of them if None
    backbone: str | None = None  # of a weights file
    force: bool = False


def report(request: ReportRequest, say: Say) -> None:
    """Write the page of a run, of several runs or of images, or show that of a run while it trains."""
    runs = [Path(one) for one in request.what]
    if request.names is not None:
        read_names(request.names)  # so that a wrong file is refused before the long work
    if request.watching:
        if len(runs) > 1 or request.output is not None:
            raise UserError("--watch shows one run and writes no file; give one RUN and leave out -o")
        watch(runs[0], say, request.port, request.projection, request.names)
    elif request.port:
        raise UserError(f"--port {request.port} belongs to --watch; add that, or leave out --port")
    elif names_images(request.what):
        for line in report_images(_of_images(request)):
            say(line)
    elif request.split is not None or request.backbone is not None:
        option = "--split" if request.split is not None else "--backbone"
        raise UserError(f"{option} belongs to a report of an encoder and images; leave it out for runs")
    elif len(runs) == 1:
        say(str(write_report(runs[0], request.output, request.projection, request.force, request.names)))
    elif request.names is None:
        say(str(write_comparison(runs, request.output, request.projection, request.force)))
    else:
        raise UserError("--names belongs to the report of one run; several runs have groups of their own")


def _of_images(request: ReportRequest) -> ImagesReportRequest:
    encoder, images = request.what
    return ImagesReportRequest(
        encoder=encoder,
        images=images,
        output=request.output or Path("report.html"),
        split=request.split,
        projection=request.projection,
        names=request.names,
        force=request.force,
        backbone=request.backbone,
    )


def names_images(what: tuple[str, ...]) -> bool:
    """Whether the arguments of `carl report` are an encoder and images; otherwise they are runs."""
    runs = [RunDirectory(Path(one)).exists for one in what]
    if len(what) == 1 and (what[0].startswith(MODELS) or Path(what[0]).is_file()):
        raise UserError(f"{what[0]} is not a run directory; name its images too: carl report {what[0]} IMAGES")
    if len(what) == 2 and not runs[1]:
        return True
    if len(what) == 2 and not runs[0]:
        raise UserError(
            f"{what[1]} is a run directory and {what[0]} is not; give two runs to compare, or an encoder and then "
            "images"
        )
    if len(what) > 2 and not all(runs):
        raise UserError(
            f"{what[runs.index(False)]} is not a run directory; give runs to compare, or one encoder and one source of "
            "images"
        )
    return False
