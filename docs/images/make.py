"""Screenshots of reports, by headless Chromium: python -m docs.images.make RUN [RUN ...] [--map tsne] [--into FOLDER]

Of the first run the whole page and each of its parts; of several runs also their comparison.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from PIL import Image
from tests.browser import Browser, Page, browser, find_browser

from carl.reporting.pages import write_comparison, write_report

PARTS = ("glance", "curves", "groups", "map", "neighbours", "odd", "views", "setup")
WIDTH, HEIGHT, SHARP = 1200, 900, 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--map", default="pca", choices=["pca", "tsne", "umap"])
    parser.add_argument("--into", default=Path(__file__).parent, type=Path, metavar="FOLDER")
    options = parser.parse_args()
    executable = find_browser()
    if executable is None:
        sys.exit("no Chromium here; install one (Debian: chromium) or set CARL_BROWSER")
    options.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browser(executable) as running:
        photograph_run(running, write_report(options.runs[0], Path(folder) / "run.html", options.map), options.into)
        if len(options.runs) > 1:
            file = write_comparison(options.runs, Path(folder) / "comparison.html", options.map)
            photograph_comparison(running, file, options.into)
    for picture in [*options.into.glob("report*.png"), *options.into.glob("comparison*.png")]:
        shrink(picture)


def shrink(picture: Path) -> None:
    """256 colours look the same here and take a third of the bytes."""
    with Image.open(picture) as image:
        fewer = image.convert("RGB").quantize(256)
    fewer.save(picture, optimize=True)


def photograph_run(running: Browser, file: Path, into: Path) -> None:
    page = opened(running, file)
    page.screenshot(into / "report.png")
    page.resize(WIDTH, HEIGHT, SHARP)
    page.run("document.querySelector('.bar').style.display = 'none'")  # it would lie over the parts
    for part in PARTS:
        if page.run(f"document.getElementById('{part}') !== null"):
            page.screenshot(into / f"report-{part}.png", f"#{part}", margin=20)
            if part == "groups":  # its first two rows are the picture of the README
                page.screenshot(into / "report-groups-top.png", "#groups", margin=20, height=717)
    if page.run("document.querySelector('[data-group]') !== null"):
        page.click("[data-group]")
        page.wait("document.querySelector('dialog canvas').dataset.zoom !== undefined")
        page.screenshot(into / "report-prototype.png", "dialog")
        page.press("Escape")
    page.close()
    photograph_first_screen(running, file, into / "report-dark.png", "dark", WIDTH, HEIGHT)
    photograph_first_screen(running, file, into / "report-phone.png", "light", 400, 860)


def photograph_comparison(running: Browser, file: Path, into: Path) -> None:
    page = opened(running, file)
    page.screenshot(into / "comparison.png")
    page.close()
    photograph_first_screen(running, file, into / "comparison-glance.png", "light", WIDTH, 700)


def photograph_first_screen(running: Browser, file: Path, target: Path, scheme: str, width: int, height: int) -> None:
    page = opened(running, file, scheme, width, height)
    page.resize(width, height, SHARP)
    page.settle()
    page.screenshot(target, "html", height=height)
    page.close()


def opened(running: Browser, file: Path, scheme: str = "light", width: int = WIDTH, height: int = HEIGHT) -> Page:
    page = running.page(width, height)
    page.prefer(scheme)
    page.open(file)
    page.wait("[...document.querySelectorAll('canvas')].every(canvas => canvas.dataset.zoom !== undefined)")
    return page


if __name__ == "__main__":
    main()
