"""What a person does with images in the page: select, take away, name, tag, filter. Needs Chromium."""

from __future__ import annotations

import csv
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from carl.records.given_names import read_names
from carl.reporting.pages import write_images_report, write_report
from carl.reporting.watch import WatchServer
from carl.use.links import LinksRequest, link_listed
from tests.browser import Browser, Page
from tests.reporting.conftest import flagged, listed, make_gallery, make_run
from tests.reporting.test_page_in_browser import Show, choose, chromium, show

__all__ = ["chromium", "show"]  # fixtures

SIDE = 9
NAMES = [f"photos/{'birds' if i % 2 else 'cats'}/<b>{i:03d}</b>, one.jpg" for i in range(SIDE * SIDE)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """81 images on a grid of the map: image 9 r + c is in column c and row r from below."""
    gallery = flagged(make_gallery(images=SIDE * SIDE, names=NAMES))
    axis = np.arange(float(SIDE))
    gallery["positions"] = np.stack(np.meshgrid(axis, axis), axis=2).reshape(SIDE * SIDE, 2)
    folder = tmp_path_factory.mktemp("acting")
    for name in NAMES:
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "data" / name).write_text(name)
    return write_report(make_run(folder / "run", gallery, source=str(folder / "data")))


def place(page: Page, image: int) -> tuple[float, float]:
    """Where an image of the grid is on the screen; its neighbours are 0.93 / 8 of the smaller side away."""
    box = page.box("#plane")
    step = 0.93 * min(box["width"], box["height"]) / (SIDE - 1)
    row, column = divmod(image, SIDE)
    return box["x"] + box["width"] / 2 + (column - 4) * step, box["y"] + box["height"] / 2 - (row - 4) * step


def around(page: Page, image: int, reach: float = 0.75) -> list[tuple[float, float]]:
    """A way around an image and its eight neighbours, `reach` of a step beyond them."""
    (x, y), (other, _) = place(page, image), place(page, image + 1)
    far = (1 + reach * 0.6) * (other - x)
    return [(x - far, y - far), (x + far, y - far), (x + far, y + far), (x - far, y + far)]


def selected(page: Page) -> str:
    found: str = page.run("document.querySelector('#selection-count').textContent")
    return found


def saved(page: Page, folder: Path, selector: str, name: str) -> Path:
    page.save_into(folder)
    page.click(selector)
    deadline = time.monotonic() + 30
    while not (folder / name).is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (folder / name).is_file(), sorted(folder.iterdir())
    return folder / name


NINE = sorted(40 + 9 * row + column for row in (-1, 0, 1) for column in (-1, 0, 1))


