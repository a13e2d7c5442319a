"""Search finds what is most like a query, and shows it on a page that needs nothing else."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from carl.errors import UserError
from carl.use import embed as embed_module
from carl.use.encoder import TrainedModel
from carl.use.search import search
from tests.conftest import Run
from tests.reliability.conftest import assert_refused


def nearest_by_hand(trained: TrainedModel, pixels: np.ndarray, query: int) -> list[int]:
    features = trained.represent(pixels).features
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    similarity = unit @ unit[query]
    similarity[query] = -2
    return np.argsort(-similarity).tolist()


@pytest.mark.parametrize("part", [4096, 10])
def test_the_nearest_by_cosine_are_found_the_query_itself_left_out(
    trained: TrainedModel, folder: Path, pixels: np.ndarray, part: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(embed_module, "PART", part)  # row groups of the file: the search goes through them
    queries = [str(folder / "part 0" / "003.png"), str(folder / "part 1" / "080.png")]
    _, answers = search(trained, str(folder), queries, count=5)
    for answer, number in zip(answers, (3, 80), strict=True):
        assert [n.row for n in answer.neighbours] == nearest_by_hand(trained, pixels, number)[:5]
        values = [n.similarity for n in answer.neighbours]
        assert values == sorted(values, reverse=True)


def test_an_image_from_elsewhere_finds_its_copy(
    trained: TrainedModel, folder: Path, pixels: np.ndarray, tmp_path: Path
):
    from PIL import Image

    Image.fromarray(pixels[42]).save(tmp_path / "copy.png")
    _, (answer,) = search(trained, str(folder), [str(tmp_path / "copy.png")], count=1)
    assert answer.neighbours[0].name == str(folder / "part 0" / "042.png")
    assert answer.neighbours[0].similarity == pytest.approx(1, abs=1e-5)


def test_the_command_prints_and_writes_a_page_that_needs_nothing_else(
    carl: Run, run: Path, folder: Path, tmp_path: Path
):
    query = folder / "part 0" / "003.png"
    done = carl("search", run, folder, query, "-k", "3", "-o", "sheet.html")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == str(query)
    assert len(lines) == 5  # the query, three images, the sheet
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)


def test_a_file_of_embeddings_is_searched_without_the_images_being_read_again(
    carl: Run, run: Path, folder: Path, trained: TrainedModel, monkeypatch: pytest.MonkeyPatch
):
    assert carl("embed", run, folder, "-o", "e.parquet").returncode == 0
    seen: list[int] = []
    whole = TrainedModel.represent
    monkeypatch.setattr(TrainedModel, "represent", lambda self, pixels: seen.append(len(pixels)) or whole(self, pixels))
    done = carl("search", run, "e.parquet", folder / "part 0" / "003.png", "-k", "2")
    assert done.returncode == 0, done.stderr
    assert not seen  # the query is one of the images too


def test_a_neighbour_whose_file_is_gone_is_named(carl: Run, run: Path, folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "photos")
    assert carl("embed", run, "photos", "-o", "e.parquet").returncode == 0
    gone = tmp_path / "photos" / "part 0" / "003.png"
    gone.unlink()
    done = carl("search", run, "e.parquet", "photos/part 0/004.png", "-k", "95")
    assert done.returncode == 2
    assert "003.png is no longer there; embed the images again" in done.stderr


def test_embeddings_of_other_weights_are_refused(carl: Run, run: Path, simclr_run: Path, folder: Path):
    assert carl("embed", simclr_run, folder, "-o", "e.parquet").returncode == 0
    done = carl("search", run, "e.parquet", folder / "part 0" / "003.png")
    assert done.returncode == 2
    assert "made with other weights" in done.stderr


def test_images_of_an_array_are_named_by_number_and_shown(carl: Run, run: Path, small_data: Path, tmp_path: Path):
    done = carl("search", run, small_data, "test#4", "train#7", "-k", "2")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "search.html").read_text().count("data:image/png;base64,") == 6


def test_a_query_that_is_no_image_is_one_line(trained: TrainedModel, folder: Path, tmp_path: Path):
    (tmp_path / "text.png").write_text("no image")
    for query, words in [("nothing.png", "neither a file nor the name"), (str(tmp_path / "text.png"), "not an image")]:
        with pytest.raises(UserError, match=words):
            search(trained, str(folder), [query])


def test_the_same_search_twice_at_once_embeds_once_and_both_answer(
    run: Path,
    trained: TrainedModel,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    queries = [str(folder / "part 0" / "003.png")]
    found: list[object] = []
    said: list[str] = []
    whole, begun, seen = TrainedModel.represent, threading.Event(), []
    second = threading.Thread(target=lambda: found.append(search(trained, str(folder), queries)[1]))

    def represent(self: TrainedModel, pixels: np.ndarray) -> object:
        seen.append(len(pixels))
        if not begun.is_set():
            begun.set()
            second.start()
            while "waiting for another process that embeds the same images" not in "".join(said):
                assert second.is_alive(), "it did not wait"
                said.append(capsys.readouterr().err)
        return whole(self, pixels)

    monkeypatch.setattr(TrainedModel, "represent", represent)
    _, answers = search(trained, str(folder), queries)
    second.join()
    assert found == [answers]
    assert sum(seen) == 96
    assert [path.suffix for path in (tmp_path / "cache" / "embeddings").iterdir()] == [".parquet"]


@pytest.mark.parametrize("place", ["a file", "no home"])
def test_without_a_cache_it_is_refused_and_the_remedy_is_named(
    carl: Run, run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "file" / "cache"))
    if place == "no home":
        for name in ("CARL_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    for command in (["search", run, folder, folder / "part 0" / "003.png"], ["curate", run, folder, "--keep", "3"]):
        assert_refused(carl(*command), ["no cache", "set CARL_CACHE"])
