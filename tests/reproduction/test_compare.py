"""A comparison is fair and says so: what is shared, what is own, and whether there is a difference at all."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carl.config import merge, parse_assignments_per_method, resolve
from carl.data.facts import DataFacts
from carl.errors import UserError
from carl.evaluation.intervals import packed
from carl.methods import METHODS
from carl.reproduction import compare as module
from carl.reproduction.compare import (
    CompareRequest,
    Comparison,
    Line,
    chosen_rates,
    compare,
    method_line,
    opened,
    shared_values,
    summary,
)
from carl.reproduction.comparison_table import markdown, terminal_lines
from carl.reproduction.dry_run import resolved_config, values_in_words
from carl.reproduction.jobs import Job, Outcome

FACTS = DataFacts("shapes", 8_000, 3, 24, 10)
MACHINE = {"device": "cpu", "processor": "x86_64", "cores": 2, "threads": 2}


def small(data: Path) -> dict[str, Any]:
    return {"data": {"source": str(data)}, "train": {"batch_size": 16}}


def right(count: int, first: int = 0, images: int = 1000) -> np.ndarray:
    found = np.zeros(images, dtype=bool)
    found[first : first + count] = True
    return found


def measure(protocol: str, name: str, trained: np.ndarray, random: np.ndarray) -> dict[str, Any]:
    return {
        "protocol": protocol,
        "accuracy": {"trained": {name: 100 * trained.mean()}, "random": {name: 100 * random.mean()}},
        "correct": {"trained": {name: [packed(trained)]}, "random": {name: [packed(random)]}},
        "test_images": len(trained),
        "data_fingerprint": "c0ffee",
    }


def outcome(name: str, trained: np.ndarray, verdict: str = "healthy", preset: str = "robust", **given: Any) -> Outcome:
    """What a run leaves behind, with these test images right."""
    method = METHODS[name]
    layers = [
        method.preset(preset, FACTS),
        {"data": {"source": "shapes", "image_size": 24}, "method": {"name": name, "preset": preset}},
        given,
    ]
    config = method.completed(resolve(layers, method.Options)).model_dump(mode="json")
    random = right(200)
    measures = {
        "knn": measure("knn", "20", trained, random),
        "linear-cached": measure("linear-cached", "top-1", trained, random),
    }
    return {
        "state": "done", "config": config, "data": "shapes", "images": 8_000, "classes": 10, "measures": measures,
        "verdict": verdict, "images_per_second": 400.0, "peak_memory_bytes": 10**9, "machine": MACHINE,
        "made": "2026-11-17",
    }  # fmt: skip


def line(name: str, trained: np.ndarray, **given: Any) -> Line:
    return method_line(name, [outcome(name, trained, **given)], 1, "")


# What is shared and what is own


def test_robust_shares_views_encoder_budget_and_rate_among_all_methods():
    lines = [line(name, right(500)) for name in METHODS]
    shared = shared_values(lines)
    for key in ("view 1, 2", "encoder", "optimiser", "learning rate", "momentum", "batch", "epochs", "image size"):
        assert key in shared, key
    assert "0.06 x 128 / 256" in shared["learning rate"]
    for found in lines:
        assert {key: found.values[key] for key in shared} == shared


def test_robust_shares_the_head_among_all_methods_that_have_one_and_names_what_comes_after():
    found = {name: line(name, right(500)).values for name, method in METHODS.items() if not method.needs_labels}
    heads = {values["head"] for values in found.values()} - {"none"}
    assert heads == {"linear 512-512, batch norm, ReLU, linear 512-128"}
    assert found["simclr"]["after the head"] == "batch norm"
    assert found["byol"]["after the head"] == "batch norm, linear 128-512, batch norm, ReLU, linear 512-128"
    assert "after the head" not in found["moco"]


def test_what_differs_is_listed_as_own_and_what_all_have_only_once():
    found = summary("shapes", "robust", [], [line("carl", right(500)), line("simclr", right(500))])
    carl, simclr = (row["own"] for row in found["rows"])
    assert carl["parts"] == "32"
    assert simclr["temperature"] == "0.115"
    assert not set(carl) & set(found["shared"])
    text = markdown(found)
    assert text.count("learning rate") == 1
    assert text.index("Shared by all") < text.index("learning rate") < text.index("Each method's own")


def test_a_value_given_to_one_method_is_its_own_and_an_unequal_rate_is_not_shared():
    faster = line("simclr", right(500), optim={"lr": 0.12})
    shared = shared_values([line("carl", right(500)), faster])
    assert "learning rate" not in shared
    assert "0.12 x 128" in faster.values["learning rate"]


def test_presets_of_the_papers_share_less_and_the_table_says_so():
    lines = [line(name, right(500), preset="paper") for name in ("simclr", "moco", "swav")]
    assert not {"view 1, 2", "learning rate", "optimiser"} & set(shared_values(lines))


def test_words_with_a_method_before_the_colon_are_for_that_method():
    shared, own = parse_assignments_per_method(
        ["train.epochs=3", "simclr:method.temperature=0.1", "simclr:optim.lr=0.2", "data.root=C:\\data"]
    )
    assert shared == {"train": {"epochs": 3}, "data": {"root": "C:\\data"}}
    assert own == {"simclr": {"method": {"temperature": 0.1}, "optim": {"lr": 0.2}}}


def test_layers_of_a_method_have_the_preset_below_and_its_own_values_above(small_data: Path, tmp_path: Path):
    request = CompareRequest(
        {**small(small_data), "optim": {"lr": 0.5}}, ("carl", "simclr"), 2, tmp_path,
        own={"simclr": {"method": {"temperature": 0.1}}},
    )  # fmt: skip
    comparison, _ = opened(request)
    simclr, carl = comparison.job("simclr", 1, None), comparison.job("carl", 0, 0.25)
    assert simclr.layer["method"] == {"preset": "robust", "name": "simclr", "temperature": 0.1}
    assert (simclr.layer["optim"], simclr.layer["train"]) == ({"lr": 0.5}, {"batch_size": 16, "seed": 1})
    assert (carl.layer["optim"], carl.layer["log"]) == ({"lr": 0.25}, {"report": True})
    assert "temperature" not in carl.layer["method"]
    assert [name for name, _ in comparison.runs] == ["carl", "simclr", "carl", "simclr"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seeds": 0}, ["--seeds 0"]),
        ({"own": {"byol": {}}}, ["byol", "--methods"]),
        ({"own": {"simclrr": {}}}, ["simclrr", "did you mean 'simclr'"]),
        ({"own": {"simclr": {"method": {"tempature": 0.1}}}}, ["--set simclr:", "did you mean 'temperature'"]),
        ({"rates": (0.1, -1.0)}, ["--rates -1"]),
        ({"preset": "robusst"}, ["robusst", "robust"]),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_written(
    given: dict[str, Any], words: list[str], small_data: Path, tmp_path: Path
):
    request = CompareRequest(small(small_data), ("carl", "simclr"), out=tmp_path / "out", **given)
    with pytest.raises(UserError) as error:
        opened(request) if "seeds" not in given else compare(request, lambda text: None)
    assert all(word in str(error.value) for word in words)
    assert not (tmp_path / "out").exists()


def test_data_without_labels_are_refused_before_training(tmp_path: Path):
    np.savez(tmp_path / "bare.npz", images=np.zeros((40, 16, 16, 3), dtype=np.uint8))
    with pytest.raises(UserError, match=r"no label.*sub-folders as classes"):
        opened(CompareRequest(small(tmp_path / "bare.npz"), ("carl",), out=tmp_path / "out"))


# Whether there is a difference


def conclusions(*lines: Line) -> str:
    return " ".join(summary("shapes", "robust", [], lines)["conclusions"]["knn"])


def test_a_small_lead_is_no_clear_difference_and_a_large_one_is_said():
    assert conclusions(line("carl", right(606, 300)), line("simclr", right(600))).startswith("No clear difference")
    assert conclusions(line("carl", right(700)), line("simclr", right(600))).startswith("carl 70.0% is ahead of simclr")


def test_a_lead_where_no_gain_over_random_weights_is_clear_names_no_winner():
    lines = line("carl", right(190, 300)), line("simclr", right(215, 300))  # random weights: right(200)
    assert (
        conclusions(*lines) == "No winner: neither simclr 21.5% nor carl 19.0% is clearly better than random weights."
    )


def test_a_partly_collapsed_training_is_not_crowned_even_with_one_seed_of_three():
    outcomes = [outcome("pcl", right(900)), outcome("pcl", right(900), "partly collapsed"), outcome("pcl", right(900))]
    text = conclusions(method_line("pcl", outcomes, 3, ""), line("carl", right(700)), line("byol", right(500)))
    assert text.startswith("carl 70.0% is ahead of byol")
    assert "pcl 90.0% is partly collapsed" in text


def test_seeds_widen_the_interval_and_are_counted():
    one = line("carl", right(600)).row
    outcomes = [outcome("carl", right(count)) for count in (570, 600, 630)]
    three = method_line("carl", outcomes, 4, "").row
    assert three["knn"] == one["knn"] == 60.0
    assert three["knn_all"] == pytest.approx([57.0, 60.0, 63.0])
    assert three["knn_interval"][1] - three["knn_interval"][0] > 1.5 * (one["knn_interval"][1] - one["knn_interval"][0])
    assert "| carl | 3 of 4 |" in markdown(summary("shapes", "robust", [], [method_line("carl", outcomes, 4, "")]))


def test_outcomes_from_before_images_were_kept_are_compared_unpaired():
    old = outcome("carl", right(700))
    for found in old["measures"].values():
        del found["correct"]
    found = summary("shapes", "robust", [], [method_line("carl", [old], 1, ""), line("simclr", right(500))])
    assert [one["paired"] for one in found["differences"]] == [False, False]
    assert all(one["clear"] for one in found["differences"])


def test_a_gain_over_random_weights_that_may_be_chance_is_marked():
    text = markdown(summary("shapes", "robust", [], [line("carl", right(210, 500))]))
    assert "+1.0 (not clear)" in text


# Tables


def test_the_terminal_has_a_table_and_no_markdown_at_any_width():
    lines = [
        line("carl", right(606, 300)),
        line("simclr", right(600)),
        Line("byol", {"method": "byol", "state": "failed", "reason": "out of memory"}),
    ]
    found = json.loads(json.dumps(summary("shapes", "robust", [0.03, 0.06], lines)))
    for width in (60, 80, 140):
        shown = terminal_lines(found, width)
        assert max(map(len, shown)) <= min(width, 120)
        text = " ".join(" ".join(shown).split())
        assert "|---" not in text
        assert "No clear difference between carl 60.6%" in text
        assert "byol failed: out of memory" in text
        assert "best of the learning rates 0.03, 0.06 on held-out training images" in text
        assert "Shared by all methods that were trained" in text
    assert "images/s" in " ".join(terminal_lines(found, 110))


def test_names_that_hold_markup_or_control_codes_stay_text():
    found = summary("[red]\x1b[31mx.npz", "robust", [], [line("carl", right(600)), line("simclr", right(500))])
    text = "\n".join(terminal_lines(found, 100))
    assert "\x1b" not in text
    assert "[red]\\x1b[31mx.npz" in text


def test_a_failed_method_is_in_the_table_with_its_reason():
    failed = method_line("simclr", [{"state": "failed", "measures": {}}], 3, "out of memory")
    text = markdown(summary("shapes", "robust", [], [line("carl", right(600)), failed]))
    assert "| simclr | 0 | failed: out of memory |" in text
    assert "x86_64, 2 cores, 2 threads, 2026-11-17." in text


# Rates


def test_each_method_tries_every_rate_on_held_out_images_and_takes_its_best(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    request = CompareRequest(small(small_data), ("carl", "simclr"), out=tmp_path, rates=(0.1, 0.2))
    comparison, known = opened(request)
    asked: list[Job] = []
    best = {"carl": 0.1, "simclr": 0.2}

    def no_training(jobs: list[Job], *_: Any, **__: Any) -> dict[str, str]:
        asked.extend(jobs)
        return {}

    def made(root: Path, job: Job) -> Outcome:
        method = job.layer["method"]["name"]
        return outcome(method, right(600 if job.layer["optim"]["lr"] == best[method] else 500))

    monkeypatch.setattr(module, "run_jobs", no_training)
    monkeypatch.setattr(module, "read_outcome", made)
    said: list[str] = []
    rates, failed = chosen_rates(comparison, known, said.append)
    assert (rates, failed) == (best, {})
    assert [job.layer["optim"]["lr"] for job in asked] == [0.1, 0.2, 0.1, 0.2]
    assert all(job.layer["data"]["held_out"] == known.facts.images // 10 for job in asked)
    assert "simclr: learning rate 0.2, the best of 0.1: 50.0%, 0.2: 60.0%" in said[1]
    assert isinstance(comparison, Comparison)


# The comparison that the README shows

RESULTS = Path(__file__).parents[2] / "results"


def test_the_kept_comparison_was_made_under_equal_conditions():
    kept: dict[str, Any] = json.loads((RESULTS / "compare-shapes.json").read_text(encoding="utf-8"))
    assert kept["preset"] == "robust"
    assert {row["method"] for row in kept["rows"]} >= {"carl", "simclr"}
    for key in ("view 1, 2", "encoder", "head", "optimiser", "learning rate", "batch", "epochs"):
        assert key in kept["shared"]
    for row in kept["rows"]:
        assert row.get("frozen") or row["knn"] >= row["knn_random"] + 10, row["method"]
    assert all(one["paired"] for one in kept["differences"])
    assert (RESULTS / "compare-shapes.md").read_text(encoding="utf-8").startswith(markdown(kept))


@pytest.mark.parametrize("page", ["results/compare-shapes.md", "docs/comparing.md"])
def test_the_command_on_the_page_of_the_kept_comparison_has_the_values_that_it_was_made_with(page: str, tmp_path: Path):
    text = (RESULTS.parent / page).read_text(encoding="utf-8")
    (command,) = set(re.findall(r"carl compare shapes --methods carl,simclr --seeds 3 --encoders random[^`\n]*", text))
    assignments = re.findall(r"--set (\S+)", command)
    layer, own = parse_assignments_per_method(assignments)
    layer = merge([layer, {"data": {"source": "shapes"}}])
    request = CompareRequest(layer, ("carl", "simclr"), seeds=3, own=own)
    comparison = Comparison(request, tmp_path, "shapes", request.methods, layer)
    kept = json.loads((RESULTS / "compare-shapes.json").read_text(encoding="utf-8"))
    for row in kept["rows"]:
        if not row.get("frozen"):
            job = comparison.job(row["method"], 0, None)
            found = values_in_words(resolved_config(job), replace(FACTS, images=10_000))
            found = {key.strip(): value for key, value in found.items()}
            made_with = {**kept["shared"], **row["own"]}
            assert {key: found.get(key) for key in made_with} == made_with
