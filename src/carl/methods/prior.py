"""Which weights of CARL's prior keep all prototypes in use: theory of the loss where all images get one assignment p.

There the loss is H2(p) + lambda KL(p), with H2 the Renyi entropy of order 2 and KL the divergence of p from uniform,
and the encoder can reach it without looking at an image. Two values of lambda matter:

- `STABLE` = 2. Around uniform the loss changes by K (lambda / 2 - 1) sum(eps^2): below 2, uniform is a maximum, and
  any run slides into few prototypes; at 2 it is level there and falls further out, towards one heavy prototype.
- `prior_threshold(K)`, above 2. Below it one heavy prototype with an even tail is lower than uniform. A run that
  starts flat does not find that basin, since a barrier lies before it; one that starts peaked does. For a little more
  lambda than that the basin is there still, higher than uniform: `weight_that_holds` says when it is gone.
"""

from __future__ import annotations

import math

import numpy as np

from carl.errors import UserError

STABLE = 2.0
POINTS = 20_001  # of the grid over the heavy prototype's probability; the threshold is right to 1e-6


def one_heavy(prototypes: int, heavy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ln K - H2 and KL to uniform where one prototype has probability `heavy` and the rest share what is left."""
    others = prototypes - 1
    tail = (1 - heavy) / others
    squares = heavy**2 + others * tail**2
    with np.errstate(divide="ignore", invalid="ignore"):
        minus_entropy = heavy * np.log(heavy) + np.where(tail > 0, others * tail * np.log(tail), 0.0)
    return math.log(prototypes) + np.log(squares), math.log(prototypes) + minus_entropy


def prior_threshold(prototypes: int) -> float:
    """The least lambda for which no constant assignment has a lower loss than uniform: about 4.1 for K = 100.

    The largest (ln K - H2) / KL over assignments with one heavy prototype; at uniform this is 2.
    """
    if prototypes < 2:
        raise UserError(f"{prototypes} prototypes: nothing to choose from; use 2 or more")
    gain, divergence = one_heavy(prototypes, _grid(prototypes))
    return max(STABLE, float((gain / divergence).max()))


def barrier(prototypes: int, weight: float) -> float:
    """Probability of the heaviest prototype at the top of the barrier between uniform and the basin of one heavy one.

    A start whose mean assignment has a heavier prototype slides away from uniform. 1/K where `weight` is at most
    `STABLE`; 1 where the loss rises all the way.
    """
    if weight <= STABLE:
        return 1 / prototypes
    heavy = _grid(prototypes)
    gain, divergence = one_heavy(prototypes, heavy)
    falls = np.flatnonzero(np.diff(weight * divergence - gain) < 0)
    return 1.0 if len(falls) == 0 else float(heavy[falls[0]])


def weight_that_holds(prototypes: int, heaviest: float = 1.0) -> float:
    """The least lambda with which a start whose heaviest prototype has this probability returns to uniform."""
    heavy = _grid(prototypes)
    gain, divergence = one_heavy(prototypes, heavy)
    slopes = np.diff(gain) / np.diff(divergence)
    return max(STABLE, float(slopes[heavy[:-1] <= heaviest].max(initial=STABLE)))


def _grid(prototypes: int) -> np.ndarray:
    """Probabilities of the heavy prototype, from near uniform to near 1, even in their logits."""

    def logit(p: float) -> float:
        return math.log(p / (1 - p))

    least = 1 / prototypes
    least += 0.02 * (1 - least) * least  # nearer to uniform both terms are lost in rounding
    return np.asarray(1 / (1 + np.exp(-np.linspace(logit(least), 14.0, POINTS))))
