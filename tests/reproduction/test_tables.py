"""Tables and figures that cannot be mistaken for the paper's."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from carl.config import merge
from carl.reproduction import figures
from carl.reproduction.cells import FilledCell, fill_cells, paper_numbers
from carl.reproduction.recipes import Experiment, find_experiments
from carl.reproduction.scales import CPU, PAPER, SMOKE, Scale
from carl.reproduction.tables import caption, comma_separated, health_table, latex, markdown, write_tables_and_figures
from tests.reproduction.outcomes import invented

mpl.use("Agg")


def experiment_of(name: str, scale: Scale) -> Experiment:
    return find_experiments(name, scale)[0]


def filled(name: str, scale: Scale, value: float = 40.0, **changes):
    experiment = experiment_of(name, scale)
    outcomes = {job.name: invented(job, value, **changes) for job in experiment.jobs}
    return experiment, fill_cells(experiment, outcomes), outcomes


def line(text: str, row: str) -> str:
    return next(found for found in text.splitlines() if found.startswith(f"| {row} |"))


def lines_of(experiment, scale, cells, **wanted: str) -> list[dict[str, str]]:
    found = csv.DictReader(io.StringIO(comma_separated(experiment, scale, cells)))
    return [row for row in found if all(row[key] == value for key, value in wanted.items())]


def unlike(cells: Sequence[FilledCell]) -> set[tuple[str, str]]:
    """Where ours was not measured as the paper's was."""
    return {(f.cell.row, f.cell.column) for f in cells if not f.as_in_the_paper}


def test_only_what_was_measured_as_the_papers_stands_in_plain_letters():
    experiment, cells, _ = filled("linear", PAPER)
    assert "78.94 ± 0.52 / 40.00 ± 0.00 (n=3)" in line(markdown(experiment, PAPER, cells), "carl")
    assert "*" not in line(markdown(experiment, PAPER, cells), "supervised")
    assert unlike(cells) == set()
    experiment, cells, _ = filled("linear", CPU)
    assert "78.94 ± 0.52 / *40.00 ± 0.00 (n=3)*" in line(markdown(experiment, CPU, cells), "carl")
    assert "/ \\textit{40.00 $\\pm$ 0.00 (n=3)}" in latex(experiment, CPU, cells)


def test_the_caption_says_where_and_when_and_that_speeds_of_two_machines_do_not_compare():
    experiment, _, outcomes = filled("claims", CPU)
    text = caption(experiment, CPU, fill_cells(experiment, outcomes))
    assert "Measured on x86_64, 2 cores, 2 threads; 2026-11-16." in text
    assert "do not compare" not in text
    first = next(iter(outcomes))
    outcomes[first] |= {"made": "2026-11-18", "machine": {**outcomes[first]["machine"], "processor": "another"}}
    text = caption(experiment, CPU, fill_cells(experiment, outcomes))
    assert "another, 2 cores, 2 threads" in text
    assert "2026-11-16 to 2026-11-18" in text
    assert "Speeds of different machines do not compare." in text


@pytest.mark.parametrize("name", ["transfer", "prior", "prototypes", "batch-size"])
def test_at_the_papers_scale_every_cell_has_the_papers_settings(name):
    experiment, cells, _ = filled(name, PAPER)
    assert unlike(cells) == set()
    assert "targets are averaged unless a row says joint" in caption(experiment, PAPER, cells)


def test_the_other_reading_of_the_loss_has_rows_of_its_own_and_is_never_the_papers():
    joint = replace(PAPER, joint=True)
    for name, rows in (("linear", 1), ("transfer", 1), ("prior", 5), ("prototypes", 1)):
        experiment, cells, _ = filled(name, joint)
        of_joint = {(f.cell.row, f.cell.column) for f in cells if f.cell.row.endswith(", joint targets")}
        assert unlike(cells) == of_joint
        assert len({row for row, _ in of_joint}) == rows
        assert all(f.paper is not None for f in cells), name
        assert "joint targets (paper: averaged targets)" not in caption(experiment, joint, cells)  # the row says it
    changed = [
        replace(f, settings=(replace(f.settings[0], targets="joint"),)) for f in cells if f.cell.row == "CIFAR-10"
    ]
    assert "joint targets (paper: averaged targets)" in caption(experiment, joint, changed)


def test_what_the_paper_has_no_number_for_is_never_plain():
    experiment, cells, _ = filled("claims", PAPER)
    assert "| *40.00 ± 0.00 (n=3)* | *300 ± 0 (n=3)* |" in line(markdown(experiment, PAPER, cells), "swav")


