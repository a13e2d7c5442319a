"""Screenshots of reports, by headless Chromium: python -m docs.images.make [RUN|PAGE] [--comparison PAGE]

RUN|PAGE gives the parts of a report, the map with a selection. PAGE is one that was written already, for example by
`carl report ENCODER IMAGES`. --comparison gives the first screen of the comparison.html that `carl compare` writes.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image
from tests.browser import Browser, Page, browser, find_browser

from carl.reporting.pages import write_report

# Parts of a page, and the height at which a long one is cut. What follows a dot is no part of the page's name.
PARTS = {
    "glance": None,
    "quality": None,
    "groups": 900.0,
    "groups.top": 640.0,
    "map": None,
    "neighbours": 800.0,
    "odd": 700.0,
}
WIDTH, HEIGHT, SHARP = 1200, 900, 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN|PAGE")
    parser.add_argument("--comparison", type=Path, metavar="PAGE")
    parser.add_argument("--map", default="auto", choices=["auto", "pca", "tsne", "umap"])
    parser.add_argument("--only", nargs="+", default=[*PARTS, "group", "dark", "phone"], metavar="PART")
    parser.add_argument(
        "--lasso", nargs=2, type=float, default=(0.34, 0.4), metavar=("X", "Y"), help="where on the map to select"
    )
    parser.add_argument("--into", default=Path(__file__).parent, type=Path, metavar="FOLDER")
    options = parser.parse_args()
    executable = find_browser()
    if executable is None:
        sys.exit("no Chromium here; install one (Debian: chromium) or set CARL_BROWSER")
    options.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browser(executable) as running:
        made: list[Path] = []
        if options.run is not None:
            run: Path = options.run
            page = run if run.is_file() else write_report(run, Path(folder) / "run.html", options.map)
            made += photograph_page(running, page, options.into, options.only, options.lasso)
        if options.comparison is not None:
            made += photograph_comparison(running, options.comparison, options.into)
    for picture in made:
        shrink(picture)


def shrink(picture: Path) -> None:
    """WebP takes a sixth of the bytes, and photos keep their colours."""
    with Image.open(picture) as image:
        image.convert("RGB").save(picture.with_suffix(".webp"), quality=85, method=6)
    picture.unlink()


def photograph_page(
    running: Browser, file: Path, into: Path, parts: Sequence[str], lasso: tuple[float, float]
) -> Iterator[Path]:
    page = opened(running, file)
    page.resize(WIDTH, HEIGHT, SHARP)
    page.run("document.querySelector('.bar').style.display = 'none'")  # it would lie over the parts
    for part in PARTS:
        name, target = part.partition(".")[0], into / f"report-{part.replace('.', '-')}.png"
        if part in parts and page.run(f"document.getElementById('{name}') !== null"):
            if part == "map":
                select_on_map(page, *lasso)
            page.screenshot(target, f"#{name}", margin=20, height=PARTS[part])
            page.run("document.querySelector('#selection-clear')?.click()")
            yield target
    if "group" in parts and page.run("document.querySelector('[data-group]') !== null"):
        page.click("[data-group]")
        page.wait("document.querySelector('dialog canvas').dataset.zoom !== undefined")
        page.screenshot(into / "report-group.png", "dialog")
        page.press("Escape")
        yield into / "report-group.png"
    page.close()
    if "dark" in parts:
        yield photograph_first_screen(running, file, into / "report-dark.png", "dark", WIDTH, HEIGHT, "#map")
    if "phone" in parts:
        yield photograph_first_screen(running, file, into / "report-phone.png", "light", 360, 780, "#map")


def select_on_map(page: Page, x: float, y: float) -> None:
    """A lasso around a place of the map, from (0, 0) to (1, 1); the bar with the selection is put below the map."""
    page.click("#map-lasso")
    box = page.box("#plane")
    centre = box["x"] + x * box["width"], box["y"] + y * box["height"]
    turns = [2 * math.pi * k / 24 for k in range(25)]
    page.drag([(centre[0] + 120 * math.cos(turn), centre[1] + 105 * math.sin(turn)) for turn in turns])
    page.mouse("mouseMoved", 5, 5)
    page.run(
        "(() => { const bar = document.querySelector('#selection'); bar.style.position = 'static';"
        "document.querySelector('#map').append(bar); })()"
    )
    page.settle()


def photograph_comparison(running: Browser, file: Path, into: Path) -> list[Path]:
    return [photograph_first_screen(running, file, into / "comparison-level.png", "light", WIDTH, 700)]


def photograph_first_screen(
    running: Browser, file: Path, target: Path, scheme: str, width: int, height: int, part: str = "html"
) -> Path:
    page = opened(running, file, scheme, width, height)
    page.resize(width, height, SHARP)
    page.run("document.querySelector('.bar').style.position = 'static'")  # else it lies over the part
    page.settle()
    page.screenshot(target, part, height=height, margin=0 if part == "html" else 14)
    page.close()
    return target


def opened(running: Browser, file: Path, scheme: str = "light", width: int = WIDTH, height: int = HEIGHT) -> Page:
    page = running.page(width, height)
    page.prefer(scheme)
    page.open(file)
    page.wait("[...document.querySelectorAll('canvas')].every(canvas => canvas.dataset.zoom !== undefined)")
    return page


if __name__ == "__main__":
    main()
