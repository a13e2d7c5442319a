"""Examines the model while it trains: prototype health, and a kNN probe if there are labels; says what it found."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from carl import distributed
from carl.config import Config
from carl.data.batches.build import make_views
from carl.data.dataset import UNLABELLED, Dataset, Split
from carl.evaluation.features import extract_features, frozen, map_images
from carl.evaluation.neighbours import knn_accuracy
from carl.methods import Method
from carl.methods.base import spread
from carl.methods.health import TOO_EARLY, Finding, PrototypeHealth, measure_health, rank_me, verdict
from carl.models.batch_norm import by_batch_statistics
from carl.records.metrics import Record
from carl.training.console import Console
from carl.training.journal import Journal
from carl.views.views import Views

PROBE_EPOCH = 2**31 - 1  # the probe's views are drawn from an epoch that training never reaches


@dataclass(frozen=True)
class ProbeResult:
    health: PrototypeHealth | None  # None for methods without prototypes
    rank: float  # RankMe of the encoder's features
    spread: float  # of the unit embeddings that the loss compares; 0 when all are the same
    knn: float | None  # None without labels
    findings: list[Finding]

    def record(self, judged: bool = True) -> Record:
        record: Record = {} if self.health is None else dict(self.health.as_metrics())
        record["rank_me"], record["spread"] = self.rank, self.spread
        if self.knn is not None:
            record["knn"] = self.knn
        if judged:
            record["verdict"] = verdict(self.findings)
            record["findings"] = [finding.kind for finding in self.findings]
        return record

    def summary(self) -> str:
        parts = [] if self.knn is None else [f"kNN probe (online) {self.knn:.1f}%"]
        if self.health is not None:
            parts.append(f"{self.health.used}/{self.health.prototypes} prototypes")
            parts.append(f"views agree {100 * self.health.agreement:.0f}%")
        return "  ".join([*parts, f"RankMe {self.rank:.0f}"])


class Probe:
    """Reads a fixed sample with the frozen model; changes nothing that training depends on."""

    def __init__(self, config: Config, dataset: Dataset, views: Views, device: torch.device) -> None:
        self.config, self.dataset, self.views, self.device = config, dataset, views, device
        self.sample = _chosen(len(dataset.pretraining), config.probe.images)
        self.voters = _labelled_rows(dataset.train, config.probe.train_images)
        self.judged = None if dataset.test is None else _labelled_rows(dataset.test, config.probe.images)

    def run(self, method: Method, epochs_done: int) -> ProbeResult:
        health = self._health(method, epochs_done)
        split, rows, size = self.dataset.pretraining, self.sample, self.config.data.image_size
        assert size is not None
        with frozen(method):
            embeddings = map_images(method.embed, split, self.dataset.statistics, size, self.device, rows)
        spread_found = float(spread(embeddings))
        findings = method.findings(health, spread_found, epochs_done)
        features = self._features(method, split, rows)
        return ProbeResult(health, rank_me(features), spread_found, self._knn(method), findings)

    def _features(self, method: Method, split: Split, rows: np.ndarray) -> Tensor:
        size = self.config.data.image_size
        assert size is not None
        return extract_features(method.encoder, split, self.dataset.statistics, size, self.device, rows)

    def _health(self, method: Method, epochs_done: int) -> PrototypeHealth | None:
        """Health before training, with the batch's own statistics, which is how training begins."""
        split = self.dataset.pretraining
        parts = np.array_split(self.sample, math.ceil(len(self.sample) / 256))  # never a single image
        start = by_batch_statistics(method) if epochs_done == 0 and len(self.sample) > 1 else nullcontext()
        first: list[Tensor] = []
        second: list[Tensor] = []
        with frozen(method), start:
            for rows in parts:
                views = make_views(split, self.views, rows, PROBE_EPOCH, self.device)
                log_p = method.log_assignments(views[0])
                if log_p is None:
                    return None
                log_q = method.log_assignments(views[1])
                assert log_q is not None
                first.append(log_p.float().cpu())
                second.append(log_q.float().cpu())
        return measure_health(torch.cat(first), torch.cat(second), method.prototype_vectors())

    def _knn(self, method: Method) -> float | None:
        train, test = self.dataset.train, self.dataset.test
        if self.voters is None or self.judged is None or test is None:
            return None
        assert train.labels is not None
        assert test.labels is not None
        k = self.config.probe.neighbours
        accuracy = knn_accuracy(
            self._features(method, train, self.voters),
            torch.from_numpy(train.labels[self.voters]),
            self._features(method, test, self.judged),
            torch.from_numpy(test.labels[self.judged]),
            (k,),
            self.config.probe.temperature,
        )
        return accuracy[k]


class Probing:
    """The probes of a run: when they are due, and what the main process logs and says about them."""

    def __init__(self, probe: Probe, config: Config, journal: Journal, console: Console) -> None:
        self.probe, self.config, self.journal, self.console = probe, config, journal, console

    def before_training(self, method: Method) -> None:
        """Probe the untrained model. Its health means nothing yet, but a bad start deserves a warning."""
        if not self.config.probe.every or not distributed.is_main():
            return
        result = self.probe.run(method, epochs_done=0)
        self.console.show_probe(result.summary())
        self.journal.write("probe", 0, 0, **result.record(judged=False))
        self.console.say(f"before training: {result.summary()}")
        for finding in worth_saying(result):
            self.console.say(f"note: {finding.sentence()}", style="yellow")

    def after_epoch(self, method: Method, step: int, epoch: int) -> None:
        """Probe if it is due. A warning is given only once."""
        every = self.config.probe.every
        if not every or not distributed.is_main() or (epoch % every and epoch != self.config.train.epochs):
            return
        result = self.probe.run(method, epoch)
        self.console.show_probe(result.summary())
        earlier = self.journal.of_kind("probe")
        words = [finding.sentence(since(finding.kind, earlier, epoch)) for finding in worth_saying(result)]
        known = {text for record in earlier for text in record.get("warnings", ())}
        self.journal.write("probe", step, epoch, **result.record(), warnings=words)
        for text in words:
            if text not in known:
                self.console.say(f"warning: {text}", style="yellow")


def worth_saying(result: ProbeResult) -> list[Finding]:
    return [finding for finding in result.findings if finding.kind != TOO_EARLY]


def since(kind: str, earlier: list[Record], epoch: int) -> int:
    """Since which epoch every probe has found this."""
    first = epoch
    for record in reversed(earlier):
        if kind not in record.get("findings", ()):
            break
        first = round(record["epoch"])
    return first


def _chosen(count: int, most: int) -> np.ndarray:
    """A fixed random sample of positions, in order."""
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


def _labelled_rows(split: Split, most: int) -> np.ndarray | None:
    if not split.labelled or split.labels is None:
        return None
    labelled = np.flatnonzero(split.labels != UNLABELLED)
    return np.asarray(labelled[_chosen(len(labelled), most)])