def test_latex_keeps_signs_that_mean_something_to_it():
    experiment, cells, _ = filled("transfer", CPU)
    text = latex(experiment, CPU, [replace(f, cell=replace(f.cell, row=f"{f.cell.row} <5% & more>")) for f in cells])
    assert "carl $<$5\\% \\& more$>$ & " in text
    assert "C-10 $\\rightarrow$ C-100" in text


def test_the_caption_says_that_100_epochs_are_half_way_unless_they_are_not():
    experiment, cells, _ = filled("linear", PAPER)
    assert "kept half-way of the runs of 200" in caption(experiment, PAPER, cells)
    assert "SwAV on DS ImageNet has two views" in caption(experiment, PAPER, cells)
    own = replace(PAPER, own_runs=True)
    experiment, cells, _ = filled("linear", own)
    assert "half-way" not in caption(experiment, own, cells)
    assert unlike(cells) == set()


def test_small_data_at_the_papers_scale_are_not_shown_as_the_papers():
    experiment, cells, _ = filled("linear", PAPER, images=10_000)
    assert "/ *40.00" in line(markdown(experiment, PAPER, cells), "carl")
    assert "10,000 images (paper: 50,000 images" in caption(experiment, PAPER, cells)
    assert not any(f.as_in_the_paper for f in cells)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"optim": {"lr": 0.3}}, "optim.lr 0.3 (paper: optim.lr 0.6) for carl"),
        ({"optim": {"name": "sgd"}}, "optim.name sgd (paper: optim.name lars) for carl"),
        ({"model": {"hidden_dim": 2048}}, "model.hidden_dim 2048 (paper: model.hidden_dim 512) for carl"),
        ({"views": {"crop_min": 0.2}}, "views pipeline simclr, crop_min 0.2 (paper: views pipeline simclr) for carl"),
    ],
)
def test_another_optimiser_head_or_view_than_the_paper_states_is_not_the_papers(changed, said):
    experiment, _, outcomes = filled("linear", PAPER)
    of_carl = {name: one for name, one in outcomes.items() if name.startswith("cifar10/carl/")}
    outcomes |= {name: {**one, "config": merge([one["config"], changed])} for name, one in of_carl.items()}
    cells = fill_cells(experiment, outcomes)
    assert unlike(cells) == {("carl", "CIFAR-10 100"), ("carl", "CIFAR-10 200")}
    assert said in caption(experiment, PAPER, cells)


def test_another_lambda_than_a_figure_of_the_paper_has_is_not_the_papers():
    experiment, _, outcomes = filled("prior", PAPER)
    constant = {name: one for name, one in outcomes.items() if "lambda-3-3" in name}
    falling = {"method": {"prior_end": 1.0}}
    outcomes |= {name: {**one, "config": merge([one["config"], falling])} for name, one in constant.items()}
    cells = fill_cells(experiment, outcomes)
    assert {row for row, _ in unlike(cells)} == {"lambda(3,3)"}
    assert "method.prior_end 1 (paper: method.prior_end 3) for lambda(3,3)" in caption(experiment, PAPER, cells)


def test_a_missing_or_failed_seed_is_said_in_its_cell():
    experiment = experiment_of("linear", CPU)
    outcomes = {job.name: invented(job) for job in experiment.jobs}
    first, second, third = (f"cifar10/carl/20-epochs/seed-{seed}" for seed in range(3))
    outcomes[second] = {**outcomes[second], "state": "failed", "measures": {}}
    del outcomes[third]
    text = markdown(experiment, CPU, fill_cells(experiment, outcomes))
    assert "*40.00 (n=1, 1 failed, 1 to come)*" in line(text, "carl")
    assert "(n=3)" in line(text, "simclr")
    failed = {first: {**outcomes[first], "state": "failed", "measures": {}}}
    text = markdown(experiment, CPU, fill_cells(experiment, failed))
    assert "/ failed" in line(text, "carl")
    assert line(text, "simclr").startswith("| simclr | 75.41 ± 0.47 / - |")


