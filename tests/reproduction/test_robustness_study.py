"""The study's tables: means of accuracies, the worst of health."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.robustness import PARTS, line, table, write_part

from carl.methods.carl import ROBUST


def outcome(linear: float, knn: float, used: int, verdict: str = "healthy") -> dict[str, Any]:
    return {
        "state": "done",
        "measures": {
            "linear-cached": {"accuracy": {"trained": {"top-1": linear}, "random": {"top-1": 10.0}}},
            "knn": {"accuracy": {"trained": {"20": knn}, "random": {"20": 10.0}}},
        },
        "config": {"method": {"prototypes": 100}},
        "probes": [
            {"used": 100, "information": 3.0, "agreement": 0.9},
            {"used": used, "information": 1.5, "agreement": 0.2},
        ],
        "verdict": verdict,
    }


def test_accuracies_are_means_and_health_is_that_of_the_worst_seed():
    found = line("robust CARL", [outcome(40.0, 30.0, 80), outcome(42.0, 34.0, 60, "collapsed"), {"state": "failed"}])
    text = table(PARTS["final"], [found]).splitlines()[-1]
    assert text == "| robust CARL | 2 | 41.00 ± 1.41 | 32.00 ± 2.83 | 60% | 1.50 | 20% | healthy, collapsed |"
    assert line("none", [{"state": "failed"}]) is None


def test_random_weights_have_no_health():
    untrained = {
        "state": "done",
        "measures": {
            "linear-cached": {"accuracy": {"random": {"top-1": 38.0}}},
            "knn": {"accuracy": {"random": {"20": 34.0}}},
        },
    }
    assert table(PARTS["grid"], [line("random weights", [untrained])]).endswith(
        "| random weights | 1 | 38.00 | 34.00 |  |  |  |  |\n"
    )


@pytest.mark.parametrize("part", PARTS.values(), ids=list(PARTS))
def test_names_of_runs_are_distinct_and_a_row_of_robust_has_its_values(part, tmp_path):
    names = [job.name for job in part.jobs()]
    assert len(set(names)) == len(names)
    method = next(job.layer["method"] for job in part.jobs() if job.layer.get("method", {}).get("preset") == "robust")
    changed = {key for key, value in ROBUST["method"].items() if method.get(key, value) != value}
    assert changed <= {"prototypes"}
    write_part(part, {}, tmp_path, tmp_path)  # before anything is known
    assert (tmp_path / f"{part.name}.md").read_text().startswith(part.title)
