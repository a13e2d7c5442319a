"""The report from files alone: complete, honest about the end of a run, safe with any text."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from carl.errors import UserError
from carl.evaluation.intervals import packed
from carl.records.gallery import GROUPS
from carl.reporting import projections
from carl.reporting.comparison import MOST_TOGETHER, config_differences, ranking
from carl.reporting.pages import Contestant, write_comparison, write_contestants, write_report
from carl.reporting.run_reader import Run, read_run, read_runs
from carl.reporting.verdict import headline, judge, tiles
from carl.safe_pages import embedded_json
from tests.conftest import Run as Command
from tests.reporting.conftest import add_result, make_gallery, make_run


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def read(path: Path) -> Run:
    return read_run(path, path.name)


def test_text_from_data_is_shown_as_text(tmp_path: Path):
    run = make_run(tmp_path / "<i>run</i>", make_gallery(), source="<script>alert(1)</script>")
    page = write_report(run).read_text()
    for raw in ("<script>alert", "<b>x</b>", "<u>owl", "<i>run"):
        assert raw not in page
    assert "script&gt;" in page
    assert data_of(page)["images"]["classes"][2] == "<u>owl</u>"


def test_json_in_the_page_cannot_end_its_element():
    values = ["</script><!--", "&amp;", "\u2028\u2029", "\udce9", "\ud83d", "\U0001f600"]
    text = str(embedded_json(values))
    assert not set("<>&\u2028\u2029\udce9\ud83d") & set(text)
    assert json.loads(text) == values
    assert "\U0001f600" in text


def test_letters_of_any_script_are_written_as_they_are():
    assert str(embedded_json("\u0444\u043e\u0442\u043e \u732b")) == '"\u0444\u043e\u0442\u043e \u732b"'


def test_names_that_are_not_valid_unicode_are_written(tmp_path: Path):
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    run = make_run(tmp_path / "run", make_gallery(images=4, names=[name] * 4), source=name.replace("\udce9", "e"))
    assert data_of(write_report(run).read_text())["images"]["names"]["rest"][0] == "caf\\udce9.png"


def test_the_page_names_no_address_outside_itself(tmp_path: Path):
    page = write_report(make_run(tmp_path / "run", make_gallery())).read_text()
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nobody fetches
    assert "default-src 'none'" in html.unescape(page)


def test_a_run_that_did_not_finish_is_said_to_have_stopped_early(tmp_path: Path):
    run = make_run(tmp_path / "run", None, finished=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "st')  # killed while it wrote
    verdict = judge(read(run))
    assert verdict.word == "stopped early"
    assert "Epoch 4 of 4; at the last probe: healthy" in verdict.figures
    assert [step.command for step in verdict.steps] == [f"carl pretrain --resume {run}"]
    page = write_report(run, tmp_path / "elsewhere.html").read_text()
    assert "no gallery.npz yet" in page
    assert f"carl pretrain --resume {run} --set log.report=true" in page


def test_warnings_of_the_last_probe_are_what_to_try_next(tmp_path: Path):
    run = make_run(tmp_path / "run", None)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    last = {**json.loads(lines[-2]), "verdict": "collapsed", "warnings": ["all images go to 1 prototype: raise b"]}
    (run / "metrics.jsonl").write_text("\n".join([*lines[:-2], json.dumps(last), lines[-1]]))
    verdict = judge(read(run))
    assert (verdict.word, verdict.tone) == ("collapsed", "bad")
    assert verdict.steps[0].advice == "all images go to 1 prototype: raise b"


def test_a_healthy_run_that_learned_nothing_is_not_praised(tmp_path: Path):
    verdict = judge(read(make_run(tmp_path / "run", None, knn=19.0)))
    assert (verdict.word, verdict.tone) == ("healthy", "warn")
    assert "worse than random weights" in verdict.steps[0].advice


def test_a_run_that_still_rises_is_advised_to_train_longer(tmp_path: Path):
    steps = judge(read(make_run(tmp_path / "run", None, epochs=8))).steps
    assert f"carl pretrain --resume {tmp_path / 'run'} --epochs 16" in [step.command for step in steps]


def test_a_run_without_any_record_has_a_page(tmp_path: Path):
    run = make_run(tmp_path / "run", None)
    (run / "metrics.jsonl").unlink()
    page = write_report(run).read_text()
    assert "stopped early" in page
    assert data_of(page)["charts"] == []


def test_a_metric_that_is_not_finite_is_left_out(tmp_path: Path):
    run = make_run(tmp_path / "run", None)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "step": 99, "epoch": 5.0, "loss": NaN}\n')
    charts = {chart["key"]: chart for chart in data_of(write_report(run).read_text())["charts"]}
    assert [x for x, _ in charts["loss"]["series"][0]["points"]] == [1, 2, 3, 4]


def test_what_a_prototype_is_stands_once_on_the_page_of_a_method_that_has_them(tmp_path: Path):
    explained = "A prototype is a reference point"
    assert write_report(make_run(tmp_path / "carl", make_gallery())).read_text().count(explained) == 1
    assert write_report(make_run(tmp_path / "stopped", None, finished=False)).read_text().count(explained) == 1
    other = make_run(tmp_path / "simclr", make_gallery(grouping="k-means"), "simclr")
    assert write_report(other).read_text().count(explained) == 0


def test_evaluations_are_told_with_their_protocol_and_linear_comes_first(tmp_path: Path):
    run = make_run(tmp_path / "run", None)
    add_result(run, "knn", "knn", {"20": 50.0}, {"20": 30.0})
    first = headline(read(run))
    assert first is not None
    assert (first.label, first.gain) == ("kNN, offline, k = 20", 20.0)
    add_result(run, "linear", "linear", {"top-1": {"mean": 70.0, "std": 0.5}}, kind="offline: SGD")
    best = headline(read(run))
    assert best is not None
    assert (best.label, best.value, best.spread, best.gain) == ("linear, offline, top-1", 70.0, 0.5, None)
    page = write_report(run).read_text()
    assert "\u00b1 0.5" in page
    assert "kNN probe, online" in page


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"encoder_hash": "ab", "target": "run/encoders/epoch-0001.safetensors"}, "Weights of epoch 1."),
        ({"encoder_hash": "ab"}, "Other weights than the run&#39;s last."),  # from before a run was continued
        ({"epochs": 1}, "1 of 100 epochs."),
        ({"data": "/b/photos", "data_fingerprint": "beef"}, "Other data: photos."),
    ],
)
def test_a_score_of_other_weights_or_data_or_a_shorter_protocol_does_not_stand_for_the_run(
    tmp_path: Path, other: dict[str, Any], said: str
):
    run = make_run(tmp_path / "run", None)
    add_result(run, "0-first-by-name", "linear", {"top-1": 99.0}, **other)
    add_result(run, "linear", "linear", {"top-1": 70.0})
    best = headline(read(run))
    assert best is not None
    assert best.value == 70.0
    page = write_report(run).read_text()
    assert f'<b class="aside">{said}</b>' in page
    assert page.index("70.0%") < page.index("99.0%")
    (run / "results" / "linear.json").unlink()
    left = headline(read(run))
    assert left is not None
    assert left.protocol == "probe"


def test_continued_training_leaves_earlier_results_behind(tmp_path: Path):
    run = make_run(tmp_path / "run", None)
    add_result(run, "knn", "knn", {"20": 50.0}, {"20": 30.0})
    save_file({"conv1.weight": np.ones((2, 3), np.float32)}, run / "encoder.safetensors")
    best = headline(read(run))
    assert best is not None
    assert best.protocol == "probe"
    assert f"carl eval {run}" in [step.command for step in judge(read(run)).steps]


def test_the_headline_tells_the_gain_of_the_next_score_where_its_own_has_none(tmp_path: Path):
    run = make_run(tmp_path / "run", None)
    add_result(run, "linear", "linear", {"top-1": 70.0})
    add_result(run, "knn", "knn", {"20": 50.0}, {"20": 30.0})
    first = tiles(read(run))[0]
    assert (first.name, first.value) == ("linear, offline, top-1", "70.0%")
    assert first.note == "kNN, offline, k = 20: +20.0 points over random weights (30.0%)"


def test_a_run_is_judged_by_a_score_that_random_weights_have_too(tmp_path: Path):
    run = make_run(tmp_path / "run", None)
    add_result(run, "linear", "linear", {"top-1": 70.0})
    add_result(run, "knn", "knn", {"20": 30.2}, {"20": 30.0})
    verdict = judge(read(run))
    assert (verdict.tone, verdict.but) == ("warn", "but not clearly better than random weights")
    assert "kNN, offline, k = 20: 30.2% against 30.0%" in verdict.steps[0].advice


@pytest.mark.parametrize(
    ("trained", "images", "but"),
    [
        (31.7, 1000, "but not clearly better than random weights"),  # as for 0.2 points
        (31.7, 100_000, ""),
        (28.3, 1000, "but not better than random weights"),
        (28.3, 100_000, "but not better than random weights"),
    ],
)
def test_a_gain_that_may_be_chance_is_no_gain_whatever_its_size(tmp_path: Path, trained: float, images: int, but: str):
    run = make_run(tmp_path / "run", None)
    add_result(run, "knn", "knn", {"20": trained}, {"20": 30.0}, test_images=images)
    verdict = judge(read(run))
    assert (verdict.tone, verdict.but) == ("warn" if but else "good", but)
    words = [step.advice for step in verdict.steps if "than random weights so far" in step.advice]
    assert len(words) == bool(but)
    if "clearly" in but:
        assert words[0].startswith("The encoder is not clearly better than random weights so far (")


def test_the_time_of_an_interrupted_run_is_estimated_and_said_to_be(tmp_path: Path):
    run = read(make_run(tmp_path / "run", None, finished=False))
    (time_tile,) = [tile for tile in tiles(run) if tile.name == "training time"]
    assert time_tile.value == "3 s"  # 20 steps of 16 images at 100 a second
    assert time_tile.note.endswith("estimated")


def test_runs_are_ranked_by_a_score_that_all_have(tmp_path: Path):
    low, high = make_run(tmp_path / "low", None, knn=50.0), make_run(tmp_path / "high", None, knn=55.0)
    add_result(low, "linear", "linear", {"top-1": 90.0})
    rows, shared = ranking(read_runs([low, high]))
    assert shared == "kNN probe, online, k = 20"
    assert [row.run.name for row in rows] == ["high", "low"]
    assert [m.label for m in rows[1].others] == ["linear, offline, top-1"]


def test_a_comparison_without_a_common_score_says_how_to_get_one(tmp_path: Path):
    """Two folders of the same name are different data, and runs without a common score keep their order."""
    runs = [make_run(tmp_path / name, None, source=f"/{name}/photos", fingerprint=name, knn=k)
            for name, k in (("a", 40.0), ("b", 60.0))]  # fmt: skip
    assert "no score in common" in write_comparison(runs, tmp_path / "c.html").read_text()
    assert [row.run.name for row in ranking(read_runs(runs))[0]] == ["a", "b"]


@pytest.mark.parametrize("other", [{"epochs": 5}, {"data_fingerprint": "beef"}, {"hyperparameters": {"rates": [3.0]}}])
def test_scores_by_other_epochs_values_or_images_are_not_compared(tmp_path: Path, other: dict[str, Any]):
    runs = [make_run(tmp_path / name, None) for name in ("a", "b")]
    add_result(runs[0], "linear", "linear", {"top-1": 50.0})
    add_result(runs[1], "linear", "linear", {"top-1": 60.0}, **other)
    assert ranking(read_runs(runs))[1] == "kNN probe, online, k = 20"
    add_result(runs[1], "linear", "linear", {"top-1": 60.0})
    assert ranking(read_runs(runs))[1] == "linear, offline, top-1"


def test_encoders_may_be_compared_on_data_that_neither_was_trained_on(tmp_path: Path):
    runs = [make_run(tmp_path / name, None, fingerprint=name) for name in ("a", "b")]
    for run, score in zip(runs, (50.0, 60.0), strict=True):
        add_result(run, "linear", "linear", {"top-1": score}, data="/data/birds", data_fingerprint="c0de")
    rows, shared = ranking(read_runs(runs))
    assert shared == "linear, offline, top-1, on birds"
    assert [row.run.name for row in rows] == ["b", "a"]


def test_runs_that_all_score_nothing_are_compared(tmp_path: Path):
    runs = [make_run(tmp_path / name, None) for name in ("a", "b")]
    for run in runs:
        add_result(run, "linear", "linear", {"top-1": 0.0}, test_images=100)
    assert "No clear difference between a 0.0% and b (" in write_comparison(runs, tmp_path / "c.html").read_text()


def judged(right: int, first: int = 0) -> dict[str, Any]:
    """What a result file says about 1,000 test images of which so many are right."""
    found = np.zeros(1000, dtype=bool)
    found[first : first + right] = True
    return {"test_images": 1000, "correct": {"trained": {"top-1": [packed(found)]}}}


def test_a_comparison_says_no_clear_difference_where_the_images_cannot_tell(tmp_path: Path):
    runs = [make_run(tmp_path / name, None) for name in ("a", "b")]
    for run, right, first in zip(runs, (606, 600), (300, 0), strict=True):
        add_result(run, "linear", "linear", {"top-1": right / 10}, **judged(right, first))
    page = write_comparison(runs, tmp_path / "c.html").read_text()
    assert "No clear difference between a 60.6% and b (+0.6 points, -" in page
    assert "compared image by image" in page
    assert "57." in page  # the lower end of both intervals


def test_only_a_clear_gain_has_the_colour_of_one(tmp_path: Path):
    for name, score, colour in (("clear", 70.0, True), ("chance", 31.0, False)):
        run = make_run(tmp_path / name, None, knn=None)
        add_result(run, "linear", "linear", {"top-1": score}, {"top-1": 30.0}, test_images=1000)
        other = make_run(tmp_path / f"{name} other", None, knn=None)
        pages = write_report(run).read_text(), write_comparison([run, other], tmp_path / f"{name}.html").read_text()
        for page in pages:
            assert ('class="number up"' in page) == colour
            assert ("not clear" in page or "no clear difference" in page) != colour


def test_a_run_that_is_partly_collapsed_is_not_called_the_best(tmp_path: Path):
    runs = [make_run(tmp_path / name, None) for name in ("a", "b", "c")]
    for run, right in zip(runs, (900, 700, 500), strict=True):
        add_result(run, "linear", "linear", {"top-1": right / 10}, **judged(right))
    metrics = (runs[0] / "metrics.jsonl").read_text()
    (runs[0] / "metrics.jsonl").write_text(metrics.replace('"healthy"', '"partly collapsed"'))
    page = write_comparison(runs, tmp_path / "c.html").read_text()
    assert "b 70.0% is ahead of c (+20.0 points" in page
    assert "a 90.0% is partly collapsed, so its accuracy does not count as a lead." in page


def test_seeds_of_a_method_are_one_row_with_their_mean(tmp_path: Path):
    contestants = []
    for name, first in (("carl", 0), ("simclr", 50)):
        runs = [make_run(tmp_path / f"{name}-{seed}", None) for seed in range(3)]
        for run, right in zip(runs, (580, 600, 620), strict=True):
            add_result(run, "linear", "linear", {"top-1": right / 10}, **judged(right, first))
        contestants.append(Contestant(name, runs))
    page = write_contestants(contestants, tmp_path / "c.html").read_text()
    assert page.count("3 seeds</td>") == 2
    assert "No clear difference between carl 60.0% and simclr (+0.0 points" in page
    assert "test images and seeds" in page


def test_results_from_before_images_were_kept_are_compared_by_their_number(tmp_path: Path):
    runs = [make_run(tmp_path / name, None) for name in ("a", "b")]
    for run, score in zip(runs, (70.0, 50.0), strict=True):
        add_result(run, "linear", "linear", {"top-1": score}, {"top-1": 30.0}, test_images=1000)
    page = write_comparison(runs, tmp_path / "c.html").read_text()
    assert "a 70.0% is ahead of b" in page
    assert "not known image by image" in page
    assert "a is +40.0 points over random weights." in page
    assert "67." in write_report(runs[0]).read_text()  # the lower end of the interval


@pytest.mark.parametrize(
    "more",
    [
        {"test_images": -3}, {"test_images": "many"}, {"test_images": 10**12}, {"correct": [1]},
        {"test_images": 8, "correct": {"trained": {"top-1": ["AA==", 5]}}, "intervals": {"trained": {"top-1": "wide"}}},
    ],
)  # fmt: skip
def test_result_files_that_hold_nonsense_are_still_shown(tmp_path: Path, more: dict[str, Any]):
    run = make_run(tmp_path / "a", None)
    add_result(run, "linear", "linear", {"top-1": 70.0}, {"top-1": 30.0}, **more)
    assert "70.0%" in write_report(run).read_text()


def test_a_comparison_tells_the_protocol_in_its_own_letters(tmp_path: Path):
    runs = [make_run(tmp_path / name, None) for name in ("a", "b")]
    for run in runs:
        add_result(run, "linear", "linear", {"top-1": 50.0}, kind="offline: MoCo's protocol, SGD")
    assert "Offline: MoCo&#39;s protocol, SGD." in write_comparison(runs, tmp_path / "c.html").read_text()


def test_commands_on_the_page_quote_what_a_shell_would_split(tmp_path: Path):
    run = make_run(tmp_path / "two words; ls", None, finished=False)
    page = html.unescape(write_report(run).read_text())
    quoted = f"'{run}'"
    assert f"carl pretrain --resume {quoted}</code>" in page
    assert f"carl pretrain --resume {quoted} --set log.report=true" in page
    assert f"carl pretrain --config '{run}/config.toml' --out '{run}-again'" in page


def test_a_comparison_lists_what_differs_and_nothing_else(tmp_path: Path):
    runs = read_runs([make_run(tmp_path / "a", None, epochs=2), make_run(tmp_path / "b", None, "byol", epochs=3)])
    assert config_differences(runs) == [("method.name", ["carl", "byol"]), ("train.epochs", ["2", "3"])]


def test_runs_of_the_same_name_are_told_apart_and_a_run_twice_is_refused(tmp_path: Path):
    runs = [make_run(tmp_path / folder / "run", None) for folder in ("a", "b")]
    assert len({run.name for run in read_runs(runs)}) == 2
    with pytest.raises(UserError, match="given twice"):
        read_runs([runs[0], runs[0]])


def test_a_damaged_or_old_gallery_is_named_with_its_remedy(tmp_path: Path):
    run = make_run(tmp_path / "run", {"rows": np.arange(3)})
    assert "Another version of carl wrote gallery.npz" in write_report(run).read_text()
    (run / "gallery.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(UserError, match="delete it and make it again: carl pretrain --resume"):
        write_report(run)


def test_no_run_directory_is_an_error_of_one_line(carl: Command, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    ended = carl("report", "empty")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "no config.toml" in ended.stderr


def test_the_command_writes_one_page_for_one_run_and_a_comparison_for_many(carl: Command, tmp_path: Path):
    for name in ("a", "b"):
        make_run(tmp_path / name, make_gallery())
    assert carl("report", "a").stdout.strip() == "a/report.html"
    assert carl("report", "a", "b").stdout.strip() == "comparison.html"
    assert carl("report", "a", "b", "-o", "x/both.html").returncode == 0
    assert "Which learned more?" in (tmp_path / "x" / "both.html").read_text()


def test_reports_import_no_torch(tmp_path: Path):
    run = make_run(tmp_path / "run", make_gallery())
    code = (
        "import sys; from pathlib import Path; from carl.reporting.pages import write_report;"
        f"write_report(Path({str(run)!r})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def large_gallery(names: list[str] | None = None) -> dict[str, Any]:
    gallery = make_gallery(images=10_000, prototypes=300, side=48, names=names)
    noise = np.random.default_rng(0).integers(-40, 40, gallery["thumbnails"].shape)  # harder to code than photos
    gallery["thumbnails"] = np.clip(gallery["thumbnails"] + noise, 0, 255).astype(np.uint8)
    gallery["embeddings"] = np.random.default_rng(0).normal(size=(10_000, 512)).astype(np.float16)
    return gallery


@pytest.mark.slow
def test_a_report_of_ten_thousand_images_stays_under_15_mb(tmp_path: Path):
    gallery = large_gallery([f"photos/2024/{i:08d}.jpg" for i in range(10_000)])
    page = write_report(make_run(tmp_path / "run", gallery, prototypes=300))
    assert page.stat().st_size < 15_000_000


@pytest.mark.slow
def test_long_names_and_many_runs_take_room_from_the_thumbnails_not_more_than_15_mb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(projections, "LANDMARKS", 200)  # the map of each run in a second: only the size is asked for
    gallery = large_gallery(["\u0444\u043e\u0442\u043e" * 100 + f"{i}.jpg" for i in range(10_000)])
    runs = [make_run(tmp_path / f"run{number}", None, prototypes=300) for number in range(MOST_TOGETHER)]
    for number, run in enumerate(runs):
        gallery["random_neighbours"] = np.roll(gallery["random_neighbours"], number, axis=0)
        np.savez(run / "gallery.npz", **gallery)
    for count in (4, len(runs)):
        page = write_comparison(runs[:count], tmp_path / "all.html")
        assert page.stat().st_size < 15_000_000
        assert len(data_of(page.read_text())["galleries"]) == count
    assert write_report(runs[0]).stat().st_size < 15_000_000


def test_more_runs_than_colours_are_compared_without_their_images(tmp_path: Path):
    runs = [make_run(tmp_path / f"run{number}", make_gallery()) for number in range(MOST_TOGETHER + 1)]
    page = write_comparison(runs, tmp_path / "all.html").read_text()
    assert data_of(page)["images"] is None
    assert f"at most {MOST_TOGETHER} runs" in page


def test_every_tile_says_what_it_means(tmp_path: Path):
    run = make_run(tmp_path / "run", make_gallery())
    shown = tiles(read(run))
    assert len(shown) == 6
    page = html.unescape(write_report(run).read_text())
    for tile in shown:
        assert len(tile.meaning) > 60
        assert tile.meaning in page


def test_photos_without_labels_get_advice_on_what_to_try_next(tmp_path: Path):
    run = make_run(tmp_path / "my run", make_gallery(labels=False), source="/photos of mine", knn=None)
    commands = [step.command for step in judge(read(run)).steps]
    assert f"carl pretrain --resume '{run}' --epochs 24" in commands
    assert f"carl search '{run}' '/photos of mine' IMAGE" in commands
    assert f"carl curate '{run}' '/photos of mine' --keep 100" in commands
    labelled = judge(read(make_run(tmp_path / "labelled", make_gallery()))).steps
    assert not any("no labels" in step.advice for step in labelled)


def test_labelled_photos_without_test_images_are_not_said_to_have_no_labels(tmp_path: Path):
    run = make_run(tmp_path / "run", make_gallery(), knn=None)
    advice = " ".join(step.advice for step in judge(read(run)).steps)
    assert "There are no test images" in advice
    assert "no labels" not in advice
    assert "share a class" in advice


def test_a_short_run_whose_gallery_has_far_fewer_groups_than_its_figures_says_why(tmp_path: Path):
    def advice(name: str, groups: int, step: int) -> str:
        gallery = make_gallery()
        gallery["group"] %= groups
        run = make_run(tmp_path / name, gallery)  # its probes say that 8 prototypes are in use
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        shifted = [record | {"step": step} if record["kind"] == "probe" else record for record in records]
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in shifted))
        return " ".join(step.advice for step in judge(read(run)).steps)

    assert "12 steps of this run are too few" in advice("short", groups=2, step=12)
    assert "choose 2 prototypes instead of 8" in advice("short too", groups=2, step=99)
    assert "too few" not in advice("like its figures", groups=8, step=12)
    assert "too few" not in advice("long", groups=2, step=100)


def test_a_gallery_without_groups_is_judged_too(tmp_path: Path):
    gallery = {name: array for name, array in make_gallery().items() if name not in GROUPS}
    run = make_run(tmp_path / "run", gallery)
    assert judge(read(run)).steps
    assert "<html" in write_report(run).read_text(encoding="utf-8")


def test_a_run_whose_gallery_is_a_sample_says_how_to_reach_all_images(tmp_path: Path):
    sample = make_gallery() | {"total_images": np.int64(50_000)}
    page = html.unescape(write_report(make_run(tmp_path / "run", sample, source="/my photos")).read_text())
    assert f"carl report {tmp_path / 'run'} '/my photos' -o run-images.html" in page
    assert "-images.html" not in write_report(make_run(tmp_path / "all", make_gallery())).read_text()


def test_the_folder_of_a_selection_is_where_the_images_are(tmp_path: Path):
    names = [f"{number}.png" for number in range(80)]
    (tmp_path / "photos" / "train").mkdir(parents=True)
    run = make_run(tmp_path / "run", make_gallery(names=names), source=str(tmp_path / "photos"))
    assert data_of(write_report(run).read_text())["images"]["base"] is None  # the images are gone
    (tmp_path / "photos" / "train" / "0.png").touch()
    assert data_of(write_report(run).read_text())["images"]["base"] == str(tmp_path / "photos" / "train")
    (tmp_path / "photos" / "0.png").touch()
    assert data_of(write_report(run).read_text())["images"]["base"] == str(tmp_path / "photos")
