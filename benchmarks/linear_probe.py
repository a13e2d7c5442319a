"""The cached linear probe against scikit-learn's LogisticRegression, on the same features.

    python -m benchmarks.linear_probe [--json] [--images 50000] [--features 512] [--classes 10] [--threads 2]

Ours is timed twice: with the choice of the penalty on a tenth of the images, which is what `carl eval --protocol
linear-cached` does, and for the chosen penalty alone, which is what scikit-learn is timed for. scikit-learn gets the
same standardised features in float64 and runs until its own criterion (tol 1e-7) is met.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from carl.evaluation.logistic import fit_logistic, linear_probe


@dataclass(frozen=True)
class Comparison:
    images: int
    features: int
    classes: int
    threads: int
    penalty: float  # chosen by us, given to both
    carl_seconds: float  # choice of the penalty and fit
    carl_fit_seconds: float  # fit alone
    sklearn_fit_seconds: float
    carl_accuracy: float  # top-1 on 10,000 test images
    sklearn_accuracy: float
    objective_difference: float  # ours minus theirs, of theirs
    coefficient_difference: float  # norm of the difference, of the norm of theirs


def make_features(count: int, size: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Correlated features of a falling spectrum, never negative, as pooled ReLU features are; classes overlap."""
    fixed = torch.Generator().manual_seed(0)
    spectrum = torch.arange(1, size + 1).float() ** -0.7
    mix = torch.randn(size, size, generator=fixed) * spectrum[:, None]
    centres = torch.randn(classes, size, generator=fixed)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    points = centres[labels] + 6 * torch.randn(count, size, generator=generator)
    return (points @ mix).relu(), labels


def compare(images: int, size: int, classes: int) -> Comparison:
    from sklearn.linear_model import LogisticRegression

    (train, labels), (test, truth) = make_features(images, size, classes, 1), make_features(10_000, size, classes, 2)
    start = time.perf_counter()
    probe = linear_probe(train, labels, test, truth)
    whole = time.perf_counter() - start
    penalty = probe.classifier.penalty
    start = time.perf_counter()
    ours = fit_logistic(train, labels, classes, penalty)
    alone = time.perf_counter() - start
    points, test_points = (((x - ours.mean) / ours.std).double().numpy() for x in (train, test))
    start = time.perf_counter()
    theirs = LogisticRegression(C=1 / (penalty * images), tol=1e-7, max_iter=10_000).fit(points, labels.numpy())
    reference = time.perf_counter() - start
    coefficients = torch.from_numpy(theirs.coef_)
    scores = torch.from_numpy(points) @ coefficients.T + torch.from_numpy(theirs.intercept_)
    objective = F.cross_entropy(scores, labels).item() + penalty / 2 * coefficients.square().sum().item()
    return Comparison(
        images=images,
        features=size,
        classes=classes,
        threads=torch.get_num_threads(),
        penalty=penalty,
        carl_seconds=whole,
        carl_fit_seconds=alone,
        sklearn_fit_seconds=reference,
        carl_accuracy=100 * (ours.scores(test).argmax(1) == truth).double().mean().item(),
        sklearn_accuracy=100 * float(np.mean(theirs.predict(test_points) == truth.numpy())),
        objective_difference=(ours.objective - objective) / objective,
        coefficient_difference=((ours.weight - coefficients).norm() / coefficients.norm()).item(),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    found = compare(options.images, options.features, options.classes)
    if options.json:
        print(json.dumps(asdict(found), indent=2))
        return
    size = f"{found.images} x {found.features}, {found.classes} classes"
    print(f"{size}, {found.threads} threads, penalty {found.penalty:g}")
    choice = f"{found.carl_seconds:7.1f} s with the choice of the penalty"
    print(f"ours          {choice}, {found.carl_fit_seconds:.1f} s without")
    print(f"scikit-learn  {found.sklearn_fit_seconds:7.1f} s without")
    print(f"accuracy      {found.carl_accuracy:.2f}% and {found.sklearn_accuracy:.2f}%")
    print(f"objective     {found.objective_difference:+.1e}, coefficients {found.coefficient_difference:.1e} apart")


if __name__ == "__main__":
    main()
