"""Table cells with the paper's number, our measurements, and the settings behind both."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from importlib import resources
from typing import Any

from carl.config import Config, resolve
from carl.evaluation.protocols import find_protocol
from carl.evaluation.results import TRAINED, UNTRAINED
from carl.methods import Method, find_method
from carl.methods.base import value_in_words
from carl.methods.losses import targets_in_words
from carl.records.known_data import title_of
from carl.reproduction.jobs import DONE, FAILED, Outcome, machine_in_words
from carl.reproduction.recipes import (
    COSTS,
    MEMORY,
    PAIRS,
    PER_PROTOTYPE,
    SPEED,
    Cell,
    Experiment,
    Setting,
    protocol_in_words,
)

PaperNumber = tuple[Decimal, Decimal | None]  # mean, and deviation where the paper gives one
DIGITS = {SPEED: 0, MEMORY: 0, PAIRS: 0}  # after the point; two for everything else


@dataclass(frozen=True)
class FilledCell:
    """A cell with what was measured."""

    cell: Cell
    values: tuple[float, ...]  # one per finished seed
    failed: int
    settings: tuple[Setting, ...]  # what the values were measured with: one setting, unless runs were mixed
    paper: PaperNumber | None
    measured_on: tuple[tuple[str, str], ...] = ()  # machine and date of each value

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 and self.cell.figure != PAIRS else None

    @property
    def as_in_the_paper(self) -> bool:
        """Whether all settings are those of the paper's number, as far as the paper states them."""
        return self.settings == (self.cell.setting,)

    def ours(self) -> str:
        """`41.00 ± 1.41 (n=2, 1 failed)`"""
        if not self.cell.jobs:
            return "not run"
        lost = f"{self.failed} failed" if self.failed else ""
        if self.mean is None:
            return "failed" if lost else "-"
        digits = DIGITS.get(self.cell.figure, 2)
        spread = "" if self.deviation is None else f" ± {self.deviation:,.{digits}f}"
        waiting = len(self.cell.jobs) - len(self.values) - self.failed
        counted = ", ".join(filter(None, (f"n={len(self.values)}", lost, f"{waiting} to come" if waiting else "")))
        return f"{self.mean:,.{digits}f}{spread} ({counted})"

    def theirs(self) -> str:
        if self.paper is None:
            return ""
        digits = DIGITS.get(self.cell.figure, 2)
        mean, deviation = (None if value is None else rounded(value, digits) for value in self.paper)
        return f"{mean:,}" + ("" if deviation is None else f" ± {deviation:,}")


def rounded(value: Decimal, digits: int) -> Decimal:
    """Rounded half up, as in the paper's tables."""
    return value.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)


@cache
def paper_numbers(name: str) -> dict[tuple[str, str], PaperNumber]:
    """What the paper reports, by row and column."""
    text = resources.files("carl.reproduction").joinpath("paper.toml").read_text(encoding="utf-8")
    table: Mapping[str, Any] = tomllib.loads(text, parse_float=Decimal).get(name, {})
    numbers: dict[tuple[str, str], PaperNumber] = {}
    for row, values in table.get("rows", {}).items():
        for column, value in zip(table["columns"], values, strict=True):
            numbers[row, column] = (value[0], value[1]) if isinstance(value, list) else (Decimal(value), None)
    return numbers


def fill_cells(experiment: Experiment, outcomes: Mapping[str, Outcome]) -> list[FilledCell]:
    numbers = paper_numbers(experiment.name)
    return [_filled(cell, outcomes, numbers) for cell in experiment.cells]


def _filled(cell: Cell, outcomes: Mapping[str, Outcome], numbers: Mapping[tuple[str, str], PaperNumber]) -> FilledCell:
    found = [outcomes[name] for name in cell.jobs if name in outcomes]
    measured = [(o, value) for o in found if (value := figure_of(o, cell.figure)) is not None]
    stated = [name for name, _ in cell.setting.stated] if cell.setting else []
    settings = dict.fromkeys(setting_of(outcome, cell.figure, len(measured), stated) for outcome, _ in measured)
    return FilledCell(
        cell=cell,
        values=tuple(value for _, value in measured),
        failed=sum(outcome["state"] == FAILED for outcome in found),
        settings=tuple(settings),
        paper=None if cell.paper is None else numbers.get(cell.paper),
        measured_on=tuple((machine_in_words(outcome["machine"]), outcome["made"]) for outcome, _ in measured),
    )


def figure_of(outcome: Outcome, figure: str) -> float | None:
    """A number from a finished job: a cost, memory in MB, or the headline of the measure's protocol."""
    if outcome["state"] != DONE:
        return None
    if figure in COSTS:
        return _cost_of(outcome, figure)
    measure = outcome["measures"].get(figure, {})
    if "accuracy" not in measure:
        return None
    shown = measure["accuracy"].get(TRAINED) or measure["accuracy"][UNTRAINED]
    return float(shown[find_protocol(measure["protocol"]).headline])


