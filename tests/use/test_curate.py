"""A curated subset covers the groups, holds nothing twice and nothing odd."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carl.errors import UserError
from carl.use import curate, links
from carl.use.curate import DUPLICATED, KEPT, OUTLIER, select, share_out
from tests.conftest import Run
from tests.reliability.conftest import listed


def clusters(sizes: list[int], spread: float = 0.2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points around far centres, and the number of the centre of each."""
    generator = np.random.default_rng(seed)
    centres = 5 * np.eye(len(sizes) + 4)[: len(sizes)]
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    points = centres[numbers] + spread * generator.standard_normal((len(numbers), centres.shape[1]))
    return points.astype(np.float32), numbers


def test_every_group_is_covered_and_rare_ones_as_much_as_common_ones():
    points, numbers = clusters([300, 100, 10, 40])
    chosen = select(points, 40, prototypes=numbers, duplicate=1.0, outliers=0.0)
    assert np.bincount(numbers[chosen.kept]).tolist() == [10, 10, 10, 10]


@pytest.mark.parametrize("keep", [1, 7, 40, 449, 450])
def test_exactly_as_many_are_kept_as_asked_for(keep: int):
    points, numbers = clusters([300, 100, 10, 40])
    for prototypes in (numbers, None):
        assert len(select(points, keep, prototypes).kept) == keep


def test_of_copies_one_is_kept_and_the_others_name_it():
    points, numbers = clusters([30, 30], spread=1.0)
    points = np.concatenate([points, points[:10], points[:10]])
    numbers = np.concatenate([numbers, numbers[:10], numbers[:10]])
    chosen = select(points, 55, prototypes=numbers, outliers=0.0)
    assert (chosen.decisions[60:] == DUPLICATED).all()
    assert chosen.likeness[60:].tolist() == [*range(10), *range(10)]
    assert chosen.count(KEPT) == 55


def test_a_lone_point_is_an_outlier_and_not_chosen():
    points, numbers = clusters([50, 50])
    points[7] = 0  # far from both groups
    points[7, -1] = 20
    chosen = select(points, 50, prototypes=numbers, outliers=0.01)
    assert np.flatnonzero(chosen.decisions == OUTLIER).tolist() == [7]


def test_the_chosen_of_a_group_are_spread_over_it():
    generator = np.random.default_rng(0)
    dense = generator.normal(0, 0.05, (190, 8)) + np.eye(8)[0]
    rare = generator.normal(0, 0.05, (10, 8)) + np.eye(8)[1]
    points = np.concatenate([dense, rare]).astype(np.float32)
    kept = select(points, 10, prototypes=np.zeros(200, int), duplicate=1.0, outliers=0.0).kept
    assert (kept >= 190).any()  # ten of 200 at random miss the rare twentieth in six of ten draws


def test_without_prototypes_clusters_are_the_groups():
    points, numbers = clusters([200, 200, 200, 50])
    kept = select(points, 26, outliers=0.0).kept
    assert set(numbers[kept]) == {0, 1, 2, 3}


def test_large_groups_are_cut_so_that_pairs_fit_into_memory(monkeypatch: pytest.MonkeyPatch):
    points, numbers = clusters([150, 100, 10], spread=1.0)
    points = np.concatenate([points, points[:90]])
    numbers = np.concatenate([numbers, numbers[:90]])
    whole = select(points, 30, prototypes=numbers, outliers=0.0)
    monkeypatch.setattr(curate, "LARGEST_GROUP", 50)
    monkeypatch.setattr(curate, "MOST_PAIRS", 300)
    chosen = select(points, 30, prototypes=numbers, outliers=0.0)
    assert np.array_equal(chosen.groups, whole.groups)  # a piece has no share of its own
    assert np.bincount(numbers[chosen.kept]).tolist() == [10, 10, 10]
    assert np.array_equal(chosen.likeness, whole.likeness)  # copies are alike, so they are in one piece


def test_a_large_group_of_the_same_image_is_one_image(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(curate, "LARGEST_GROUP", 20)
    monkeypatch.setattr(curate, "MOST_PAIRS", 300)
    points, numbers = clusters([30, 30], spread=1.0)
    points[30:] = points[30]  # as of blank frames
    chosen = select(points, 20, prototypes=numbers, outliers=0.0)
    assert chosen.likeness[31:].tolist() == [30] * 29


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(0, 200))
def test_shares_are_equal_as_far_as_the_groups_reach(sizes: list[int], total: int):
    shares = share_out(np.array(sizes), total)
    assert shares.sum() == min(total, sum(sizes))
    assert (shares <= sizes).all()
    not_full = shares[shares < sizes]
    assert not len(not_full) or shares.max() - not_full.min() <= 1


