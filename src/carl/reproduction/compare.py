"""Methods side by side under equal conditions: what they learn, whether they differ, how fast, and in how much memory.

All methods have the same views, head, stem, budget and learning rate, from one preset; the table is made from what the
runs really had, and says what they share and what is each method's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from carl import files
from carl.config import Layer, merge, resolve
from carl.data.facts import DataFacts
from carl.defaults import COMPARED, RANDOM
from carl.errors import UserError, suggestion
from carl.evaluation.evaluate import evaluate
from carl.evaluation.intervals import Interval, Judged, difference, interval
from carl.evaluation.protocols import PROTOCOLS, EvaluationRequest, check_repetitions
from carl.evaluation.results import TRAINED, UNTRAINED, judged_of
from carl.evaluation.standing import NOT_TO_CROWN, Entry, Standing, standing
from carl.methods import METHODS, find_method
from carl.methods.run_config import with_absolute_paths
from carl.models.pretrained import is_bare_file, usual_backbone
from carl.records.run_directory import RunDirectory
from carl.reporting.pages import Contestant, write_contestants
from carl.reproduction.cells import figure_of, random_figure_of
from carl.reproduction.comparison_table import MEASURED_BY, Summary, markdown, terminal_lines
from carl.reproduction.dry_run import values_in_words
from carl.reproduction.jobs import DONE, FAILED, Job, Measure, Outcome, machine_in_words, read_outcome
from carl.reproduction.runner import run_jobs
from carl.terminal import Say
from carl.training.plan import Plan, PretrainRequest, plan
from carl.use.encoder import open_encoder

MEASURES = {name: Measure(protocol) for name, protocol in MEASURED_BY.items()}
HEADLINES = {name: PROTOCOLS[measure.protocol].headline for name, measure in MEASURES.items()}
MOST_HELD_OUT = 5000  # images on which a rate is chosen; a tenth of the images if there are fewer


@dataclass(frozen=True)
class CompareRequest:
    """What `carl compare` was asked to do."""

    layer: Layer  # values for all methods
    methods: tuple[str, ...] = ()  # all of them if empty
    seeds: int = 1  # runs of each method
    out: Path | None = None
    preset: str = COMPARED
    own: Mapping[str, Layer] = field(default_factory=dict)  # values for one method
    rates: tuple[float, ...] = ()  # learning rates that each method tries, on held-out training images
    encoders: tuple[str, ...] = ()  # frozen encoders, measured beside the methods
    backbone: str | None = None  # architecture of the weights files among them


@dataclass(frozen=True)
class Comparison:
    """The jobs of a comparison, and what each method is given."""

    request: CompareRequest
    root: Path
    source: str
    names: tuple[str, ...]
    layer: Layer  # of all methods, with absolute paths

    def layer_of(self, name: str, *more: Layer) -> Layer:
        """What the method is asked to train with: preset, values of all, its own values, and `more`."""
        preset: Layer = {"method": {"preset": self.request.preset}}
        return merge([preset, self.layer, {"method": {"name": name}}, self.request.own.get(name, {}), *more])

    @property
    def seeds(self) -> range:
        first = int(self.layer.get("train", {}).get("seed", 0))
        return range(first, first + self.request.seeds)

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Method and seed of each run.

        All methods come with one seed before the next seed, so whatever is done can be compared at any time.
        """
        return [(name, seed) for seed in self.seeds for name in self.names]

    def job(self, name: str, seed: int, rate: float | None) -> Job:
        """A run that is judged. The first seed has a gallery, for the page."""
        more: Layer = {"optim": {} if rate is None else {"lr": rate}}
        log: Layer = {"train": {"seed": seed}, "log": {"report": seed == self.seeds[0]}}
        return self._job(f"{name}-seed-{seed}", self.layer_of(name, more, log))

    def trial(self, name: str, rate: float, held_out: int) -> Job:
        """A run that only helps to choose the rate: judged on images that it does not see."""
        more: Layer = {"optim": {"lr": rate}, "data": {"held_out": held_out}, "log": {"report": False}}
        return self._job(f"trials/{name}-rate-{rate:g}", self.layer_of(name, more, {"train": {"seed": self.seeds[0]}}))

    def _job(self, name: str, layer: Layer) -> Job:
        return Job(name, json.loads(json.dumps(layer)), tuple(MEASURES.values()))