def _cost_of(outcome: Outcome, figure: str) -> float | None:
    if figure == PAIRS:
        method, config = method_of(outcome)
        pairs = method.compared_pairs(config)
        return None if pairs is None else float(pairs)
    if figure == PER_PROTOTYPE:  # among the images of the last probe
        last = (outcome.get("probes") or [{}])[-1]
        return last["images"] / last["used"] if last.get("used") and "images" in last else None
    value = outcome.get(figure)
    return None if value is None else value / 1e6 if figure == MEMORY else float(value)


def method_of(outcome: Outcome) -> tuple[type[Method], Config]:
    """The method of a finished run and its configuration, as the job recorded them."""
    method = find_method(str(outcome["config"]["method"]["name"]))
    return method, resolve([outcome["config"]], method.Options)


def random_figure_of(outcome: Outcome, figure: str) -> float | None:
    """The same encoder with random weights, where the protocol measures it too."""
    measure = outcome.get("measures", {}).get(figure, {})
    found = measure.get("accuracy", {}).get(UNTRAINED) or {}
    return found.get(find_protocol(measure["protocol"]).headline) if found else None


def setting_of(outcome: Outcome, figure: str, seeds: int, stated: Sequence[str] = ()) -> Setting:
    """What a number of a finished job was measured with, as the job recorded it.

    `stated` names the values of the configuration that the paper gives for its number.
    """
    measure = outcome["measures"].get(figure, {})
    fraction = measure.get("hyperparameters", {}).get("fraction")
    untrained = Setting(
        data="none",
        images=0,
        epochs=0,
        batch_size=0,
        prototypes=None,
        targets=None,
        judged_on=measure.get("data", ""),
        protocol=protocol_in_words(measure["protocol"], measure.get("epochs"), fraction) if measure else "",
        seeds=seeds,
    )
    if not outcome.get("config"):
        return untrained
    method, config = method_of(outcome)
    return replace(
        untrained,
        data=outcome["data"],
        images=outcome["images"],
        epochs=measure.get("pretraining_epochs") or config.train.epochs,
        batch_size=config.train.batch_size,
        prototypes=method.prototype_count(config),
        targets=method.loss_variant(config),
        stated=tuple((name, value_at(config, name)) for name in stated),
    )


def value_at(config: Config, name: str) -> object:
    """The value of `section.key`; for a whole `section` all values of it that are set, in words."""
    section, _, key = name.partition(".")
    values = getattr(config, section).model_dump(exclude_none=True)
    return values.get(key) if key else ", ".join(f"{key} {value_in_words(value)}" for key, value in values.items())


WORDS: dict[str, Callable[[Any], str]] = {
    "data": title_of,
    "images": lambda value: f"{value:,} images",
    "epochs": lambda value: f"{value} epochs",
    "batch_size": lambda value: f"batch {value}",
    "prototypes": lambda value: f"K = {value}",
    "targets": targets_in_words,
    "judged_on": lambda value: f"judged on {title_of(value)}",
    "protocol": str,
}


def differences(filled: FilledCell) -> dict[str, tuple[str, str]]:
    """For each value that is not the paper's, the paper's and ours in words."""
    theirs, found = filled.cell.setting, {}
    if theirs is None:
        return {}
    for ours in filled.settings:
        for name, words in WORDS.items():
            both = getattr(theirs, name), getattr(ours, name)
            told = name == "judged_on" and both == (theirs.data, ours.data)  # already told by the data
            if both[0] != both[1] and not told:
                found[name] = (words(both[0]), words(both[1]))
        found |= {
            name: (f"{name} {value_in_words(value)}", f"{name} {value_in_words(own)}")
            for (name, value), (_, own) in zip(theirs.stated, ours.stated, strict=True)
            if value != own
        }
    return found


IN_TITLES = ("data", "images", "judged_on", "epochs", "batch_size", "prototypes", "protocol")  # the row tells the loss


def ours_in_words(column: str, cells: Sequence[FilledCell], names: Sequence[str] = IN_TITLES) -> list[str]:
    """The settings `names` of our numbers in a column: those that differ from the paper's, all if it has none."""
    own = [f for f in cells if f.cell.column == column]
    alone = all(f.paper is None and f.cell.figure not in COSTS for f in own)
    texts: dict[str, None] = {}
    for name in names:
        texts |= dict.fromkeys(found[name][1] for f in own if name in (found := differences(f)))
        if alone and name in ("data", "images", "epochs", "protocol"):
            texts |= dict.fromkeys(WORDS[name](getattr(s, name)) for f in own for s in f.settings if s.epochs)
    return [text for text in texts if text not in column]
