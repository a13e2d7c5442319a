"""What it costs to show pretrained weights other images than they were trained on.

    python -m benchmarks.encoder_input TRAIN.parquet TEST.parquet --out results/encoders/flowers.json

kNN of frozen features, for the input of the weights and for others: normalised by the images' own mean and deviation,
and at 96 px. The weights are those of the extra `weights`.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from carl import files
from carl.data.image_source import decoded_images
from carl.data.open import open_images
from carl.device import hardware
from carl.evaluation.neighbours import knn_accuracy
from carl.framing import Framing
from carl.records.environment import machine
from carl.terminal import show_progress
from carl.use.encoder import UsableEncoder, open_encoder

BATCH = 16
NEIGHBOURS = (1, 5, 20)


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images of one size, with their labels."""

    images: np.ndarray  # (N, H, W, C) uint8
    labels: np.ndarray  # (N,)


def read(path: Path, framing: Framing, channels: int) -> Pixels:
    source = open_images(str(path))
    rows = [(row[2], row[1].label) for row in decoded_images(source, 0, framing, channels)]
    good = [(pixels, label) for pixels, label in rows if isinstance(pixels, np.ndarray)]
    return Pixels(np.stack([pixels for pixels, _ in good]), np.array([label for _, label in good]))


def features(encoder: UsableEncoder, pixels: np.ndarray) -> torch.Tensor:
    parts = []
    for start in range(0, len(pixels), BATCH):
        parts.append(encoder.represent(pixels[start : start + BATCH]).features)
        show_progress("images", start, len(pixels))
    return torch.from_numpy(np.concatenate(parts))


def accuracy(encoder: UsableEncoder, train: Pixels, test: Pixels) -> dict[int, float]:
    bank, queries = features(encoder, train.images), features(encoder, test.images)
    found = knn_accuracy(bank, train.labels, queries, test.labels, NEIGHBOURS)
    return {count: round(value, 2) for count, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--encoder", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    whole = open_encoder(given.encoder)
    rows = []
    for size, framing in (("the weights' own", whole.framing), ("96 px", Framing(96, 96))):
        train, test = (read(path, framing, whole.channels) for path in (given.train, given.test))
        scaled = train.images.reshape(-1, whole.channels) / 255
        own = tuple(scaled.mean(0).tolist()), tuple(scaled.std(0).tolist())
        for words, (mean, std) in (("the weights' own", (whole.mean, whole.std)), ("the images' own", own)):
            wanted = replace(whole.wanted, framing=framing, image_size=framing.height, mean=mean, std=std)
            start = time.monotonic()
            value = accuracy(replace(whole, wanted=wanted), train, test)
            rows.append({
                "size": size, "normalisation": words, "mean": mean, "std": std, "knn": value,
                "seconds": round(time.monotonic() - start, 1),
            })  # fmt: skip
            print(rows[-1], flush=True)
    files.write_json(given.out, {
        "encoder": given.encoder, "origin": whole.origin, "train": given.train.name, "test": given.test.name,
        "neighbours": NEIGHBOURS, "rows": rows, "made": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": machine(hardware(whole.device)),
    })  # fmt: skip


if __name__ == "__main__":
    main()
