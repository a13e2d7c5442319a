"""A folder of everything that can be wrong with what users give: files, images, data sets and run directories."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

random = np.random.default_rng(0)
FORMATS = {"png": "PNG", "jpg": "JPEG", "webp": "WEBP", "bmp": "BMP", "tif": "TIFF", "gif": "GIF", "ppm": "PPM"}


def encoded(form: str = "PNG", height: int = 40, width: int = 40) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(stream, form)
    return stream.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that states a size and has hardly any pixels."""
    return png_file(struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), zlib.compress(bytes(100)))


def png_file(header: bytes, data: bytes, exif: bytes = b"") -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    first = chunk(b"IHDR", header) + (chunk(b"eXIf", exif) if exif else b"")
    body = first + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def npy_header(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": kind, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def pixels(count: int, side: int = 8, channels: int = 3) -> np.ndarray:
    return random.integers(0, 256, (count, side, side, channels), np.uint8)


def make_files(world: Path) -> None:
    """Texts, configurations, links."""
    (world / "text.txt").write_text("I am a text\n")
    (world / "folder").mkdir()
    (world / "folder" / "notes.txt").write_text("no image")
    (world / "empty").mkdir()
    (world / "loop").symlink_to("loop")
    (world / "dangling").symlink_to("nowhere")
    configs: dict[str, bytes] = {
        "broken.toml": b"[train\nepochs = 3\n",
        "binary.toml": bytes(range(256)),
        "latin1.toml": "[data]\nsource = 'Küche'\n".encode("latin-1"),
        "deep.toml": b"x = " + b"[" * 5000,
        "number.toml": b"[train]\nepochs = " + b"9" * 5000 + b"\n",
        "flat.toml": b"train = 3\n",
        "section.toml": b"[trian]\nepochs = 3\n",
        "key.toml": b"[train]\nepoch = 3\n",
        "list.toml": b"[[train]]\nepochs = 3\n",
        "value.toml": b"[train]\nepochs = 'many'\n",
        "twice.toml": b"[train]\nepochs = 3\nepochs = 4\n",
    }
    for name, content in configs.items():
        (world / name).write_bytes(content)
    (world / "loop.toml").symlink_to("loop.toml")


def make_images(world: Path) -> None:
    """A folder for each way in which all images of a folder can be bad."""

    def folder(name: str, **contents: bytes) -> None:
        (world / name).mkdir()
        for file, content in contents.items():
            stem, _, ending = file.rpartition("_")
            (world / name / f"{stem}.{ending}").write_bytes(content)

    for ending, form in FORMATS.items():
        whole = encoded(form)
        folder(f"cut-{ending}", **{f"a_{ending}": whole[: len(whole) // 3], f"b_{ending}": whole[: len(whole) // 2]})
        folder(f"noise-{ending}", **{f"a_{ending}": whole[:16] + random.bytes(500)})
    folder("zero-bytes", a_png=b"", b_jpg=b"")
    folder("svg", a_jpg=b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>')
    folder("html", a_jpg=b"<!doctype html><script>alert(1)</script>", b_png=b"<html></html>")
    folder("postscript", a_jpg=b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(x) run showpage\n%%EOF\n")
    folder("pdf", a_png=b"%PDF-1.7\n%%EOF\n")
    folder("zip", a_png=b"PK\x03\x04" + bytes(200))
    folder("20000-px", a_png=png_header(20_000, 20_000))
    folder("60000-px", a_png=png_header(60_000, 60_000))
    folder("0-px", a_png=png_header(0, 0))
    folder("one-image", a_png=encoded())
    folder("wrong-ending", a_doc=encoded())
    (world / "images-are-folders" / "a.png").mkdir(parents=True)
    (world / "link-loops").mkdir()
    (world / "link-loops" / "a.png").symlink_to("a.png")
    (world / "dangling-images").mkdir()
    (world / "dangling-images" / "a.png").symlink_to("nowhere.png")
    if hasattr(os, "mkfifo"):
        (world / "pipes").mkdir()
        os.mkfifo(world / "pipes" / "a.png")


def make_arrays(world: Path) -> None:
    images = pixels(12)
    np.save(world / "floats.npy", images.astype(np.float32))
    np.save(world / "objects.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.save(world / "flat.npy", np.zeros(5, np.uint8))
    np.save(world / "five.npy", np.zeros((2, 2, 2, 2, 2), np.uint8))
    np.save(world / "none.npy", np.zeros((0, 8, 8, 3), np.uint8))
    np.save(world / "deep.npy", np.zeros((4, 20, 20, 20), np.uint8))
    np.save(world / "one.npy", images[:1])
    np.save(world / "unlabelled.npy", images)
    np.save(world / "short.npy", images)
    np.save(world / "short-labels.npy", np.zeros(5, np.int64))
    np.save(world / "real.npy", images)
    np.save(world / "real-labels.npy", np.zeros(12))
    (world / "zero.npy").write_bytes(b"")
    (world / "text.npy").write_text("text")
    (world / "cut.npy").write_bytes((world / "unlabelled.npy").read_bytes()[:200])
    (world / "claims.npy").write_bytes(npy_header((10**9, 224, 224, 3)) + bytes(100))
    (world / "giant.npy").write_bytes(npy_header((2, 10**6, 10**6, 3)) + bytes(100))
    labels = np.arange(12) % 3
    np.savez(world / "range.npz", images=images, labels=labels + 5, class_names=["a", "b", "c"])
    np.savez(world / "negative.npz", images=images, labels=labels - 5)
    np.savez(world / "classes.npz", images=images, labels=labels + 10**9)
    np.savez(world / "keys.npz", foreign=images)
    np.savez(world / "nothing.npz")
    np.savez(world / "one-class.npz", x_train=images, y_train=0 * labels, x_test=images, y_test=0 * labels)
    np.savez(world / "four.npz", x_train=pixels(12, 8, 4), y_train=labels, x_test=pixels(12, 8, 4), y_test=labels)
    np.savez(world / "sizes.npz", x_train=images, y_train=labels, x_test=pixels(12, 9), y_test=labels)
    np.savez(world / "tiny.npz", images=pixels(12, 1))
    np.savez(world / "names.npz", images=images, labels=labels, class_names=np.array(["a"] * 70_000))
    np.savez(world / "objects.npz", images=np.array([{"a": 1}], object))
    (world / "text.npz").write_text("text")
    (world / "zero.npz").write_bytes(b"")
    whole = (world / "four.npz").read_bytes()
    (world / "cut.npz").write_bytes(whole[: len(whole) // 2])
    broken = bytearray(whole)
    broken[300:400] = random.bytes(100)
    (world / "flipped.npz").write_bytes(bytes(broken))


def make_parquet(world: Path) -> None:
    images = [encoded() for _ in range(4)]
    pq.write_table(pa.table({"image": images, "label": [0, 1, 0, 1]}), world / "whole.parquet")
    whole = (world / "whole.parquet").read_bytes()
    (world / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (world / "text.parquet").write_text("text")
    (world / "zero.parquet").write_bytes(b"")
    (world / "noise.parquet").write_bytes(b"PAR1" + random.bytes(400) + b"PAR1")
    pq.write_table(pa.table({"caption": ["a dog"]}), world / "captions.parquet")
    pq.write_table(pa.table({"image": pa.array([], pa.binary())}), world / "rows.parquet")
    pq.write_table(pa.table({"image": pa.array([None, None], pa.binary())}), world / "nulls.parquet")
    pq.write_table(pa.table({"image": [b"no", b"image"]}), world / "garbage.parquet")
    huge = pa.table({"image": images, "label": pa.array([2**64 - 1] * 4, pa.uint64())})
    pq.write_table(huge, world / "labels.parquet")
    numbered = [{"bytes": images[0] if row == 0 else b"no image", "path": row} for row in range(12)]
    pq.write_table(pa.table({"image": numbered}), world / "paths.parquet")
    many = pa.table({"image": [b"x"] * 70_000, "label": [f"{row}" for row in range(70_000)]})
    pq.write_table(many, world / "many.parquet")
    (world / "mixed-parquet").mkdir()
    pq.write_table(pa.table({"image": [{"bytes": images[0]}]}), world / "mixed-parquet" / "0.parquet")
    pq.write_table(pa.table({"image": images}), world / "mixed-parquet" / "1.parquet")


def make_tars(world: Path) -> None:
    def tar(name: str, members: dict[str, bytes]) -> None:
        with tarfile.open(world / name, "w") as archive:
            for member, content in members.items():
                info = tarfile.TarInfo(member)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))

    tar("texts.tar", {"a.txt": b"text"})
    tar("bad-images.tar", {f"{i}.png": b"no image" for i in range(4)})
    tar("good.tar", {f"{i}.png": encoded() for i in range(4)})
    whole = (world / "good.tar").read_bytes()
    (world / "cut.tar").write_bytes(whole[:3000])
    (world / "zero.tar").write_bytes(b"")
    (world / "text.tar").write_text("text " * 300)
    (world / "packed.tar").write_bytes(gzip.compress(whole))


def make_official(world: Path) -> None:
    def cifar(name: str) -> Path:
        folder = world / name
        folder.mkdir()
        batch = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}
        for file in ("data_batch_1", "test_batch"):
            (folder / file).write_bytes(pickle.dumps(batch, 2))
        (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["a", "b"]}, 2))
        return folder

    (cifar("cifar-missing") / "test_batch").unlink()
    (cifar("cifar-text") / "data_batch_1").write_text("text")
    whole = (cifar("cifar-cut") / "data_batch_1").read_bytes()
    (world / "cifar-cut" / "data_batch_1").write_bytes(whole[:300])
    (cifar("cifar-keys") / "data_batch_1").write_bytes(pickle.dumps({"x": 1}, 2))
    short = {"data": np.zeros((2, 3000), np.uint8), "labels": [0, 1]}
    (cifar("cifar-shape") / "data_batch_1").write_bytes(pickle.dumps(short, 2))
    many = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 7]}
    (cifar("cifar-labels") / "data_batch_1").write_bytes(pickle.dumps(many, 2))
    for name, meta in {"number": 5, "numbers": [1, 2], "bytes": [b"a"]}.items():
        (cifar(f"cifar-names-{name}") / "batches.meta").write_bytes(pickle.dumps({"label_names": meta}, 2))
    batches: dict[str, tuple[object, object]] = {
        "number": (5, [0]),
        "flat": (np.zeros(5, np.uint8), [0]),
        "none": (np.zeros((0, 3072), np.uint8), np.zeros(0, np.int64)),
        "ragged": (np.zeros((2, 3072), np.uint8), [[0], [1, 2]]),
        "words": (np.zeros((2, 3072), np.uint8), ["a", "b"]),
        "label": (np.zeros((2, 3072), np.uint8), 5),
        "huge": (np.zeros((2, 3072), np.uint8), [0, 2**70]),
    }
    for name, (data, numbers) in batches.items():
        batch = pickle.dumps({"data": data, "labels": numbers}, 2)
        (cifar(f"cifar-batch-{name}") / "data_batch_1").write_bytes(batch)

    def folder(name: str, files: dict[str, bytes]) -> None:
        for file, content in files.items():
            (world / name / file).parent.mkdir(parents=True, exist_ok=True)
            (world / name / file).write_bytes(content)

    stl = {"train_X.bin": bytes(2 * 3 * 96**2)}
    folder("stl-cut", {"train_X.bin": bytes(1000)})
    folder("stl-empty", {"train_X.bin": b""})
    folder("stl-latin1", {**stl, "class_names.txt": b"K\xfcche"})
    folder("stl-labels", {**stl, "train_y.bin": bytes(100_000)})
    folder("stl-letters", {**stl, "fold_indices.txt": b"0 1\none two\n"})
    folder("stl-digits", {**stl, "fold_indices.txt": b"9" * 5000})
    tiny = {"wnids.txt": b"n01\n", "val/val_annotations.txt": b"a.JPEG\tn01\n"}
    tiny |= {"train/n01/images/a.JPEG": encoded("JPEG"), "val/images/a.JPEG": encoded("JPEG")}
    folder("tiny-missing", {"wnids.txt": b"n01\n"})
    for number, file in enumerate(("wnids.txt", "words.txt", "val/val_annotations.txt")):
        folder(f"tiny-latin1-{number}", {**tiny, file: b"n01\tK\xfcche\n"})
    folder("tiny-outside", {**tiny, "val/val_annotations.txt": b"../../../secret.JPEG\tn01\n"})
    folder("tiny-long", {**tiny, "words.txt": bytes(17 * 2**20)})
    good = {"data": np.zeros((2, 12), np.uint8), "labels": [1, 2]}
    for number, line in enumerate((b"n01 1\n", b"n01 one fox\n", b"n01 " + b"9" * 5000 + b" fox\n", b"\xfc 1 fox\n")):
        folder(f"imagenet-line-{number}", {"train_data_batch_1": pickle.dumps(good, 2), "map_clsloc.txt": line})
    shapes = {"scalar": np.uint8(3), "none": np.zeros((0, 12), np.uint8), "more": np.zeros((3, 12), np.uint8)}
    shapes |= {"fewer": np.zeros((1, 12), np.uint8), "floats": np.zeros((2, 12))}
    for name, data in shapes.items():
        (world / f"imagenet-{name}").mkdir()
        np.savez(world / f"imagenet-{name}" / "train_data_batch_1.npz", data=data, labels=np.array([1, 2]))


def make_weights(world: Path, run: Path) -> None:
    whole = (run / "encoder.safetensors").read_bytes()
    (world / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    (world / "text.safetensors").write_text("text")
    (world / "zero.safetensors").write_bytes(b"")
    (world / "header.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    save_file({"a": torch.zeros(3)}, world / "foreign.safetensors")
    weights = load_file(run / "encoder.safetensors")
    first = next(key for key, value in weights.items() if value.is_floating_point())
    save_file({**weights, first: weights[first] * float("nan")}, world / "nan.safetensors")
    (world / "text.pth").write_text("text")
    torch.save([1, 2, 3], world / "list.pth")
    shutil.copy(run / "encoder.safetensors", world / "weights.safetensors")


Damage = Callable[[Path], None]


def _text(name: str, content: str = "text") -> Damage:
    return lambda run: _write(run / name, content.encode())


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # it may be a second name of the good run's file
    path.write_bytes(content)


def _cut(name: str) -> Damage:
    return lambda run: _write(run / name, (run / name).read_bytes()[: (run / name).stat().st_size // 2])


def _gone(name: str) -> Damage:
    return lambda run: (run / name).unlink()


def _copy(name: str, other: str) -> Damage:
    return lambda run: _write(run / name, (run.parent / other).read_bytes())


def _json(name: str, **values: object) -> Damage:
    return lambda run: _write(run / name, json.dumps({**json.loads((run / name).read_text()), **values}).encode())


def _checkpoint(**values: object) -> Damage:
    def change(run: Path) -> None:
        state = torch.load(run / "checkpoint.pt", weights_only=True)
        stream = io.BytesIO()
        torch.save({**state, **values}, stream)
        _write(run / "checkpoint.pt", stream.getvalue())

    return change


def _config(old: str, new: str) -> Damage:
    def change(run: Path) -> None:
        text = (run / "config.toml").read_text()
        assert old in text, old
        _write(run / "config.toml", text.replace(old, new).encode())

    return change


def _objects(run: Path) -> None:
    stream = io.BytesIO()
    np.savez(stream, embeddings=np.array([{"a": 1}], object))
    _write(run / "gallery.npz", stream.getvalue())


DAMAGES: dict[str, Damage] = {
    "no-config": _gone("config.toml"),
    "empty-config": _text("config.toml", ""),
    "text-config": _text("config.toml", "text"),
    "flat-config": _text("config.toml", "data = 3\n"),
    "cut-config": lambda run: _write(run / "config.toml", (run / "config.toml").read_bytes()[:-40] + b"[["),
    "foreign-config": _text("config.toml", "[tool.poetry]\nname = 'x'\n"),
    "method-config": _config('name = "carl"', 'name = "crl"'),
    "key-config": _config("[train]", "[train]\nlater = 3"),
    "size-config": _config("image_size = 32\n", ""),
    "newer": _json("environment.json", format=2),
    "older": _json("environment.json", format=0),
    "text-environment": _text("environment.json"),
    "no-encoder": _gone("encoder.safetensors"),
    "cut-encoder": _cut("encoder.safetensors"),
    "text-encoder": _text("encoder.safetensors"),
    "foreign-encoder": _copy("encoder.safetensors", "foreign.safetensors"),
    "nan-encoder": _copy("encoder.safetensors", "nan.safetensors"),
    "cut-head": _cut("head.safetensors"),
    "foreign-head": _copy("head.safetensors", "foreign.safetensors"),
    "cut-checkpoint": _cut("checkpoint.pt"),
    "text-checkpoint": _text("checkpoint.pt"),
    "zero-checkpoint": _text("checkpoint.pt", ""),
    "foreign-checkpoint": _copy("checkpoint.pt", "list.pth"),
    "older-checkpoint": _checkpoint(format=0),
    "newer-checkpoint": _checkpoint(format=2),
    "key-checkpoint": _checkpoint(extra=1),
    "step-checkpoint": _checkpoint(step="many"),
    "late-checkpoint": _checkpoint(step=10**6),
    "weights-checkpoint": _checkpoint(method={"a": torch.zeros(3)}),
    "optimizer-checkpoint": _checkpoint(optimizer={"state": {}, "param_groups": []}),
    "random-checkpoint": _checkpoint(random_state=torch.zeros(3, dtype=torch.uint8)),
    "text-data": _text("data.json"),
    "list-data": _text("data.json", "[1]"),
    "type-data": _json("data.json", mean="many"),
    "nan-data": _json("data.json", std=[float("nan")] * 3),
    "zero-data": _json("data.json", std=[0.0] * 3),
    "channel-data": _json("data.json", channels=4),
    "deep-data": _text("data.json", "[" * 5000),
    "cut-gallery": _cut("gallery.npz"),
    "text-gallery": _text("gallery.npz"),
    "objects-gallery": _objects,
    "text-result": lambda run: ((run / "results").mkdir(), _write(run / "results" / "knn-small.json", b"text"))[0],
}


def copy_run(run: Path, target: Path) -> Path:
    """A second run directory; large files are shared with the first, so they must be replaced, not changed."""
    for path in run.rglob("*"):
        place = target / path.relative_to(run)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            os.link(path, place)
    return target


def make_world(world: Path, run: Path, data: Path) -> Path:
    """All of the above, with a good run in `good` and good data in `data.npz`."""
    world.mkdir(parents=True, exist_ok=True)
    shutil.copy(data, world / "data.npz")
    copy_run(run, world / "good")
    for make in (make_files, make_images, make_arrays, make_parquet, make_tars, make_official):
        make(world)
    make_weights(world, run)
    for name, damage in DAMAGES.items():
        damage(copy_run(run, world / name))
    return world
