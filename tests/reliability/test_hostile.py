"""Files made to do harm: nothing in them is run, nothing is written outside of the target, memory stays bounded."""

from __future__ import annotations

import codecs
import ctypes
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import EpsImagePlugin, Image
from safetensors.torch import load_file

from carl.data import open_dataset
from carl.data.decoding.decode import DecodeError, decode, image_size, strict_decoding
from carl.data.decoding.pickles import load_pickle
from carl.data.decoding.tiff import read_bands
from carl.data.sources.download import Archive, unpacked
from carl.errors import UserError
from carl.models.state_dicts import read_weights
from carl.training.checkpoint import load_checkpoint
from carl.use.encoder import load_trained
from tests.reliability.conftest import assert_refused, call, listed
from tests.reliability.world import copy_run, encoded, npy_header, png_file, png_header

MEGABYTE = 2**20
BOUND = 200 * MEGABYTE  # of memory that a hostile file of some kilobytes may take


class Evil:
    """Makes a folder when it is unpickled by a reader that trusts its file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """What the hostile file would make; it must not be there in the end."""
    yield tmp_path / "made-by-the-file"
    assert not (tmp_path / "made-by-the-file").exists()


@contextmanager
def bounded(bound: int = BOUND) -> Iterator[None]:
    """Fails if the process has grown by more than `bound` bytes inside, at its largest."""
    if not sys.platform.startswith("linux"):
        yield
        return
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the largest size so far becomes the present one
    yield
    grown = _status("VmHWM") - before
    assert grown < bound, f"{grown / MEGABYTE:.0f} MB"


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


# Things that would run


@pytest.mark.parametrize("kind", ["torch", "pickle", "legacy"])
def test_a_checkpoint_or_weights_file_runs_nothing(
    run: Path, small_data: Path, tmp_path: Path, target: Path, kind: str
):
    content = {"format": 1, "method": Evil(target), "step": 3}
    file = tmp_path / "weights.pth"
    if kind == "pickle":
        file.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=kind == "torch")
    with pytest.raises(UserError, match="not a checkpoint that carl wrote"):
        load_checkpoint(file)
    with pytest.raises(UserError, match="holds no weights"):
        read_weights(file)
    copy = copy_run(run, tmp_path / "run")
    (copy / "checkpoint.pt").unlink()
    (copy / "checkpoint.pt").write_bytes(file.read_bytes())
    assert_refused(call(tmp_path, "pretrain", "--resume", "run"), ["checkpoint.pt"])
    assert_refused(call(tmp_path, "eval", "weights.pth", "--data", small_data), ["weights.pth"])
    done = call(tmp_path, "pretrain", small_data, "--init", "weights.pth", "--batch-size", "8")
    assert_refused(done, ["weights.pth", "no weights"])


def test_arrays_of_objects_run_nothing(tmp_path: Path, target: Path):
    objects = np.array([Evil(target)], object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "b.npz", images=objects)
    np.savez(tmp_path / "c.npz", images=np.zeros((4, 8, 8, 3), np.uint8), labels=objects, class_names=objects)
    for name in ("a.npy", "b.npz", "c.npz"):
        assert_refused(call(tmp_path, "data", "prepare", name), [name])


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_pickled_batches_of_official_data_sets_run_nothing(tmp_path: Path, target: Path, protocol: int):
    cifar, imagenet = tmp_path / "cifar", tmp_path / "imagenet"
    cifar.mkdir()
    imagenet.mkdir()
    good = pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}, 2)
    for name in ("data_batch_1", "test_batch"):
        (cifar / name).write_bytes(good)
    (cifar / "batches.meta").write_bytes(pickle.dumps({"label_names": ["a", "b"]}, 2))
    evil = pickle.dumps({"data": Evil(target), "labels": [Evil(target)]}, protocol)
    for name in ("data_batch_1", "batches.meta"):
        kept = (cifar / name).read_bytes()
        (cifar / name).write_bytes(evil)
        assert_refused(call(tmp_path, "data", "prepare", "cifar"), [name, "not loaded"])
        (cifar / name).write_bytes(kept)
    (imagenet / "train_data_batch_1").write_bytes(evil)
    assert_refused(call(tmp_path, "data", "prepare", "imagenet"), ["train_data_batch_1", "not loaded"])


def test_a_pickle_cannot_change_the_functions_that_read_it(tmp_path: Path):
    """BUILD sets attributes: here the default encoding of the only codec that is allowed."""
    path = tmp_path / "x.pkl"
    path.write_bytes(b"\x80\x02c_codecs\nencode\nN}X\x0c\x00\x00\x00__defaults__X\x04\x00\x00\x00utf7\x85s\x86b.")
    with pytest.raises(UserError, match="asks for a change of a function"):
        load_pickle(path)


def test_postscript_named_jpg_is_not_given_to_an_interpreter(monkeypatch: pytest.MonkeyPatch, target: Path):
    def ghostscript(*arguments: Any, **options: Any) -> Any:
        target.mkdir()
        raise AssertionError("PostScript was run")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    with pytest.raises(DecodeError, match="not an image in a known format"), strict_decoding():
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n", (8, 8))


def test_weights_with_a_stated_size_beyond_reason_take_no_memory(tmp_path: Path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    (tmp_path / "b.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with bounded():
        for name in ("a", "b"):
            with pytest.raises(UserError, match="holds no weights"):
                read_weights(tmp_path / f"{name}.safetensors")


# Names that lead outside

HOSTILE_NAMES = ["../evil", "/tmp/carl-evil", "x/../../evil", "..\\evil", "C:\\evil", "\\\\server\\evil"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_an_archive_cannot_write_outside_of_its_folder(tmp_path: Path, name: str):
    root = tmp_path / "in" / "root"
    root.mkdir(parents=True)
    path = root / "a.tar"
    with tarfile.open(path, "w") as archive:
        for member in ("data/good.txt", name):
            info = tarfile.TarInfo(member)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"evil"))
    before = listed(tmp_path)
    with pytest.raises(UserError, match="points outside"):
        unpacked(_archive(path, "data"), root, lambda what, done, total: None)
    assert set(listed(tmp_path)) == set(before)
    assert not Path("/tmp/carl-evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_an_archive_with_links_or_devices_is_refused(tmp_path: Path, kind: bytes):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("data/link")
        link.type, link.linkname = kind, ".."
        archive.addfile(link)
        through = tarfile.TarInfo("data/link/evil")
        through.size = 4
        archive.addfile(through, io.BytesIO(b"evil"))
    with pytest.raises(UserError, match="link or a device"):
        unpacked(_archive(path, "data"), tmp_path, lambda what, done, total: None)
    assert [p.name for p in tmp_path.iterdir()] == ["a.tar"]


def _archive(path: Path, folder: str) -> Archive:
    import hashlib

    return Archive(path.as_uri(), hashlib.md5(path.read_bytes()).hexdigest(), folder)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_shard_with_hostile_names_is_read_without_using_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(4):
            content = encoded()
            info = tarfile.TarInfo(f"{name}-{number}.png")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    before = set(listed(tmp_path))
    dataset = open_dataset(tmp_path / "a.tar", image_size=16)
    assert len(dataset.train) == 4
    assert {path for path in listed(tmp_path) if not path.startswith("cache")} == before


# Bombs


ZEROS = 16 * MEGABYTE


def zeros(count: int, head: bytes = b"", window: int = -15) -> bytes:
    """`head` and `count` times ZEROS zeros, deflated: a piece that ends in a full flush can stand many times."""
    maker = zlib.compressobj(9, zlib.DEFLATED, window)
    first = maker.compress(head) + maker.flush(zlib.Z_FULL_FLUSH)
    piece = maker.compress(bytes(ZEROS)) + maker.flush(zlib.Z_FULL_FLUSH)
    return first + piece * count + maker.flush()


def tiff_bomb(width: int, height: int, bands: int, tile: tuple[int, int] | None = None, count: int = 1) -> bytes:
    """A TIFF of many bands whose one block inflates to a gigabyte of zeros."""
    block = zeros(64, window=15)
    tags = {256: width, 257: height, 258: 8, 259: 8, 277: bands, 284: 1}
    tags |= {278: height, 279: len(block)} if tile is None else {322: tile[0], 323: tile[1], 325: len(block)}
    offsets = 273 if tile is None else 324
    tags[offsets] = 8
    fields = [
        struct.pack("<HHII", tag, 4, count if tag == offsets else 1, value) for tag, value in sorted(tags.items())
    ]
    directory = struct.pack("<H", len(tags)) + b"".join(fields) + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(block)) + block + directory


def test_image_bombs_take_no_memory():
    bombs = [
        png_header(60_000, 60_000),
        png_header(2**31 - 1, 2**31 - 1),
        tiff_bomb(60_000, 60_000, 5),
        tiff_bomb(100, 100, 5, tile=(2**30, 2**30)),
        tiff_bomb(100, 100, 5, count=2**31),
    ]
    with bounded(), strict_decoding():
        for bomb in bombs:
            with pytest.raises(DecodeError):
                decode(bomb, (8, 8))
    small = tiff_bomb(1000, 1000, 5)
    with bounded():
        assert read_bands(small).shape == (1000, 1000, 5)  # what it states is all that is inflated


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("colours", "depth", "channels"), [(2, 8, 3), (6, 8, 4), (0, 16, 1), (4, 8, 2)])
def test_an_image_of_the_most_pixels_takes_less_than_800_mb(colours: int, depth: int, channels: int, turned: bool):
    side = 9_400
    exif = Image.Exif()
    exif[0x0112] = 5 if turned else 1
    row = zlib.compressobj(1)
    data = b"".join(row.compress(bytes(1 + side * channels * depth // 8)) for _ in range(side)) + row.flush()
    bomb = png_file(struct.pack(">IIBBBBB", side, side, depth, colours, 0, 0, 0), data, exif.tobytes()[6:])
    with bounded(800 * MEGABYTE), strict_decoding():
        assert decode(bomb, (96, 96)).shape == (96, 96, 3)


def zip_of(**members: tuple[bytes, int]) -> bytes:
    """A zip file of members that are given deflated, with the size that they inflate to."""
    body, directory = b"", b""
    for name, (deflated, size) in members.items():
        fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 0, 0, len(deflated), size, len(name) + 4, 0)
        rest = struct.pack("<HHHII", 0, 0, 0, 0, len(body))
        directory += b"PK\x01\x02" + struct.pack("<H", 20) + fields + rest + f"{name}.npy".encode()
        body += b"PK\x03\x04" + fields + f"{name}.npy".encode() + deflated
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), len(body), 0)
    return body + directory + b"PK\x05\x06" + end


def test_array_bombs_take_no_memory(tmp_path: Path):
    size = 80 * ZEROS

    def member(shape: tuple[int, ...], kind: str = "|u1") -> tuple[bytes, int]:
        head = npy_header(shape, kind)
        return zeros(80, head), len(head) + size

    images = member((4, 8, 8, 3))
    bombs = {
        "image.npz": zip_of(images=member((1, size // 3, 1, 3))),
        "objects.npz": zip_of(images=member((4, 8, 8, 3), "|O")),
        "labels.npz": zip_of(images=images, labels=member((size // 8,), "<i8")),
        "claims.npy": npy_header((2**50, 8, 8, 3)) + bytes(1000),
    }
    for name, content in bombs.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "names.npz").write_bytes(zip_of(images=images, class_names=member((1,), f"<U{size // 4}")))
    with bounded():
        for name in bombs:
            assert_refused(call(tmp_path, "data", "prepare", name), [name])
        call(tmp_path, "data", "prepare", "names.npz")  # the images are fine; the names are not read


def nested(levels: int) -> list[Any]:
    """Few lists, each twice in the next: written out or made an array, they are 2**levels."""
    shared: list[Any] = []
    for _ in range(levels):
        shared = [shared, shared]
    return shared


class Calls:
    """Pickled as a call of a function with these arguments."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def test_pickle_bombs_take_no_memory(tmp_path: Path):
    shared, reconstruct = nested(60), np.zeros(1).__reduce__()[0]
    bombs = {
        "type": pickle.dumps(Calls(np.dtype, nested(27)), 4),
        "subtype": pickle.dumps(Calls(reconstruct, nested(27), (0,), b"b"), 4),
        "codec": pickle.dumps(Calls(codecs.encode, "x", nested(27)), 4),
        "hidden": pickle.dumps(Calls(np.ndarray, nested(27)), 4),
        "shared": pickle.dumps(shared, 4),
        "memo": b"\x80\x02]r\xff\xff\xff\x7f.",
        "memo-text": b"(lp2000000000\n.",
        "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
        "frame": b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"x.",
        "shape": pickle.dumps({"data": np.zeros((2, 3), np.uint8)}, 2).replace(b"K\x02K\x03", b"K\xffK\xff"),
        "deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    }
    with bounded():
        for name, content in bombs.items():
            path = tmp_path / f"{name}.pkl"
            path.write_bytes(content)
            if name == "shared":
                load_pickle(path)
                continue
            with pytest.raises(UserError):
                load_pickle(path)


@pytest.mark.parametrize("place", ["names", "data", "labels", "label"])
def test_pickled_batches_with_lists_in_lists_take_no_memory(tmp_path: Path, place: str):
    shared = nested(27)
    values: dict[str, Any] = {"label_names": ["a"], "data": np.zeros((2, 3072), np.uint8), "labels": [0, 0]}
    hostile = {"names": ("label_names", [shared]), "label": ("labels", [0, shared])}
    key, value = hostile.get(place, (place, shared))
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        (tmp_path / name).write_bytes(pickle.dumps({**values, key: value}, 2))
    with bounded():
        done = call(tmp_path, "data", "prepare", tmp_path)
    assert_refused(done, ["batches.meta" if place == "names" else "data_batch_1"])


def test_names_of_classes_that_unpack_to_gigabytes_take_no_memory(tmp_path: Path):
    names, batch = ["x" * MEGABYTE] * 60_000, {"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 1]}
    (tmp_path / "meta").write_bytes(pickle.dumps({"fine_label_names": names}, 4))
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(pickle.dumps(batch, 2))
    images, letters = npy_header((4, 8, 8, 3)), npy_header((5 * ZEROS,), "<U1")
    deflated = zip_of(
        images=(zeros(1, images), len(images) + ZEROS), class_names=(zeros(20, letters), len(letters) + 20 * ZEROS)
    )
    (tmp_path / "a.npz").write_bytes(deflated)
    with bounded():
        assert_refused(call(tmp_path, "data", "prepare", tmp_path), ["60000 class names", "shorter names"])
        assert_refused(call(tmp_path, "data", "prepare", "a.npz"), ["a.npz[class_names]", "too large"])


def test_large_files_take_no_memory(tmp_path: Path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, head in {"a.jpg": b"\xff\xd8\xff", "b.webp": b"RIFF\xff\xff\xff\xffWEBPVP8L", "c.png": b""}.items():
        with open(photos / name, "wb") as file:
            file.write(head)
            file.truncate(2**31)  # of which nothing lies on the disk
    with bounded():
        assert_refused(call(tmp_path, "data", "prepare", "photos"), ["none of the 3 files", "2,147,483,648 bytes"])
        assert [image_size(path) for path in photos.iterdir()] == [None] * 3


def test_a_gallery_that_unpacks_to_gigabytes_takes_no_memory(run: Path, tmp_path: Path):
    copy = copy_run(run, tmp_path / "run")
    head = npy_header((80 * ZEROS,))
    (copy / "gallery.npz").unlink()
    (copy / "gallery.npz").write_bytes(zip_of(embeddings=(zeros(80, head), len(head) + 80 * ZEROS)))
    with bounded():
        assert_refused(call(tmp_path, "report", "run"), ["gallery.npz", "at most"])


@pytest.mark.parametrize("column", ["image", "label"])
def test_a_parquet_bomb_takes_no_memory(tmp_path: Path, column: str):
    zeros = pa.array([bytes(300 * MEGABYTE)], pa.binary())
    image = zeros if column == "image" else pa.array([b"x"], pa.binary())
    table = pa.table({"image": image, "label": ["a"] if column == "image" else zeros.cast(pa.string())})
    del zeros, image
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", use_dictionary=False, write_statistics=False)
    del table
    assert (tmp_path / "a.parquet").stat().st_size < MEGABYTE
    pa.default_memory_pool().release_unused()
    with bounded():
        assert_refused(call(tmp_path, "data", "prepare", "a.parquet"), ["a.parquet", "smaller"])


def test_a_tar_that_states_sizes_beyond_reason_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    for name, kind in {"image": b"0", "pax": b"x", "long": b"L"}.items():
        info = tarfile.TarInfo("a.png")
        info.type, info.size = kind, 2**40
        (tmp_path / f"{name}.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(2000))
    with bounded():
        for name in ("image", "pax", "long"):
            done = call(tmp_path, "pretrain", f"{name}.tar", "--backbone", "test_resnet", "--batch-size", "2")
            assert_refused(done, [f"{name}.tar"])


# Words that would be markup


def test_labels_and_names_with_markup_stay_text(tmp_path: Path):
    words = "<script>alert(1)", "[red]b[bold]"
    for number in range(24):
        folder = tmp_path / "photos" / ("train", "test")[number % 2] / words[number // 12]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"<img src=x onerror=alert({number})>.png").write_bytes(encoded(height=16, width=16))
    arguments = ["--backbone", "test_resnet", "--epochs", "1", "--batch-size", "4", "--prototypes", "4"]
    done = call(tmp_path, "pretrain", "photos", *arguments, "--out", "run")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    query = next((tmp_path / "photos" / "train").rglob("*.png"))
    done = call(tmp_path, "search", "run", "photos/train", query, "-o", "sheet.html")
    assert done.returncode == 0, done.stderr
    assert "<img src=x" not in (tmp_path / "sheet.html").read_text()
    done = call(tmp_path, "data", "info", "photos", "--sheet", "sheet.png")
    assert done.returncode == 0, done.stderr


def test_a_good_run_still_loads(run: Path):
    """The readers that refuse all of the above read what they should."""
    assert load_trained(run).method is not None
    assert load_file(run / "encoder.safetensors").keys() == read_weights(run / "encoder.safetensors").keys()
    with np.load(run / "gallery.npz", allow_pickle=False) as gallery:
        assert len(gallery["rows"]) == 96