def test_the_same_seed_chooses_the_same():
    points, _ = clusters([60, 60, 60], spread=1.0)
    assert select(points, 30).kept.tolist() == select(points, 30).kept.tolist()


def test_what_cannot_be_kept_is_refused():
    points, _ = clusters([10])
    for keep in (0, 11):
        with pytest.raises(UserError, match=f"--keep {keep} of 10 images"):
            select(points, keep)


def test_the_command_writes_a_list_and_links(carl: Run, run: Path, folder: Path, tmp_path: Path):
    done = carl("curate", run, folder, "--keep", "12", "--links", "chosen")
    assert done.returncode == 0, done.stderr
    assert "12 of 96 images kept" in done.stdout
    names = (tmp_path / "curated.txt").read_text().splitlines()
    links = [path for path in (tmp_path / "chosen").rglob("*") if path.is_symlink()]
    assert sorted(str(link.resolve()) for link in links) == sorted(str(Path(name).resolve()) for name in names)
    assert sorted(str(link.relative_to(tmp_path / "chosen")) for link in links) == sorted(
        str(Path(name).relative_to(folder)) for name in names
    )


def test_a_csv_tells_of_every_image_why(carl: Run, simclr_run: Path, folder: Path, tmp_path: Path):
    done = carl("curate", simclr_run, folder, "--keep", "12", "-o", "all.csv", "--outliers", "0.05")
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "all.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 96
    decisions = [row["decision"] for row in rows]
    assert decisions.count("kept") == 12
    assert decisions.count("outlier") == 4


def test_links_to_what_is_no_file_are_refused(carl: Run, run: Path, small_data: Path, tmp_path: Path):
    done = carl("curate", run, small_data, "--keep", "3", "--links", "chosen")
    assert done.returncode == 2
    assert "is not a file" in done.stderr
    assert not (tmp_path / "chosen").exists()


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of the user's beside the folder for the links, which hostile names lead to."""
    path = tmp_path / "mine" / "b.png"
    path.parent.mkdir()
    path.write_bytes(b"precious")
    return path


def hostile_names(tmp_path: Path, folder: Path) -> dict[str, list[str]]:
    """Names of two images in a Parquet data set that lead out of any folder they are put under."""
    photos = sorted(str(path) for path in folder.rglob("*.png"))[:2]
    return {
        "up": [f"{tmp_path}/photos/deep/a.png", f"{tmp_path}/photos/deep/../../mine/b.png"],
        "absolute": photos,
        "relative": ["photos/deep/a.png", "photos/deep/../../mine/b.png"],
        "home": ["~/a.png", "~nobody/b.png"],
    }


@pytest.mark.parametrize("kind", ["up", "absolute", "relative", "home"])
def test_names_inside_a_data_set_are_no_files_of_the_user(
    carl: Run, run: Path, folder: Path, tmp_path: Path, precious: Path, kind: str
):
    (tmp_path / "photos" / "deep").mkdir(parents=True)
    content = sorted(folder.rglob("*.png"))[0].read_bytes()
    (tmp_path / "photos" / "deep" / "a.png").write_bytes(content)
    rows = [{"bytes": content, "path": name} for name in hostile_names(tmp_path, folder)[kind]]
    pq.write_table(pa.table({"image": rows}), tmp_path / "x.parquet")
    before = listed(tmp_path)
    done = carl("curate", run, "x.parquet", "--keep", "2", "--links", "picked", "--duplicate", "1")
    assert done.returncode == 2
    assert "is not a file of" in done.stderr
    assert done.stderr.count("\n") == 1
    assert listed(tmp_path) == before
    assert precious.read_bytes() == b"precious"


def test_a_file_of_embeddings_cannot_make_links_outside_of_their_folder(
    carl: Run, run: Path, folder: Path, tmp_path: Path, precious: Path
):
    shutil.copytree(folder, tmp_path / "photos")
    assert carl("embed", run, "photos", "-o", "e.parquet").returncode == 0
    table = pq.read_table(tmp_path / "e.parquet")
    for number, name in enumerate(("photos/../mine/b.png", "photos/part 0/000.png", str(precious))):
        path = pa.array([name] * 96)
        pq.write_table(table.set_column(0, "path", path), tmp_path / "hostile.parquet")
        before = listed(tmp_path)
        done = carl("curate", run, "hostile.parquet", "--keep", "96", "--links", f"picked-{number}", "--force")
        assert done.returncode == 2, done.stdout
        assert ("is not a file of" if number != 1 else "is there already") in done.stderr
        added = set(listed(tmp_path)) - set(before)
        assert all(name.startswith(f"picked-{number}") for name in added)
    assert precious.read_bytes() == b"precious"