def compare(request: CompareRequest, say: Say) -> int:
    """Train each method that is not finished yet, show the table and write it, the page and the data; the exit code."""
    comparison, known = opened(request)
    root = comparison.root
    rates, failed = chosen_rates(comparison, known, say) if request.rates else ({}, {})
    jobs = {(name, seed): comparison.job(name, seed, rates.get(name)) for name, seed in comparison.runs}
    failed |= run_jobs(list(jobs.values()), root, say, own_process=True)
    lines = [read_line(name, jobs, failed, root, request.seeds) for name in comparison.names]
    lines += [frozen_line(encoder, comparison, known, say) for encoder in request.encoders]
    found = summary(comparison.source, request.preset, sorted(set(request.rates)), lines)
    files.write_json(root / "comparison.json", found)
    files.write_text(root / "comparison.md", markdown(found))
    page = write_page(comparison, jobs, lines)
    for line in terminal_lines(found):
        say(line)
    kept = [root / "comparison.md", root / "comparison.json", *([page] if page else [])]
    say(f"written to {', '.join(map(str, kept))}")
    return 1 if failed else 0


def opened(request: CompareRequest) -> tuple[Comparison, Plan]:
    """The comparison, after everything the user wrote has been checked; and the plan of the first method that can run.

    An error that stops every method is raised before anything is written; one that stops some is left to the table.
    """
    check_repetitions(request.seeds)
    wrong = next((rate for rate in request.rates if not 0 < rate < float("inf")), None)
    if wrong is not None:
        raise UserError(f"--rates {wrong:g}: rates are numbers above 0; use for example 0.03,0.06,0.12")
    names = tuple(dict.fromkeys(request.methods)) or tuple(METHODS)
    for name in names:
        find_method(name)
    for name in request.own:
        if name not in names:
            raise UserError(f"--set {name}:...: {name!r} is not compared{suggestion(name, names)}; add it to --methods")
    for encoder in request.encoders:
        _check_encoder(encoder, request)
    layer = with_absolute_paths(request.layer)
    source = str(layer["data"]["source"])
    root = request.out or Path("runs") / f"compare-{files.portable_name(Path(source).stem)}"
    comparison = Comparison(request, root, source, names, layer)
    first = _first_plan(comparison)
    for name in request.own:
        _check_own(comparison, name)
    return comparison, first


def _check_own(comparison: Comparison, name: str) -> None:
    """Refuse a slip in the values of one method now, and not after the methods before it have trained."""
    try:
        plan(PretrainRequest(comparison.layer_of(name)))
    except UserError as error:
        raise UserError(f"--set {name}:...: {error}") from None


def _check_encoder(encoder: str, request: CompareRequest) -> None:
    """Refuse what is not an encoder now, and not after hours of training."""
    if encoder == RANDOM:
        return
    try:
        open_encoder(encoder, backbone=_backbone_of(encoder, request), device="cpu")
    except UserError as error:
        raise UserError(f"--encoders: {error}") from None


def _backbone_of(encoder: str, request: CompareRequest) -> str | None:
    """The architecture of a weights file, as for `carl eval`; all others say theirs."""
    return (request.backbone if is_bare_file(encoder) else None) or usual_backbone(encoder)


def _first_plan(comparison: Comparison) -> Plan:
    errors: list[UserError] = []
    for name in comparison.names:
        try:
            found = plan(PretrainRequest(comparison.layer_of(name)))
        except UserError as error:
            errors.append(error)
        else:
            data = found.dataset
            if not data.train.labelled or data.test is None or not data.test.labelled:
                raise UserError(
                    f"{comparison.source} has no labelled training and test images, and methods are compared by how "
                    "well their features tell classes apart; use sub-folders as classes, or a data set with labels"
                )
            return found
    raise errors[0]


