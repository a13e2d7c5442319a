"""Every protocol by name: what it is in words, its values, and the function that measures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from carl import distributed
from carl.errors import UserError
from carl.evaluation.cluster import ITERATIONS, RESTARTS, Agreement, cluster_features, cluster_prototypes
from carl.evaluation.evaluation_data import Material
from carl.evaluation.finetune import FinetuneRecipe, finetune
from carl.evaluation.knn import knn_scores
from carl.evaluation.linear import LinearRecipe, linear_evaluation
from carl.evaluation.logistic import JUDGED, PENALTIES, VALIDATION, linear_probe
from carl.methods import Method

NEIGHBOURS = (1, 5, 20, 200)
TEMPERATURE = 0.1  # lightly's; Wu et al. 2018 use 0.07
SEMI_FRACTIONS = (0.01, 0.1)  # paper, table 3
MOCO_CENTRE = 0.875  # 224 of 256 pixels, where MoCo's script judges
TRANSFER_EPOCHS = 50  # paper, section "Cross-domain transfer"


@dataclass(frozen=True)
class Request:
    """What the user asked to be measured."""

    protocol: str
    fraction: float | None = None  # of the labels, for `semi`
    seeds: int = 1
    epochs: int | None = None  # the protocol's own if unset
    rates: tuple[float, ...] = ()  # of the linear classifier; the protocol's own if empty
    centre: float | None = None  # part of each side that is seen of images not cropped at random; None: the protocol's

    @property
    def seen(self) -> float:
        return PROTOCOLS[self.protocol].centre if self.centre is None else self.centre


@dataclass(frozen=True)
class Outcome:
    """What one seed gave: the figures that are averaged and shown, and the rest of the result file."""

    figures: dict[str, float]  # percentages
    details: dict[str, Any]


@dataclass(frozen=True)
class Protocol:
    kind: str  # offline, online or cached, and how; shown with every accuracy
    measure: Callable[[nn.Module, Method | None, Material, Request, int], Outcome]
    values: Callable[[Request], dict[str, Any]]  # for the result file
    seeded: bool  # whether another seed can give another figure for the same encoder
    beside_random: bool = False  # measured with random weights too, for comparison
    epochs: int | None = None
    centre: float = 1.0  # part of each side of an image that is seen where it is not cropped at random


def knn(encoder: nn.Module, method: Method | None, material: Material, request: Request, seed: int) -> Outcome:
    """Each process judges its share of the test images."""
    place = _exact_place(material)
    train, test = (material.cached_features(encoder, split) for split in (material.train, material.test))
    labels, truth = torch.from_numpy(material.train_labels), torch.from_numpy(material.test_labels)
    with distributed.apart(False):
        share = slice(distributed.rank(), None, distributed.world_size())
        scores = knn_scores(
            train.to(place), labels.to(place), test[share].to(place), NEIGHBOURS, TEMPERATURE, material.classes
        )
        right = torch.stack([(found.argmax(1) == truth[share].to(place)).sum() for found in scores.values()])
        right = distributed.sum_over_processes(right)
    return Outcome({str(k): 100 * count / len(truth) for k, count in zip(scores, right.tolist(), strict=True)}, {})


def _exact_place(material: Material) -> torch.device:
    """Where cached features are worked on: MPS has no float64, and finds few neighbours at once."""
    return material.device if material.device.type == "cuda" else torch.device("cpu")


def linear_cached(
    encoder: nn.Module, method: Method | None, material: Material, request: Request, seed: int
) -> Outcome:
    place = _exact_place(material)
    found = linear_probe(
        material.cached_features(encoder, material.train).to(place),
        torch.from_numpy(material.train_labels).to(place),
        material.cached_features(encoder, material.test).to(place),
        torch.from_numpy(material.test_labels).to(place),
        seed=seed,
    )
    validation = {f"{penalty:.3g}": round(value, 2) for penalty, value in found.validation.items()}
    return _classified(
        found.accuracy.as_json(),
        penalty=found.classifier.penalty,
        converged=found.classifier.converged,
        validation=validation,
    )


def linear_recipe(request: Request) -> LinearRecipe:
    usual = LinearRecipe(epochs=TRANSFER_EPOCHS) if request.protocol == "transfer" else LinearRecipe()
    return replace(usual, epochs=request.epochs or usual.epochs, rates=request.rates or usual.rates)


def linear(encoder: nn.Module, method: Method | None, material: Material, request: Request, seed: int) -> Outcome:
    found = linear_evaluation(encoder, material, linear_recipe(request), seed)
    validation = {f"{rate:g}": round(value, 2) for rate, value in found.validation.items()}
    return _classified(found.accuracy.as_json(), rate=found.rate, validation=validation)


def finetune_recipe(request: Request) -> FinetuneRecipe:
    usual = FinetuneRecipe()
    return replace(usual, epochs=request.epochs or usual.epochs)


def finetuning(encoder: nn.Module, method: Method | None, material: Material, request: Request, seed: int) -> Outcome:
    fraction = 1.0 if request.fraction is None else request.fraction
    found = finetune(encoder, material, finetune_recipe(request), fraction, seed)
    rows: Any = "all" if request.fraction is None else found.rows.tolist()
    return _classified(found.accuracy.as_json(), labels=len(found.rows), rows=rows)


def clustering(encoder: nn.Module, method: Method | None, material: Material, request: Request, seed: int) -> Outcome:
    prototypes = None if method is None else cluster_prototypes(method, material)
    counts = [material.classes] if prototypes is None else [material.classes, prototypes.clusters]
    found = {f"k-means {a.clusters}": a for a in cluster_features(encoder, material, counts, seed)}
    if prototypes is not None:
        found = {f"prototypes {prototypes.clusters}": prototypes, **found}
    figures = {f"{name} {what}": value for name, a in found.items() for what, value in _agreement(a).items()}
    return Outcome(figures, {"clusters": {name: asdict(a) for name, a in found.items()}})


def _agreement(found: Agreement) -> dict[str, float]:
    return {"matched": found.matched, "majority": found.majority, "NMI": found.nmi, "ARI": found.ari}


def _classified(accuracy: dict[str, Any], **details: Any) -> Outcome:
    figures = {"top-1": accuracy.pop("top1"), "top-5": accuracy.pop("top5")}
    return Outcome(figures, {**details, **accuracy})


PROTOCOLS: dict[str, Protocol] = {
    "knn": Protocol(
        "offline: the labelled training images vote, all test images are judged",
        knn,
        lambda request: {"neighbours": list(NEIGHBOURS), "temperature": TEMPERATURE, "similarity": "cosine"},
        seeded=False,
        beside_random=True,
    ),
    "linear": Protocol(
        "offline: MoCo's protocol, SGD on a linear layer over the frozen encoder, random crops and flips",
        linear,
        lambda request: asdict(linear_recipe(request)),
        seeded=True,
        epochs=LinearRecipe.epochs,
        centre=MOCO_CENTRE,
    ),
    "linear-cached": Protocol(
        "cached: logistic regression on features extracted once, penalty chosen on tenths of the training images",
        linear_cached,
        lambda request: {
            "penalties": list(PENALTIES),
            "validation": VALIDATION,
            "judged": JUDGED,
            "standardised": True,
        },
        seeded=True,
        beside_random=True,
        centre=MOCO_CENTRE,  # as `linear`, for which it stands
    ),
    "transfer": Protocol(
        "offline: MoCo's protocol on other data than the encoder was trained on",
        linear,
        lambda request: asdict(linear_recipe(request)),
        seeded=True,
        epochs=TRANSFER_EPOCHS,
        centre=MOCO_CENTRE,
    ),
    "semi": Protocol(
        "offline: the whole encoder is fine-tuned on a part of the labels",
        finetuning,
        lambda request: {**asdict(finetune_recipe(request)), "fraction": request.fraction},
        seeded=True,
        epochs=FinetuneRecipe.epochs,
    ),
    "finetune": Protocol(
        "offline: the whole encoder is fine-tuned on all labels",
        finetuning,
        lambda request: asdict(finetune_recipe(request)),
        seeded=True,
        epochs=FinetuneRecipe.epochs,
    ),
    "cluster": Protocol(
        "offline: clusters found on the training images, test images judged; no label is used to find them",
        clustering,
        lambda request: {"iterations": ITERATIONS, "restarts": RESTARTS, "features": "unit length"},
        seeded=True,
        beside_random=True,
    ),
}


def check_request(request: Request, data: str | None) -> None:
    """What does not go together is said before anything is read."""
    protocol = PROTOCOLS[request.protocol]
    if request.seeds < 1:
        raise UserError(f"--seeds {request.seeds} is not a number of repetitions; use 1 or more")
    if request.fraction is not None and request.protocol != "semi":
        raise UserError(f"--fraction is for --protocol semi, not {request.protocol}; leave it out")
    if request.fraction is not None and not 0 < request.fraction < 1:
        raise UserError(f"--fraction {request.fraction:g} is not a part of the labels; use a number between 0 and 1")
    if request.epochs is not None and protocol.epochs is None:
        raise UserError(f"--epochs has no meaning for --protocol {request.protocol}; leave it out")
    if request.epochs is not None and request.epochs < 1:
        raise UserError(f"--epochs {request.epochs} is no training; use 1 or more")
    if request.rates and request.protocol not in ("linear", "transfer"):
        raise UserError(f"--rates is for --protocol linear and transfer, not {request.protocol}; leave it out")
    wrong = next((rate for rate in request.rates if not 0 < rate < math.inf), None)
    if wrong is not None:
        raise UserError(f"--rates {wrong:g}: rates are numbers above 0; use for example 30,3,0.3")
    if not 0 < request.seen <= 1:
        raise UserError(f"--centre {request.seen:g} is not a part of an image's side; use a number such as 0.875")
    if request.protocol == "transfer" and data is None:
        raise UserError("--protocol transfer needs --data, the data to transfer to; for the run's own use linear")


def mean_and_deviation(values: list[float]) -> float | dict[str, float]:
    """The value of one seed, or mean and standard deviation (of a sample) over several."""
    if len(values) == 1:
        return round(values[0], 2)
    return {"mean": round(float(np.mean(values)), 2), "std": round(float(np.std(values, ddof=1)), 2)}
