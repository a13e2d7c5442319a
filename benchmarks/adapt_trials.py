"""Quick trials of how to adapt an encoder: many losses, heads and rates on the last stages alone.

    python -m benchmarks.adapt_trials flowers-train.parquet --held-out 510 --out trials.json
    python -m benchmarks.adapt_trials flowers-train.parquet --held-out 510 --out averages.json --study averages
    python -m benchmarks.adapt_trials flowers-train.parquet --held-out 510 --out decay.json --study decay --stages 1

The first stages are frozen, so what they make of eight fixed views of each image is computed once. A trial then takes
about a minute on one core. Judged on held-out training images, with figures that need no labels beside kNN. The values
of the preset `adapt` come from here; `benchmarks.adapt` measures the preset itself.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from carl import files
from carl.config import DataConfig, ModelConfig
from carl.data.batches.build import make_views
from carl.data.configured import load_data
from carl.data.dataset import Split, Statistics
from carl.device import hardware
from carl.evaluation.features import map_images
from carl.evaluation.neighbours import knn_accuracy, neighbour_stability, view_separation
from carl.methods.carl import CARLLoss
from carl.methods.health import rank_me
from carl.methods.losses import log_assignments, nt_xent
from carl.models.encoders import build_encoder
from carl.models.heads import NoProjection, ProjectionHead, Prototypes
from carl.models.kept_parts import keep_statistics
from carl.models.pretrained import find_weights
from carl.optim import cosine
from carl.records.environment import machine
from carl.views.recipes import ViewRecipe, pipeline
from carl.views.views import Views

NAME, CPU = "tf_efficientnet_lite0", torch.device("cpu")
STAGES, VIEWS, BATCH, WARMUP = 5, 8, 128, 0.1  # stages that stay, views of an image (two to judge), steps that warm up
PARTS = (0.25, 0.5, 0.75)  # how far from the start to the end, for averages of both weights (WiSE-FT)
MOMENTUM = 0.9  # of the moving average of the weights: a run has only some forty steps
MILDER = 0.4  # times the colours of SimCLR


@dataclasses.dataclass(frozen=True)
class Trial:
    loss: str = "simclr"
    head: str = "none"  # none, or mlp as in the other presets
    temperature: float = 0.05
    rate: float = 6e-5
    epochs: int = 4
    statistics: str = "kept"  # of batch norm: kept, or those of the batch
    anchor: float = 0.0  # weight of the cosine distance to the features of the start
    neighbours: int = 0  # of the start that are positives too, if they are mutual
    decay: float = 1.0  # of the rate, from each stage to the one before it
    teacher: bool = False  # the second view goes through the moving average of the weights
    head_first: float = 0.0  # share of the steps before the encoder learns
    averages: bool = False  # judge averages of the weights too


PRESET = Trial(rate=1e-4, epochs=6)  # the values of the preset `adapt` on this many images
STUDIES = {
    # One change at a time, then what would be done from scratch.
    "values": (
        Trial(), Trial(rate=1.2e-4), Trial(rate=1e-3), Trial(epochs=10), Trial(temperature=0.1), Trial(anchor=1.0),
        Trial(neighbours=5), Trial(statistics="batch"), Trial(head="mlp"),
        Trial(head="mlp", temperature=0.115, rate=1e-3, statistics="batch"), Trial(loss="carl", rate=1.2e-4),
        Trial(loss="carl", rate=3e-4),
    ),
    # What may keep more of the start: averages of weights (a high rate is where they could help most), and teachers.
    "averages": (
        dataclasses.replace(PRESET, averages=True), dataclasses.replace(PRESET, rate=1e-3, averages=True),
        dataclasses.replace(PRESET, teacher=True), dataclasses.replace(PRESET, decay=0.5),
        Trial(loss="carl", rate=3e-4, epochs=6), Trial(loss="carl", rate=3e-4, epochs=6, head_first=0.3),
    ),
    # Instead of freezing the first stages: for `--stages 1`.
    "decay": (PRESET, dataclasses.replace(PRESET, decay=0.7), dataclasses.replace(PRESET, decay=0.4)),
}  # fmt: skip


class LastStages(nn.Module):
    """What of the encoder learns: the stages after the first `kept` ones, and the pooling."""

    def __init__(self, encoder: Any, kept: int) -> None:
        super().__init__()
        last = nn.Sequential(encoder.conv_head, encoder.bn2, encoder.global_pool)
        self.parts = nn.Sequential(*encoder.blocks[kept:], last)

    def forward(self, maps: Tensor) -> Tensor:
        features: Tensor = self.parts(maps.float().to(memory_format=torch.channels_last))
        return features


@dataclasses.dataclass(frozen=True, eq=False)
class Maps:
    """What the first stages make of the images: of views (V, N, C, h, w) in half precision, and of whole images."""

    start: LastStages
    views: Tensor
    test_views: Tensor  # two views of each held-out image
    train: Tensor
    test: Tensor
    train_labels: Tensor
    test_labels: Tensor


def milder(recipe: ViewRecipe) -> ViewRecipe:
    """The views of the preset `adapt`."""
    return recipe.changed(
        crop_area=(0.3, 1.0), brightness=0.8 * MILDER, contrast=0.8 * MILDER, saturation=0.8 * MILDER, hue=0.2 * MILDER,
        grey=0.2 * MILDER, blur=0.5 * MILDER,
    )  # fmt: skip


@torch.inference_mode()
def read(given: argparse.Namespace) -> Maps:
    size = given.image_size
    data = DataConfig(
        source=given.data, image_size=size, held_out=given.held_out, limit=given.limit, views_from="packed"
    )
    dataset = load_data(data)
    model = ModelConfig(backbone=NAME, init=f"timm:{NAME}", tiny_maps=False)
    encoder: Any = build_encoder(model, 3, size).eval().to(memory_format=torch.channels_last)
    wanted = find_weights(f"timm:{NAME}", NAME).wanted
    views = Views([milder(recipe) for recipe in pipeline("simclr", size)], wanted.mean, wanted.std, seed=0)

    def first_stages(images: Tensor) -> Tensor:
        maps = encoder.bn1(encoder.conv_stem(images.to(memory_format=torch.channels_last)))
        return encoder.blocks[: given.stages](maps)  # type: ignore[no-any-return]

    def of_views(split: Split, epoch: int) -> list[Tensor]:
        parts: list[list[Tensor]] = [[], []]
        for rows in np.array_split(np.arange(len(split)), math.ceil(len(split) / 256)):
            for found, view in zip(parts, make_views(split, views, rows, epoch, CPU), strict=True):
                found.append(first_stages(view).half())
        return [torch.cat(part) for part in parts]

    whole = [
        map_images(first_stages, split, Statistics(wanted.mean, wanted.std), size, CPU)
        for split in (dataset.splits["train"], dataset.splits["test"])
    ]
    labels = [torch.from_numpy(np.asarray(dataset.splits[name].labels)) for name in ("train", "test")]
    seen = torch.stack([view for epoch in range(VIEWS // 2) for view in of_views(dataset.train, epoch)])
    unseen = torch.stack(of_views(dataset.splits["test"], 0))
    return Maps(LastStages(encoder, given.stages), seen, unseen, *whole, *labels)


@torch.inference_mode()
def features(stages: LastStages, maps: Tensor) -> Tensor:
    stages.eval()
    return torch.cat([stages(part) for part in maps.split(512)]).clone()


def judged(stages: LastStages, maps: Maps) -> dict[str, float]:
    """kNN, and figures that need no labels: on views that no trial trains on, of the images and of held-out ones."""
    bank, queries = features(stages, maps.train), features(stages, maps.test)
    found = {
        f"knn {k}": v for k, v in knn_accuracy(bank, maps.train_labels, queries, maps.test_labels, (1, 5, 20)).items()
    }
    for images, views, suffix in ((bank, maps.views[-2:], ""), (queries, maps.test_views, ", held out")):
        first, second = (features(stages, view) for view in views)
        found |= {
            f"neighbour stability{suffix}": neighbour_stability(first, second, images),
            f"view separation{suffix}": view_separation(first, second),
            f"RankMe{suffix}": rank_me(images),
        }
    return {name: round(value, 2) for name, value in found.items()}


def mutual_neighbours(maps: Maps, count: int) -> tuple[Tensor, Tensor]:
    """The nearest images to the start, and which of them are mutual: (N, count) each."""
    unit = features(maps.start, maps.train)
    unit = F.normalize(unit - unit.mean(0), dim=1)
    cosines = (unit @ unit.T).fill_diagonal_(-1)
    near = cosines.topk(count, dim=1).indices
    chosen = torch.zeros_like(cosines, dtype=torch.bool).scatter_(1, near, True)
    return near, (chosen & chosen.T).gather(1, near)


def mixed(start: LastStages, end: LastStages, part: float) -> LastStages:
    """The weights that lie `part` of the way from the start to the end."""
    found = copy.deepcopy(end)
    found.load_state_dict({
        name: torch.lerp(old, new, part) if old.is_floating_point() else new
        for (name, old), new in zip(start.state_dict().items(), end.state_dict().values(), strict=True)
    })  # fmt: skip
    return found


def by_rate(stages: LastStages, trial: Trial) -> list[dict[str, Any]]:
    """The parameters of each stage with the highest rate that they get: `decay` times that of the next stage."""
    count = len(stages.parts) - 1  # the last convolution belongs to the last stage, as timm counts
    rates = [trial.rate * trial.decay ** max(0, count - 1 - place) for place in range(count + 1)]
    return [
        {"params": list(part.parameters()), "peak": rate, "stages": True}
        for part, rate in zip(stages.parts, rates, strict=True)
    ]


def run(trial: Trial, maps: Maps, seed: int) -> list[dict[str, Any]]:
    """Train the last stages from the start, and judge them, if asked for with averages of their weights."""
    torch.manual_seed(seed)
    generator, count = torch.Generator().manual_seed(seed), maps.views.shape[1]
    stages = copy.deepcopy(maps.start)
    if trial.statistics == "kept":
        keep_statistics(stages)
    anchors = F.normalize(features(maps.start, maps.train), dim=1)
    near, mutual = mutual_neighbours(maps, trial.neighbours or 1)
    dim = anchors.shape[1]
    head = NoProjection(dim) if trial.head == "none" else ProjectionHead(dim, 512, 128, 1, batch_norm=True)
    prototypes = Prototypes(
        head.output_dim, 128, normalize=True, embedding_norm="batch-l2", scale=0.25, parts=head.output_dim // 4,
        temperature=math.sqrt(trial.temperature / head.output_dim),
    )  # fmt: skip
    criterion = CARLLoss("joint", beyond_chance=True)
    learned = [*head.parameters(), *(prototypes.parameters() if trial.loss == "carl" else ())]
    groups = [*by_rate(stages, trial), {"params": learned, "peak": 1e-3, "stages": False}]
    average = copy.deepcopy(stages).requires_grad_(False)
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=1e-4)
    steps, begun, done = trial.epochs * (count // BATCH), time.process_time(), 0
    for _ in range(trial.epochs):
        stages.train()
        head.train()
        for rows in torch.randperm(count, generator=generator)[: count // BATCH * BATCH].split(BATCH):
            progress = done / steps
            share = progress / WARMUP if progress < WARMUP else cosine((progress - WARMUP) / (1 - WARMUP), 1.0, 0.0)
            for group in optimizer.param_groups:
                group["lr"] = 0.0 if group["stages"] and progress < trial.head_first else share * group["peak"]
            first = torch.randint(VIEWS - 2, (BATCH,), generator=generator)
            second = (first + 1 + torch.randint(VIEWS - 3, (BATCH,), generator=generator)) % (VIEWS - 2)
            others = rows
            if trial.neighbours:
                which = torch.randint(trial.neighbours, (BATCH,), generator=generator)
                others = torch.where(mutual[rows, which], near[rows, which], rows)
            if trial.teacher:
                seen = torch.cat([stages(maps.views[first, rows]), average(maps.views[second, others])])
            else:
                seen = stages(torch.cat([maps.views[first, rows], maps.views[second, others]]))
            pair = head(seen).chunk(2)
            if trial.loss == "carl":
                assignments = log_assignments(torch.stack([prototypes.by_part(one) for one in pair]))
                loss = criterion.terms(assignments).weighted(1.0)
            else:
                loss = nt_xent(pair[0], pair[1], trial.temperature)
            if trial.anchor:
                stay = (F.normalize(seen, dim=1) * anchors[torch.cat([rows, others])]).sum(1)
                loss = loss + trial.anchor * (1 - stay).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for kept, now in zip(average.parameters(), stages.parameters(), strict=True):
                    kept.lerp_(now, 1 - MOMENTUM)
            done += 1
    seconds = round(time.process_time() - begun)
    ends = {"last": stages}
    if trial.averages:
        ends |= {f"{part} of the way": mixed(maps.start, stages, part) for part in PARTS} | {"moving average": average}
    about = {name: value for name, value in dataclasses.asdict(trial).items() if name != "averages"}
    found = [
        {**about, "seed": seed, "weights": weights, **judged(end, maps), "processor seconds": seconds}
        for weights, end in ends.items()
    ]
    print(*found, sep="\n", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--held-out", type=int, required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--study", choices=STUDIES, default="values")
    parser.add_argument("--stages", type=int, default=STAGES, help="how many stages do not learn")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    maps = read(given)
    start = judged(maps.start, maps)
    print("start", start, flush=True)
    rows: list[dict[str, Any]] = []
    for seed, trial in itertools.product(given.seeds, STUDIES[given.study]):
        rows += run(trial, maps, seed)
        files.write_json(given.out, {
            "data": Path(given.data).name, "held_out": given.held_out, "limit": given.limit, "study": given.study,
            "image_size": given.image_size, "stages": given.stages, "start": start, "trials": rows,
            "made": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": machine(hardware(CPU)),
        })  # fmt: skip


if __name__ == "__main__":
    main()
