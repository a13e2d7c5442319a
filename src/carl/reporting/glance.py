"""A run at a glance: verdict in words with the figures behind it, what to try next, results beside random weights."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carl.reporting.run_files import Run, is_number

TONES = {"healthy": "good", "partly collapsed": "warn", "collapsed": "bad", "stopped early": "warn"}
NOTHING_LEARNED = 1.0  # points over random weights under which nothing was learned that counts; ours
STILL_RISING = 1.0  # points of kNN over the last quarter of a run from which on longer training is advised; ours
PROTOCOL_NAMES = {
    "knn": "kNN",
    "linear": "linear",
    "linear-cached": "linear",
    "semi": "fine-tuned",
    "finetune": "fine-tuned",
}
# Scores by how much they say of an encoder: the one that stands for a run is the first of these that it has.
PREFERRED = (("linear", "top-1"), ("linear-cached", "top-1"), ("knn", "k = 20"), ("probe", ""))


@dataclass(frozen=True)
class Step:
    advice: str
    command: str = ""


@dataclass(frozen=True)
class Verdict:
    word: str
    but: str  # what the word does not say
    tone: str  # good, warn, bad or plain
    figures: str  # what the word rests on
    steps: list[Step]  # what to try next


@dataclass(frozen=True)
class Tile:
    """One large figure."""

    name: str
    value: str
    note: str


@dataclass(frozen=True)
class Measure:
    """A score of the encoder, with how it was measured."""

    protocol: str  # as on the command line, or probe
    title: str  # kNN, offline
    name: str  # k = 20
    how: str  # offline: the run's training images vote ...
    data: str
    value: float  # percent
    random: float | None  # of the same encoder with random weights
    spread: float | None = None  # standard deviation over seeds

    @property
    def gain(self) -> float | None:
        return None if self.random is None else self.value - self.random

    @property
    def label(self) -> str:
        return f"{self.title}, {self.name}"

    @property
    def identity(self) -> tuple[str, str, str]:
        """Scores with the same identity may be compared."""
        return self.title, self.name, self.data


def judge(run: Run) -> Verdict:
    """The last probe's verdict; `stopped early` for a run that has not finished."""
    probes = run.of_kind("probe")
    last = probes[-1] if probes else {}
    word = str(last.get("verdict", "not judged")) if last else "not judged"
    figures = _figures(run, last)
    if not run.finished:
        at = f"Epoch {run.epochs_done:.3g} of {run.value('train', 'epochs', '?')}"
        figures = f"{at}; at the last probe: {word}. {figures}" if "verdict" in last else f"{at}. {figures}"
        word = "stopped early"
    tone, but, best = TONES.get(word, "plain"), "", headline(run)
    if tone == "good" and best is not None and best.gain is not None and best.gain < NOTHING_LEARNED:
        tone, but = "warn", "but not better than random weights"
    return Verdict(word, but, tone, figures.strip(), _next_steps(run, last))


def _figures(run: Run, last: dict[str, Any]) -> str:
    parts = []
    if "used" in last and "prototypes" in last:
        parts.append(
            f"{last['used']:.0f} of {last['prototypes']:.0f} prototypes in use, {last.get('dead', 0):.0f} dead, "
            f"{last.get('duplicates', 0):.0f} near-duplicates; two views of an image agree for "
            f"{100 * last.get('agreement', 0):.0f}% of the images."
        )
    if is_number(last.get("rank_me")):
        dimensions = run.gallery["embeddings"].shape[1] if run.gallery else None
        parts.append(f"RankMe {last['rank_me']:.0f}" + (f" of {dimensions} dimensions." if dimensions else "."))
    if not last:
        parts.append("The run was not probed, so there are no figures to judge it by.")
    return " ".join(parts)


