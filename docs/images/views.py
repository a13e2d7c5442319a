"""Draws 16 images with 8 views each, as training sees them: python -m docs.images.views SOURCE [--pipeline simclr]

writes `docs/images/views.png`; the first column is the image itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from carl import Views, open_dataset, view_pipeline

IMAGES, EPOCHS, GAP, ZOOM = 16, 4, 2, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--pipeline", default="simclr")
    options = parser.parse_args()
    dataset = open_dataset(options.source)
    images, statistics = dataset.train.images, dataset.statistics
    rows = np.arange(IMAGES)
    pixels = torch.from_numpy(images.gather(rows))
    views = Views(view_pipeline(options.pipeline, images.height), statistics.mean, statistics.std, seed=0)
    made = [view for epoch in range(EPOCHS) for view in views(pixels, torch.from_numpy(rows), epoch)]
    std, mean = (torch.tensor(value)[:, None, None] for value in (statistics.std, statistics.mean))
    columns = [
        pixels,
        *((view * std + mean).mul(255).round().clamp(0, 255).byte().permute(0, 2, 3, 1) for view in made),
    ]
    tile = images.height + GAP
    sheet = np.full((IMAGES * tile + GAP, len(columns) * tile + GAP + 3 * GAP, 3), 255, np.uint8)
    for column, tiles in enumerate(columns):
        left = GAP + column * tile + (3 * GAP if column else 0)
        for row, one in enumerate(tiles.numpy()):
            top = GAP + row * tile
            sheet[top : top + images.height, left : left + images.width] = one
    picture = Image.fromarray(sheet)
    size = (ZOOM * picture.width, ZOOM * picture.height)
    picture.resize(size, Image.Resampling.NEAREST).save(Path(__file__).parent / "views.png", optimize=True)


if __name__ == "__main__":
    main()
