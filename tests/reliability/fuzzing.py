"""Readers of files against damaged files: a seeded fuzzer that flips, cuts, splices and overwrites.

A reader may give something, or refuse with an error of the user; any other exception is a fault of ours. Which bytes
are changed is drawn without a look at what the reader does with them: coverage does not guide it (atheris does that,
see soak.py).
"""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save as save_safetensors

from carl.data.decoding.decode import DecodeError, OversizedError, decode, strict_decoding
from carl.data.decoding.pickles import load_pickle
from carl.data.decoding.tar import read_tar
from carl.data.decoding.tiff import read_bands
from carl.data.listing import ArraySplit, EncodedSplit, Listing
from carl.data.packing import cache
from carl.data.sources.arrays import list_npy, list_npz
from carl.data.sources.parquet import list_parquet
from carl.errors import UserError
from carl.methods.run_config import read_config as parse_config
from carl.models.state_dicts import read_weights
from carl.records.run_directory import RunDirectory
from carl.reporting.pages import write_report
from carl.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from carl.use.embedding_files import EmbeddingFile
from tests.reliability.world import encoded, pixels
from tests.reporting.conftest import make_gallery, make_run

REFUSALS = (UserError, DecodeError, OversizedError)
Reader = Callable[[bytes, Path], object]  # content of a file, and a folder to use


def _file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def _read_listing(listing: Listing) -> None:
    for split in listing.splits.values():
        if isinstance(split, EncodedSplit | ArraySplit):
            for _ in split.read():
                pass
        else:
            split.pixels[-1].sum()


def read_parquet(content: bytes, folder: Path) -> None:
    _read_listing(list_parquet(_file(folder, "x.parquet", content), "x"))


def read_embeddings(content: bytes, folder: Path) -> None:
    file = EmbeddingFile(_file(folder, "x.parquet", content))
    file.names()
    for batch in file.batches():
        batch.sum()


def read_npz(content: bytes, folder: Path) -> None:
    _read_listing(list_npz(_file(folder, "x.npz", content), "x"))


def read_npy(content: bytes, folder: Path) -> None:
    _read_listing(list_npy(_file(folder, "x.npy", content), "x"))


def read_checkpoint(content: bytes, folder: Path) -> object:
    return load_checkpoint(_file(folder, "checkpoint.pt", content))


def read_pickle(content: bytes, folder: Path) -> object:
    return load_pickle(_file(folder, "x.pkl", content))


def read_tar_file(content: bytes, folder: Path) -> object:
    return list(read_tar(io.BytesIO(content), "x.tar", range(1000)))


def read_tiff(content: bytes, folder: Path) -> object:
    try:
        return read_bands(content)
    except Exception as error:  # whatever it raises, `decode` makes a refusal of it
        with strict_decoding():
            decode(content, (8, 8))
        raise DecodeError from error


def read_image(content: bytes, folder: Path) -> object:
    with strict_decoding():
        return decode(content, (8, 8))


def read_safetensors(content: bytes, folder: Path) -> object:
    return read_weights(_file(folder, "x.safetensors", content))


def read_data_record(content: bytes, folder: Path) -> object:
    _file(folder, "data.json", content)
    return RunDirectory(folder).read_data()


def read_config(content: bytes, folder: Path) -> object:
    _file(folder, "config.toml", content)
    return parse_config(RunDirectory(folder))


def read_metrics(content: bytes, folder: Path) -> None:
    _report(folder, "metrics.jsonl", content)


def read_environment(content: bytes, folder: Path) -> None:
    _report(folder, "environment.json", content)


def read_gallery(content: bytes, folder: Path) -> None:
    _report(folder, "gallery.npz", content)


def _report(folder: Path, name: str, content: bytes) -> None:
    """A page of a run with this file among its others."""
    run = folder / "run"
    if not run.exists():
        make_run(run, make_gallery(images=12, prototypes=4))
    write_report(_file(run, name, content).parent)


