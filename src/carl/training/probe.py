"""Examines the model while it trains: prototype health, and a kNN probe if there are labels; says what it found."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from carl import distributed
from carl.config import Config
from carl.data.batches.build import make_views
from carl.data.dataset import UNLABELLED, Dataset, Split
from carl.evaluation.features import frozen, map_images
from carl.evaluation.intervals import packed, unpacked
from carl.evaluation.neighbours import (
    knn_right,
    knn_right_among,
    per_image_stability,
    shared_neighbours,
    view_separation,
)
from carl.methods import Method, find_method
from carl.methods.base import spread
from carl.methods.health import (
    TOO_EARLY,
    Finding,
    PrototypeHealth,
    epochs_that_count,
    measure_health,
    rank_me,
    verdict,
)
from carl.models.batch_norm import by_batch_statistics
from carl.records.adaptation import (
    GAINED,
    KNN,
    KNN_AMONG,
    LOST,
    NAMES,
    RIGHT,
    SEPARATION,
    SHARED,
    STABILITY,
    STABILITY_ERROR,
    VOTERS,
)
from carl.records.metrics import Record
from carl.records.verdicts import EARLY_STEPS
from carl.training.console import Console, Probed
from carl.training.journal import Journal
from carl.views.views import Views

PROBE_EPOCH = 2**31 - 1  # the probe's views are drawn from an epoch that training never reaches
AT_ONCE = 256  # images that go through the model together
NEIGHBOURS = 5  # of an image that should stay the same over its views; fewer for fewer images


@dataclass(frozen=True)
class ProbeResult:
    health: PrototypeHealth | None  # None for methods without prototypes
    rank: float  # RankMe of the encoder's features
    spread: float  # of the unit embeddings that the loss compares; 0 when all are the same
    knn: float | None  # None without labels
    findings: list[Finding]
    voters: int | None = None  # labelled training images that voted; None where none did
    # What follows is measured only where there is a start to compare with.
    knn_among: float | None = None  # of the training images, each judged by the others; only where nothing else judges
    right: np.ndarray | None = None  # which images the one or the other kNN names rightly
    shared: np.ndarray | None = None  # how many nearest neighbours the views of each image share
    separation: float | None = None  # of views of one image from those of others

    @property
    def stability(self) -> float | None:
        """Of the nearest neighbours over views, in percent."""
        return None if self.shared is None else float(per_image_stability(self.shared, NEIGHBOURS).mean())

    def record(self, judged: bool = True) -> Record:
        record: Record = {} if self.health is None else dict(self.health.as_metrics())
        record["rank_me"], record["spread"] = self.rank, self.spread
        if self.knn is not None:
            record[KNN] = self.knn
        if self.knn_among is not None:
            record[KNN_AMONG] = self.knn_among
        if self.voters is not None:
            record[VOTERS] = self.voters
        if self.shared is not None:
            record[STABILITY] = self.stability
            record[SHARED] = "".join(map(str, self.shared.tolist()))
        if self.right is not None:
            record[RIGHT] = packed(self.right)
        if self.separation is not None:
            record[SEPARATION] = self.separation
        if judged:
            record["verdict"] = verdict(self.findings)
            record["findings"] = [finding.kind for finding in self.findings]
        return record

    @property
    def quality(self) -> str:
        """The main figure, in a few words: kNN accuracy where there are labels, otherwise the verdict."""
        if self.knn is not None:
            return f"{NAMES[KNN]} {self.knn:.1f}%"
        if self.knn_among is not None:
            return f"{NAMES[KNN_AMONG]} {self.knn_among:.1f}%"
        if self.stability is not None:
            return f"{NAMES[STABILITY]} {self.stability:.1f}%"
        return f"probe {verdict(self.findings)}, RankMe {self.rank:.0f}"

    @property
    def start(self) -> str:
        """The main figure of an untrained model, which there is no verdict on."""
        unknown = self.knn is None and self.knn_among is None and self.stability is None
        return f"RankMe {self.rank:.0f}" if unknown else self.quality

    @property
    def start_explained(self) -> str:
        """What the main figure of an untrained model means, where its name does not say it."""
        return "" if self.start == self.quality else "how many directions the features use; more is better"

    @property
    def details(self) -> str:
        """The figures, in words that none of training's figures has."""
        parts = [] if self.knn is None else [f"kNN (online) {self.knn:.1f}%"]
        if self.knn_among is not None:
            parts.append(f"{NAMES[KNN_AMONG]} {self.knn_among:.1f}%")
        if self.stability is not None:
            parts.append(f"{NAMES[STABILITY]} {self.stability:.1f}%")
        if self.health is not None:
            parts.append(
                f"{self.health.used} of {self.health.prototypes} prototypes chosen by {self.health.images} images"
            )
            parts.append(f"views agree {100 * self.health.agreement:.0f}%")
        return "  ".join([*parts, f"spread {self.spread:.2f}", f"RankMe {self.rank:.0f}"])


