"""The 3,000 photos of the pictures in the docs: python -m docs.images.photos FLOWERS.parquet [...] FOLDER

Each file of Oxford flowers has columns `image` and `label` and the names of its classes in its metadata. All of the
photos are written under the name of their class, in one folder without classes. Close-ups cut from them make up the
number, and 50 of the photos are there once more with a fault, to have something to find.
"""

from __future__ import annotations

import argparse
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
from PIL import Image, ImageFilter, ImageOps

COUNT, OF_EACH_FAULT = 3000, 10
FAULTS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "dark": lambda image: image.point([value // 8 for value in range(256)] * 3),
    "soft": lambda image: image.filter(ImageFilter.GaussianBlur(4)),
    "copy": lambda image: image,
    "small": lambda image: image.resize((round(0.9 * image.width), round(0.9 * image.height))),
    "grey": lambda image: ImageOps.grayscale(image).convert("RGB"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FLOWERS.parquet")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    photos = [photo for file in options.files for photo in read_photos(file)]
    for number, (name, data) in enumerate(photos):
        (options.folder / f"{name}-{number:04}.jpg").write_bytes(data)
    draw = random.Random(0)
    with_faults = draw.sample(range(len(photos)), OF_EACH_FAULT * len(FAULTS))
    for place, number in enumerate(with_faults):
        fault = list(FAULTS)[place // OF_EACH_FAULT]
        save(FAULTS[fault](opened(photos[number][1])), options.folder / f"{photos[number][0]}-{number:04}-{fault}.png")
    missing = COUNT - len(photos) - len(with_faults)
    for number in draw.sample(range(len(photos)), missing):
        name = f"{photos[number][0]}-{number:04}-close.jpg"
        save(close_up(opened(photos[number][1]), draw), options.folder / name)


def read_photos(file: Path) -> Iterator[tuple[str, bytes]]:
    """The name of the class and the JPEG of each photo."""
    table = pq.read_table(file)
    names = json.loads(table.schema.metadata[b"class_names"])
    for row in table.to_pylist():
        yield names[row["label"]].replace(" ", "-"), row["image"]["bytes"]


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def close_up(image: Image.Image, draw: random.Random) -> Image.Image:
    """Half of the area, anywhere in the image, at the size of the whole; every other one mirrored."""
    width, height = round(0.7 * image.width), round(0.7 * image.height)
    left, top = draw.randint(0, image.width - width), draw.randint(0, image.height - height)
    closer = image.resize(image.size, Image.Resampling.BICUBIC, (left, top, left + width, top + height))
    return ImageOps.mirror(closer) if draw.random() < 0.5 else closer


def save(image: Image.Image, file: Path) -> None:
    image.save(file, quality=90)


if __name__ == "__main__":
    main()