def run_seed(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return (make_run(Path(folder) / "run", make_gallery(images=12, prototypes=4)) / name).read_bytes()


STORE = ("meta.json", "train/pixels.npy", "train/labels.npy", "train/names.json")


def read_store(content: bytes, folder: Path) -> None:
    """The four files of an entry, one after the other with their lengths before them."""
    (folder / "train").mkdir(exist_ok=True)
    position = 0
    for name in STORE:
        length = int.from_bytes(content[position : position + 4], "little") % (len(content) + 1)
        (folder / name).write_bytes(content[position + 4 : position + 4 + length])
        position += 4 + length
    listing = Listing("x", "x", {"train": EncodedSplit(4, True, lambda: iter(()))})
    found = cache.load(folder, listing)
    if found is not None:
        dataset, _ = found
        dataset.train.images.gather(np.arange(len(dataset.train))).sum()
        assert dataset.train.labels is None or len(dataset.train.labels) == len(dataset.train)


def store_seed() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train").mkdir()
        mean = (0.5, 0.5, 0.5)
        meta = cache.Meta(cache.FORMAT_VERSION, "x", ("train",), mean, (0.2, 0.2, 0.2), "ab", ("a", "b"), ("note",), 0)
        meta.write(folder)
        np.save(folder / "train" / "pixels.npy", pixels(4))
        np.save(folder / "train" / "labels.npy", np.array([0, 1, 0, 1]))
        (folder / "train" / "names.json").write_text(json.dumps(["a", "b", "c", "d"]))
        parts = [(folder / part).read_bytes() for part in STORE]
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def checkpoint_seed() -> bytes:
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.zeros(1, 3)).sum().backward()
    optimizer.step()
    state = torch.get_rng_state()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "checkpoint.pt"
        save_checkpoint(path, Checkpoint(3, layer.state_dict(), optimizer.state_dict(), {}, state, None, "ab", 1.0))
        return path.read_bytes()


def parquet_seed(**columns: object) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


def embeddings_seed() -> bytes:
    about = {"version": 1, "run": "r", "weights": "w", "source": "s", "base": "/", "split": None, "class_names": []}
    embeddings = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12, dtype=np.float32)), 4)
    table = pa.table({"path": ["a", "b", "c"], "embedding": embeddings})
    stream = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({b"carl": json.dumps(about).encode()}), stream)
    return stream.getvalue()


def npz_seed(compressed: bool) -> bytes:
    stream = io.BytesIO()
    save = np.savez_compressed if compressed else np.savez
    save(
        stream, x_train=pixels(4), y_train=np.arange(4), x_test=pixels(2), y_test=np.arange(2), class_names=list("abcd")
    )
    return stream.getvalue()


def npy_seed() -> bytes:
    stream = io.BytesIO()
    np.save(stream, pixels(4))
    return stream.getvalue()


def tar_seed() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("a.png", "ü" * 80 + ".png", "b.txt", "x" * 200 + ".png"):
            info = tarfile.TarInfo(name)
            info.size = 600
            archive.addfile(info, io.BytesIO(bytes(600)))
    return stream.getvalue()


def tiff_seed(planar: int = 1) -> bytes:
    """5 bands of 4 x 4 pixels, uncompressed."""
    tags = {256: 4, 257: 4, 258: 8, 259: 1, 273: 8, 277: 5, 278: 4, 279: 80, 284: planar}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\0" + struct.pack("<I", 88) + bytes(range(80)) + struct.pack("<H", len(tags)) + entries + bytes(4)


def pickle_seeds() -> list[bytes]:
    batch = {"data": np.arange(12, dtype=np.uint8).reshape(2, 6), "labels": [0, 1], "names": ["a", b"b", 1.5, None]}
    return [pickle.dumps(batch, protocol) for protocol in range(6)]


