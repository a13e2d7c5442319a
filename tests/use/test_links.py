"""Lists of images become folders of links."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from carl.errors import UserError
from carl.use.links import LinksRequest, link_listed
from tests.conftest import Run


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "my photos"
    for name in ("a/one.jpg", "a/two, three.jpg", "b/line\nbreak.jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / os.fsdecode(b"caf\xe9.jpg")).write_text("café")
    return folder


def made(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_images_of_a_table_are_linked_in_the_same_sub_folders(tmp_path: Path, photos: Path):
    listing = tmp_path / "list.csv"
    listing.write_text(
        'path,row,flags\na/one.jpg,0,\n"a/two, three.jpg",1,"x, y"\n"b/line\nbreak.jpg",2,\ncaf\\udce9.jpg,3,\n'
    )
    assert list(link_listed(LinksRequest(listing, tmp_path / "out", photos))) == [f"links: 4 in {tmp_path / 'out'}"]
    assert made(tmp_path / "out") == made(photos)
    assert (tmp_path / "out" / "a" / "one.jpg").is_symlink()


def test_of_a_table_with_decisions_the_images_kept_are_linked(tmp_path: Path, photos: Path):
    listing = tmp_path / "why.csv"
    listing.write_text('path,decision,group,like\na/one.jpg,kept,0,\n"a/two, three.jpg",near-duplicate,0,a/one.jpg\n')
    assert list(link_listed(LinksRequest(listing, tmp_path / "out", photos))) == [f"links: 1 in {tmp_path / 'out'}"]
    assert list(made(tmp_path / "out")) == [str(Path("a", "one.jpg"))]


def test_a_list_with_one_path_per_line_may_be_copied(tmp_path: Path, photos: Path):
    listing = tmp_path / "list.txt"
    listing.write_text("a/one.jpg\n\na/one.jpg\n")
    request = LinksRequest(listing, tmp_path / "out", photos, copy=True)
    assert list(link_listed(request)) == [f"copies: 1 in {tmp_path / 'out'}"]
    assert made(tmp_path / "out") == {"a/one.jpg": "a/one.jpg"}
    assert not (tmp_path / "out" / "a" / "one.jpg").is_symlink()


def test_a_tag_of_a_file_of_names_is_a_list(tmp_path: Path, photos: Path):
    listing = tmp_path / "names.json"
    listing.write_text(json.dumps({"tags": {"good": ["a/one.jpg"], "bad": []}}))
    list(link_listed(LinksRequest(listing, tmp_path / "out", photos, tag="good")))
    assert made(tmp_path / "out") == {"a/one.jpg": "a/one.jpg"}
    with pytest.raises(UserError, match="did you mean 'good'"):
        list(link_listed(LinksRequest(listing, tmp_path / "more", photos, tag="goood")))
    with pytest.raises(UserError, match="name a tag with --tag; use one of: bad, good"):
        list(link_listed(LinksRequest(listing, tmp_path / "more", photos)))


def test_paths_outside_of_the_base_do_not_lead_out_of_the_folder(tmp_path: Path, photos: Path):
    (tmp_path / "elsewhere.jpg").write_text("x")
    listing = tmp_path / "list.txt"
    listing.write_text("../elsewhere.jpg\na/one.jpg\n")
    list(link_listed(LinksRequest(listing, tmp_path / "out" / "links", photos)))
    assert made(tmp_path / "out") == {"links/elsewhere.jpg": "x", "links/my photos/a/one.jpg": "a/one.jpg"}


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        ("a/one.jpg\nb/gone.jpg\n", "list.txt", "gone.jpg is not there; give the folder"),
        ("file,row\na/one.jpg,0\n", "list.csv", "has no column `path`"),
        ("\n", "list.txt", "lists no image"),
        ("[]", "names.json", "is not a file of names"),
    ],
)
def test_a_wrong_list_is_refused_and_leaves_nothing(tmp_path: Path, photos: Path, content: str, name: str, said: str):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=said):
        list(link_listed(LinksRequest(tmp_path / name, tmp_path / "out", photos)))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "my photos"])


def test_a_folder_that_holds_something_is_left_alone(carl: Run, tmp_path: Path, photos: Path):
    (tmp_path / "list.txt").write_text("a/one.jpg\n")
    ended = carl("links", "list.txt", "my photos", "--base", "my photos")
    assert ended.returncode == 2
    assert "is not empty" in ended.stderr
    assert carl("links", "list.txt", "new", "--base", "my photos").stdout == "links: 1 in new\n"
    assert carl("links", "gone.txt", "newer").returncode == 2


def test_a_table_that_is_none_is_refused(tmp_path: Path, photos: Path):
    (tmp_path / "list.csv").write_text(f"path\n{'a' * 200_000}\n")
    with pytest.raises(UserError, match=r"list\.csv is not a table"):
        list(link_listed(LinksRequest(tmp_path / "list.csv", tmp_path / "out", photos)))


def test_an_image_that_is_listed_under_two_names_is_linked_once(tmp_path: Path, photos: Path):
    (tmp_path / "list.txt").write_text("a/one.jpg\n./b/../a/one.jpg\n")
    request = LinksRequest(tmp_path / "list.txt", tmp_path / "out", photos)
    assert list(link_listed(request)) == [f"links: 1 in {tmp_path / 'out'}"]
