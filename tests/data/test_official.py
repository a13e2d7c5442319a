"""The official data sets, in small files of the official layout; nothing is downloaded."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from carl.data import open_dataset
from carl.data.sources import official
from carl.data.sources.download import Archive, check_member
from carl.errors import UserError

random = np.random.default_rng(0)


def planes(count: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, side, side, 3), and the same as rows of three squares."""
    pixels = random.integers(0, 256, (count, side, side, 3), np.uint8)
    return pixels, np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(count, -1)


def write_cifar10(folder: Path, protocol: int = 2) -> np.ndarray:
    folder.mkdir(parents=True)
    pixels, rows = planes(12, 32)
    for i in range(6):
        name = f"data_batch_{i + 1}" if i < 5 else "test_batch"
        batch = {"data": rows[2 * i : 2 * i + 2], "labels": [i, 9 - i], "filenames": ["a", "b"], "batch_label": "x"}
        (folder / name).write_bytes(pickle.dumps(batch, protocol))
    names = {"label_names": list("abcdefghij"), "num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol))
    return pixels


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_cifar10_is_read_from_the_folder_that_torchvision_leaves(tmp_path, protocol):
    pixels = write_cifar10(tmp_path / "cifar-10-batches-py", protocol)
    dataset = open_dataset("cifar10", root=tmp_path)
    np.testing.assert_array_equal(dataset.train.images.pixels, pixels[:10])
    np.testing.assert_array_equal(dataset.test.images.pixels, pixels[10:])
    assert dataset.train.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert dataset.class_names == tuple("abcdefghij")
    assert open_dataset(tmp_path / "cifar-10-batches-py").fingerprint == dataset.fingerprint


def test_cifar100_takes_the_fine_labels(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    pixels, rows = planes(3, 32)
    for name, part in {"train": slice(0, 2), "test": slice(2, 3)}.items():
        count = len(rows[part])
        batch = {"data": rows[part], "fine_labels": [1, 0][:count], "coarse_labels": [5, 5][:count]}
        (folder / name).write_bytes(pickle.dumps(batch, 2))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": ["x", "y"], "coarse_label_names": ["z"]}, 2))
    dataset = open_dataset("cifar100", root=tmp_path)
    np.testing.assert_array_equal(dataset.train.images.pixels, pixels[:2])
    assert dataset.train.labels.tolist() == [1, 0]
    assert dataset.class_names == ("x", "y")


def test_stl10_has_its_splits_and_folds_and_its_images_upright(tmp_path):
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    pixels = random.integers(0, 256, (5, 96, 96, 3), np.uint8)
    for name, part in {"train": slice(0, 2), "test": slice(2, 3), "unlabeled": slice(3, 5)}.items():
        (folder / f"{name}_X.bin").write_bytes(pixels[part].transpose(0, 3, 2, 1).tobytes())
    (folder / "train_y.bin").write_bytes(bytes([1, 2]))
    (folder / "test_y.bin").write_bytes(bytes([2]))
    (folder / "class_names.txt").write_text("airplane\nbird\n")
    (folder / "fold_indices.txt").write_text("0 \n1 \n1 0 \n")
    dataset = open_dataset("stl10", root=tmp_path)
    np.testing.assert_array_equal(dataset.train.images.pixels, pixels[:2])
    np.testing.assert_array_equal(dataset.pretraining.images.pixels, pixels[3:])
    assert dataset.pretraining.labels is None
    assert dataset.train.labels.tolist() == [0, 1]
    assert [fold.tolist() for fold in dataset.folds] == [[0], [1], [1, 0]]
    np.testing.assert_array_equal(dataset.train.subset(dataset.folds[2]).images.pixels, pixels[1::-1])


def tiny_imagenet_members() -> dict[str, bytes]:
    def jpeg(level: int) -> bytes:
        stream = io.BytesIO()
        Image.new("RGB", (64, 64), (level, level, level)).save(stream, "JPEG")
        return stream.getvalue()

    return {
        "wnids.txt": b"n02\nn01\n",
        "words.txt": b"n01\tgoldfish, Carassius auratus\nn02\ttench\nn03\tother\n",
        "train/n01/images/n01_0.JPEG": jpeg(10),
        "train/n01/n01_boxes.txt": b"n01_0.JPEG\t0\t0\t1\t1\n",
        "train/n02/images/n02_0.JPEG": jpeg(20),
        "val/images/val_0.JPEG": jpeg(30),
        "val/images/val_1.JPEG": jpeg(40),
        "val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t1\t1\nval_1.JPEG\tn01\t0\t0\t1\t1\n",
        "test/images/test_0.JPEG": jpeg(50),
    }


def check_tiny_imagenet(dataset) -> None:
    assert {name: len(split) for name, split in dataset.splits.items()} == {"train": 2, "val": 2}
    assert dataset.class_names == ("goldfish", "tench")
    assert dataset.train.images.pixels[:, 0, 0, 0].tolist() == [10, 20]
    assert dataset.train.labels.tolist() == [0, 1]
    assert dataset.test.images.pixels[:, 0, 0, 0].tolist() == [30, 40]
    assert dataset.test.labels.tolist() == [1, 0]


def test_tiny_imagenet_is_read_from_a_folder(tmp_path):
    for name, content in tiny_imagenet_members().items():
        path = tmp_path / "tiny-imagenet-200" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    check_tiny_imagenet(open_dataset("tiny-imagenet", root=tmp_path))
    check_tiny_imagenet(open_dataset(tmp_path / "tiny-imagenet-200"))


def test_tiny_imagenet_is_read_from_the_zip_without_unpacking_it(tmp_path, monkeypatch):
    path = tmp_path / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in tiny_imagenet_members().items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)
    sum_ = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setattr(
        official, "TINY_IMAGENET_ARCHIVE", dataclasses.replace(official.TINY_IMAGENET_ARCHIVE, md5=sum_)
    )
    check_tiny_imagenet(open_dataset("tiny-imagenet", root=tmp_path))
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("form", ["pickle", "npz"])
def test_imagenet64_is_read_from_pickled_batches_and_from_npz(tmp_path, form):
    folder = tmp_path / "imagenet64" / "Imagenet64_train_part1"
    folder.mkdir(parents=True)
    pixels, rows = planes(24, 8)
    names = [f"train_data_batch_{i}" for i in range(1, 12)] + ["val_data"]
    for i, name in enumerate(names):
        batch = {"data": rows[2 * i : 2 * i + 2], "labels": [i + 1, 1000], "mean": rows.mean(axis=0)}
        if form == "pickle":
            (folder / name).write_bytes(pickle.dumps(batch))
        else:
            np.savez(folder / f"{name}.npz", **batch)
    dataset = open_dataset("imagenet64", root=tmp_path)
    np.testing.assert_array_equal(dataset.train.images.pixels, pixels[:22])  # batch 10 comes after batch 9
    assert dataset.train.labels[:4].tolist() == [0, 999, 1, 999]
    assert len(dataset.test) == 2
    assert len(dataset.class_names) == 1000
    assert open_dataset(tmp_path / "imagenet64").fingerprint == dataset.fingerprint


def test_imagenet64_says_where_to_put_it(tmp_path):
    with pytest.raises(UserError, match=r"not in .*imagenet64.*image-net\.org"):
        open_dataset("imagenet64", root=tmp_path)


def as_archive(monkeypatch: pytest.MonkeyPatch, path: Path, folder: str, url: str | None = None) -> None:
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    archive = Archive(url or path.as_uri(), digest, folder)
    monkeypatch.setattr(official, "CIFAR10_ARCHIVE", archive)


def make_tar(tmp_path: Path) -> Path:
    write_cifar10(tmp_path / "made" / "cifar-10-batches-py")
    path = tmp_path / "server" / "cifar.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
    return path


def test_an_archive_is_downloaded_checked_and_unpacked_once(tmp_path, monkeypatch):
    path = make_tar(tmp_path)
    as_archive(monkeypatch, path, "cifar-10-batches-py")
    steps: list[str] = []
    dataset = open_dataset("cifar10", root=tmp_path / "root", progress=lambda what, done, total: steps.append(what))
    assert len(dataset.train) == 10
    assert "downloading cifar.tar.gz" in steps
    assert sorted(p.name for p in (tmp_path / "root").iterdir()) == ["cifar-10-batches-py", "cifar.tar.gz"]
    path.unlink()
    assert len(open_dataset("cifar10", root=tmp_path / "root").train) == 10


def test_a_download_with_a_wrong_checksum_leaves_nothing_behind(tmp_path, monkeypatch):
    path = make_tar(tmp_path)
    as_archive(monkeypatch, path, "cifar-10-batches-py")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="MD5"):
        open_dataset("cifar10", root=tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


def test_a_partial_file_put_there_by_hand_is_not_taken_for_whole(tmp_path, monkeypatch):
    path = make_tar(tmp_path)
    as_archive(monkeypatch, path, "cifar-10-batches-py")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="damaged or partial"):
        open_dataset("cifar10", root=path.parent)


def test_without_a_network_the_error_says_where_to_put_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(
        official, "CIFAR10_ARCHIVE", Archive("http://127.0.0.1:9/cifar.tar.gz", "0", "cifar-10-batches-py")
    )
    with pytest.raises(UserError, match=r"cannot be downloaded .*by hand and put it at .*cifar\.tar\.gz") as caught:
        open_dataset("cifar10", root=tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_archive_are_refused(tmp_path, monkeypatch, kind):
    path = tmp_path / "cifar.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    as_archive(monkeypatch, path, "cifar-10-batches-py")
    with pytest.raises(UserError, match="link or a device"):
        open_dataset("cifar10", root=tmp_path)


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "C:\\evil", "..\\evil", "\\evil"])
def test_members_that_point_outside_of_an_archive_are_refused(name):
    with pytest.raises(UserError, match="points outside"):
        check_member(Path("x.zip"), name)
    check_member(Path("x.zip"), "folder/file..txt")


def test_a_missing_batch_is_an_error(tmp_path):
    write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "test_batch").unlink()
    with pytest.raises(UserError, match="test_batch is missing"):
        open_dataset("cifar10", root=tmp_path)
