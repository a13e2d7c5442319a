"""The page in a real browser: what people see, click and type. Needs Chromium."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from carl.reporting.pages import write_comparison, write_report
from tests.browser import Browser, Page, browser, find_browser
from tests.conftest import SMALL, Run
from tests.reporting.conftest import make_gallery, make_run

Show = Callable[..., Page]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    executable = find_browser()
    if executable is None:
        need = os.environ.get("CARL_BROWSER_TESTS") == "required"
        missing = "no Chromium here, so the page was not looked at; install one (Debian: chromium) or set CARL_BROWSER"
        (pytest.fail if need else pytest.skip)(missing)
    with browser(executable) as running:
        yield running


@pytest.fixture
def show(chromium: Browser) -> Iterator[Show]:
    """Opens a file in a tab; at the end the tab has said nothing bad and asked for nothing."""
    tabs: list[Page] = []

    def open_file(file: Path, width: int = 1200, height: int = 900, scheme: str = "light") -> Page:
        page = chromium.page(width, height)
        tabs.append(page)
        page.prefer(scheme)
        page.open(file)
        return page

    yield open_file
    for page in tabs:
        assert page.complaints() == []
        assert page.requests() == []
        page.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(make_run(tmp_path_factory.mktemp("runs") / "first", make_gallery()))


def numbers(page: Page) -> list[int]:
    found: list[int] = page.run("[...document.querySelectorAll('[data-group]')].map(c => Number(c.dataset.group))")
    return found


def choose(page: Page, selector: str, value: str) -> None:
    page.run(
        f"(() => {{ const s = document.querySelector('{selector}'); s.value = '{value}';"
        "s.dispatchEvent(new Event('change')); })()"
    )


def test_the_page_opens_complete(show: Show, report: Path):
    page = show(report)
    assert page.run("document.querySelector('.verdict .word').textContent") == "healthy"
    assert page.run("document.querySelectorAll('.chart').length") >= 8
    assert page.run("document.querySelectorAll('[data-group]').length") == 10
    assert page.run("document.querySelectorAll('.query:not(.head)').length") == 10
    assert page.run("document.querySelector('img.views').naturalWidth") > 0


def test_thumbnails_show_the_pixels_of_their_images(show: Show, report: Path, tmp_path: Path):
    page = show(report)
    shot = tmp_path / "thumb.png"
    page.screenshot(shot, "#neighbours .asked .thumb")
    place = page.run("Number(document.querySelector('#neighbours .asked .thumb').dataset.image)")
    drawn = np.asarray(Image.open(shot).convert("RGB").resize((4, 4), Image.Resampling.BOX)).astype(int)
    stored = make_gallery()["thumbnails"][place][::4, ::4].astype(int)
    assert np.abs(drawn - stored)[1:3, 1:3].max() < 30  # rounded corners change the outer ones


def test_the_gallery_sorts_and_filters(show: Show, tmp_path: Path):
    gallery = make_gallery(images=80)
    gallery["group"][:40] = 3
    gallery["confidence"][gallery["group"] == 5] = 0.99
    page = show(write_report(make_run(tmp_path / "run", gallery)))
    assert numbers(page)[0] == 3
    choose(page, "#group-sort", "confidence")
    assert numbers(page)[0] == 5
    choose(page, "#group-sort", "purity")
    classes = [np.bincount(gallery["labels"][gallery["group"] == k], minlength=4) for k in numbers(page)[:8]]
    purities = [counts.max() / counts.sum() for counts in classes]
    assert purities == sorted(purities, reverse=True)
    choose(page, "#group-filter", "dead")
    assert numbers(page) == [9]
    assert "dead" in page.run("document.querySelector('[data-group]').textContent")
    choose(page, "#group-filter", "twin")
    assert "twin of #1" in page.run("document.querySelector('[data-group=\"0\"]').textContent")


def test_a_prototype_opens_with_more_images_and_its_place_on_the_map(show: Show, tmp_path: Path):
    gallery = make_gallery(images=120)
    gallery["group"][:] = 2
    page = show(write_report(make_run(tmp_path / "run", gallery)))
    page.click("[data-group]")
    assert page.run("document.querySelector('dialog').open")
    assert page.run("document.querySelector('#dialog-title').textContent") == "Prototype #2"
    assert page.run("document.querySelectorAll('.members .thumb').length") == 60
    page.wait("document.querySelector('dialog canvas').dataset.zoom === '1.00'")  # it is painted
    page.press("Escape")
    assert not page.run("document.querySelector('dialog').open")


def test_the_map_zooms_hovers_and_chooses(show: Show, tmp_path: Path):
    gallery = make_gallery(images=81)
    gallery["positions"] = np.stack(np.meshgrid(np.arange(9.0), np.arange(9.0)), axis=2).reshape(81, 2)
    page = show(write_report(make_run(tmp_path / "run", gallery)))

    def middle() -> tuple[float, float]:  # where image 40 is
        box = page.box("#plane")
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    page.mouse("mouseWheel", *middle(), deltaX=0, deltaY=-300)
    page.settle()
    assert page.run("document.querySelector('#plane').dataset.zoom") == "1.00"  # the page scrolls until it is chosen
    page.mouse("mouseMoved", *middle())
    page.settle()
    assert page.run("document.querySelector('#tip .thumb') !== null")
    assert page.run("document.querySelector('#tip').textContent").startswith("image 40")
    page.click_at(*middle())
    assert page.run("document.querySelector('#panel .subject').dataset.image") == "40"
    page.mouse("mouseWheel", *middle(), deltaX=0, deltaY=-300)
    page.wait("Number(document.querySelector('#plane').dataset.zoom) > 1.5")
    page.click("#map-reset")
    page.wait("document.querySelector('#plane').dataset.zoom === '1.00'")


def test_a_click_on_a_neighbour_goes_to_it(show: Show, report: Path):
    page = show(report)
    shown = "Number(document.querySelector('#panel .subject').dataset.image)"
    wanted = page.run("Number(document.querySelector('#panel .eight .thumb').dataset.image)")
    assert page.run(shown) != wanted
    page.click("#panel .eight .thumb")
    assert page.run(shown) == wanted
    page.click("#queries .row8 .thumb")
    assert page.run("document.querySelector('dialog .subject') !== null")


def test_the_keyboard_stays_where_it_was_after_a_neighbour_is_chosen(show: Show, report: Path):
    page = show(report)
    page.run("document.querySelector('#panel .eight .thumb').focus()")
    page.press("Enter")
    assert page.run("document.activeElement === document.querySelector('#panel .subject')")
    page.press("Tab")
    assert page.run("document.querySelector('#panel').contains(document.activeElement)")
    page.run("document.querySelector('#queries .row8 .thumb').focus()")
    page.press("Enter")
    page.run("document.querySelector('dialog .eight .thumb').focus()")
    page.press("Enter")
    assert page.run("document.activeElement.id") == "dialog-title"


def test_the_whole_map_is_shown_with_no_class_chosen(show: Show, report: Path):
    page = show(report)
    page.click("#legend button")
    assert page.run("document.querySelectorAll('#legend [aria-pressed=true]').length") == 1
    page.click("#map-reset")
    assert page.run("document.querySelectorAll('#legend [aria-pressed=true]').length") == 0


def test_arrow_keys_go_to_images_of_the_chosen_class_alone(show: Show, report: Path):
    page = show(report)
    page.click("#legend button:nth-child(2)")
    page.run("document.querySelector('#plane').focus()")
    seen = set()
    for key in ("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown"):
        page.press(key)
        seen.add(page.run("document.querySelector('#tip .soft').textContent"))
    assert seen == {"dog"}


def test_one_finger_pans_a_zoomed_map_and_scrolls_the_page_over_a_whole_one(show: Show, report: Path):
    page = show(report, width=400, height=800)
    page.call("Emulation.setTouchEmulationEnabled", enabled=True)

    def drag_up() -> tuple[float, bool]:
        """How far the page went, and whether the map did."""
        box, picture = page.box("#plane"), "document.querySelector('#plane').toDataURL()"
        still = "new Promise(done => { const y = scrollY; setTimeout(() => done(scrollY === y), 200); })"
        page.wait(still)  # an earlier drag goes on for a while
        before, drawn = page.run("scrollY"), page.run(picture)
        x, y = box["x"] + box["width"] / 2 + 30, box["y"] + box["height"] / 2
        page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        for step in range(1, 11):
            page.call("Input.dispatchTouchEvent", type="touchMove", touchPoints=[{"x": x, "y": y - 12 * step}])
        page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        page.settle()
        return page.run("scrollY") - before, page.run(picture) != drawn

    assert drag_up()[0] > 20
    page.click("#map-in")
    page.wait("Number(document.querySelector('#plane').dataset.zoom) > 1.5")
    moved, drawn = drag_up()
    assert abs(moved) < 5
    assert drawn


def test_oddities_of_a_sample_are_said_to_be_of_the_sample(show: Show, tmp_path: Path):
    gallery = make_gallery()
    gallery["total_images"] = np.int64(5000)
    page = show(write_report(make_run(tmp_path / "run", gallery)))
    assert "Of this sample of 80 of the 5,000 images, no two images are" in page.run(
        "document.querySelector('#oddities').textContent"
    )


def test_groups_without_labelled_images_show_no_purity(show: Show, tmp_path: Path):
    gallery = make_gallery()
    gallery["labels"] = np.where(gallery["group"] == 2, -1, gallery["labels"])
    page = show(write_report(make_run(tmp_path / "run", gallery)))
    assert "purity" not in page.run("document.querySelector('[data-group=\"2\"]').textContent")
    assert "purity" in page.run("document.querySelector('[data-group=\"3\"]').textContent")
    page.click("[data-group='2']")
    assert "purity" not in page.run("document.querySelector('dialog').textContent")


def test_of_fifty_thousand_prototypes_the_largest_are_shown(show: Show, tmp_path: Path):
    gallery = make_gallery(images=400, prototypes=50_000)
    gallery["group"][:] = 100 * np.arange(400)
    gallery["group"][:5] = 49_999
    gallery["group_cosine"][49_999] = 0.99  # of #0, which is empty and not in the page
    page = show(write_report(make_run(tmp_path / "run", gallery, prototypes=50_000)))
    assert numbers(page)[0] == 49_999
    assert "the largest 3,000 of 50,000; of all, 2 twin" in page.run("document.body.innerText")
    assert "396 of 50000 chosen" in page.run("document.querySelector('#group-count').textContent")
    page.click("[data-group='49999']")
    assert page.run("document.querySelector('#dialog-title').textContent") == "Prototype #49999"


def test_the_map_is_usable_with_the_keyboard(show: Show, report: Path):
    page = show(report)
    page.run("document.querySelector('#map-reset').focus()")
    page.press("Tab")
    assert page.run("document.activeElement.id") == "plane"
    page.press("+")
    page.wait("Number(document.querySelector('#plane').dataset.zoom) > 1.3")
    before = page.run("document.querySelector('#panel .subject').dataset.image")
    moved = [page.press(key) for key in ("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowRight")]
    assert len(moved) == 4
    assert not page.run("document.querySelector('#tip').hidden")
    page.press("Enter")
    assert page.run("document.querySelector('#panel .subject').dataset.image") != before


def test_charts_tell_values_by_pointer_and_by_arrow_keys(show: Show, report: Path):
    page = show(report)
    box = page.box(".chart[data-key=knn] svg")
    page.mouse("mouseMoved", box["x"] + box["width"] - 14, box["y"] + box["height"] / 2)
    page.settle()
    assert page.run("document.querySelector('#tip').textContent") == "epoch 4probe: 60"
    page.run("document.querySelector('.chart[data-key=knn] svg').focus()")
    page.press("ArrowLeft")
    assert page.run("document.querySelector('#tip').textContent") == "epoch 3probe: 50"


def test_dark_follows_the_system_and_the_button(show: Show, report: Path):
    def ground(page: Page) -> float:
        colour = page.run("getComputedStyle(document.body).backgroundColor")
        return sum(float(part) for part in colour.strip("rgb()").split(","))

    assert ground(show(report)) > 700
    page = show(report, scheme="dark")
    assert ground(page) < 150
    assert page.run("document.querySelector('#theme').textContent") == "Light"
    page.click("#theme")
    assert ground(page) > 700


@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_nothing_is_wider_than_a_phone(show: Show, report: Path, tmp_path: Path, kind: str):
    runs = [make_run(tmp_path / name, make_gallery()) for name in ("a-run-with-a-rather-long-name", "second")]
    page = show(report if kind == "run" else write_comparison(runs, tmp_path / "both.html"), width=400, height=800)
    assert page.run("document.documentElement.scrollWidth") == 400
    if kind == "run":
        page.click("[data-group]")
        assert page.run("document.querySelector('dialog').scrollWidth <= innerWidth")


def test_the_page_prints_in_light_with_its_thumbnails(show: Show, report: Path, tmp_path: Path):
    page = show(report, scheme="dark")
    page.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    page.prefer("dark", media="print")
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run("[...document.querySelectorAll('.thumb')].every(node => node.querySelector('canvas'))")
    assert page.run("document.querySelector('.chart[data-key=dead]').checkVisibility()")  # folded on the screen
    page.run("dispatchEvent(new Event('afterprint'))")
    assert not page.run("document.querySelector('details').open")
    assert page.run("document.querySelectorAll('.thumb canvas').length") == 0


def test_the_policy_of_the_page_forbids_requests_and_foreign_scripts(chromium: Browser, report: Path):
    page = chromium.page()
    page.open(report)
    assert page.run("fetch('https://example.org').then(() => 'sent', () => 'refused')") == "refused"
    page.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        "document.body.append(s); })()"
    )
    assert page.run("window.ran") is None
    page.close()


def test_hostile_names_are_text(show: Show, carl: Run, tmp_path: Path):
    names = {
        "<script>window.hacked=1<": ["script>.png", "\"quoted\" 'name'.png"],  # a closing tag across two path parts
        "猫 & собака": ["фото <img src=x onerror=window.hacked=1>.png", "日本.png"],
    }
    rng = np.random.default_rng(0)
    for folder, listed in names.items():
        (tmp_path / "photos" / folder).mkdir(parents=True)
        for number in range(20):
            name = listed[number] if number < len(listed) else f"{number}.png"
            Image.fromarray(rng.integers(0, 255, (24, 24, 3)).astype(np.uint8)).save(
                tmp_path / "photos" / folder / name
            )
    done = carl("pretrain", "photos", *SMALL, "--epochs", "1", "--out", "run")
    assert done.returncode == 0, done.stderr
    page = show(tmp_path / "run" / "report.html")
    assert page.run("window.hacked") is None
    shown: list[Any] = page.run("[...document.querySelectorAll('.odd .thumb, .row8 .thumb')].map(t => t.title)")
    text = "\n".join(shown)
    assert "<script>window.hacked=1</script>.png" in text
    assert "onerror=window.hacked=1>.png" in text
    assert "猫 & собака" in text
    assert "猫 & собака" in page.run("document.querySelector('#legend').textContent")


def test_a_comparison_tells_at_once_which_learned_more(show: Show, tmp_path: Path):
    scores = {"carl": 58.0, "byol": 64.0, "simclr": 61.0, "moco": 40.0}
    runs = [
        make_run(tmp_path / name, make_gallery(grouping="prototypes" if name == "carl" else "k-means"), name, knn=knn)
        for name, knn in scores.items()
    ]
    page = show(write_comparison(runs, tmp_path / "all.html"))
    order = page.run("[...document.querySelectorAll('.ranking tbody tr')].map(r => r.cells[0].textContent.trim())")
    assert order == ["byol", "simclr", "carl", "moco"]
    assert page.run("document.querySelector('.conclusion').textContent").startswith("byol 64.0%, simclr 61.0%")
    assert page.run("document.querySelectorAll('.chart[data-key=knn] polyline').length") == 4
    assert page.run("document.querySelectorAll('#planes canvas').length") == 4
    assert page.run("document.querySelectorAll('.query.many .answer').length") == 4 * 5
    page.click("#queries .thumb")
    assert page.run("document.querySelector('dialog').open")


@pytest.mark.parametrize(
    ("name", "gallery", "options"),
    [
        ("one epoch", make_gallery(), {"epochs": 1}),
        ("interrupted", None, {"finished": False}),
        ("no labels", make_gallery(labels=False), {}),
        ("no prototypes", make_gallery(grouping="k-means"), {"method": "simclr"}),
        ("3,000 prototypes", make_gallery(images=400, prototypes=3000), {"prototypes": 3000}),
        ("two images", make_gallery(images=2, prototypes=2), {"prototypes": 2}),
    ],
)
def test_every_kind_of_run_has_a_page(
    show: Show, tmp_path: Path, name: str, gallery: dict[str, Any] | None, options: dict[str, Any]
):
    page = show(write_report(make_run(tmp_path / "run", gallery, **options)))
    text = page.run("document.querySelector('main').innerText")
    expected = {
        "interrupted": "carl pretrain --resume", "no prototypes": "clustered by k-means",
        "3,000 prototypes": "24 of 3000 shown",
    }  # fmt: skip
    assert expected.get(name, "healthy") in text
    if name == "3,000 prototypes":
        page.click("#group-more")
        assert len(numbers(page)) == 84


def test_a_run_with_a_start_lays_its_neighbours_and_its_map_beside_those_of_the_start(show: Show, tmp_path: Path):
    gallery = make_gallery()
    other = make_gallery(seed=4)
    gallery["start_neighbours"] = other["neighbours"]
    gallery["start_embeddings"], gallery["start_positions"] = -other["embeddings"], -other["positions"]
    page = show(write_report(make_run(tmp_path / "run", gallery)))
    assert page.run("document.querySelector('.query.head').textContent").endswith(
        "most alike to the adapted encodermost alike to the encoder it started from"
    )
    assert "with the encoder it started from, " in page.run("document.querySelector('#neighbours-lead').textContent")
    first = page.run("Number(document.querySelector('#neighbours .asked .thumb').dataset.image)")
    beside = page.run(
        "[...document.querySelectorAll('.query:not(.head)')[0].querySelectorAll('[data-by^=\"the encoder\"] .thumb')]"
        ".map(t => Number(t.dataset.image))"
    )
    assert beside == gallery["start_neighbours"][first].tolist()
    page.run("document.querySelector('#plane').scrollIntoView()")
    before, after = tmp_path / "before.png", tmp_path / "after.png"
    page.screenshot(before, "#plane")
    page.run("document.querySelector('#map-start').click()")
    page.screenshot(after, "#plane")
    assert not np.array_equal(np.asarray(Image.open(before)), np.asarray(Image.open(after)))
