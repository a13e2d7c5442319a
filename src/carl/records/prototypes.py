"""When a prototype counts as dead, and when two count as twins, for the probe and the report."""

from __future__ import annotations

TWIN = 0.95  # two prototypes with a larger cosine are twins: they stand for the same images
DEAD = 0.1  # a prototype is dead if no image chooses it and its mean probability is below this part of 1/K