def test_without_links_files_are_copied_and_nothing_is_copied_over(
    carl: Run, run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(self: Path, target: Path) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    done = carl("curate", run, folder, "--keep", "12", "--links", "chosen")
    assert done.returncode == 0, done.stderr
    copies = [path for path in (tmp_path / "chosen").rglob("*.png") if not path.is_symlink()]
    assert len(copies) == 12
    for path in copies:
        assert path.read_bytes() == (folder / path.relative_to(tmp_path / "chosen")).read_bytes()
    with pytest.raises(FileExistsError):
        links.link_or_copy(copies[0], copies[1])


@pytest.mark.parametrize("given", ["photos", "./photos/", "../{0}/photos", "photos/../photos"])
def test_links_are_made_however_the_folder_is_written(carl: Run, run: Path, folder: Path, tmp_path: Path, given: str):
    shutil.copytree(folder, tmp_path / "photos")
    given = given.format(tmp_path.name)
    for number, images in enumerate((given, "e.parquet")):
        if number:
            assert carl("embed", run, given, "-o", "e.parquet").returncode == 0
        done = carl("curate", run, images, "--keep", "96", "--links", f"picked-{number}", "--force")
        assert done.returncode == 0, done.stderr
        links = [path for path in (tmp_path / f"picked-{number}").rglob("*.png") if path.is_symlink()]
        assert len(links) == 96
        assert all(link.resolve().is_relative_to(tmp_path / "photos") for link in links)


def test_prototypes_that_are_no_numbers_are_refused(carl: Run, run: Path, folder: Path, tmp_path: Path):
    assert carl("embed", run, folder, "-o", "e.parquet").returncode == 0
    table = pq.read_table(tmp_path / "e.parquet")
    place = table.column_names.index("prototype")
    pq.write_table(table.set_column(place, "prototype", pa.array(["a"] * 96)), tmp_path / "e.parquet")
    done = carl("curate", run, "e.parquet", "--keep", "3")
    assert done.returncode == 2
    assert "its column prototype is string, not int32" in done.stderr


def test_fewer_images_than_prototypes_still_cover_all_kinds():
    points, kinds = clusters([300, 100, 100, 100])
    prototypes = np.arange(600) % 60 + 60 * kinds  # sixty prototypes of each kind
    kept = select(points, 12, prototypes, duplicate=1.0, outliers=0.0).kept
    assert set(kinds[kept]) == {0, 1, 2, 3}


def test_a_sheet_shows_what_was_kept_and_what_was_left_out(carl: Run, run: Path, folder: Path, tmp_path: Path):
    photos = shutil.copytree(folder, tmp_path / "photos")
    first = min(photos.rglob("*.png"))
    shutil.copy(first, first.with_name("<b>a copy.png"))
    done = carl("curate", run, photos, "--keep", "12", "-o", "chosen.txt")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("pictures: chosen.html\n")
    page = (tmp_path / "chosen.html").read_text()
    kept = (tmp_path / "chosen.txt").read_text().splitlines()
    assert all(f'alt="{name}"'.replace("<", "&lt;").replace(">", "&gt;") in page for name in kept)
    assert "<b>a copy" not in page
    assert "Left out as near-duplicates" in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_sheet_replaces_no_page_of_the_user_and_images_that_are_gone_only_cost_the_pictures(
    carl: Run, run: Path, folder: Path, tmp_path: Path
):
    (tmp_path / "mine.html").write_text("my page")
    refused = carl("curate", run, folder, "--keep", "12", "-o", "mine.txt")
    assert refused.returncode == 2
    assert "mine.html exists" in refused.stderr
    assert not (tmp_path / "mine.txt").exists()
    photos = shutil.copytree(folder, tmp_path / "photos")
    assert carl("embed", run, photos, "-o", "e.parquet").returncode == 0
    shutil.rmtree(photos)
    done = carl("curate", run, "e.parquet", "--keep", "12")
    assert done.returncode == 0, done.stderr
    assert "no pictures: " in done.stdout
    assert len((tmp_path / "curated.txt").read_text().splitlines()) == 12
