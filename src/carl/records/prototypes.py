"""When a prototype counts as dead, and when two count as one, for the probe and the report."""

from __future__ import annotations

NEAR_DUPLICATE = 0.95  # two prototypes with a larger cosine count as one
DEAD = 0.1  # a prototype is dead if no image chooses it and its mean probability is below this part of 1/K
