"""Files and places that are not what they seem: pipes, cut files, odd names, no home, closed folders, huge images."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from carl.config import read_settings
from carl.data import open_dataset
from carl.data.decoding.crop import encoded_size
from carl.data.decoding.decode import DecodeError, decode, image_size, strict_decoding
from carl.data.open import absolute_source, open_images
from carl.data.packing.cache import locked
from carl.data.sources.shards import expand, find_shards
from carl.errors import UserError
from carl.terminal import silent
from carl.user_paths import expanded
from tests.reliability.test_hostile import MEGABYTE, bounded, zeros
from tests.reliability.world import encoded


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CARL_CACHE", str(folder))
    return folder


def save_images(folder: Path, count: int = 4, side: int = 16) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number}.png").write_bytes(encoded("PNG", side, side))


# Pipes in the place of files


def answered(work: Callable[[], object]) -> BaseException | None:
    """The error of `work`, which must end within seconds instead of waiting at a pipe."""
    errors: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            errors.append(None)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert errors, "it waits at a pipe"
    return errors[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize(
    ("pipe", "source"),
    [
        ("x.npy", "x.npy"),
        ("x.npz", "x.npz"),
        ("x.parquet", "x.parquet"),
        ("x.tar", "x.tar"),
        ("x.jpg", "x.jpg"),
        ("good-labels.npy", "good.npy"),
        ("good-test.npy", "good-train.npy"),
        ("folder/x.parquet", "folder"),
        ("folder/x-test.parquet", "folder"),
        ("folder/x.tar", "folder"),
        ("imagenet/train_data_batch_1", "imagenet"),
        ("imagenet/train_data_batch_1.npz", "imagenet"),
        ("stl/train_y.bin", "stl"),
        ("cifar/test_batch", "cifar"),
    ],
)
def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path, pipe: str, source: str):
    for name in ("good.npy", "good-train.npy"):
        np.save(tmp_path / name, np.zeros((4, 8, 8, 3), np.uint8))
    for folder in ("folder", "imagenet", "stl", "cifar"):
        (tmp_path / folder).mkdir()
    (tmp_path / "stl" / "train_X.bin").write_bytes(bytes(2 * 96 * 96 * 3))
    for name in ("data_batch_1", "batches.meta"):
        (tmp_path / "cifar" / name).write_bytes(b"x")
    os.mkfifo(tmp_path / pipe)
    error = answered(lambda: open_dataset(tmp_path / source))
    assert isinstance(error, UserError) or pipe == "stl/train_y.bin", error


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_in_the_place_of_a_configuration_is_refused_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "values.toml")
    error = answered(lambda: read_settings(tmp_path / "values.toml"))
    assert isinstance(error, UserError)
    assert "values.toml: it is not a regular file" in str(error)


# Files that change while they are in use


def test_a_sizes_cache_with_zeros_is_made_anew(tmp_path: Path, own_cache: Path):
    save_images(tmp_path / "photos", side=300)
    sizes = open_dataset(tmp_path / "photos", image_size=16, views_from="photos").train.photos
    assert sizes is not None
    (kept,) = (own_cache / "photos").glob("*.npy")
    for damaged in (np.zeros((4, 2), np.int64), np.full((4, 2), -1), np.full((4, 2), 2.5), np.full((4, 2), 2**40)):
        np.save(kept, damaged)
        again = open_dataset(tmp_path / "photos", image_size=16, views_from="photos").train.photos
        assert again is not None
        assert np.array_equal(again.sizes, sizes.sizes)


# Places


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No HOME, and a user id that has no name, as `docker run --user 12345` has it."""
    import pwd

    def unknown(user: object) -> None:
        raise KeyError(user)

    for name in ("HOME", "CARL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwnam", unknown)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no user ids")
