"""The words in which a probe judges a run, and from when on. Probes write them, and the report and tables read them."""

from __future__ import annotations

HEALTHY = "healthy"
PARTLY_COLLAPSED = "partly collapsed"
COLLAPSED = "collapsed"
TOO_EARLY_TO_JUDGE = "too early to judge"

# Until then a run has hardly begun: epochs of a few steps count together, and batch norm's statistics lag behind.
EARLY_STEPS = 100