@pytest.mark.parametrize("way", ["box", "lasso", "shift"])
def test_images_are_selected_on_the_map_and_their_list_is_saved(show: Show, report: Path, tmp_path: Path, way: str):
    page = show(report)
    assert page.run("document.querySelector('#selection').hidden")
    if way == "shift":
        corners = around(page, 40)
        page.mouse("mousePressed", *corners[0], button="left", clickCount=1, modifiers=8)
        for corner in corners[1:]:
            page.mouse("mouseMoved", *corner, button="left", buttons=1, modifiers=8)
        page.mouse("mouseReleased", *corners[-1], button="left", clickCount=1, modifiers=8)
    else:
        page.click(f"#map-{way}")
        corners = around(page, 40)
        page.drag([corners[0], corners[2]] if way == "box" else corners)
    page.settle()
    assert selected(page) == "9 images selected"
    with saved(page, tmp_path, "#selection .take button", "selection.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [NAMES[i] for i in NINE]
    assert [int(row["row"]) for row in rows] == NINE
    assert {row["path"]: row["flags"] for row in rows}[NAMES[40]] == "too dark"
    page.click("#selection-clear")
    assert page.run("document.querySelector('#selection').hidden")


def test_a_selection_becomes_a_folder_of_links_by_the_command_of_the_page(show: Show, report: Path, tmp_path: Path):
    page = show(report)
    page.click("#map-box")
    corners = around(page, 40)
    page.drag([corners[0], corners[2]])
    listing = saved(page, tmp_path, "#selection button[title^='Saves']", "selection.csv")
    page.wait("document.querySelector('#selection code') !== null")
    words = page.run("document.querySelector('#selection code').textContent").split(" ")
    base = report.parent.parent / "data"
    assert words == ["carl", "links", "selection.csv", "selection-links", "--base", str(base)]
    list(link_listed(LinksRequest(listing, tmp_path / words[3], base)))
    assert sorted(path.name for path in (tmp_path / words[3]).rglob("*.jpg")) == sorted(
        Path(NAMES[i]).name for i in NINE
    )


def test_a_finger_draws_a_lasso_on_a_phone(show: Show, report: Path):
    page = show(report, width=360, height=780)
    assert page.run("document.documentElement.scrollWidth") == 360
    page.click("#map-lasso")
    page.drag(around(page, 40), touch=True)
    assert selected(page) == "9 images selected"
    assert page.run("document.documentElement.scrollWidth") == 360
    assert page.run("document.querySelector('#selection').getBoundingClientRect().bottom <= innerHeight")


def test_the_keyboard_alone_selects_and_saves(show: Show, report: Path):
    page = show(report)
    page.press("m")
    assert page.run("document.activeElement.id") == "plane"
    for key in ("ArrowRight", " ", "ArrowRight", " "):
        page.press(key)
    assert selected(page) == "2 images selected"
    page.press(" ")
    assert selected(page) == "1 image selected"
    page.press("g")
    group = make_gallery(images=81)["group"]
    assert selected(page) in {f"{(group == k).sum()} images selected" for k in range(8)}
    page.press("b")
    assert page.run("document.querySelector('#map-box').getAttribute('aria-pressed')") == "true"
    page.run("document.activeElement.blur()")
    page.press("?")
    assert page.run("document.querySelector('#dialog-title').textContent") == "Keys"
    page.press("Escape")
    page.press("/")
    assert page.run("document.activeElement.id") == "query"
    bare = "[...document.querySelectorAll('button, input, select, canvas[tabindex]')].filter(n => !(n.textContent.trim() || n.ariaLabel || n.labels?.length)).length"  # noqa: E501
    assert page.run(bare) == 0  # everything to act on has a name


def test_images_are_found_by_their_path_and_selected(show: Show, report: Path):
    page = show(report)
    page.click("#query")
    page.type("birds 01")
    page.wait("document.querySelector('#found p') !== null")
    assert page.run("document.querySelector('#found p').textContent") == "6 images found"
    assert page.run("document.querySelectorAll('#found .thumb').length") == 6
    assert page.run("document.querySelector('#found figcaption').textContent") == "b>, one.jpg"  # after the last slash
    assert page.run("document.querySelector('#found figcaption .whole').textContent") == " one.jpg"
    page.click("#found-select")
    assert selected(page) == "6 images selected"
    page.type("zzz")
    page.wait("document.querySelector('#found p').textContent === '0 images found'")


def test_flags_are_counted_open_their_images_and_filter_map_and_groups(show: Show, report: Path):
    page = show(report)
    counts = page.run(
        "[...document.querySelectorAll('.flag')].map(f => f.innerText.split('\\n').slice(0, 2).join(' '))"
    )
    assert counts == ["17 too dark", "12 <i>blurry</i>", "1 exact duplicate"]
    page.click("[data-flag='1']")
    assert page.run("document.querySelector('#dialog-title').textContent") == "<i>blurry</i> (12)"
    assert page.run("[...document.querySelectorAll('dialog .named .thumb')].map(t => Number(t.dataset.image))") == list(
        range(0, 81, 7)
    )
    page.click("dialog .controls button")
    page.press("Escape")
    assert selected(page) == "12 images selected"
    page.click("[data-flag='2']")
    assert page.run("[...document.querySelectorAll('dialog .pair .thumb')].map(t => Number(t.dataset.image))") == [
        0,
        80,
    ]
    page.press("Escape")
    choose(page, "#map-show", "flag1")
    page.click_at(*place(page, 8))  # image 8 is not blurry, so it is not there to be chosen
    before = page.run("document.querySelector('#panel .subject').dataset.image")
    page.click_at(*place(page, 7))
    assert page.run("document.querySelector('#panel .subject').dataset.image") == "7" != before
    choose(page, "#group-filter", "flag2")
    assert page.run("document.querySelectorAll('[data-group]').length") == 1


def test_groups_are_named_and_images_tagged_and_the_file_is_read_again(show: Show, report: Path, tmp_path: Path):
    page = show(report)
    page.click("[data-group='0']")
    page.click("#group-name")
    page.type("<b>owls</b>")
    page.press("Enter")
    assert page.run("document.querySelector('#dialog-title').textContent") == "Prototype #0 <b>owls</b>"
    take, canvas = page.box("dialog .take"), page.box("dialog canvas")
    assert take["y"] < canvas["y"] + canvas["height"]  # what can be done is beside the map, not below it
    page.click("dialog .take input")
    page.type("to keep")
    page.press("Enter")
    page.press("Escape")
    assert page.run("document.querySelector('[data-group=\"0\"] b').textContent") == "#0 <b>owls</b>"
    assert "1 group name and 1 tag" in page.run("document.querySelector('#names').textContent")
    file = saved(page, tmp_path, "#names-save", "names.json")
    names = read_names(file)
    members = np.flatnonzero(make_gallery(images=81)["group"] == 0)
    assert names.groups == {0: "<b>owls</b>"}
    assert sorted(names.tags["to keep"]) == sorted(NAMES[i] for i in members)
    again = show(write_report(report.parent, tmp_path / "again.html", names=file))
    assert again.run("document.querySelector('[data-group=\"0\"] b').textContent") == "#0 <b>owls</b>"
    assert again.run("document.querySelector('#tag-list').textContent") == f"to keep ({len(members)})\u00d7"
    again.click("#query")
    again.type("owls")
    again.wait("document.querySelector('#found p') !== null")
    assert again.run("document.querySelector('#found p').textContent") == f"{len(members)} images found"


def test_every_image_of_a_large_set_is_reached_by_its_group(show: Show, tmp_path: Path):
    gallery = flagged(listed(make_gallery(images=60), 900))
    for name in ("views", "view_places", "random_neighbours", "labels", "class_names"):
        del gallery[name]
    page = show(
        write_images_report(
            gallery,
            tmp_path / "images.html",
            title="photos",
            facts=[("encoder", "timm:<b>x</b>")],
            folder=tmp_path,
        )
    )
    assert "60 of 900 images" in page.run("document.querySelector('#map-lead').textContent")
    seen = []
    for number in range(8):
        page.click(f"[data-group='{number}']")
        while True:
            seen += page.run("[...document.querySelectorAll('.members .thumb')].map(t => Number(t.dataset.image))")
            if not page.run("(b => b && !b.disabled)(document.querySelector('.pager button:nth-of-type(2)'))"):
                break
            page.click(".pager button:nth-of-type(2)")
        page.press("Escape")
    assert sorted(seen) == list(range(900))
    page.click("[data-group='0']")
    page.run("[...document.querySelectorAll('.members .thumb.listed')][0].click()")
    assert "not among them" in page.run("document.querySelector('dialog').textContent")


def test_ticks_tell_values_apart_and_are_not_cut_off(show: Show, tmp_path: Path):
    run = make_run(tmp_path / "run", None)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record |= {"loss": 1155 + record["loss"] / 100} if "loss" in record else {}
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    page = show(write_report(run))
    texts = page.run("[...document.querySelectorAll('.chart[data-key=loss] text')].map(t => t.textContent)")
    values = [text for text in texts if text.startswith("1,155")]
    assert len(values) >= 3
    assert len(set(values)) == len(values)
    assert page.run("Math.min(...[...document.querySelectorAll('.chart text')].map(t => t.getBBox().x))") >= 0


def test_a_single_point_has_the_epochs_of_the_other_charts_and_ticks_around_its_value(show: Show, tmp_path: Path):
    run = make_run(tmp_path / "run", None)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for place, record in enumerate(r for r in records if r["kind"] == "probe"):
        record.pop("rank_me", None)
        record |= {"rank_me": 0.00009} if place == 0 else {}
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    page = show(write_report(run))
    shown = {
        key: page.run(f"[...document.querySelectorAll('.chart[data-key={key}] text')].map(t => t.textContent)")
        for key in ("loss", "rank_me")
    }
    epochs = [text for text in shown["loss"] if text in shown["rank_me"]]
    assert len(epochs) >= 3
    assert all(0.00007 < float(text) < 0.00011 for text in shown["rank_me"] if text not in epochs)


def test_a_page_that_watches_a_run_follows_it(chromium: Browser, tmp_path: Path):
    run = make_run(tmp_path / "run", None, finished=False)
    with WatchServer(run) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        page = chromium.page()
        page.open_address(server.address)
        assert page.run("document.querySelector('.verdict .word').textContent").strip() == "training"
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"kind": "step", "step": 99, "epoch": 5.0, "loss": 0.25, "images_per_second": 100.0}\n')
            file.write('{"kind": "event", "event": "finished", "seconds": 75.0}\n')
        page.wait("document.querySelector('.verdict .word').textContent.trim() === 'healthy'")
        assert page.run("document.querySelector('.chart[data-key=loss] output').textContent") == "0.25"
        page.wait("document.querySelector('#live-note').textContent === 'The run has finished.'")
        np.savez(run / "gallery.npz", **make_gallery())
        page.wait(
            "document.querySelector('#plane') !== null && document.querySelector('#plane').dataset.zoom === '1.00'"
        )
        assert page.complaints() == []
        assert [url for url in page.requests() if not url.startswith(server.address)] == []
        page.close()
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_a_page_of_a_hundred_thousand_images_is_under_30_mb_and_opens_in_two_seconds(chromium: Browser, tmp_path: Path):
    gallery = flagged(listed(make_gallery(images=10_000, prototypes=300, side=48), 100_000, side=24))
    rng = np.random.default_rng(0)
    for name in ("thumbnails", "listed_thumbnails"):  # noise is harder to code than photos
        noise = rng.integers(-25, 25, gallery[name].shape, dtype=np.int16)
        gallery[name] = np.clip(gallery[name] + noise, 0, 255).astype(np.uint8)
    file = write_images_report(
        gallery,
        tmp_path / "large.html",
        title="photos",
        facts=[("encoder", "x")],
        folder=tmp_path,
        projection="pca",
    )
    assert file.stat().st_size < 30_000_000
    page = chromium.page()
    page.call("Performance.enable", timeDomain="threadTicks")  # of the page's own thread, however busy the machine is
    page.open(file)
    page.wait("document.querySelector('#plane').dataset.zoom !== undefined")
    metrics = {one["name"]: one["value"] for one in page.call("Performance.getMetrics")["metrics"]}
    assert metrics["TaskDuration"] < 2
    page.click("#query")
    page.type("099999")
    page.wait("document.querySelector('#found p') !== null")
    assert page.run("document.querySelector('#found p').textContent") == "1 image found"
    assert page.complaints() == []
    page.close()
