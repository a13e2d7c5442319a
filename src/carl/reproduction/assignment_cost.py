"""What choosing prototypes costs in an epoch, apart from the encoder: CARL's loss, SwAV's codes, PCL's clusterings.

The paper says that doing without a clustering of all images "vastly reduces memory and computing power requirements"
(section 2). The speed of whole runs does not tell, for the encoder takes nearly all of it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from carl import files
from carl.config import Layer, merge
from carl.data.batches.base import Batch
from carl.device import hardware, pick_device
from carl.methods.base import Method
from carl.methods.build import build_method
from carl.methods.losses import unit
from carl.methods.pcl import PCL
from carl.models.momentum import Queue
from carl.records.environment import machine
from carl.reproduction.dry_run import assumed_facts, resolved_config
from carl.reproduction.jobs import Job, machine_in_words
from carl.reproduction.recipes import preset_of
from carl.reproduction.scales import MAIN, SMOKE_SIZE, Scale
from carl.terminal import Say

FILE = "choosing.json"
REPEATS, SMOKE_REPEATS = 9, 1  # timed steps; a third as many clusterings
LATE = 0.9  # progress of the training at which PCL clusters and SwAV has its queue
CARL_LOSS, SWAV_LOSS, SIMCLR_LOSS = "CARL, loss", "SwAV, codes and loss", "SimCLR, loss (no prototypes)"
PCL_LOSS, EMBEDDING, KMEANS = "PCL, loss", "PCL, embedding all images", "PCL, k-means"
PARTS = (CARL_LOSS, SWAV_LOSS, PCL_LOSS, EMBEDDING, KMEANS, SIMCLR_LOSS)
BARS = ((CARL_LOSS,), (SWAV_LOSS,), (KMEANS, EMBEDDING, PCL_LOSS))  # one bar per method, its parts from below
Record = dict[str, Any]


def measure(scale: Scale, counts: Sequence[int], say: Say) -> Record:
    """Seconds per epoch and bytes in memory, for each part and each number of prototypes."""
    epoch = Epoch(scale, pick_device("auto"))
    repeats = SMOKE_REPEATS if scale.name == SMOKE_SIZE else REPEATS
    say("measuring what the encoder takes for an epoch")
    encoder = epoch.method("carl", {}).encoder
    passes = {"trained": epoch.encoder_pass(encoder, train=True), "embedded": epoch.encoder_pass(encoder, train=False)}
    seconds = {name: one * epoch.steps for name, one in median_seconds(passes, repeats).items()}
    found = {}
    for count in counts:
        say(f"measuring what choosing among {count:,} prototypes takes for an epoch")
        parts = epoch.assignment_parts(count, repeats)
        parts[EMBEDDING] = {"seconds": seconds["embedded"], "bytes": epoch.embeddings(epoch.images).nbytes}
        found[str(count)] = {name: parts[name] for name in PARTS}
    return {
        **record_settings(scale, counts),
        "encoder_seconds": seconds["trained"],
        "prototypes": found,
        "machine": machine(hardware(epoch.device)),
        "made": time.strftime("%Y-%m-%d"),
    }


def record_settings(scale: Scale, counts: Sequence[int]) -> Record:
    """What a record was measured with; one with other settings does not count."""
    epoch = Epoch(scale, torch.device("cpu"))
    return {"images": epoch.images, "batch": epoch.batch, "counts": list(counts), "parts": list(PARTS)}


class Epoch:
    """An epoch of the scale's runs on MAIN."""

    def __init__(self, scale: Scale, device: torch.device) -> None:
        self.scale, self.device = scale, device
        job = self._job("carl", {})
        config = resolved_config(job)
        self.images, self.batch = assumed_facts(job).images, config.train.batch_size
        self.steps = self.images / self.batch
        self.side, self.dim = config.data.image_size, config.model.output_dim

    def _job(self, name: str, values: Layer) -> Job:
        layers = [{"method": {"name": name}}, preset_of(name, self.scale), {"method": values}]
        return Job(
            name, self.scale.run_layer(MAIN, merge([*layers, {"train": {"epochs": self.scale.epochs[200]}}])), ()
        )

    def method(self, name: str, values: Layer) -> Method:
        """The method as in the scale's runs, except for `values`."""
        job = self._job(name, values)
        return build_method(resolved_config(job), assumed_facts(job), self.device)

    def embeddings(self, count: int) -> Tensor:
        """Made-up unit embeddings (count, D)."""
        return unit(torch.randn(count, self.dim, generator=torch.Generator().manual_seed(0))).to(self.device)

    def encoder_pass(self, encoder: nn.Module, train: bool) -> Callable[[], None]:
        """A batch through the encoder: two views forward and backward, or one forward, as for PCL's clustering."""
        assert self.side is not None
        views = torch.randn((2 if train else 1) * self.batch, 3, self.side, self.side, device=self.device)
        first = next(encoder.parameters())  # the last to have its gradient

        def step() -> None:
            encoder.train(train)
            with torch.set_grad_enabled(train):
                out = encoder(views).sum()
            if train:
                out.backward()
            _wait_for(first.grad if train else out)

        return step

    def assignment_parts(self, count: int, repeats: int) -> dict[str, Record]:
        """All parts except embedding all images, which takes the same time for any number of prototypes."""
        clusters = [max(2, count // 4), max(2, count // 2), count]  # in the ratio of the paper's 250, 500 and 1000
        carl, swav = (self.method(name, {"prototypes": count}) for name in ("carl", "swav"))
        pcl = self.method("pcl", {"clusters": clusters})
        assert isinstance(pcl, PCL)
        losses = {CARL_LOSS: carl, SWAV_LOSS: swav, PCL_LOSS: pcl, SIMCLR_LOSS: self.method("simclr", {})}
        clustering = median_seconds({KMEANS: self._clustering(pcl)}, max(1, repeats // 3))
        steps = median_seconds({name: self.loss_step(method) for name, method in losses.items()}, repeats)
        taken = {**{name: one * self.steps for name, one in steps.items()}, **clustering}
        held = {
            name: sum(_bytes(part) for part in method.choosing_parts())
            for name, method in ((CARL_LOSS, carl), (SWAV_LOSS, swav), (KMEANS, pcl))
        }
        return {name: {"seconds": one, "bytes": held.get(name, 0)} for name, one in taken.items()}

    def _clustering(self, pcl: PCL) -> Callable[[], None]:
        points, rows = self.embeddings(self.images), torch.arange(self.images, device=self.device)

        def cluster() -> None:
            pcl.cluster(rows, points, seed=0)
            _wait_for(pcl.clusterings.concentrations(0))

        return cluster

    def loss_step(self, method: Method) -> Callable[[], None]:
        """Forward and backward from given embeddings of two views; queues are full, as they are by then."""
        for queue in (module for module in method.modules() if isinstance(module, Queue)):
            queue.push(self.embeddings(len(queue.rows)))
        embeddings = self.embeddings(2 * self.batch).requires_grad_()
        blank = torch.empty(self.batch, 0, device=self.device)  # losses count views and read no pixels
        seen = Batch([blank, blank], torch.arange(self.batch, device=self.device))

        def step() -> None:
            rows = method.objective_input(embeddings)
            loss, _ = method.objective(rows.unflatten(0, (2, self.batch)), seen, LATE)
            loss.backward()
            _wait_for(embeddings.grad)

        return step


def _wait_for(tensor: Tensor | None) -> None:
    assert tensor is not None
    float(tensor.detach().flatten()[0])


def median_seconds(
    work: Mapping[str, Callable[[], None]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The median for each kind of work; they take turns, so that a slow minute of the machine affects all alike."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(repeats + 1):
        for name, part in work.items():
            start = clock()
            part()
            if repeat > 0:  # the first makes buffers
                taken[name].append(clock() - start)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def _bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


def read_record(folder: Path, scale: Scale, counts: Sequence[int]) -> Record | None:
    """What was measured with these settings; None where nothing was, or its file is damaged."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        wanted = record_settings(scale, counts)
        if {name: found[name] for name in wanted} != wanted:
            return None
        markdown_table(found)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError):
        return None
    return dict(found)


def write_record(folder: Path, record: Record) -> None:
    files.write_json(folder / FILE, record)


def markdown_table(record: Record) -> str:
    """Seconds, their share of the encoder's seconds, and memory, as a table with its caption."""
    whole, counts = record["encoder_seconds"], record["counts"]
    lines = [
        f"An epoch of {record['images']:,} images in batches of {record['batch']}, of which the encoder's forward and "
        f"backward passes take {whole:.1f} s: seconds that come on top, in percent of the encoder's, and MB held for "
        f"it. Measured on {machine_in_words(record['machine'])}; {record['made']}.",
        "",
        f"| | {' | '.join(f'K = {count:,}' for count in counts)} |",
        "|---" * (len(counts) + 1) + "|",
    ]
    for name in PARTS:
        cells = [record["prototypes"][str(count)][name] for count in counts]
        shown = [f"{c['seconds']:.2f} s, {100 * c['seconds'] / whole:.1f}%, {c['bytes'] / 1e6:.1f} MB" for c in cells]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"