class Probe:
    """Reads a fixed sample with the frozen model; changes nothing that training depends on.

    The model is seen with the running statistics of batch norm, as it will be used. In the first EARLY_STEPS these are
    not yet those of images, or lag behind weights that change fast, and it is seen with the statistics of its batch, as
    training sees it. Before training that is so for prototype health alone: random weights are measured elsewhere too,
    as they are. An encoder that started from weights always is seen as it will be used, and only the new head by the
    statistics of its batch. Its neighbours are measured without labels too, because it has a start to be compared with;
    and if there are labels but no test images, the training images judge each other.
    """

    def __init__(self, config: Config, dataset: Dataset, views: Views, device: torch.device) -> None:
        self.config, self.dataset, self.views, self.device = config, dataset, views, device
        self.sample = _chosen(len(dataset.pretraining), config.probe.images)
        self.voters = _labelled_rows(dataset.train, config.probe.train_images)
        self.has_start = config.model.init is not None
        self.judged = None if dataset.test is None else _labelled_rows(dataset.test, config.probe.images)
        # Not for a method that learned these labels: its features know them.
        compares = self.has_start and self.judged is None and not find_method(config.method.name).needs_labels
        self.judges_itself = compares and _tells_classes_apart(dataset.train, self.voters)

    @property
    def passes(self) -> int:
        """Images through the encoder in a probe: two views, embeddings and features of the sample, and those of kNN."""
        knn = 0
        if self.voters is not None and (self.judges_itself or self.judged is not None):
            knn = len(self.voters) + (0 if self.judged is None else len(self.judged))
        return 4 * len(self.sample) + knn

    def run(self, method: Method, epochs_done: int, steps_done: int) -> ProbeResult:
        health = self._health(method, by_batch=steps_done < EARLY_STEPS)
        by_batch = 0 < steps_done < EARLY_STEPS and not self.has_start
        split, rows = self.dataset.pretraining, self.sample
        spread_found = float(spread(self._map(method, method.embed, split, rows, by_batch)))
        findings = method.findings(health, spread_found, epochs_that_count(epochs_done, steps_done))
        features = self._map(method, method.encoder, split, rows, by_batch)
        right = self._right(method, by_batch)
        percent = None if right is None else 100 * float(right.mean())
        knn, among = (None, percent) if self.judges_itself else (percent, None)
        voters = None if right is None or self.voters is None else len(self.voters)
        if not self.has_start or len(rows) < 3:
            return ProbeResult(health, rank_me(features), spread_found, knn, findings, voters)
        first, second = self._features_of_views(method)
        shared, separate = shared_neighbours(first, second, features, NEIGHBOURS), view_separation(first, second)
        return ProbeResult(
            health, rank_me(features), spread_found, knn, findings, voters, among, right, shared.numpy(), separate
        )

    def _map(
        self, method: Method, function: Callable[[Tensor], Tensor], split: Split, rows: np.ndarray, by_batch: bool
    ) -> Tensor:
        """`function` of the images at `rows`: a (N, ...) CPU tensor."""
        size, statistics = self.config.data.image_size, self.dataset.statistics
        assert size is not None
        if not by_batch or len(rows) < 2:
            with frozen(method):
                return map_images(function, split, statistics, size, self.device, rows=rows, batch_size=AT_ONCE)
        parts = _dealt(rows)
        with frozen(method), by_batch_statistics(method):
            found = [
                map_images(function, split, statistics, size, self.device, rows=part, batch_size=len(part))
                for part in parts
            ]
        values = found[0].new_empty((len(rows), *found[0].shape[1:]))
        for place, part in enumerate(found):
            values[place :: len(parts)] = part
        return values

    def _health(self, method: Method, by_batch: bool) -> PrototypeHealth | None:
        split = self.dataset.pretraining
        seen_by_batch = method.head if self.has_start else method
        statistics = by_batch_statistics(seen_by_batch) if by_batch and len(self.sample) > 1 else nullcontext()
        first: list[Tensor] = []
        second: list[Tensor] = []
        with frozen(method), statistics:
            for rows in _dealt(self.sample):
                views = make_views(split, self.views, rows, PROBE_EPOCH, self.device)
                log_p = method.log_assignments(views[0])
                if log_p is None:
                    return None
                log_q = method.log_assignments(views[1])
                assert log_q is not None
                first.append(log_p.float().cpu())
                second.append(log_q.float().cpu())
        return measure_health(torch.cat(first), torch.cat(second), method.prototype_vectors())

    def _features_of_views(self, method: Method) -> tuple[Tensor, Tensor]:
        """What the encoder sees in two views of each image of the sample."""
        views: list[list[Tensor]] = [[], []]
        with frozen(method):
            for start in range(0, len(self.sample), AT_ONCE):
                rows = self.sample[start : start + AT_ONCE]
                pair = make_views(self.dataset.pretraining, self.views, rows, PROBE_EPOCH, self.device)[:2]
                for found, view in zip(views, pair, strict=True):
                    found.append(method.encoder(view).float().cpu())
        return torch.cat(views[0]), torch.cat(views[1])

    def _right(self, method: Method, by_batch: bool) -> np.ndarray | None:
        """Which images of the sample the nearest training images name rightly; None without labels.

        They are test images, or the training images themselves where these judge each other.
        """
        train, test = self.dataset.train, self.dataset.test
        k, temperature = self.config.probe.neighbours, self.config.probe.temperature
        if self.voters is not None and self.judges_itself:
            assert train.labels is not None
            features = self._map(method, method.encoder, train, self.voters, by_batch)
            return knn_right_among(features, torch.from_numpy(train.labels[self.voters]), k, temperature).numpy()
        if self.voters is None or self.judged is None or test is None:
            return None
        assert train.labels is not None
        assert test.labels is not None
        right = knn_right(
            self._map(method, method.encoder, train, self.voters, by_batch),
            torch.from_numpy(train.labels[self.voters]),
            self._map(method, method.encoder, test, self.judged, by_batch),
            torch.from_numpy(test.labels[self.judged]),
            (k,),
            temperature,
        )
        return right[k].numpy()