def test_other_data_and_protocols_are_said_in_title_caption_and_csv():
    experiment, cells, _ = filled("prior", CPU)
    text = markdown(experiment, CPU, cells)
    assert "| 200 epochs (ours: CIFAR-10, 10,000 images, 20 epochs, K = 100, linear-cached) |" in text
    assert "| knn (ours: CIFAR-10, 10,000 images" in text
    assert "CIFAR-10 (paper: STL-10)" in text
    assert "K = 100 (paper: K = 300)" in text
    experiment, cells, _ = filled("transfer", CPU)
    text = markdown(experiment, CPU, cells)
    assert "1% of labels (ours: CIFAR-10, 10,000 images, 20 epochs, K = 100, semi 1%, 5 epochs)" in text
    assert "K = 100 (paper: K = 300) for carl" in text
    assert "finetune, 5 epochs (paper: finetune, 50 epochs)" in text
    (row,) = lines_of(experiment, CPU, cells, row="byol", column="1% of labels")
    assert (row["paper_data"], row["data"], row["protocol"]) == ("stl10", "cifar10", "semi 1%, 5 epochs")
    assert (row["as_in_the_paper"], row["seeds"], row["paper_seeds"]) == ("no", "1", "3")
    assert "\\caption{Transfer" in latex(experiment, CPU, cells)


def test_what_a_scale_leaves_out_is_said_and_not_blank():
    experiment, cells, _ = filled("transfer", SMOKE)
    assert "68.54 ± 0.42 / not run" in line(markdown(experiment, SMOKE, cells), "supervised")


def test_the_column_of_100_epochs_says_100_epochs():
    experiment, cells, _ = filled("linear", PAPER)
    (row,) = lines_of(experiment, PAPER, cells, row="carl", column="CIFAR-10 100")
    assert (row["epochs"], row["paper_epochs"], row["as_in_the_paper"]) == ("100", "100", "yes")


def test_the_papers_digits_are_kept_and_printed_as_it_rounds_them():
    experiment, cells, _ = filled("prior", PAPER)
    assert "| lambda(1,2) | 71.85 / " in markdown(experiment, PAPER, cells)
    (row,) = lines_of(experiment, PAPER, cells, row="lambda(1,2)", column="50 epochs")
    assert row["paper"] == "71.84533333"
    assert str(paper_numbers("linear")["pcl", "CIFAR-100 200"][1]) == "0.76"


def test_claims_show_pairs_clustering_and_images_of_a_prototype():
    experiment, cells, _ = filled("claims", CPU)
    text = markdown(experiment, CPU, cells)
    assert "| 256 / *256 (n=3)* |" in line(text, "carl")
    assert "| 130,560 / *130,560 (n=3)* |" in line(text, "simclr")
    assert "*12.50 (n=1)*" in line(text, "pcl")
    assert "*12.50 (n=1)*" in line(text, "as many prototypes as images")  # 1000 images of the probe over 80 in use
    assert "accuracy (ours: CIFAR-10, 10,000 images, 20 epochs, linear-cached)" in text


def test_the_health_table_names_the_epoch_of_a_collapse():
    last = {"epoch": 5, "used": 2, "information": 0.1, "knn": 11.0}
    job = experiment_of("prior", CPU).jobs[4]
    run = invented(job, probes=[last], verdict="collapsed", collapsed_at=2.0)
    wanted = f"| {job.name} | lambda(0,0), 200 epochs | 13.49 / *40.00* | collapsed | 2 | 2 of 100 | 0.10 | 11.0 |"
    assert wanted in health_table(experiment_of("prior", CPU), {job.name: run})


def test_the_health_table_counts_the_clusters_of_pcl():
    experiment, _, outcomes = filled("claims", CPU)
    assert " 80 of 50 " in line(health_table(experiment, outcomes), "cifar10/pcl/20-epochs/seed-0")


def drawn(name: str, scale: Scale, cells=None):
    experiment, found, outcomes = filled(name, scale)
    axes = []
    for panel in figures.panels_of(experiment, scale, found if cells is None else cells, outcomes):
        axes.append(Figure().add_subplot())
        panel(axes[-1])
    return axes


def test_tables_are_drawn_as_bars_with_the_papers_numbers_as_marks():
    (axis,) = drawn("linear", CPU)
    assert len(axis.patches) == 2 * 11  # seven methods, three of them twice, and random weights, two protocols
    marks = sorted({float(mark.get_ydata()[0]) for mark in axis.lines if mark.get_marker() == "D"})
    assert marks == sorted(float(mean) for (_, c), (mean, _) in paper_numbers("linear").items() if c == "CIFAR-10 200")
    assert sum(len(found.lines[2]) > 0 for found in axis.containers if hasattr(found, "lines")) == 2 * 4  # of 3 seeds


