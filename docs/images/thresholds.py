"""Draws the thresholds of the prior's weight over K, with what became of the runs of the paper's figure 2.

    python -m docs.images.thresholds

writes `docs/images/thresholds.png` and `.svg`, and the numbers to `results/robustness/thresholds.csv`.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from carl.methods.prior import STABLE, barrier, prior_threshold, weight_that_holds

COUNTS = (10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 5000, 10_000)
WEIGHTS = (2.5, 3.0, 4.0)  # for which the barrier is written down
# Figure 2 of the paper (STL-10, K = 300): start and end of lambda, and what became of it.
PAPER = {(3.0, 3.0): True, (2.0, 2.0): True, (2.0, 1.0): True, (1.0, 1.0): False, (0.0, 0.0): False}


def main() -> None:
    thresholds = [prior_threshold(count) for count in COUNTS]
    gone = [weight_that_holds(count) for count in COUNTS]
    folder = Path("results/robustness")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "thresholds.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        heads = (f"barrier at lambda {w:g}, times K" for w in WEIGHTS)
        writer.writerow(["prototypes", "stable", "threshold", "held from any start", *heads])
        for count, threshold, last in zip(COUNTS, thresholds, gone, strict=True):
            tops = [f"{count * barrier(count, weight):.2f}" for weight in WEIGHTS]
            writer.writerow([count, STABLE, f"{threshold:.3f}", f"{last:.3f}", *tops])

    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    axes.fill_between(COUNTS, 0, STABLE, color="#d1495b", alpha=0.18, lw=0)
    axes.fill_between(COUNTS, STABLE, thresholds, color="#edae49", alpha=0.25, lw=0)
    axes.fill_between(COUNTS, thresholds, gone, color="#2e8b57", alpha=0.08, lw=0)
    axes.fill_between(COUNTS, gone, 24, color="#2e8b57", alpha=0.2, lw=0)
    axes.plot(COUNTS, thresholds, color="#2e8b57", lw=2, label="equal use is the lowest loss from here on")
    axes.plot(COUNTS, gone, color="#2e8b57", lw=1, ls="--", label="no other minimum from here on")
    axes.axhline(STABLE, color="#d1495b", lw=2)
    axes.text(450, 1.0, "not stable: collapses from any start", va="center")
    axes.text(450, 3.6, "held if the start is flat", va="center")
    axes.text(22, 9.0, "held from any start", va="center")
    for (start, _), trained in PAPER.items():
        axes.plot(300, start, "o" if trained else "x", color="black", ms=6, clip_on=False, zorder=3)
    axes.plot([], [], "ko", label="trained in the paper's figure 2")
    axes.plot([], [], "kx", label="collapsed there")
    axes.set(xscale="log", xlim=(10, 10_000), ylim=(0, 20), xlabel="prototypes K", ylabel="lambda at the start")
    axes.legend(loc="upper left", frameon=False)
    for kind in ("png", "svg"):
        figure.savefig(f"docs/images/thresholds.{kind}", dpi=150)


if __name__ == "__main__":
    main()