class Probing:
    """The probes of a run: when they are due, and what the main process logs and says about them."""

    def __init__(self, probe: Probe, config: Config, journal: Journal, console: Console) -> None:
        self.probe, self.config, self.journal, self.console = probe, config, journal, console

    def before_training(self, method: Method) -> float:
        """Probe the untrained model. Its health means nothing yet, but a bad start deserves a warning.

        Returns the seconds that it took, like `after_epoch`; 0 if there was no probe.
        """
        if not self.config.probe.every or not distributed.is_main():
            return 0.0
        start = time.monotonic()
        self.console.show_doing("measuring the encoder before training")
        result = self.probe.run(method, epochs_done=0, steps_done=0)
        self.journal.write("probe", 0, 0, **result.record(judged=False))
        self.console.show_start(Probed(0, result.start, result.details, result.start_explained))
        self.console.show_doing("preparing the first epoch")
        for finding in worth_saying(result):
            self.console.say(f"note: {finding.sentence()}", style="yellow")
        return time.monotonic() - start

    def after_epoch(self, method: Method, step: int, epoch: int) -> float:
        """Probe if it is due. A warning is given only once."""
        every = self.config.probe.every
        if not every or not distributed.is_main() or (epoch % every and epoch != self.config.train.epochs):
            return 0.0
        start = time.monotonic()
        result = self.probe.run(method, epoch, step)
        self.console.show_probe(Probed(epoch, result.quality, result.details))
        earlier = self.journal.of_kind("probe")
        words = [finding.sentence(since(finding.kind, earlier, epoch)) for finding in worth_saying(result)]
        known = {text for record in earlier for text in record.get("warnings", ())}
        self.journal.write("probe", step, epoch, **result.record(), **changed(earlier, result), warnings=words)
        for text in words:
            if text not in known:
                self.console.say(f"warning: {text}", style="yellow")
        return time.monotonic() - start


def changed(earlier: list[Record], result: ProbeResult) -> Record:
    """How the images changed since the probe before training, as far as that is known of each.

    How many became right and how many wrong, and the standard error of the mean change in stability.
    """
    if not earlier or earlier[0].get("epoch") != 0:
        return {}
    first = earlier[0]
    found: Record = {}
    before = None if result.right is None else unpacked(first.get(RIGHT), len(result.right))
    if before is not None and result.right is not None:
        found |= {GAINED: int((result.right & ~before).sum()), LOST: int((before & ~result.right).sum())}
    shared = None if result.shared is None else digits(first.get(SHARED), len(result.shared))
    if shared is not None and result.shared is not None:
        change = per_image_stability(result.shared, NEIGHBOURS) - per_image_stability(shared, NEIGHBOURS)
        found[STABILITY_ERROR] = float(change.std(ddof=1)) / math.sqrt(len(change))
    return found


def digits(text: object, images: int) -> np.ndarray | None:
    """One digit per image; None if the text is not that."""
    if not isinstance(text, str) or len(text) != images or not (text.isascii() and text.isdigit()):
        return None
    return np.array(list(text), dtype=np.int64)


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


def _dealt(rows: np.ndarray) -> list[np.ndarray]:
    """The rows dealt into batches like cards, so that neighbours, often of one class, are not normalised together."""
    parts = math.ceil(len(rows) / AT_ONCE)
    return [rows[place::parts] for place in range(parts)]


def _chosen(count: int, most: int) -> np.ndarray:
    """A fixed random sample of positions, in order."""
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


def _tells_classes_apart(split: Split, rows: np.ndarray | None) -> bool:
    """Whether the labels at `rows` are of several classes; those of a single one are always right."""
    return rows is not None and split.labels is not None and len(np.unique(split.labels[rows])) > 1


def _labelled_rows(split: Split, most: int) -> np.ndarray | None:
    if not split.labelled or split.labels is None:
        return None
    labelled = np.flatnonzero(split.labels != UNLABELLED)
    return np.asarray(labelled[_chosen(len(labelled), most)])
