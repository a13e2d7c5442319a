"""Microseconds per SimCLR view on one core: this package and its peers.

    python -m benchmarks.views [--json] [--sizes 32 64 96 224] [--threads 1]

Every engine makes the same view of the same uint8 images held in memory: random resized crop, flip, colour
jitter, greyscale, blur with a kernel of a tenth of the side, normalisation; a float32 tensor comes out.
Engines take turns, so that a slow minute of the machine meets all of them. With one thread the clock is the
CPU time of this process, so that other processes matter little; with more it is the clock on the wall. Peers
that are not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from carl.views.operations.blur import a_tenth
from carl.views.recipes import ViewRecipe
from carl.views.views import Views

Engine = Callable[[], object]  # makes one view of every image

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # CIFAR-10


def batch_size(side: int) -> int:
    """256 at 32 px and fewer of larger images, so that every repeat takes about as long."""
    return max(16, min(256, 2**19 // side**2))


def photos(count: int, side: int) -> np.ndarray:
    """Smooth random images (N, S, S, 3) uint8; no engine's cost depends on the content."""
    coarse = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic").clamp_(0, 1)
    return (smooth * 255).byte().permute(0, 2, 3, 1).contiguous().numpy()


def carl(images: np.ndarray, side: int) -> Engine:
    pixels, indices = torch.from_numpy(images), torch.arange(len(images))
    views = Views([ViewRecipe(side)], MEAN, STD, seed=0)
    return lambda: views(pixels, indices, 0)


def torchvision_transform(side: int) -> Callable[[Any], torch.Tensor]:
    """SimCLR's view of a PIL image, as written with torchvision's transforms."""
    from torchvision import transforms as T

    taps = a_tenth(side)
    view: Callable[[Any], torch.Tensor] = T.Compose(
        [
            T.RandomResizedCrop(side, scale=(0.08, 1.0)),
            T.RandomHorizontalFlip(),
            T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            T.RandomGrayscale(0.2),
            T.RandomApply([T.GaussianBlur(taps, (0.1, 2.0))], p=0.5),
            T.ToTensor(),
            T.Normalize(MEAN, STD),
        ]
    )
    return view


def torchvision(images: np.ndarray, side: int) -> Engine:
    from PIL import Image

    view = torchvision_transform(side)
    pictures = [Image.fromarray(image) for image in images]
    return lambda: torch.stack([view(picture) for picture in pictures])


def torchvision_v2(images: np.ndarray, side: int) -> Engine:
    from torchvision.transforms import v2 as T

    taps = a_tenth(side)
    view = T.Compose(
        [
            T.RandomResizedCrop(side, scale=(0.08, 1.0), antialias=True),
            T.RandomHorizontalFlip(),
            T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            T.RandomGrayscale(0.2),
            T.RandomApply([T.GaussianBlur(taps, (0.1, 2.0))], p=0.5),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize(MEAN, STD),
        ]
    )
    tensors = list(torch.from_numpy(images).permute(0, 3, 1, 2))
    return lambda: torch.stack([view(tensor) for tensor in tensors])


def lightly(images: np.ndarray, side: int) -> Engine:
    from lightly.transforms.simclr_transform import SimCLRTransform
    from PIL import Image

    pair = SimCLRTransform(input_size=side, gaussian_blur=0.5, normalize={"mean": list(MEAN), "std": list(STD)})
    pictures = [Image.fromarray(image) for image in images]
    # It makes both views at once: half of the images cost as much as one view of each.
    return lambda: [pair(picture) for picture in pictures[: len(pictures) // 2]]


def kornia(images: np.ndarray, side: int) -> Engine:
    from kornia import augmentation as K

    taps = a_tenth(side)
    view = K.AugmentationSequential(
        K.RandomResizedCrop((side, side), scale=(0.08, 1.0)),
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.RandomGaussianBlur((taps, taps), (0.1, 2.0), p=0.5),
        K.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
        data_keys=["input"],
    )
    pixels = torch.from_numpy(images)
    return lambda: view(pixels.permute(0, 3, 1, 2).contiguous().to(torch.float32).div_(255))


def albumentations(images: np.ndarray, side: int) -> Engine:
    import albumentations as A
    import cv2
    from albumentations.pytorch import ToTensorV2

    cv2.setNumThreads(torch.get_num_threads())
    taps = a_tenth(side)
    view = A.Compose(
        [
            A.RandomResizedCrop((side, side), scale=(0.08, 1.0)),
            A.HorizontalFlip(),
            A.ColorJitter((0.2, 1.8), (0.2, 1.8), (0.2, 1.8), (-0.2, 0.2), p=0.8),
            A.ToGray(p=0.2),
            A.GaussianBlur((taps, taps), (0.1, 2.0), p=0.5),
            A.Normalize(MEAN, STD),
            ToTensorV2(),
        ]
    )
    return lambda: torch.stack([view(image=image)["image"] for image in images])


ENGINES: dict[str, Callable[[np.ndarray, int], Engine]] = {
    "carl": carl,
    "torchvision": torchvision,
    "torchvision_v2": torchvision_v2,
    "lightly": lightly,
    "kornia": kornia,
    "albumentations": albumentations,
}


def prepare(side: int) -> dict[str, Engine]:
    """The engines that are installed, each run once to warm up."""
    images = photos(batch_size(side), side)
    engines = {}
    for name, make in ENGINES.items():
        try:
            engines[name] = make(images, side)
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        engines[name]()
    return engines


def measure(side: int, repeats: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Microseconds per view, one value a repeat, by engine."""
    engines = prepare(side)
    count = batch_size(side)
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(repeats):
        for name, make_views in engines.items():
            start = clock()
            make_views()
            times[name].append((clock() - start) / count * 1e6)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print medians as JSON, nothing else on stdout")
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 96, 224], help="sides in pixels")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--repeats", type=int, default=7, help="turns of every engine (default 7)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")  # peers warn about their own dependencies
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    results: dict[str, dict[str, float]] = {}
    for side in arguments.sizes:
        times = measure(side, arguments.repeats, clock)
        results[str(side)] = {name: round(statistics.median(values), 1) for name, values in times.items()}
        if arguments.json:
            continue
        print(f"{side} px, batch {batch_size(side)}: us per view, median (lowest - highest)")
        for name, values in times.items():
            median = statistics.median(values)
            ratio = median / statistics.median(times["carl"])
            print(f"  {name:15} {median:9.1f} ({min(values):.1f} - {max(values):.1f})  {ratio:5.1f} x carl")
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
