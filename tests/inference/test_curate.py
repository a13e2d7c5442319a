"""A curated subset covers the groups, holds nothing twice and nothing odd."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carl.cli import cli
from carl.errors import UserError
from carl.inference import curate
from carl.inference.curate import DUPLICATED, KEPT, OUTLIER, select, share_out
from tests.conftest import Run


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
    monkeypatch.setattr(curate, "LARGEST_GROUP", 50)
    points, _ = clusters([150, 150], spread=1.0)
    chosen = select(points, 20, prototypes=np.zeros(300, int))
    assert chosen.groups.max() >= 5
    assert len(chosen.kept) == 20


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


def test_fewer_images_than_prototypes_still_cover_all_kinds():
    points, kinds = clusters([300, 100, 100, 100])
    prototypes = np.arange(600) % 60 + 60 * kinds  # sixty prototypes of each kind
    kept = select(points, 12, prototypes, duplicate=1.0, outliers=0.0).kept
    assert set(kinds[kept]) == {0, 1, 2, 3}


def test_the_commands_defaults_are_those_of_the_function():
    options = {option.name: option.default for option in cli.commands["curate"].params}
    assert (options["duplicate"], options["outliers"]) == (curate.DUPLICATE, curate.OUTLIERS)