@pytest.mark.usefixtures("homeless")
def test_without_a_home_images_are_packed_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save_images(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    dataset = open_dataset("photos")
    assert len(dataset.train) == 4
    assert any("packed in memory" in note and "CARL_CACHE" in note for note in dataset.notes)
    assert not (tmp_path / "~").exists()
    with pytest.raises(UserError, match="CARL_CACHE"):
        open_dataset("cifar10")


@pytest.mark.parametrize("name", ["~old", "~nosuchuser", "~backup.png"])
def test_a_name_with_a_tilde_is_used_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.chdir(tmp_path)
    for source in (name, f"{name}/photos", f"{name}/{{0..1}}.tar"):
        with pytest.raises(UserError):
            open_dataset(source)
        absolute_source(source)
    save_images(tmp_path / name)
    assert len(open_dataset(name).train) == 4
    assert open_images(name).count == 4
    assert absolute_source(name) == str(tmp_path / name)
    assert expanded(name) == Path(name)


def test_a_tilde_alone_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save_images(tmp_path / "photos")
    assert expanded("~/photos") == tmp_path / "photos"
    assert len(open_dataset("~/photos").train) == 4
    assert absolute_source("~/photos") == str(tmp_path / "photos")


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a folder one that may not be read, also for root, who may read all."""
    folders: set[str] = set()
    scandir = os.scandir

    def guarded(path: str | Path = ".") -> object:
        if str(path) in folders:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    return lambda folder: folders.add(str(folder))


def test_a_sub_folder_that_cannot_be_read_is_left_out_with_a_note(
    tmp_path: Path, closed: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
):
    root = tmp_path / "photos"
    save_images(root)
    (root / "lost+found").mkdir()
    closed(root / "lost+found")
    dataset = open_dataset(root)
    assert len(dataset.train) == 4
    assert any("lost+found" in note and "left out" in note for note in dataset.notes)
    assert open_images(root).count == 4
    assert "lost+found" in capsys.readouterr().err
    closed(tmp_path)  # the folder's neighbours cannot be listed: then it has none
    assert len(open_dataset(root).train) == 4
    closed(root)
    with pytest.raises(UserError, match="photos cannot be read"):
        open_dataset(root)


@pytest.mark.parametrize(
    "pattern", ["x{0..99999}{0..99999}.tar", "x*{0..99999}{a,b}{0..9}.tar", f"x{{0..{'9' * 200}}}.tar"]
)
def test_a_pattern_of_too_many_shards_is_refused_before_it_is_expanded(pattern: str):
    with bounded(50 * MEGABYTE), pytest.raises(UserError, match="shards"):
        expand(pattern)


# What is said


def test_waiting_for_a_lock_is_said_once_without_a_terminal(capsys: pytest.CaptureFixture[str]):
    order = []

    def second() -> None:
        with locked("key", "packs the images"):
            order.append("second")

    with locked("key", "packs the images"):
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.5)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]
    assert capsys.readouterr().err == "carl: waiting for another process that packs the images\n"


@pytest.mark.skipif(os.name == "nt", reason="a shell closes the stream")
def test_packing_with_standard_error_closed_goes_on(tmp_path: Path):
    save_images(tmp_path / "photos")
    command = f'exec "{sys.executable}" -c "from carl.cli import main; main()" data prepare photos 2>&-'
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "4 train" in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="a shell closes the stream")
def test_a_file_never_gets_the_number_of_a_closed_standard_stream():
    code = (
        "import os; from carl.terminal import reserve_standard_streams as reserve; "
        "reserve(); print(os.open(os.devnull, os.O_RDONLY) > 2)"
    )
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -c "{code}" 2>&-'], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == "True\n"


# Memory


def webp(side: int) -> bytes:
    """One colour in some dozen bytes, whatever its size."""
    bits = f"{0x2F:08b}"[::-1] + f"{side - 1:014b}"[::-1] * 2 + "0" + "000" + "0" + "0" + "0"
    for _ in range(5):  # five codes of one symbol, 0
        bits += "1" + "0" + "0" + "0"
    bits = bits.ljust(-(-len(bits) // 8) * 8, "0")
    data = bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8)) + bytes(8)
    chunk = b"VP8L" + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def deflated_tiff(width: int, height: int, tags: dict[int, int]) -> bytes:
    block = zeros(24, window=15)
    fields = {256: width, 257: height, 259: 8, 262: 1, 273: 8, 277: 1, 278: height, 279: len(block)} | tags
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(fields.items()))
    head = b"II*\0" + struct.pack("<I", 8 + len(block))
    return head + block + struct.pack("<H", len(fields)) + directory + bytes(4)


def test_a_small_webp_is_made(tmp_path: Path):
    assert Image.open(io.BytesIO(webp(100))).size == (100, 100)
    assert decode(webp(100), (8, 8)).shape == (8, 8, 3)


def jp2(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG2000", no_jp2=True)
    data = bytearray(file.getvalue())
    at = data.index(b"\xff\x51") + 6  # Xsiz, Ysiz, offsets, then the tile's size
    struct.pack_into(">IIIIII", data, at, side, side, 0, 0, side, side)
    return bytes(data)


@pytest.mark.parametrize("make", [webp, jp2], ids=["webp", "jp2"])
def test_a_tiny_file_of_a_huge_image_takes_no_memory(make: Callable[[int], bytes]):
    with bounded(), strict_decoding():
        with pytest.raises(DecodeError, match="9400 x 9400"):
            decode(make(9_400), (8, 8))
        assert image_size(make(9_400)) is None
        with pytest.raises(DecodeError, match="9400 x 9400"):
            encoded_size(make(9_400))


def test_tiffs_of_large_blocks_take_no_memory():
    blocks = [
        deflated_tiff(10, 10, {258: 8, 322: 20_000, 323: 20_000, 324: 8, 325: 400_000}),  # one tile of 400 MB
        deflated_tiff(9_400, 9_400, {258: 32, 339: 3, 277: 1, 262: 2}),
    ]
    with bounded(), strict_decoding():
        for block in blocks:
            with pytest.raises(DecodeError):
                decode(block, (8, 8))


@pytest.mark.slow
def test_a_tiff_of_floats_takes_less_than_800_mb():
    with bounded(800 * MEGABYTE), strict_decoding():
        assert decode(deflated_tiff(9_400, 9_400, {258: 32, 339: 3}), (96, 96)).shape == (96, 96, 3)


def test_a_value_that_a_parquet_file_repeats_is_not_read_for_all_rows_at_once(tmp_path: Path):
    value, rows = pa.array([bytes(16 * MEGABYTE)], pa.binary()), pa.array(np.zeros(200, np.int32))
    table = pa.table({"image": pa.DictionaryArray.from_arrays(rows, value)})
    pq.write_table(table, tmp_path / "x.parquet", store_schema=False)
    with bounded(1500 * MEGABYTE), pytest.raises(UserError, match="none of the 200 files"):
        open_dataset(tmp_path / "x.parquet")
    shards = find_shards(str(tmp_path / "*.parquet"), silent)
    with bounded(1000 * MEGABYTE):
        assert sum(1 for _ in shards.read(0, np.arange(200))) == 200


# Damage that does not touch the pixels


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG", "TIFF"])
@pytest.mark.parametrize(
    "exif", [b"Exif\0\0garbage", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff" + bytes(20), b""]
)
def test_an_image_with_damaged_exif_is_used(tmp_path: Path, kind: str, exif: bytes):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 20, 3), np.uint8)
    plain, damaged = io.BytesIO(), io.BytesIO()
    options = {"lossless": True} if kind == "WEBP" else {}
    Image.fromarray(pixels).save(plain, kind, **options)
    Image.fromarray(pixels).save(damaged, kind, **options, **({} if kind == "TIFF" else {"exif": exif}))
    with strict_decoding():
        assert np.array_equal(decode(damaged.getvalue(), None), decode(plain.getvalue(), None))
        assert encoded_size(damaged.getvalue()) == (12, 20)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_upright_and_its_size_is_known(kind: str, orientation: int):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    options = {"lossless": True} if kind == "WEBP" else {}
    pixels = np.random.default_rng(0).integers(0, 256, (12, 20, 3), np.uint8)
    Image.fromarray(pixels).save(file, kind, exif=exif, **options)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file.getvalue()))))
    with strict_decoding():
        assert np.array_equal(decode(file.getvalue(), None), upright)
        assert encoded_size(file.getvalue()) == upright.shape[:2]
