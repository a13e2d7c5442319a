"""When a prototype counts as dead, two as twins, and too few as in use: for the probe and the report."""

from __future__ import annotations

TWIN = 0.95  # two prototypes with a larger cosine are twins: they stand for the same images
DEAD = 0.1  # a prototype is dead if no image chooses it and its mean probability is below this part of 1/K
# A run is partly collapsed if this part of the views of its images goes to less than that part of the prototypes.
NEARLY_ALL, FEW = 0.99, 0.25