def _next_steps(run: Run, last: dict[str, Any]) -> list[Step]:
    steps = [Step(str(text)) for text in last.get("warnings", ())]
    if not run.finished:
        steps.append(Step("Go on where it stopped:", f"carl pretrain --resume {run.path}"))
    elif last.get("verdict") == "too early to judge":
        steps.append(Step("Assignments are still nearly flat: train for more epochs before judging."))
    best = headline(run)
    if run.finished and best is not None and best.gain is not None and best.gain < NOTHING_LEARNED:
        better = "no better" if best.gain > -NOTHING_LEARNED else "worse"
        steps.append(
            Step(
                f"The encoder is {better} than with random weights so far ({best.label}: {best.value:.1f}% against "
                f"{best.random:.1f}%): train for more epochs, on more images, or look at the views below."
            )
        )
    rise, epochs = _late_rise(run), run.value("train", "epochs", 1)
    if run.finished and rise is not None and rise >= STILL_RISING:
        advice = f"kNN rose by {rise:.1f} points over the last quarter of the run: train longer,"
        steps.append(Step(advice, f"carl pretrain --resume {run.path} --epochs {2 * int(epochs)}"))
    if run.finished and not run.results and "knn" in last:
        steps.append(Step("Measure it on all the data, beside random weights:", f"carl eval {run.path}"))
    return steps


def _late_rise(run: Run) -> float | None:
    points = [(r["epoch"], r["knn"]) for r in run.of_kind("probe") if is_number(r.get("knn"))]
    if len(points) < 4:
        return None
    start = 0.75 * points[-1][0]
    before = [value for epoch, value in points if epoch <= start]
    return float(points[-1][1] - before[-1]) if before else None


def tiles(run: Run) -> list[Tile]:
    probes, steps = run.of_kind("probe"), run.of_kind("step")
    last = probes[-1] if probes else {}
    shown = []
    best = headline(run)
    if best is not None:
        note = "" if best.gain is None else f"{best.gain:+.1f} points over random weights ({best.random:.1f}%)"
        shown.append(Tile(best.label, f"{best.value:.1f}%", note))
    if "used" in last and "prototypes" in last:
        shown.append(Tile("prototypes in use", f"{last['used']:.0f} of {last['prototypes']:.0f}", _entropy_note(last)))
        if is_number(last.get("agreement")):
            shown.append(Tile("two views agree", f"{100 * last['agreement']:.0f}%", "of the images choose alike twice"))
    if is_number(last.get("rank_me")):
        before = probes[0]["rank_me"] if probes[0].get("epoch") == 0 and is_number(probes[0].get("rank_me")) else None
        note = "effective dimensions" + ("" if before is None else f"; {before:.0f} before training")
        shown.append(Tile("RankMe", f"{last['rank_me']:.0f}", note))
    seconds, measured = training_seconds(run)
    if seconds:
        note = f"{_epochs(f'{run.epochs_done:.3g}')} on {run.environment.get('device', 'an unknown device')}"
        shown.append(Tile("training time", duration(seconds), note if measured else note + ", estimated"))
    speeds = [r["images_per_second"] for r in steps if is_number(r.get("images_per_second"))]
    if speeds:
        threads = run.environment.get("threads")
        where = run.environment.get("cuda") or (f"{threads} threads" if threads and threads != 1 else "one thread")
        shown.append(Tile("images a second", f"{statistics.median(speeds):,.0f}", f"median, {where}"))
    return shown


def _entropy_note(last: dict[str, Any]) -> str:
    if not is_number(last.get("largest")):
        return ""
    return f"the fullest holds {100 * last['largest']:.0f}% of the views"


def training_seconds(run: Run) -> tuple[float, bool]:
    """Seconds of training, and whether they were measured: an interrupted run gives an estimate from its speed."""
    for record in reversed(run.records):
        if record.get("event") == "finished" and is_number(record.get("seconds")):
            return float(record["seconds"]), True
    total, before = 0.0, 0
    for record in run.of_kind("step"):
        speed, step = record.get("images_per_second"), record.get("step", before)
        if is_number(speed) and speed:
            total += (step - before) * run.value("train", "batch_size", 0) / speed
        before = step
    return total, False


