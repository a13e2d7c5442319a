"""Names may hold anything: they reach terminals, lists and cards as text, and files are found by them."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from carl import terminal
from carl.errors import printable
from carl.evaluation import evaluate
from carl.evaluation.protocols import EvaluationRequest
from carl.lasting_output import lasting_echo
from carl.records.weights_hash import file_hash
from carl.training.console import Console
from carl.use.embedding_files import name_as_text, name_from_text
from carl.use.encoder import load_trained
from carl.use.export.export import export
from tests.conftest import Run
from tests.reliability.conftest import assert_refused

ESCAPE = "\x1b]0;owned\x07\x1b[31m"
ODD = {
    "escape codes": f"{ESCAPE}red.png",
    "newline": "two\nlines\r.png",
    "other line ends": "a\x85b\u2028c\x0bd.png",
    "bytes": os.fsdecode(b"caf\xe9.png"),
    "escaped bytes": "caf\\udce9.png",
    "tilde": "~nosuchuser.png",
    "tilde of a user": "~root",
    "right to left": "\u202egnp.exe",
}
posix = pytest.mark.skipif(os.name == "nt", reason="Windows forbids such names")


@pytest.fixture
def odd(pixels: np.ndarray, tmp_path: Path) -> Path:
    """A folder of images with odd names."""
    (tmp_path / "odd").mkdir()
    for number, name in enumerate(ODD.values()):
        suffix = "" if name.endswith(".png") else ".png"
        Image.fromarray(pixels[number]).save(tmp_path / "odd" / f"{name}{suffix}", "PNG")
    return tmp_path / "odd"


def assert_plain(text: str) -> None:
    """Lines that change nothing on a terminal."""
    assert all(line.isprintable() for line in text.split("\n")), text


def test_printable_text_stays_and_the_rest_is_escaped():
    assert printable("caf\u00e9 \u5199\u771f 1.png") == "caf\u00e9 \u5199\u771f 1.png"
    assert printable("a\x1b[31m\nb\udcff\u202e") == "a\\x1b[31m\\nb\\udcff\\u202e"


@given(st.lists(st.sampled_from(["\\", "x5c", "udc", "e9", "\udce9", "a", "\n"])).map("".join))
def test_every_name_is_found_again_from_its_text(name: str):
    assert name_from_text(name_as_text(name)) == name
    name_as_text(name).encode()


@posix
@pytest.mark.parametrize("place", ["folder", "working directory"])
def test_a_folder_whose_name_is_not_utf8_is_embedded_and_searched(
    carl: Run, run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    name = os.fsdecode(b"caf\xe9")
    shutil.copytree(folder, tmp_path / name / "photos")
    images = "photos" if place == "working directory" else f"{name}/photos"
    if place == "working directory":
        monkeypatch.setattr(monkeypatch, "chdir", lambda path: os.chdir(Path(path) / name))
    for output in ("e.parquet", "e.csv"):
        done = carl("embed", run, images, "-o", output)
        assert done.returncode == 0, done.stderr
    for source in (images, "e.parquet"):
        done = carl("search", run, source, f"{images}/part 0/003.png", "-k", "2")
        assert done.returncode == 0, done.stderr


@posix
@pytest.mark.parametrize("source", ["folder", "file of embeddings"])
def test_search_finds_and_shows_images_of_any_name(carl: Run, run: Path, odd: Path, tmp_path: Path, source: str):
    images = "odd"
    if source == "file of embeddings":
        assert carl("embed", run, "odd", "-o", "e.parquet").returncode == 0
        images = "e.parquet"
    for name in sorted(os.listdir(odd)):
        done = carl("search", run, images, f"odd/{name}", "-k", "20")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.split("\n")
        assert len(lines) == 1 + 7 + 1 + 1, done.stdout  # the query, the other images, the sheet, the end
        assert_plain(done.stdout)
        assert (tmp_path / "search.html").read_text().count("data:image/png") == 8


@posix
@pytest.mark.usefixtures("odd")
def test_curated_lists_have_one_line_per_image_and_links_work(carl: Run, run: Path, tmp_path: Path):
    done = carl("curate", run, "odd", "--keep", "8", "--links", "chosen", "-o", "list.txt")
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "list.txt").read_text().splitlines()) == 8
    assert sorted(os.listdir(tmp_path / "chosen")) == sorted(os.listdir(tmp_path / "odd"))
    done = carl("curate", run, "odd", "--keep", "4", "-o", "list.csv")
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "list.csv", newline="") as file:
        assert len(list(csv.reader(file))) == 1 + 8


@posix
def test_class_names_change_nothing_on_a_terminal(carl: Run, folder: Path, tmp_path: Path):
    for number, part in enumerate(sorted(folder.iterdir())):
        shutil.copytree(part, tmp_path / f"{ESCAPE}photos" / f"{ESCAPE}{number}\nclass")
    done = carl("data", "info", f"{ESCAPE}photos")
    assert done.returncode == 0, done.stderr
    assert "class" in done.stdout
    assert_plain(done.stdout)


@posix
def test_a_query_or_folder_that_begins_with_a_tilde_is_found(carl: Run, run: Path, folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "~old")
    shutil.copy(folder / "part 0" / "003.png", tmp_path / "~backup.png")
    for query in ("~backup.png", "~old/part 0/003.png"):
        done = carl("search", run, "~old", query, "-k", "2")
        assert done.returncode == 0, done.stderr
    assert carl("embed", run, "~old", "-o", "e.parquet").returncode == 0
    done = carl("search", run, "e.parquet", "~old/part 0/003.png", "-k", "2")
    assert done.returncode == 0, done.stderr
    done = carl("curate", run, "e.parquet", "--keep", "5", "--links", "chosen")
    assert done.returncode == 0, done.stderr
    assert_refused(carl("search", run, folder, "~nosuchuser/a.png"), ["~nosuchuser/a.png"])


@posix
@pytest.mark.parametrize("form", ["safetensors", "timm"])
def test_names_are_plain_text_in_a_model_card(run: Path, tmp_path: Path, form: str):
    markdown = pytest.importorskip("markdown")
    hostile = "<img src=x onerror=alert(1)>\n# [x](y) ``` `a` *b*"
    shutil.copytree(run, tmp_path / f"run{hostile}")
    about = json.loads((run / "environment.json").read_text()) | {"device": hostile, "command": ["carl", hostile]}
    (tmp_path / f"run{hostile}" / "environment.json").write_text(json.dumps(about))
    result = {"protocol": hostile, "kind": hostile, "data": hostile, "accuracy": {"trained": {hostile: 1.0}}}
    result["encoder_hash"] = file_hash(run / "encoder.safetensors")
    (tmp_path / f"run{hostile}" / "results").mkdir(exist_ok=True)
    (tmp_path / f"run{hostile}" / "results" / "a.json").write_text(json.dumps(result))
    trained = load_trained(tmp_path / f"run{hostile}")
    trained = replace(trained, data=replace(trained.data, name=hostile))
    card = export(trained, form, tmp_path / f"out ``` {form}").card.read_text()
    rendered = markdown.markdown(card, extensions=["fenced_code"])
    assert rendered.count("&lt;img src=x onerror=alert(1)&gt;") > 5
    assert not re.search("<(img|a|em) ?", rendered)
    assert rendered.count("<h1>") == 1


WAYS = {
    "warning": terminal.warn,
    "line of training": lambda text: Console().say(text),
    "line of compare, reproduce and --watch": lambda text: lasting_echo()(text),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_a_terminal_escapes_what_it_would_act_on(way: str, capsys: pytest.CaptureFixture[str]):
    WAYS[way](f"photos/{ESCAPE}a.png [b]")
    written = "".join(capsys.readouterr())
    assert_plain(written)
    assert "photos/\\x1b]0;owned\\x07\\x1b[31ma.png [b]" in written


def test_progress_on_a_terminal_escapes_what_it_would_act_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    terminal.show_progress(ESCAPE, 1, 2)
    terminal.show_line(ESCAPE)
    assert "\x1b" not in capsys.readouterr().err


def test_tables_of_results_escape_what_a_terminal_would_act_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(evaluate, "evaluate", lambda request: {})
    monkeypatch.setattr(evaluate, "table", lambda result: [ESCAPE])
    evaluate.evaluate_and_show(EvaluationRequest("run"))
    assert_plain(capsys.readouterr().out)


@pytest.mark.parametrize("what", ["group", "look", "report"])
def test_names_that_are_no_text_are_refused_before_any_work(
    carl: Run, run: Path, folder: Path, tmp_path: Path, what: str
):
    (tmp_path / "names.json").write_text('{"groups": {"0": "half a letter: \\ud800"}}')
    words = {"group": ["group", run, folder], "look": ["report", run, folder], "report": ["report", run]}[what]
    done = carl(*words, "--names", "names.json")
    assert_refused(done, ["names.json is not a file of names", "is not text"])
    assert os.listdir(tmp_path) == ["names.json"]