def test_the_prior_is_drawn_from_the_probes_of_every_epoch():
    theirs, ours, joint = drawn("prior", CPU)
    assert [len(curve.get_xdata()) for curve in theirs.lines] == [4] * 5
    for panel in (ours, joint):
        assert [list(curve.get_ydata()) for curve in panel.lines] == [[20.0 + epoch for epoch in range(1, 21)]] * 5
        assert panel.get_ylim() == ours.get_ylim()
    assert ("joint targets" in ours.get_title(), "joint targets" in joint.get_title()) == (False, True)
    assert "CIFAR-10" in ours.get_title()
    assert "STL-10" in theirs.get_title()


def drawn_with_a_collapse(name: str, job: str) -> tuple[Axes, list[tuple[float, float]]]:
    """The panel of ours where one job collapsed at epoch 3, and the points that are marked in it."""
    experiment, cells, outcomes = filled(name, CPU)
    outcomes[job] |= {"collapsed_at": 3.0}
    axis = Figure().add_subplot()
    getattr(figures, f"_{name}")(experiment, CPU, cells, outcomes)[1](axis)
    (mark,) = (curve for curve in axis.lines if curve.get_marker() in "xX" and len(curve.get_xdata()))
    return axis, list(zip(mark.get_xdata(), mark.get_ydata(), strict=True))


def test_the_epoch_of_a_collapse_is_marked_on_its_curve():
    _, marks = drawn_with_a_collapse("prior", "cifar10/carl/lambda-1-1/20-epochs/seed-0")
    assert marks == [(3.0, 23.0)]


def random_lines(axis: Axes) -> dict[str, float]:
    return {line.get_label(): line.get_ydata()[0] for line in axis.lines if line.get_label().startswith("random")}


def test_random_weights_are_a_line_where_they_have_no_row():
    """Without it, bars of 13 to 16 look learned."""
    _, ours = drawn("prototypes", CPU)
    assert random_lines(ours) == {"random weights, CIFAR-10": 10.0, "random weights, CIFAR-100": 10.0}
    (bars,) = drawn("batch-size", CPU)
    assert random_lines(bars) == {"random weights": 10.0}
    (bars,) = drawn("linear", CPU)
    assert random_lines(bars) == {}


def test_the_prior_is_drawn_by_the_papers_measure_where_it_was_taken_on_the_way():
    _, ours = drawn("prior", PAPER)
    assert [list(curve.get_xdata()) for curve in ours.lines] == [[50.0, 100.0, 150.0, 200.0]] * 5
    assert "linear evaluation" in ours.get_title()


@pytest.mark.parametrize("name", ["linear", "claims", "prior"])
def test_a_figure_says_of_how_many_images_and_seeds_it_is(name, tmp_path):
    experiment, _, outcomes = filled(name, CPU)
    write_tables_and_figures(experiment, CPU, outcomes, tmp_path)
    seeds = "1 seed" if name == "prior" else "1 or 3 seeds"
    assert f"ours: cpu scale, 10,000 training images, {seeds}" in (tmp_path / f"{name}.svg").read_text()


def test_prototypes_are_drawn_on_a_logarithmic_axis_and_nothing_empty_is_drawn():
    theirs, ours = drawn("prototypes", CPU)
    assert theirs.get_xscale() == ours.get_xscale() == "log"
    assert len(drawn("claims", CPU)) == 2
    experiment = experiment_of("prototypes", CPU)
    assert (
        figures.draw(experiment, CPU, fill_cells(experiment, {}), {}, Path()) == []
    )  # the paper's numbers alone are no figure of ours


def test_a_collapse_is_marked_among_the_prototypes_and_rows_are_named_once():
    axis, marks = drawn_with_a_collapse("prototypes", "cifar100/carl/k-1000/20-epochs/seed-0")
    assert marks == [(1000, 40.0)]
    names = [text.get_text() for text in axis.get_legend().get_texts()]
    assert names[:4] == ["CIFAR-10", "CIFAR-100", "CIFAR-10, joint targets", "collapsed"]


def test_all_files_are_written_and_a_figure_only_where_there_is_something_to_show(tmp_path):
    experiment, _, outcomes = filled("claims", SMOKE)
    assert [path.suffix for path in write_tables_and_figures(experiment, SMOKE, outcomes, tmp_path)] == [
        ".md", ".tex", ".csv", ".png", ".svg",
    ]  # fmt: skip
    assert [path.suffix for path in write_tables_and_figures(experiment, SMOKE, {}, tmp_path / "none")] == [
        ".md",
        ".tex",
        ".csv",
    ]


def test_the_same_outcomes_give_the_same_files(tmp_path):
    experiment, _, outcomes = filled("prior", CPU)
    first, second = (write_tables_and_figures(experiment, CPU, outcomes, tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
