"""Parquet as Hugging Face writes it, and as others do."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from carl.data import UNLABELLED, open_dataset
from carl.errors import UserError

HUGGING_FACE = {
    b"huggingface": json.dumps(
        {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    ).encode()
}


def png(seed: int, side: int = 6) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels(seed, side)).save(stream, "PNG")
    return stream.getvalue()


def pixels(seed: int, side: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)


def write(
    path: Path, seeds: list[int], labels: list[object] | None = None, metadata: dict[bytes, bytes] | None = None
) -> Path:
    columns: dict[str, object] = {"image": [{"bytes": png(seed), "path": f"{seed}.png"} for seed in seeds]}
    if labels is not None:
        columns["label"] = labels
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
    return path


def test_images_labels_and_class_names_are_read(tmp_path):
    dataset = open_dataset(write(tmp_path / "pets.parquet", [3, 1, 2], [1, 0, 1], HUGGING_FACE))
    np.testing.assert_array_equal(dataset.train.images.pixels, [pixels(3), pixels(1), pixels(2)])
    assert dataset.train.labels.tolist() == [1, 0, 1]
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.names == ("3.png", "1.png", "2.png")
    assert dataset.test is None


def test_class_names_come_from_a_json_list_too(tmp_path):
    metadata = {b"class_names": b'["x", "y", "z"]'}
    assert open_dataset(write(tmp_path / "a.parquet", [1], [2], metadata)).class_names == ("x", "y", "z")


def test_without_names_classes_are_numbered_and_missing_labels_are_unlabelled(tmp_path):
    dataset = open_dataset(write(tmp_path / "a.parquet", [1, 2, 3], [2, None, 0]))
    assert dataset.class_names == ("0", "1", "2")
    assert dataset.train.labels.tolist() == [2, UNLABELLED, 0]


def test_labels_of_text_are_numbered_by_name(tmp_path):
    dataset = open_dataset(write(tmp_path / "a.parquet", [1, 2, 3], ["dog", None, "ant"]))
    assert dataset.class_names == ("ant", "dog")
    assert dataset.train.labels.tolist() == [1, UNLABELLED, 0]


def test_labels_are_not_needed(tmp_path):
    dataset = open_dataset(write(tmp_path / "a.parquet", [1, 2]))
    assert dataset.train.labels is None
    assert dataset.class_names == ()


def test_a_column_of_plain_bytes_is_enough(tmp_path):
    pq.write_table(pa.table({"picture_data": [png(1)]}), tmp_path / "a.parquet")
    np.testing.assert_array_equal(open_dataset(tmp_path / "a.parquet").train.images.pixels, [pixels(1)])


@pytest.mark.parametrize("opened", ["train", "test"])
def test_the_other_split_is_found_beside_the_file(tmp_path, opened):
    write(tmp_path / "cifar100-train-10k.parquet", [1, 2], [0, 1])
    write(tmp_path / "cifar100-test.parquet", [3], [1])
    write(tmp_path / "cifar10-test.parquet", [4], [0])
    name = {"train": "cifar100-train-10k.parquet", "test": "cifar100-test.parquet"}[opened]
    dataset = open_dataset(tmp_path / name)
    assert {split: len(images) for split, images in dataset.splits.items()} == {"train": 2, "test": 1}
    assert dataset.opened == opened
    np.testing.assert_array_equal(dataset.test.images.pixels, [pixels(3)])


def test_a_file_alone_is_the_training_split_whatever_its_name(tmp_path):
    dataset = open_dataset(write(tmp_path / "birds-test.parquet", [1]))
    assert (list(dataset.splits), dataset.opened) == (["train"], "train")


def test_a_folder_of_shards_is_read_in_order_with_its_splits(tmp_path):
    for shard in range(3):
        write(tmp_path / "data" / f"train-0000{shard}-of-00003.parquet", [shard], [0])
    write(tmp_path / "data" / "validation-00000-of-00001.parquet", [9], [0])
    dataset = open_dataset(tmp_path)
    assert list(dataset.splits) == ["train", "val"]
    np.testing.assert_array_equal(dataset.train.images.pixels, [pixels(0), pixels(1), pixels(2)])


def test_undecodable_rows_are_listed(tmp_path):
    table = pa.table({"image": pa.array([{"bytes": png(1)}, {"bytes": b"junk"}, {"bytes": None}]), "label": [0, 1, 2]})
    pq.write_table(table, tmp_path / "a.parquet")
    dataset = open_dataset(tmp_path / "a.parquet")
    assert dataset.train.labels.tolist() == [0]
    listed = Path(dataset.notes[0].split("listed in ")[1]).read_text().splitlines()
    assert listed == ["a.parquet#1\tnot an image in a known format", "a.parquet#2\tno image bytes in the row"]


def test_a_file_without_rows_is_an_error(tmp_path):
    empty = pa.table({"image": pa.array([], pa.binary())})
    pq.write_table(empty, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="no rows"):
        open_dataset(tmp_path / "a.parquet")


def test_a_file_without_images_is_an_error_that_names_its_columns(tmp_path):
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"text, label.*'image'"):
        open_dataset(tmp_path / "a.parquet")


@pytest.mark.parametrize("path", [pa.array([5, 6]), pa.array([None, ""]), pa.array([b"a", b"\xff"])])
def test_a_path_that_is_no_text_is_no_name(tmp_path, path):
    images = pa.StructArray.from_arrays([pa.array([png(1), png(2)]), path], ["bytes", "path"])
    pq.write_table(pa.table({"image": images}), tmp_path / "a.parquet")
    assert open_dataset(tmp_path / "a.parquet").train.names == ("a.parquet#0", "a.parquet#1")


def test_a_file_that_is_not_parquet_is_an_error(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(UserError, match="not a readable Parquet file"):
        open_dataset(tmp_path / "a.parquet")


def test_labels_beyond_the_class_names_are_an_error(tmp_path):
    path = write(tmp_path / "a.parquet", [1], [5], HUGGING_FACE)
    with pytest.raises(UserError, match=r"from 5 to 5, but there are 2 classes"):
        open_dataset(path)


def test_more_shards_than_files_that_may_be_open(tmp_path):
    resource = pytest.importorskip("resource")  # not on Windows
    for number in range(60):
        write(tmp_path / f"part-{number:03d}.parquet", [number], ["cat"])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 30, before[1]))
    try:
        dataset = open_dataset(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(dataset.train) == 60
    assert dataset.class_names == ("cat",)