def facts(run: Run) -> list[tuple[str, str]]:
    """Data, method, encoder and length in a few words."""
    stem = " (small stem)" if run.value("model", "stem") == "small" else ""
    init = run.value("model", "init")
    count = run.data.get("images") or (int(run.gallery["total_images"]) if run.gallery else None)
    images = f", {count:,} images" if isinstance(count, int) else ""
    size = run.value("data", "image_size")
    device = run.environment.get("cuda") or run.environment.get("device")
    listed = [
        ("data", own_data(run) + images + (f", {size} px" if size else "")),
        ("method", str(run.value("method", "name", "?"))),
        ("encoder", f"{run.value('model', 'backbone', '?')}{stem}{f', started from {init}' if init else ''}"),
        (
            "training",
            f"{_epochs(run.value('train', 'epochs', '?'))}, batches of {run.value('train', 'batch_size', '?')}",
        ),
    ]
    return [*listed, ("device", str(device))] if device else listed


def own_data(run: Run) -> str:
    """What the run was trained on, by the name of its file."""
    return Path(str(run.value("data", "source", "?"))).name


def measures(run: Run) -> list[Measure]:
    """All scores of a run: evaluations from results/, then the probe."""
    found = [measure for result in run.results for measure in _result_measures(result)]
    probes = [r for r in run.of_kind("probe") if is_number(r.get("knn"))]
    if probes:
        untrained = probes[0]["epoch"] == 0 and run.value("model", "init") is None
        voters, k = run.value("probe", "train_images", "?"), run.value("probe", "neighbours", "?")
        how = f"online: {voters} training images vote, on a sample of the test images"
        before = probes[0]["knn"] if untrained else None
        found.append(Measure("probe", "kNN probe, online", f"k = {k}", how, own_data(run), probes[-1]["knn"], before))
    return found


def _result_measures(result: dict[str, Any]) -> list[Measure]:
    """The scores in one file of results/; those of random weights alone are left out."""
    protocol, how = str(result.get("protocol", "evaluation")), str(result.get("kind", ""))
    accuracy = result.get("accuracy")
    accuracy = accuracy if isinstance(accuracy, dict) else {}
    trained, random = (accuracy.get(which) or {} for which in ("trained", "random"))
    mode = how.partition(":")[0]
    title = ", ".join(part for part in (PROTOCOL_NAMES.get(protocol, protocol), mode) if part)
    values = result.get("hyperparameters")
    fraction = values.get("fraction") if isinstance(values, dict) else None
    if is_number(fraction) and protocol == "semi":
        title += f", {100 * fraction:g}% of the labels"
    found = []
    for name, entry in trained.items():
        value, spread = _mean_and_spread(entry)
        if value is not None:
            label = f"k = {name}" if str(name).isdigit() else str(name)
            data, before = Path(str(result.get("data", ""))).name, _mean_and_spread(random.get(name))[0]
            found.append(Measure(protocol, title, label, how, data, value, before, spread))
    return found


def _mean_and_spread(entry: Any) -> tuple[float | None, float | None]:
    """A score is a number, or a mean with its standard deviation over seeds."""
    if isinstance(entry, dict):
        mean, spread = entry.get("mean"), entry.get("std")
        return (float(mean) if is_number(mean) else None), (float(spread) if is_number(spread) else None)
    return (float(entry) if is_number(entry) else None), None


def headline(run: Run) -> Measure | None:
    """The one score that says most, on the run's own data."""
    found = [measure for measure in measures(run) if measure.data == own_data(run)]
    for protocol, name in PREFERRED:
        for measure in found:
            if measure.protocol == protocol and name in ("", measure.name):
                return measure
    return None


def _epochs(count: Any) -> str:
    return f"{count} epoch{'' if str(count) == '1' else 's'}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
