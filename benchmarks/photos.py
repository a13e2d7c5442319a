"""Images a second of SimCLR view pairs cut from large photos: cut from the files against a plain DataLoader.

    python -m benchmarks.photos [--json] [--count 500] [--side 224] [--workers 2] [--repeats 3]

Synthetic JPEGs of 1500 x 1000 pixels are written to a folder and read back as batches of two views. This project
decodes and crops them with a thread a core, and does the rest in batches; the other side is torchvision's usual way:
a Dataset that opens the file and makes both views by PIL transforms, in a DataLoader with worker processes. Both make
the same operations with the same probabilities. Clock on the wall, file cache warm, sides take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.views import torchvision_transform
from carl.data import open_dataset
from carl.data.batches.photos import PhotoBatches
from carl.views.recipes import pipeline
from carl.views.views import Views

WIDTH, HEIGHT = 1500, 1000
BATCH = 100


def write_photos(folder: Path, count: int) -> None:
    """Smooth shapes with some grain, about as large as a camera's files of this size (200 to 300 KB)."""
    generator = np.random.default_rng(0)
    for index in range(count):
        coarse = Image.fromarray(generator.integers(0, 256, (12, 18, 3), np.uint8))
        smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.int16)
        grain = generator.integers(-12, 13, (HEIGHT, WIDTH, 1), np.int16)
        Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(folder / f"{index:05}.jpg", quality=85)


class Pairs(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Two views of each file, as one would write it with torchvision."""

    def __init__(self, folder: Path, side: int) -> None:
        self.files = sorted(folder.iterdir())
        self.view = torchvision_transform(side)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        with Image.open(self.files[index]) as file:
            image = file.convert("RGB")
        return self.view(image), self.view(image)


def carl_epoch(folder: Path, side: int) -> Callable[[int], None]:
    dataset = open_dataset(folder, image_size=side)
    assert dataset.views_from == "photos"
    views = Views(pipeline("simclr", side), dataset.statistics.mean, dataset.statistics.std, seed=0)
    batches = PhotoBatches(
        dataset.train, views, min(BATCH, len(dataset.train)), seed=0, device=torch.device("cpu"), drop_last=False
    )

    def run(epoch: int) -> None:
        for batch in batches.epoch(epoch):
            assert batch.views[0].shape[2] == side

    return run


def torchvision_epoch(folder: Path, side: int, workers: int) -> Callable[[int], None]:
    loader = torch.utils.data.DataLoader(Pairs(folder, side), BATCH, shuffle=True, num_workers=workers)

    def run(epoch: int) -> None:
        for first, _ in loader:
            assert first.shape[2] == side

    return run


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--count", type=int, default=500, help="photos (default 500)")
    parser.add_argument("--side", type=int, default=224, help="side of a view in pixels (default 224)")
    parser.add_argument("--workers", type=int, default=2, help="processes of the DataLoader (default 2)")
    parser.add_argument("--repeats", type=int, default=3, help="epochs of each (default 3)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["CARL_CACHE"] = f"{temporary}/cache"
        folder = Path(temporary, "photos")
        folder.mkdir()
        write_photos(folder, options.count)
        start = time.perf_counter()
        sides = {"carl": carl_epoch(folder, options.side)}
        packing = time.perf_counter() - start
        sides["torchvision"] = torchvision_epoch(folder, options.side, options.workers)
        speeds: dict[str, list[float]] = {name: [] for name in sides}
        for repeat in range(options.repeats):
            for name, run in sides.items():
                start = time.perf_counter()
                run(repeat)
                speeds[name].append(options.count / (time.perf_counter() - start))
    if options.json:
        print(json.dumps({name: round(statistics.median(values), 1) for name, values in speeds.items()}))
        return
    print(f"{options.count} photos of {WIDTH} x {HEIGHT}, two views of {options.side} px, images/s (lowest - highest)")
    for name, values in speeds.items():
        print(f"  {name:12} {statistics.median(values):7.1f} ({min(values):.1f} - {max(values):.1f})")
    print(f"  first start (decoding once for evaluation): {packing:.1f} s")


if __name__ == "__main__":
    main()
