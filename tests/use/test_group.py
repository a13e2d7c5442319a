"""`carl group` from the command line: table, page, names, links, labels, and what it refuses."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import carl as package
from carl.errors import UserError
from carl.records.given_names import read_names
from carl.use import group as group_module
from carl.use.encoder import TrainedModel
from carl.use.group import group_folders, group_images
from carl.use.grouping import judged as judged_module
from carl.use.grouping.views import seen_differently
from carl.use.requests import GroupRequest
from tests.browser import browser, find_browser
from tests.conftest import Run


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged_module, "RESTARTS", 2)
    monkeypatch.setattr(group_module, "head_count", lambda groups: 2)


@pytest.fixture
def photos(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "photos")
    return tmp_path / "photos"


def rows_of(path: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pq.read_table(path).to_pylist()
    return rows


def test_every_image_gets_a_group_a_confidence_and_a_runner_up(carl: Run, run: Path, photos: Path, tmp_path: Path):
    done = carl("group", run, "photos", "--groups", "4")
    assert done.returncode == 0, done.stderr
    assert "96 images in 4 groups" in done.stdout
    rows = rows_of(tmp_path / "groups.parquet")
    assert [row["path"] for row in rows] == [str(p.relative_to(tmp_path)) for p in sorted(photos.rglob("*.png"))]
    groups = np.array([row["group"] for row in rows])
    assert set(groups) == {0, 1, 2, 3}
    assert (np.diff(np.bincount(groups)) <= 0).all()  # the largest is the first
    assert all(row["runner_up"] != row["group"] and 0 < float(str(row["confidence"])) <= 1 for row in rows)


def test_without_a_number_of_groups_one_is_proposed_with_its_range(carl: Run, run: Path, photos: Path, tmp_path: Path):
    done = carl("group", run, "photos")
    assert done.returncode == 0, done.stderr
    proposed = re.match(r"(\d+) groups proposed \(.*\); choose another number with --groups", done.stdout)
    assert proposed
    assert len({row["group"] for row in rows_of(tmp_path / "groups.parquet")}) <= int(proposed[1])


def test_a_csv_has_the_same_rows_and_is_replaced_without_force(carl: Run, run: Path, photos: Path, tmp_path: Path):
    assert carl("group", run, "photos", "--groups", "3", "-o", "g.parquet").returncode == 0
    for _ in range(2):
        done = carl("group", run, "photos", "--groups", "3", "-o", "g.csv", "--force")
        assert done.returncode == 0, done.stderr
    assert carl("group", run, "photos", "--groups", "3", "-o", "g.csv").returncode == 0
    with open(tmp_path / "g.csv", newline="") as file:
        found = [(row["path"], int(row["group"])) for row in csv.DictReader(file)]
    assert found == [(row["path"], row["group"]) for row in rows_of(tmp_path / "g.parquet")]


def test_the_page_shows_all_groups_and_needs_nothing_else(carl: Run, run: Path, photos: Path, tmp_path: Path):
    hostile = photos / "part 0" / "<script>alert(1)<!-- .png"
    shutil.copy(photos / "part 0" / "003.png", hostile)
    assert carl("group", run, "photos", "--groups", "4").returncode == 0
    page = (tmp_path / "groups.html").read_text()
    assert page.count("<section") == 4
    assert "default-src &#39;none&#39;; img-src data:;" in page
    assert "<script>alert" not in page
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)


@pytest.mark.skipif(find_browser() is None, reason="needs Chromium")
def test_names_that_are_saved_from_the_page_come_back_in_table_page_and_folders(
    carl: Run, run: Path, photos: Path, tmp_path: Path
):
    assert carl("group", run, "photos", "--groups", "4").returncode == 0
    executable = find_browser()
    assert executable is not None
    with browser(executable) as running:
        page = running.page()
        page.open(tmp_path / "groups.html")
        page.run(
            "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return '#'; }"
        )
        page.run("document.querySelector('input[data-group=\"1\"]').value = 'owls <b>'")
        page.run("document.querySelector('input[data-group=\"1\"]').dispatchEvent(new Event('input'))")
        page.click("#save")
        page.wait("window.saved !== undefined")
        saved = page.run("window.saved")
        assert not page.complaints()
        assert not page.requests()
    (tmp_path / "names.json").write_text(saved)
    assert read_names(tmp_path / "names.json").groups == {1: "owls <b>"}
    done = carl("group", run, "photos", "--groups", "4", "--names", "names.json", "--links", "sorted", "--force")
    assert done.returncode == 0, done.stderr
    check_named(tmp_path, "owls <b>", "1 owls _b_")


def check_named(tmp_path: Path, name: str, folder: str) -> None:
    rows = rows_of(tmp_path / "groups.parquet")
    assert {row["name"] for row in rows if row["group"] == 1} == {name}
    assert {row["name"] for row in rows if row["group"] != 1} == {""}
    assert sorted(path.name for path in (tmp_path / "sorted").iterdir()) == ["0", folder, "2", "3"]
    linked = {str(path.resolve()) for path in (tmp_path / "sorted" / folder).rglob("*.png")}
    assert linked == {str((tmp_path / str(row["path"])).resolve()) for row in rows if row["group"] == 1}


def test_names_written_by_hand_are_taken(carl: Run, run: Path, photos: Path, tmp_path: Path):
    (tmp_path / "names.json").write_text('{"groups": {"1": "owls"}}')
    done = carl("group", run, "photos", "--groups", "4", "--names", "names.json", "--links", "sorted")
    assert done.returncode == 0, done.stderr
    assert "named: owls (" in done.stdout
    check_named(tmp_path, "owls", "1 owls")
    assert 'value="owls"' in (tmp_path / "groups.html").read_text()


def test_names_of_other_groups_are_refused_and_nothing_is_written(carl: Run, run: Path, photos: Path, tmp_path: Path):
    (tmp_path / "names.json").write_text('{"carl": "names", "version": 1, "of": "0123", "groups": {"1": "owls"}}')
    done = carl("group", run, "photos", "--groups", "4", "--names", "names.json", "--links", "sorted")
    assert done.returncode == 2
    assert "names other groups" in done.stderr
    (tmp_path / "names.json").write_text('{"groups": {"4": "owls"}}')
    done = carl("group", run, "photos", "--groups", "4", "--names", "names.json", "--links", "sorted")
    assert done.returncode == 2
    assert "names group 4, and the 4 groups are numbered from 0 to 3" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["names.json", "photos"]


def test_damaged_files_are_listed_and_the_rest_is_grouped(carl: Run, run: Path, photos: Path, tmp_path: Path):
    for number in range(5):  # one in twenty
        (photos / "part 0" / f"{number:03d}.png").write_bytes(b"not an image")
    done = carl("group", run, "photos", "--groups", "4")
    assert done.returncode == 0, done.stderr
    assert "5 images cannot be used" in done.stdout
    assert len((tmp_path / "groups.parquet.bad-files.txt").read_text().splitlines()) == 5
    assert len(rows_of(tmp_path / "groups.parquet")) == 91


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--groups", "1"], "--groups 1: one group holds everything; ask for 2 or more"),
        (["--groups", "97"], "--groups 97 of 96 images"),
        (["--views", "-1"], "--views -1"),
        (["-o", "groups.txt"], "groups.txt ends in neither .parquet nor .csv"),
        (["--names", "missing.json"], "--names missing.json does not exist"),
        (["--links", "photos"], "photos exists and is not empty"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_and_nothing_is_written(
    carl: Run, run: Path, photos: Path, tmp_path: Path, arguments: list[str], message: str
):
    done = carl("group", run, "photos", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_files_of_the_user_are_not_replaced(carl: Run, run: Path, photos: Path, tmp_path: Path):
    for name in ("groups.parquet", "groups.html"):
        (tmp_path / name).write_text("mine")
        done = carl("group", run, "photos", "--groups", "3")
        assert done.returncode == 2
        assert f"{name} exists" in done.stderr
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()


def test_links_to_images_that_are_not_files_are_refused_and_nothing_is_written(
    carl: Run, run: Path, small_data: Path, tmp_path: Path
):
    done = carl("group", run, small_data, "--groups", "3", "--links", "sorted")
    assert done.returncode == 2
    assert "is not a file" in done.stderr
    assert not list(tmp_path.iterdir())


def test_with_labels_groups_stand_beside_kmeans_and_chance(carl: Run, run: Path, small_data: Path, tmp_path: Path):
    done = carl("group", run, small_data, "--groups", "4", "--split", "train")
    assert done.returncode == 0, done.stderr
    assert re.search(r"these groups +\d+\.\d%", done.stdout)
    assert re.search(r"k-means, 2 restarts +\d+\.\d%", done.stdout)
    assert re.search(r"chance +\d+\.\d%", done.stdout)
    assert "label" in rows_of(tmp_path / "groups.parquet")[0]


def test_class_folders_stand_beside_the_groups_too_unless_they_are_named_like_numbers(
    carl: Run, run: Path, photos: Path, tmp_path: Path
):
    done = carl("group", run, "photos", "--groups", "2")  # in folders "part 0" and "part 1"
    assert done.returncode == 0, done.stderr
    assert "chance" not in done.stdout
    for old, new in (("part 0", "cats"), ("part 1", "dogs")):
        (photos / old).rename(photos / new)
    done = carl("group", run, "photos", "--groups", "2", "--force")
    assert done.returncode == 0, done.stderr
    assert re.search(r"with the sub-folders +matched", done.stdout)
    assert re.search(r"k-means, 2 restarts +\d+\.\d%", done.stdout)
    assert "label" not in rows_of(tmp_path / "groups.parquet")[0]
    judged = package.group(run, "photos", 2).judged
    assert judged is not None
    assert f"{judged.groups.matched:.1f}%" in done.stdout


def test_the_function_gives_what_the_command_writes(carl: Run, run: Path, photos: Path, tmp_path: Path):
    assert carl("group", run, "photos", "--groups", "4", "--loss", "scan", "--seed", "1").returncode == 0
    found = package.group(run, "photos", 4, loss="scan", seed=1)
    rows = rows_of(tmp_path / "groups.parquet")
    assert found.paths == [row["path"] for row in rows]
    assert found.groups.tolist() == [row["group"] for row in rows]
    assert found.proposal is None
    with pytest.raises(UserError, match="loss 'crl' is unknown; did you mean 'carl'"):
        package.group(run, "photos", 4, loss="crl")  # type: ignore[arg-type]


def test_views_are_positives_that_differ_from_the_image_and_are_the_same_again(
    trained: TrainedModel, pixels: np.ndarray
):
    first, second = (seen_differently(trained, number) for number in (0, 1))
    whole = trained.represent(pixels[:8]).features
    view = first.represent(pixels[:8]).features
    assert not np.allclose(view, whole)
    assert not np.allclose(view, second.represent(pixels[:8]).features)
    assert np.allclose(view[3:5], first.represent(pixels[3:5]).features, atol=1e-5)  # whatever its batch
    assert len({trained.digest, first.digest, second.digest}) == 3


def test_the_command_takes_views(run: Path, photos: Path, tmp_path: Path):
    request = GroupRequest(str(run), str(photos), tmp_path / "groups.parquet", groups=3, views=2)
    lines = list(group_images(request))
    assert "96 images in 3 groups" in lines[0]
    assert "--views 2" in (tmp_path / "groups.html").read_text()


def test_views_of_a_file_of_embeddings_are_refused(carl: Run, run: Path, photos: Path):
    assert carl("embed", run, "photos", "-o", "e.parquet").returncode == 0
    assert carl("group", run, "e.parquet", "--groups", "3").returncode == 0
    done = carl("group", run, "e.parquet", "--groups", "3", "--views", "2", "--force")
    assert done.returncode == 2
    assert "holds embeddings and no images; name the images" in done.stderr


def test_folders_of_groups_sort_by_number_and_have_names_that_every_system_allows():
    from carl.records.given_names import GivenNames

    names = GivenNames({0: "a/b: c", 9: "owls", 10: ""})
    assert group_folders(11, names)[0] == "00 a_b_ c"
    assert group_folders(11, names)[9:] == ["09 owls", "10"]


def test_the_names_file_is_json_that_carl_reads(tmp_path: Path):
    path = tmp_path / "names.json"
    path.write_text(json.dumps({"groups": {"0": "x" * 101}}))
    with pytest.raises(UserError, match="is not a file of names"):
        read_names(path)
