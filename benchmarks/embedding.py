"""Images a second of embedding a folder on a CPU: `carl embed` and plain timm with a DataLoader.

    python -m benchmarks.embedding [--json] [--sizes 96 224] [--images 256] [--models ...] [--repeats 2]

A folder of JPEG files is made from smoothed noise, of twice the side that the encoder sees. Both sides decode the
files, bring them to the encoder's size, normalise, and give one row of features per image. The weights are random,
which costs the same. Plain timm is what its documentation shows: `create_model(num_classes=0)`, timm's own evaluation
transform, a DataLoader with a worker per core and batches of 64, `inference_mode`. Ours is `carl.use.embed.embed` into
a .npy file. Each side runs in float32 and under bfloat16 autocast (`_bf16`). The sides
take turns; medians over the turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data.constants import DEFAULT_CROP_PCT, IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.data.transforms_factory import create_transform
from torch import Tensor, nn

from carl.data.open import open_images
from carl.device import hardware
from carl.framing import Framing
from carl.models.pretrained.weights import WantedInput, stated
from carl.precision import computing_in
from carl.records.environment import machine
from carl.use.embed import embed
from carl.use.encoder import open_encoder
from carl.use.requests import EmbedOptions

MODELS = ("resnet18", "resnet50", "tf_efficientnet_lite0", "vit_small_patch16_224")


def make_folder(folder: Path, count: int, side: int) -> None:
    generator = np.random.default_rng(0)
    for number in range(count):
        coarse = generator.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).save(folder / f"{number:05}.jpg")


class Files(torch.utils.data.Dataset[Tensor]):
    def __init__(self, folder: Path, size: int) -> None:
        self.files = sorted(folder.glob("*.jpg"))
        self.transform = create_transform((3, size, size), is_training=False)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.files[index]) as image:
            pixels: Tensor = self.transform(image.convert("RGB"))
        return pixels


def make_model(name: str, size: int) -> nn.Module:
    model: nn.Module
    if name.startswith("vit"):  # built for one size
        model = timm.create_model(name, num_classes=0, img_size=size)
    else:
        model = timm.create_model(name, num_classes=0)
    return model


def timm_side(model: str, size: int, folder: Path, precision: str) -> Callable[[], None]:
    encoder = make_model(model, size).eval()
    workers = os.cpu_count() or 1

    def run() -> None:
        loader = torch.utils.data.DataLoader(Files(folder, size), 64, num_workers=workers)
        with torch.inference_mode(), computing_in(precision, "cpu"):
            np.concatenate([encoder(images).float().numpy() for images in loader])

    return run


def carl_side(model: str, size: int, folder: Path, work: Path, precision: str) -> Callable[[], None]:
    weights = work / f"{model}-{size}.safetensors"
    if not weights.exists():
        scaled = int(size / DEFAULT_CROP_PCT)
        framing = Framing(size, size, scaled=(scaled, scaled), interpolation="bilinear")  # as timm's transform
        wanted = WantedInput(framing, size, IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
        save_file(make_model(model, size).state_dict(), weights, metadata=stated(model, "imagenet", wanted))
    encoder = open_encoder(weights, device="cpu")

    def run() -> None:
        embed(encoder, open_images(str(folder)), work / "e.npy", force=True, options=EmbedOptions(precision=precision))

    return run


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print medians as JSON, nothing else on stdout")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="names of timm models")
    parser.add_argument("--sizes", type=int, nargs="+", default=[96, 224], help="sides that encoders see")
    parser.add_argument("--images", type=int, default=256, help="files in the folder (default 256)")
    parser.add_argument("--repeats", type=int, default=2, help="turns of each side (default 2)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default 2)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for size, model in itertools.product(options.sizes, options.models):
            folder = work / f"images-{size}"
            if not folder.exists():
                folder.mkdir()
                make_folder(folder, options.images, 2 * size)
            sides = {
                "timm": timm_side(model, size, folder, "fp32"),
                "timm_bf16": timm_side(model, size, folder, "bf16"),
            }
            sides["carl"] = carl_side(model, size, folder, work, "fp32")
            sides["carl_bf16"] = carl_side(model, size, folder, work, "bf16")
            taken: dict[str, list[float]] = {name: [] for name in sides}
            for _, (name, run) in itertools.product(range(options.repeats), sides.items()):
                start = time.perf_counter()
                run()
                taken[name].append(time.perf_counter() - start)
            rates = {name: round(options.images / statistics.median(times), 1) for name, times in taken.items()}
            results[f"{model} {size} px"] = rates
            print(f"{model} {size} px: {rates}", file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps({"machine": machine(hardware(torch.device("cpu"))), **results}, indent=2))


if __name__ == "__main__":
    main()
