"""The report from files alone: complete, honest about the end of a run, safe with any text."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carl.errors import UserError
from carl.reporting.comparison import config_differences, ranking
from carl.reporting.glance import headline, judge, tiles
from carl.reporting.report import embedded_json, write_comparison, write_report
from carl.reporting.run_files import Run, read_run, read_runs
from tests.conftest import Run as Command
from tests.reporting.conftest import make_gallery, make_run


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
    text = str(embedded_json(["</script><!--", "&amp;", "\u2028"]))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == ["</script><!--", "&amp;", "\u2028"]


def test_names_that_are_not_valid_unicode_are_written(tmp_path: Path):
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    run = make_run(tmp_path / "run", make_gallery(images=4, names=[name] * 4), source=name.replace("\udce9", "e"))
    assert data_of(write_report(run).read_text())["images"]["names"][0] == name


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
    assert "worse than with random weights" in verdict.steps[0].advice


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


def result(protocol: str, kind: str, trained: dict[str, Any], random: dict[str, Any]) -> str:
    accuracy = {"trained": trained, "random": random}
    return json.dumps({"protocol": protocol, "kind": kind, "data": "photos", "accuracy": accuracy})


def test_evaluations_are_told_with_their_protocol_and_linear_comes_first(tmp_path: Path):
    run = make_run(tmp_path / "run", None)
    (run / "results").mkdir()
    (run / "results" / "knn.json").write_text(result("knn", "offline: all vote", {"20": 50.0}, {"20": 30.0}))
    first = headline(read(run))
    assert first is not None
    assert (first.label, first.gain) == ("kNN, offline, k = 20", 20.0)
    spread = {"top-1": {"mean": 70.0, "std": 0.5}}
    (run / "results" / "linear.json").write_text(result("linear", "offline: SGD", spread, {}))
    best = headline(read(run))
    assert best is not None
    assert (best.label, best.value, best.spread, best.gain) == ("linear, offline, top-1", 70.0, 0.5, None)
    page = write_report(run).read_text()
    assert "± 0.5" in page
    assert "kNN probe, online" in page


def test_a_score_on_other_data_does_not_stand_for_the_run(tmp_path: Path):
    run = make_run(tmp_path / "run", None, source="/data/other")
    (run / "results").mkdir()
    (run / "results" / "t.json").write_text(result("linear", "offline: SGD", {"top-1": 90.0}, {}))
    best = headline(read(run))
    assert best is not None
    assert best.protocol == "probe"


def test_the_time_of_an_interrupted_run_is_estimated_and_said_to_be(tmp_path: Path):
    run = read(make_run(tmp_path / "run", None, finished=False))
    (time_tile,) = [tile for tile in tiles(run) if tile.name == "training time"]
    assert time_tile.value == "3 s"  # 20 steps of 16 images at 100 a second
    assert time_tile.note.endswith("estimated")


def test_runs_are_ranked_by_a_score_that_all_have(tmp_path: Path):
    low, high = make_run(tmp_path / "low", None, knn=50.0), make_run(tmp_path / "high", None, knn=55.0)
    (low / "results").mkdir()
    (low / "results" / "linear.json").write_text(result("linear", "offline: SGD", {"top-1": 90.0}, {}))
    rows, shared = ranking(read_runs([low, high]))
    assert shared == "kNN probe, online, k = 20"
    assert [row.run.name for row in rows] == ["high", "low"]
    assert [m.label for m in rows[1].others] == ["linear, offline, top-1"]


def test_a_comparison_without_a_common_score_says_how_to_get_one(tmp_path: Path):
    runs = [make_run(tmp_path / "a", None), make_run(tmp_path / "b", None, source="others")]
    assert "no score in common" in write_comparison(runs, tmp_path / "c.html").read_text()


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
        "import sys; from pathlib import Path; from carl.reporting.report import write_report;"
        f"write_report(Path({str(run)!r})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_report_of_ten_thousand_images_takes_under_30_s_and_15_mb(tmp_path: Path):
    gallery = make_gallery(
        images=10_000, prototypes=300, side=48, names=[f"photos/2024/{i:08d}.jpg" for i in range(10_000)]
    )
    noise = np.random.default_rng(0).integers(-40, 40, gallery["thumbnails"].shape)  # harder to code than photos
    gallery["thumbnails"] = np.clip(gallery["thumbnails"] + noise, 0, 255).astype(np.uint8)
    gallery["embeddings"] = np.random.default_rng(0).normal(size=(10_000, 512)).astype(np.float16)
    run = make_run(tmp_path / "run", gallery, prototypes=300)
    start = time.process_time()  # of all threads: what it takes on a machine that does nothing else, or less
    page = write_report(run)
    assert time.process_time() - start < 30
    assert page.stat().st_size < 15_000_000
