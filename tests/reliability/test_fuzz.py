"""Readers against some hundred damaged files each; `make soak` gives them minutes."""

from __future__ import annotations

import pytest

from tests.reliability.fuzzing import TARGETS, fuzz


@pytest.mark.parametrize("name", list(TARGETS))
def test_damaged_files_are_read_or_refused_and_never_crash(name: str):
    tally = fuzz(name, seed=1, seconds=1.5, most=150)
    assert tally.crashes == []
    assert tally.read > 0  # the whole ones
    # Of a packed store the reader says None, and the images are packed anew; of metrics it leaves lines out.
    assert tally.read < tally.tried or name in ("packed store", "metrics.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TARGETS))
def test_more_damaged_files_are_read_or_refused_and_never_crash(name: str):
    assert fuzz(name, seed=2, seconds=6).crashes == []