def chosen_rates(comparison: Comparison, known: Plan, say: Say) -> tuple[dict[str, float], dict[str, str]]:
    """For each method the best of the rates on held-out training images, and the trials that failed.

    Every method has the same number of tries, and the test images have no say.
    """
    rates = sorted(set(comparison.request.rates))
    held_out = comparison.layer.get("data", {}).get("held_out") or max(1, min(MOST_HELD_OUT, known.facts.images // 10))
    trials = {(name, rate): comparison.trial(name, rate, held_out) for name in comparison.names for rate in rates}
    failed = run_jobs(list(trials.values()), comparison.root, say, own_process=True)
    measure = MEASURES["linear"].key
    best: dict[str, float] = {}
    for name in comparison.names:
        found = {rate: read_outcome(comparison.root, trials[name, rate]) for rate in rates}
        scores = {rate: figure_of(one, measure) for rate, one in found.items() if one is not None}
        judged = {rate: score for rate, score in scores.items() if score is not None}
        if judged:
            best[name] = max(judged, key=lambda rate: (judged[rate], -rate))
            tried = ", ".join(f"{rate:g}: {score:.1f}%" for rate, score in judged.items())
            say(f"{name}: learning rate {best[name]:g}, the best of {tried} on {held_out} held-out training images")
    return best, failed


@dataclass(frozen=True)
class Line:
    """A method, or a frozen encoder, with what was measured."""

    name: str
    row: dict[str, Any]  # for table and file
    judged: Mapping[str, Judged] = field(default_factory=dict)  # by protocol
    values: Mapping[str, str] = field(default_factory=dict)  # every value that decided the outcome, in words

    @property
    def is_trained(self) -> bool:
        return bool(self.row["state"] == DONE and not self.row.get("frozen"))


def read_line(
    name: str, jobs: Mapping[tuple[str, int], Job], failed: Mapping[str, str], root: Path, asked: int
) -> Line:
    own = [job for (method, _), job in jobs.items() if method == name]
    reason = next((failed[job.name] for job in reversed(own) if job.name in failed), "")
    return method_line(name, [outcome for job in own if (outcome := read_outcome(root, job))], asked, reason)


def failed_line(name: str, reason: str) -> Line:
    return Line(name, {"method": name, "state": FAILED, "reason": reason})


def method_line(name: str, outcomes: Sequence[Outcome], asked: int, reason: str) -> Line:
    """A method's line: means over seeds with their intervals."""
    done = [outcome for outcome in outcomes if outcome["state"] == DONE]
    if not done:
        return failed_line(name, reason)
    memory = [None if o["peak_memory_bytes"] is None else o["peak_memory_bytes"] / 1e6 for o in done]
    row = {
        "method": name,
        "state": DONE,
        "seeds": len(done),
        "seeds_asked": asked,
        **_figures(done),
        "images_per_second": _mean([o["images_per_second"] for o in done]),
        "peak_memory_mb": _mean(memory),
        "verdict": ", ".join(dict.fromkeys(str(o["verdict"]) for o in done if o["verdict"])),
        "preset": done[0]["config"]["method"]["preset"],
        "machine": ", or ".join(dict.fromkeys(machine_in_words(o["machine"]) for o in done)),
        "made": max(o["made"] for o in done),
    }
    return Line(name, row, judged_over(done), trained_with(done[0]))


def frozen_line(encoder: str, comparison: Comparison, known: Plan, say: Say) -> Line:
    """A line for an encoder that is not trained here, measured on the same images."""
    settings: dict[str, Any] = {
        "data": {key: value for key, value in comparison.layer["data"].items() if key != "source"}
    }
    if encoder == RANDOM:  # the encoder that the methods begin with
        settings["model"] = known.config.model.model_dump(include={"backbone", "stem"})
        settings["data"]["image_size"] = known.facts.image_size
    measured: Outcome = {"state": DONE, "measures": {}}
    for measure in MEASURES.values():
        say(f"measuring {encoder}: {measure.protocol}")
        folder = comparison.root / "encoders"
        request = EvaluationRequest(
            encoder,
            measure.protocol,
            data=comparison.source,
            out=folder,
            backbone=_backbone_of(encoder, comparison.request),
            settings=settings,
        )
        try:
            measured["measures"][measure.key] = result = evaluate(request)
        except UserError as error:
            return failed_line(encoder, str(error))
    row = {
        "method": encoder,
        "state": DONE,
        "frozen": True,
        "seeds": 1,
        "seeds_asked": 1,
        **_figures([measured]),
        "verdict": "",
        "machine": machine_in_words(result["machine"]),
        "made": str(result["made"])[:10],
    }
    return Line(encoder, row, judged_over([measured]), {"weights": "as they are, not trained here"})


def _figures(done: Sequence[Outcome]) -> dict[str, Any]:
    """For each protocol, such as knn: `knn`, `knn_all`, `knn_interval`, `knn_random` and `knn_gain_interval`."""
    trained, random = judged_over(done), judged_over(done, UNTRAINED)
    found: dict[str, Any] = {}
    for protocol, measure in MEASURES.items():
        values = [figure_of(outcome, measure.key) for outcome in done]
        results = [outcome["measures"].get(measure.key, {}) for outcome in done]
        beside = protocol in random and all(result["accuracy"].get(TRAINED) for result in results)
        untrained = [random_figure_of(outcome, measure.key) for outcome in done] if beside else []
        found |= {
            protocol: _mean(values),
            f"{protocol}_all": values,
            f"{protocol}_interval": interval(trained[protocol]).ends if protocol in trained else None,
            f"{protocol}_random": _mean(untrained),
            f"{protocol}_gain_interval": difference(trained[protocol], random[protocol]).ends if beside else None,
        }
    return found


def judged_over(done: Sequence[Outcome], which: str = TRAINED) -> dict[str, Judged]:
    """By protocol, which test images were right with each seed."""
    found = {}
    for protocol, measure in MEASURES.items():
        results = [outcome["measures"].get(measure.key, {}) for outcome in done]
        alone = which == TRAINED and not any(result.get("accuracy", {}).get(TRAINED) for result in results)
        judged = [judged_of(result, UNTRAINED if alone else which, HEADLINES[protocol]) for result in results]
        known = [one for one in judged if one is not None]
        if known and len(known) == len(judged):
            found[protocol] = Judged.together(known)
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(float(np.mean(known)), 2) if known else None


def trained_with(outcome: Outcome) -> dict[str, str]:
    """Every value that decided the outcome, in words, as the run recorded it."""
    config = outcome["config"]
    method = find_method(config["method"]["name"])
    facts = DataFacts(outcome["data"], outcome["images"], 3, config["data"]["image_size"], outcome["classes"])
    words = values_in_words(resolve([config], method.Options), facts)
    words["data"] = Path(words["data"]).name  # where the data are on this machine is nobody's business
    return {key.strip(): value for key, value in words.items() if key != "method"}


def shared_values(lines: Sequence[Line]) -> dict[str, str]:
    """The values that all trained methods have in common."""
    trained = [line.values for line in lines if line.is_trained]
    first = trained[0] if trained else {}
    return {key: value for key, value in first.items() if all(one.get(key) == value for one in trained)}


def summary(source: str, preset: str, rates: Sequence[float], lines: Sequence[Line]) -> Summary:
    """All that table, page and file say."""
    shared = shared_values(lines)
    rows = []
    for line in lines:
        own = {key: value for key, value in line.values.items() if key not in shared or line.row.get("frozen")}
        rows.append({**line.row, "own": own} if line.row["state"] == DONE else line.row)
    standings = {protocol: standing_of(lines, protocol) for protocol in MEASURES}
    differences = [
        {
            "protocol": protocol,
            "first": "" if found.best is None else found.best.name,
            "second": one.other.name,
            "points": round(one.ahead.value, 2),
            "interval": one.ahead.ends,
            "paired": one.paired,
            "clear": one.ahead.is_clear,
        }
        for protocol, found in standings.items()
        for one in found.against
    ]
    return {
        "data": Path(source).name,
        "preset": preset,
        "rates_tried": list(rates),
        "shared": shared,
        "rows": rows,
        "differences": differences,
        "conclusions": {protocol: found.sentences() for protocol, found in standings.items()},
        "footnotes": list(dict.fromkeys(filter(None, (found.footnote() for found in standings.values())))),
    }


def standing_of(lines: Sequence[Line], protocol: str) -> Standing:
    """Who is ahead by this protocol; a training that has collapsed, even partly and with one seed, is not crowned."""
    entries = []
    for line in lines:
        if protocol in line.judged:
            verdicts = line.row["verdict"].split(", ")
            unhealthy = next((word for word in NOT_TO_CROWN if word in verdicts), "")
            frozen, gain = not line.is_trained, gain_of(line, protocol)
            entries.append(Entry(line.name, line.judged[protocol], unhealthy, frozen, gain))
    return standing(entries)


def gain_of(line: Line, protocol: str) -> Interval | None:
    """How far the line is over random weights; None if those were not measured with it."""
    value, random, ends = (line.row.get(f"{protocol}{what}") for what in ("", "_random", "_gain_interval"))
    return None if value is None or random is None or ends is None else Interval(value - random, *ends)


def write_page(comparison: Comparison, jobs: Mapping[tuple[str, int], Job], lines: Sequence[Line]) -> Path | None:
    """comparison.html beside the table, for the methods that have runs; None if none has."""
    contestants = []
    for line in lines:
        own = [comparison.root / job.name for (name, _), job in jobs.items() if name == line.name]
        runs = [path for path in own if RunDirectory(path).exists] if line.is_trained else []
        if runs:
            contestants.append(Contestant(line.name, runs))
    if len(contestants) < 2:
        return None
    return write_contestants(contestants, comparison.root / "comparison.html")
