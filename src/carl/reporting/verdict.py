"""A run at a glance: verdict in words with the figures behind it, what to try next, results beside random weights."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carl.evaluation.results import PROBE, Score, in_order, most_telling, read_scores
from carl.records.metrics import is_number
from carl.reporting.run_reader import Run

TONES = {"healthy": "good", "partly collapsed": "warn", "collapsed": "bad", "stopped early": "warn"}
NOTHING_LEARNED = 1.0  # points over random weights under which nothing was learned that counts; ours
STILL_RISING = 1.0  # points of kNN over the last quarter of a run from which on longer training is advised; ours


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
    tone, but, best = TONES.get(word, "plain"), "", headline(run, beside_random=True)
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
        steps.append(Step("Go on where it stopped:", f"carl pretrain --resume {run.quoted}"))
    elif last.get("verdict") == "too early to judge":
        steps.append(Step("Assignments are still nearly flat: train for more epochs before judging."))
    best = headline(run, beside_random=True)
    if run.finished and best is not None and best.gain is not None and best.gain < NOTHING_LEARNED:
        better = "no better" if best.gain > -NOTHING_LEARNED else "worse"
        steps.append(
            Step(
                f"The encoder is {better} than with random weights so far ({best.label}: {best.value:.1f}% against "
                f"{best.random:.1f}%): train for more epochs, on more images, or look at the views below."
            )
        )
    rise, epochs = _late_rise(run), run.value("train", "epochs", 1)
    if run.finished and rise is not None and rise >= STILL_RISING and is_number(epochs):
        advice = f"kNN rose by {rise:.1f} points over the last quarter of the run: train longer,"
        steps.append(Step(advice, f"carl pretrain --resume {run.quoted} --epochs {2 * int(epochs)}"))
    if (
        run.finished
        and "knn" in last
        and not any(score.protocol != PROBE and score.comparable for score in scores(run))
    ):
        steps.append(Step("Measure it on all the data, beside random weights:", f"carl eval {run.quoted}"))
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
        shown.append(Tile(best.label, f"{best.value:.1f}%", _gain_note(run, best)))
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
        shown.append(Tile("images per second", f"{statistics.median(speeds):,.0f}", f"median, {where}"))
    return shown


def _gain_note(run: Run, best: Score) -> str:
    """How far the score, or the next that random weights have too, is over theirs."""
    other = headline(run, beside_random=True)
    if other is None:
        return ""
    note = f"{other.gain:+.1f} points over random weights ({other.random:.1f}%)"
    return note if other.identity == best.identity else f"{other.label}: {note}"


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
    size = run.value("train", "batch_size")
    for record in run.of_kind("step"):
        speed, step = record.get("images_per_second"), record.get("step", before)
        if speed and is_number(size):
            total += (step - before) * size / speed
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


def scores(run: Run) -> list[Score]:
    """All scores of a run, from results/ and the probe, in order."""
    return in_order([*read_scores(run.results, run.identity), *_probed(run)])


def _probed(run: Run) -> list[Score]:
    probes = [r for r in run.of_kind("probe") if is_number(r.get("knn"))]
    if not probes:
        return []
    untrained = probes[0]["epoch"] == 0 and run.value("model", "init") is None
    k, values = run.value("probe", "neighbours", "?"), run.config.get("probe", {})
    return [
        Score(
            protocol=PROBE,
            title="kNN probe, online",
            name=f"k = {k}",
            how=f"online: {values.get('train_images', '?')} training images vote, on a sample of the test images",
            data=own_data(run),
            value=probes[-1]["knn"],
            random=probes[0]["knn"] if untrained else None,
            images=run.identity.fingerprint or run.identity.source,
            values=json.dumps({key: values.get(key) for key in ("images", "temperature", "train_images")}),
        )
    ]


def headline(run: Run, beside_random: bool = False) -> Score | None:
    """The one score that says most of the run; with `beside_random`, of those that random weights have too."""
    own = [score for score in scores(run) if not score.asides]
    return most_telling([score for score in own if score.gain is not None or not beside_random])


def _epochs(count: Any) -> str:
    return f"{count} epoch{'' if str(count) == '1' else 's'}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
