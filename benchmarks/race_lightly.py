"""lightly's SimCLR example for PyTorch as an entrant of `benchmarks.race`.

As published (examples/pytorch/simclr.py): torchvision's resnet18 without its last layer, SimCLRProjectionHead(512, 512,
128), SimCLRTransform of 32 px without blur, NTXentLoss, SGD with a constant rate of 0.06, batches of 256 and a
DataLoader. Changed: the images come from the same file as everyone's, the DataLoader has a worker for each core where
the example has eight, and the training ends with the budget where the example ends after ten epochs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from carl import files
from carl.child_process import start_python
from carl.config import DataConfig
from carl.data.configured import load_data
from carl.device import hardware, pick_device
from carl.evaluation.evaluate import evaluate
from carl.evaluation.protocols import EvaluationRequest
from carl.records.environment import machine
from carl.reproduction.data_paths import with_data_source
from carl.reproduction.jobs import DONE, Outcome, kept_file

BATCH, SIZE, RATE = 256, 32, 0.06
SAVING = 2.0  # seconds kept for the file


class Pictures(torch.utils.data.Dataset[tuple[list[Tensor], int]]):
    """Images as PIL pictures under lightly's transform."""

    def __init__(self, pixels: Any) -> None:
        from lightly.transforms.simclr_transform import SimCLRTransform
        from PIL import Image

        self.pictures = [Image.fromarray(image) for image in pixels]
        self.transform = SimCLRTransform(input_size=SIZE, gaussian_blur=0.0)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        pair: list[Tensor] = self.transform(self.pictures[index])  # type: ignore[assignment]
        return pair, 0


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """Processes that are started inside keep decoded images in `folder`, which is deleted afterwards."""
    before = os.environ.get("CARL_CACHE")
    os.environ["CARL_CACHE"] = str(folder)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if before is None:
            del os.environ["CARL_CACHE"]
        else:
            os.environ["CARL_CACHE"] = before


def train(data: Mapping[str, Any], seed: int, ends: float | None, steps: int | None, out: Path) -> int:
    """Train until the time.time() `ends` or for so many steps, and save the backbone; the steps that were taken."""
    import torchvision
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    warnings.simplefilter("ignore")  # lightly warns about its own dependencies
    torch.manual_seed(seed)
    backbone = torchvision.models.resnet18()
    backbone.fc = nn.Identity()
    model = nn.Sequential(backbone, SimCLRProjectionHead(512, 512, 128))
    criterion, optimizer = NTXentLoss(), torch.optim.SGD(model.parameters(), lr=RATE)
    dataset = load_data(DataConfig(**data))
    split = dataset.pretraining
    pictures = Pictures(split.images.gather(torch.arange(len(split)).numpy()))
    workers = min(8, os.cpu_count() or 1)
    loader = torch.utils.data.DataLoader(
        pictures, min(BATCH, len(split)), shuffle=True, drop_last=True, num_workers=workers
    )
    taken = 0
    while True:
        for (first, second), _ in loader:
            loss = criterion(model(first), model(second))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
            if (ends is not None and time.time() > ends - SAVING) or taken == steps:
                with files.atomic_writer(out) as file:
                    torch.save(backbone.state_dict(), file)
                return taken


def run(
    name: str,
    minutes: float | None,
    passes: int | None,
    data: Mapping[str, Any],
    seed: int,
    runs: Path,
    results: Path,
    data_root: Path | None,
    say: Callable[[str], None],
) -> Outcome | None:
    """Train in a process of its own, judge, and keep the outcome; what is done is left alone."""
    kept, folder = kept_file(results, name), runs / name
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    say(f"{name}: lightly's example")
    folder.mkdir(parents=True, exist_ok=True)
    where, weights = with_data_source(data, data_root), folder / "resnet18.pth"
    begin = time.time()
    ends = None if minutes is None else begin + 60 * minutes
    steps = None if passes is None else max(1, passes // (2 * BATCH))
    request = json.dumps({"data": where, "seed": seed, "ends": ends, "steps": steps, "out": str(weights)})
    with cache_in(folder / "cache"):
        child = start_python([str(Path(__file__).resolve()), request])
        child.wait()
    if child.returncode != 0:
        say(f"  failed: the example ended with code {child.returncode}")
        return None
    seconds = time.time() - begin
    settings = {"data": {key: value for key, value in where.items() if key != "source"}}
    measures = {}
    for protocol in ("linear-cached", "knn"):
        result = evaluate(
            EvaluationRequest(
                str(weights),
                protocol,
                str(where["source"]),
                backbone="resnet18",
                out=folder / "results",
                settings=settings,
            )
        )
        measures[protocol] = {key: result[key] for key in ("protocol", "accuracy", "hyperparameters", "seconds")}
    outcome: Outcome = {
        "name": name,
        "state": DONE,
        "layer": {"data": dict(data), "train": {"seed": seed}},
        "measures": measures,
        "machine": machine(hardware(pick_device("auto"))),
        "made": time.strftime("%Y-%m-%d"),
        **({} if minutes is None else {"race": {"minutes": minutes, "seconds": round(seconds, 1)}}),
    }
    files.write_json(kept, outcome)
    return outcome


def main() -> None:
    asked = json.loads(sys.argv[1])
    print(train(asked["data"], asked["seed"], asked["ends"], asked["steps"], Path(asked["out"])), "steps")


if __name__ == "__main__":
    main()