DATA_RECORD = {
    "name": "x", "images": 4, "channels": 3, "height": 8, "width": 8, "image_size": 8, "mean": [0.5] * 3,
    "std": [0.2] * 3, "class_names": ["a"], "fingerprint": "ab",
}  # fmt: skip
CONFIG = b'[data]\nsource = "x"\nimage_size = 32\n[method]\nname = "carl"\nprototypes = 10\n[train]\nepochs = 3\n'
TARGETS: dict[str, tuple[Reader, Callable[[], list[bytes]]]] = {
    "parquet": (read_parquet, lambda: [parquet_seed(image=[encoded()] * 3, label=[0, 1, 0])]),
    "parquet, text labels": (read_parquet, lambda: [parquet_seed(image=[encoded()] * 3, label=["a", "b", "a"])]),
    "embeddings": (read_embeddings, lambda: [embeddings_seed()]),
    "packed store": (read_store, lambda: [store_seed()]),
    "checkpoint": (read_checkpoint, lambda: [checkpoint_seed()]),
    "safetensors": (read_safetensors, lambda: [save_safetensors({"a": torch.zeros(3), "b": torch.ones(2, 2)})]),
    "pickle": (read_pickle, pickle_seeds),
    "tar": (read_tar_file, lambda: [tar_seed()]),
    "tiff of bands": (read_tiff, lambda: [tiff_seed(), tiff_seed(2)]),
    "images": (read_image, lambda: [encoded(form) for form in ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM")]),
    "npz": (read_npz, lambda: [npz_seed(False), npz_seed(True)]),
    "npy": (read_npy, lambda: [npy_seed()]),
    "data.json": (read_data_record, lambda: [json.dumps(DATA_RECORD).encode()]),
    "config.toml": (read_config, lambda: [CONFIG]),
    "metrics.jsonl": (read_metrics, lambda: [run_seed("metrics.jsonl")]),
    "environment.json": (read_environment, lambda: [run_seed("environment.json")]),
    "gallery.npz": (read_gallery, lambda: [run_seed("gallery.npz")]),
}
INTERESTING = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**62,
    2**63,
    2**64 - 1,
]


def mutate(content: bytes, source: random.Random) -> bytes:
    """A damaged copy: one to six changes."""
    made = bytearray(content)
    for _ in range(source.choice((1, 1, 2, 3, 6))):
        place, way = source.randrange(len(made) + 1), source.randrange(7)
        if way == 0 and made:
            made[min(place, len(made) - 1)] ^= 1 << source.randrange(8)
        elif way == 1:
            made[place : place + source.choice((1, 4, 16))] = source.randbytes(source.choice((1, 4, 16)))
        elif way == 2:
            del made[place:]
        elif way == 3:
            del made[place : place + source.choice((1, 8, 64))]
        elif way == 4:
            start = source.randrange(len(content))
            made[place:place] = content[start : start + source.choice((4, 32, 256))]
        elif way == 5:
            size, order = source.choice((1, 2, 4, 8)), source.choice(("little", "big"))
            value = source.choice(INTERESTING) % 256**size
            made[place : place + size] = value.to_bytes(size, order)  # type: ignore[arg-type]
        else:
            made[place:place] = bytes([source.randrange(256)]) * source.choice((1, 100, 5000))
    return bytes(made)


@dataclass
class Tally:
    """What a reader did with damaged files."""

    tried: int = 0
    read: int = 0
    refused: int = 0
    crashes: list[str] = field(default_factory=list)
    slowest: float = 0.0  # seconds for one file


def fuzz(name: str, seed: int, seconds: float, most: int = 10**9) -> Tally:
    """Feed a reader damaged files until the time or the number is up."""
    reader, seeds = TARGETS[name]
    source, tally, end = random.Random(f"{name} {seed}"), Tally(), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        for content in _contents(seeds(), source):
            if time.monotonic() > end or tally.tried >= most:
                return tally
            _try(reader, content, Path(folder), tally)
    return tally


def _contents(seeds: list[bytes], source: random.Random) -> Iterator[bytes]:
    yield from seeds
    while True:
        yield mutate(source.choice(seeds), source)


def _try(reader: Reader, content: bytes, folder: Path, tally: Tally) -> None:
    tally.tried += 1
    start = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader(content, folder)
        tally.read += 1
    except REFUSALS as error:
        tally.refused += 1
        if "\n" in str(error).strip():
            pass  # the command joins lines
    except Exception as error:
        tally.crashes.append(f"{type(error).__name__}: {error} <- {content[:2000].hex()}")
    tally.slowest = max(tally.slowest, time.monotonic() - start)
