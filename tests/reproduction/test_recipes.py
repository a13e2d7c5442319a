"""Recipes against the paper: every grid, its values, and the numbers it is set beside."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from carl.errors import UserError
from carl.reproduction.cells import paper_numbers
from carl.reproduction.dry_run import overview_lines, resolved_config
from carl.reproduction.jobs import Measure, identity, is_measured
from carl.reproduction.recipes import COSTS, METHODS, RECIPES, distinct_jobs, find_experiments, merge_jobs
from carl.reproduction.scales import CPU, PAPER, SCALES, SMOKE, paper_images


def jobs_of(name: str):
    return distinct_jobs(find_experiments(name, PAPER))


def test_table_2_is_seven_methods_on_four_data_sets_with_three_seeds_and_one_for_imagenet():
    assert len(jobs_of("linear")) == 7 * 3 * 3 + 7
    assert {job.layer["train"]["epochs"] for job in jobs_of("linear")} == {200}
    assert all(100 in job.layer["train"]["keep_epochs"] for job in jobs_of("linear"))


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_every_cell_names_runs_and_measures_that_exist(name, scale):
    (experiment,) = find_experiments(name, scale)
    jobs = {job.name: {measure.key for measure in job.measures} for job in experiment.jobs}
    for cell in experiment.cells:
        assert cell.jobs or scale is not PAPER
        for job in cell.jobs:
            assert cell.figure in jobs[job] | set(COSTS)


@pytest.mark.parametrize("name", ["linear", "transfer", "prior", "prototypes", "batch-size", "claims"])
def test_at_the_papers_scale_every_number_of_the_paper_has_its_cell(name):
    numbers = paper_numbers(name)
    (experiment,) = find_experiments(name, PAPER)
    assert {cell.paper for cell in experiment.cells if cell.paper} == set(numbers)


@pytest.mark.parametrize(
    ("name", "count", "means", "deviations"),
    [
        ("linear", 56, "3122.096", "19.08"),
        ("transfer", 20, "1253.32", "6.11"),
        ("prior", 20, "1097.58316666", "0"),
        ("prototypes", 16, "903.85963332", "0"),
        ("batch-size", 35, "1359.893", "0"),
    ],
)
def test_the_papers_numbers_add_up_to_the_sums_over_its_source(name, count, means, deviations):
    numbers = paper_numbers(name).values()
    assert len(numbers) == count
    assert sum(mean for mean, _ in numbers) == Decimal(means)
    assert sum(deviation or 0 for _, deviation in numbers) == Decimal(deviations)


def test_the_papers_numbers_are_those_of_its_tables():
    linear = paper_numbers("linear")
    assert linear["carl", "CIFAR-10 200"] == (Decimal("78.94"), Decimal("0.52"))
    assert linear["simclr", "STL-10 100"] == (Decimal("77.36"), Decimal("0.39"))
    assert linear["swav", "DS ImageNet 200"] == (Decimal("25.313"), None)
    transfer = paper_numbers("transfer")
    assert transfer["carl", "1% of labels"] == (Decimal("52.26"), Decimal("1.14"))
    batch = paper_numbers("batch-size")
    assert batch["1024", "1000"] == (Decimal("42.049"), None)
    claims = paper_numbers("claims")
    assert (claims["carl", "pairs per batch"][0], claims["simclr", "pairs per batch"][0]) == (256, 130_560)


def test_runs_carry_the_values_of_the_papers_appendix():
    configs = {job.name: resolved_config(job) for job in jobs_of("linear")}
    carl = configs["cifar100/carl/200-epochs/seed-0"]
    assert (carl.optim.name, carl.optim.lr, carl.optim.lr_end, carl.optim.weight_decay) == ("lars", 0.6, 0.0006, 5e-4)
    assert (carl.train.batch_size, carl.method.prototypes, carl.method.prior_epochs) == (256, 300, 100)
    assert (carl.method.prior_start, carl.method.prior_end) == (4.0, 1.5)
    stl = configs["stl10/carl/200-epochs/seed-0"]
    assert (stl.method.prior_start, stl.method.prior_end, stl.data.image_size) == (2.0, 1.0, 96)
    simclr = configs["cifar10/simclr/200-epochs/seed-0"]
    assert (simclr.optim.name, simclr.optim.lr, simclr.method.temperature) == ("sgd", 0.03, 0.2)
    assert configs["cifar10/moco/200-epochs/seed-0"].method.queue == 65_536
    assert configs["cifar100/pcl/200-epochs/seed-0"].method.clusters == (2500, 5000, 10_000)
    assert configs["imagenet64/swav/200-epochs/seed-0"].method.prototypes == 3000
    supervised = configs["stl10/supervised/200-epochs/seed-0"]
    assert (supervised.optim.lr, supervised.optim.lr_end, supervised.views.pipeline) == (0.03, 0.0, "supervised")


def test_figure_2_starts_at_b_and_ends_at_a():
    for scale, decaying, epochs in ((CPU, "lambda-1-2", 10), (PAPER, "200-epochs", 100)):  # on STL-10 table 2's run
        values = {
            job.name.split("/")[2]: resolved_config(job).method for job in find_experiments("prior", scale)[0].jobs
        }
        joint = {name: values.pop(name) for name in list(values) if name.endswith("-joint")}
        assert {options.targets for options in joint.values()} == ({"joint"} if scale is CPU else set())
        assert {options.targets for options in values.values()} == {"average"}
        assert set(values) == {"lambda-3-3", "lambda-2-2", "lambda-1-1", decaying, "lambda-0-0"}
        assert len(joint) == (5 if scale is CPU else 0)
        for found in [values[decaying], *([joint["lambda-1-2-joint"]] if joint else [])]:
            assert (found.prior_start, found.prior_end, found.prior_epochs) == (2.0, 1.0, epochs)


def test_no_two_runs_are_the_same_under_two_names():
    found: dict[str, str] = {}
    for job in distinct_jobs(find_experiments("all", PAPER)):
        config = resolved_config(job).model_dump(exclude={"train": {"keep_epochs"}})
        assert found.setdefault(json.dumps(config, sort_keys=True, default=str), job.name) == job.name


def test_100_epochs_are_runs_of_their_own_where_that_is_asked():
    scale = replace(PAPER, own_runs=True)
    (experiment,) = find_experiments("linear", scale)
    assert len(experiment.jobs) == 2 * (7 * 3 * 3 + 7)
    short = {job.name: resolved_config(job) for job in experiment.jobs if "/100-epochs/" in job.name}
    carl = short["cifar10/carl/100-epochs/seed-0"]
    assert (carl.train.epochs, carl.train.keep_epochs, carl.method.prior_epochs) == (100, (), 50)
    assert {cell.paper for cell in experiment.cells if cell.paper} == set(paper_numbers("linear"))
    assert not any(m.at_epoch for job in experiment.jobs for m in job.measures)


def test_the_papers_data_are_as_large_as_it_says():
    """Section 4 and appendix A; images that BYOL and the others see, and that supervised training sees."""
    unlabelled = [paper_images(name, "byol") for name in ("cifar10", "cifar100", "stl10", "imagenet64")]
    assert unlabelled == [50_000, 50_000, 100_000, 1_281_167]
    assert paper_images("stl10", "supervised") == 5000


RESULTS = Path(__file__).parents[2] / "results" / "reproduction"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/jobs/*.json")), ids=lambda path: path.stem)
def test_outcomes_that_are_kept_are_of_the_values_that_the_recipes_have_now(path):
    """A preset that is changed must not pass off what was measured before as its own."""
    found = json.loads(path.read_text(encoding="utf-8"))
    job = next(
        job for job in distinct_jobs(find_experiments("all", SCALES[path.parts[-3]])) if job.name == found["name"]
    )
    assert identity(found["layer"]) == job.identity
    assert all(is_measured(found, measure) for measure in job.measures)
    if not job.trains:
        return
    now = json.loads(resolved_config(job).model_dump_json(exclude_none=True))
    for section in ("method", "model", "views", "optim", "train"):
        for key, value in found["config"][section].items():
            assert now[section].get(key) == value, f"{section}.{key}"


def test_table_1_scales_the_rate_with_the_batch_and_shares_its_middle_row_with_figure_3():
    names = {job.name: job for job in jobs_of("batch-size")}
    assert len(names) == 5 * 7 * 3
    large = resolved_config(names["cifar100/carl/batch-1024-k-100/150-epochs/seed-0"])
    assert large.optim.scale_lr
    assert large.train.batch_size == 1024
    shared = {job.name for job in jobs_of("prototypes")} & set(names)
    assert len(shared) == 7 * 3


def test_experiments_share_runs_instead_of_repeating_them():
    whole = distinct_jobs(find_experiments("all", PAPER))
    parts = sum(len(jobs_of(name)) for name in RECIPES)
    assert len({job.name for job in whole}) == len(whole) < parts
    for job in whole:
        kept = job.layer.get("train", {}).get("keep_epochs", [])
        assert {m.at_epoch for m in job.measures if m.at_epoch} <= set(kept), job.name


@pytest.mark.parametrize("name", ["transfer", "claims"])
def test_a_run_keeps_what_other_experiments_need_of_it(name):
    shared = {job.name for job in jobs_of("linear")}
    mine = [job for job in jobs_of(name) if job.name in shared]
    assert mine
    assert all(100 in job.layer["train"]["keep_epochs"] for job in mine)


def test_one_name_is_never_two_runs():
    job = jobs_of("linear")[0]
    other = type(job)(job.name, {**job.layer, "optim": {"lr": 1.0}}, (Measure("knn"),))
    with pytest.raises(ValueError, match="two different runs"):
        merge_jobs(job, other)


def test_the_cpu_scale_has_the_runs_that_the_issue_names_and_no_more_than_54():
    jobs = distinct_jobs(find_experiments("all", CPU))
    names = {job.name for job in jobs}
    trained = [job.name for job in jobs if job.trains]
    assert len(trained) <= 54
    for method in ("carl", "simclr"):
        assert {f"cifar10/{method}/20-epochs/seed-{seed}" for seed in range(3)} <= names
    assert sum("/random/" in name for name in names) == 3
    assert {name.split("/")[1] for name in trained} == set(METHODS)
    variants = [name for name in trained if len(name.split("/")) == 5 and "/carl/joint/" not in name]
    assert all(name.endswith("seed-0") for name in variants)
    assert sum("/lambda-" in name for name in variants) == 2 * 5
    assert sum("/k-" in name for name in variants) == 3 * 3
    assert sum("/batch-" in name for name in variants) == 2 * 3


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_no_run_of_an_experiment_writes_a_report(scale):
    assert not any(job.layer["log"]["report"] for job in distinct_jobs(find_experiments("all", scale)) if job.trains)


def test_nothing_in_a_job_depends_on_where_the_data_are():
    sources = {job.layer["data"]["source"] for job in distinct_jobs(find_experiments("all", CPU))}
    assert sources == {"cifar10", "cifar100"}
    assert {m.data for job in jobs_of("transfer") for m in job.measures} == {"cifar10", "cifar100", None}


def listed_block(lines: list[str], start: str) -> str:
    """The lines of one block, up to the next empty line."""
    first = next(place for place, line in enumerate(lines) if line.startswith(start))
    rest = [*lines[first:], ""]
    return "\n".join(rest[: rest.index("")])


def test_a_dry_run_shows_every_value_of_the_papers_appendix():
    lines = overview_lines(jobs_of("linear"))
    common = listed_block(lines, "Common to all 70")
    for value in (
        "batch                    256", "epochs                   200", "resnet18", "warm-up",
        "measured by              linear, linear-epoch-100", "normalised by            mean and deviation",
    ):  # fmt: skip
        assert value in common
    carl = listed_block(lines, "cifar100/carl/200-epochs   (seeds 0, 1, 2)")
    for value in (
        "crop of 0.08 to 1 of the area", "flip 0.5", "jitter 0.8 (brightness 0.8", "grey 0.2", "blur 0.5",
        "linear 512-512, batch norm, ReLU, linear 512-128", "prototypes             300", "lars",
        "0.6 to 0.0006, cosine", "0.0005, not on biases",
    ):  # fmt: skip
        assert value in carl, value
    assert "batch norm" not in listed_block(lines, "cifar10/simclr/200-epochs")
    assert "images                   5,000" in listed_block(lines, "stl10/supervised/200-epochs")
    assert "LARS" not in listed_block(lines, "cifar10/simclr/200-epochs")
    assert "momentum               0.996 to 1, cosine" in listed_block(lines, "cifar10/byol/200-epochs")
    assert "0.0001, also on biases and norms" in listed_block(lines, "cifar10/moco/200-epochs")
    assert "beta2" not in "\n".join(lines)
    evaluation = listed_block(lines, "Evaluation")
    for value in ("epochs                 100", "rates                  30", "milestones             0.6, 0.8"):
        assert value in evaluation
    assert max(map(len, lines)) < 250


def test_a_dry_run_shows_the_rate_that_a_scaled_batch_has():
    lines = overview_lines(jobs_of("batch-size"))
    assert "2.4 to 0.0024, cosine (0.6 x 1024 / 256)" in listed_block(lines, "cifar100/carl/batch-1024-k-10/")


def test_unknown_experiments_are_refused_with_a_suggestion():
    with pytest.raises(UserError, match="linear"):
        find_experiments("liner", SMOKE)
