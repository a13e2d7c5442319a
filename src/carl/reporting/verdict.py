"""A run at a glance: verdict in words with the figures behind it, what to try next, results beside what was before.

That is the encoder that the run started from, or else random weights.
"""

from __future__ import annotations

import json
import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carl import durations
from carl.defaults import ADAPT, ADAPT_METHOD
from carl.evaluation.results import NOT_KEPT, PROBE, Score, in_order, most_telling, read_scores
from carl.records.adaptation import KNN_AMONG, VOTERS, Adaptation, adaptation
from carl.records.metrics import end_of, is_number
from carl.records.prototypes import FEW, NEARLY_ALL
from carl.records.verdicts import COLLAPSED, EARLY_STEPS, HEALTHY, PARTLY_COLLAPSED, TOO_EARLY_TO_JUDGE
from carl.reporting.run_reader import Run

STOPPED_EARLY, NOT_JUDGED = "stopped early", "not judged"  # the report's own words, beside those of a probe
TRAINING = "training"
TONES = {HEALTHY: "good", PARTLY_COLLAPSED: "warn", COLLAPSED: "bad", STOPPED_EARLY: "warn"}
NOTHING_LEARNED = 1.0  # points over the baseline under which nothing was learned that counts; ours
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
    meaning: str = ""  # what it means, what is usual, and what is good or bad


SCORE_MEANING = (
    "How often the right label is predicted from what the encoder sees. Compare it with what was before: the gain is "
    "what was learned, and a gain near 0 means nothing was."
)
USED_MEANING = (
    f"How many groups the images really spread over. Usual is most of them. If {NEARLY_ALL:.0%} of the views "
    f"go to less than {FEW:.0%} of the groups, the run is {PARTLY_COLLAPSED}: the model hardly tells images apart."
)
AGREE_MEANING = (
    "Whether a choice depends on the image and not on how it is cut and coloured. It is low early and rises as the "
    "encoder learns; the more prototypes, the lower it is. Near 100% with few prototypes in use is bad."
)
RANK_MEANING = (
    "How many independent directions the features fill. More is usually better. A value near 1 is bad: then all images "
    "look the same to the encoder."
)
TIME_MEANING = (
    "The time of this run alone. It grows in proportion to epochs and images, so twice the epochs take twice as long."
)
SPEED_MEANING = (
    "How fast the run went. Two processor cores usually manage some hundred images of 32 pixels, and a tenth of that "
    "with photos of 96 pixels. If it is too slow, use smaller views (--image-size) or a smaller encoder."
)


def judge(run: Run, training: bool = False) -> Verdict:
    """The last probe's verdict; `stopped early` for a run that has not finished, unless it is known to be training."""
    probes = run.of_kind("probe")
    last = probes[-1] if probes else {}
    word = str(last.get("verdict", NOT_JUDGED))
    figures = _figures(run, last)
    if not run.finished:
        at = f"Epoch {run.epochs_done:.3g} of {run.value('train', 'epochs', '?')}"
        figures = f"{at}; at the last probe: {word}. {figures}" if "verdict" in last else f"{at}. {figures}"
        word = TRAINING if training else STOPPED_EARLY
    tone, but, best, start = TONES.get(word, "plain"), "", headline(run, beside_baseline=True), compared(run)
    if tone == "good" and best is not None and _may_have_learned_nothing(best):
        tone, but = "warn", f"but not {_clearly(best)}better than {best.baseline_name}"
    if start is not None and run.finished:
        words = start.in_words(explained=True)
        figures = f"{words[:1].upper()}{words[1:]}. {figures}"
        if not start.is_better or start.may_be_chance:
            clearly = "clearly " if start.is_better else ""
            tone, but = "bad" if tone == "bad" else "warn", f"but not {clearly}better than the encoder it started from"
    return Verdict(word, but, tone, figures.strip(), _next_steps(run, last, training))


def _may_have_learned_nothing(score: Score) -> bool:
    """Whether the gain over the baseline is too small to count, or may be chance."""
    return score.gain is not None and (score.gain < NOTHING_LEARNED or not score.gain_is_clear)


def _clearly(score: Score) -> str:
    """For `not clearly better`, which one that is better may still be."""
    return "clearly " if score.gain is not None and score.gain > 0 else ""


def compared(run: Run) -> Adaptation | None:
    """The run beside the encoder that it started from, by its own probes; None if it started from random weights."""
    return None if run.value("model", "init") is None else adaptation(run.records)


def _figures(run: Run, last: dict[str, Any]) -> str:
    parts = []
    if "used" in last and "prototypes" in last:
        parts.append(
            f"{last['used']:.0f} of {last['prototypes']:.0f} prototypes are in use, {last.get('dead', 0):.0f} are dead "
            f"and {last.get('duplicates', 0):.0f} are nearly the same as another. Two random views of an image "
            f"choose the same prototype for {100 * last.get('agreement', 0):.0f}% of the images."
        )
    if is_number(last.get("rank_me")):
        dimensions = run.gallery["embeddings"].shape[1] if run.gallery else None
        of_all = f" of {dimensions}" if dimensions else ""
        parts.append(f"The features use about {last['rank_me']:.0f}{of_all} dimensions (RankMe).")
    if not last:
        parts.append("The run was not probed, so there are no figures to judge it by.")
    return " ".join(parts)


def _next_steps(run: Run, last: dict[str, Any], training: bool) -> list[Step]:
    steps = [Step(str(text)) for text in last.get("warnings", ())]
    if not run.finished and not training:
        steps.append(Step("Resume it where it stopped:", f"carl pretrain --resume {run.quoted}"))
    elif run.finished and last.get("verdict") == TOO_EARLY_TO_JUDGE:
        steps.append(
            Step("The model has hardly begun to tell images apart. Train for more epochs before you judge it.")
        )
    steps += _steps_if_unsettled(run, last)
    best, start = headline(run, beside_baseline=True), compared(run)
    if run.finished and start is not None and not start.is_better:
        steps += _steps_if_no_better(run)
    elif run.finished and best is not None and best.gain is not None and _may_have_learned_nothing(best):
        better = f"not {_clearly(best)}better" if best.gain > -NOTHING_LEARNED else "worse"
        steps.append(
            Step(
                f"The encoder is {better} than {best.baseline_name} so far ({best.label}: {best.value:.1f}% against "
                f"{best.baseline:.1f}%): train for more epochs, on more images, or look at the views below."
            )
        )
    rise, epochs = _late_rise(run), run.value("train", "epochs", 1)
    if run.finished and rise is not None and rise >= STILL_RISING and is_number(epochs):
        advice = f"The kNN accuracy still rose by {rise:.1f} points in the last quarter of the run. Train longer:"
        steps.append(Step(advice, f"carl pretrain --resume {run.quoted} --epochs {2 * int(epochs)}"))
    if run.finished and "knn" in last and not _is_measured(run):
        steps.append(_step_to_measure(run, has_start=start is not None))
    if run.finished and last and not scores(run):
        steps += _steps_without_score(run)
    return steps


def _is_measured(run: Run) -> bool:
    """Whether `carl eval` measured what the run trained."""
    whole = [score for score in scores(run) if score.protocol != PROBE and not score.shortened]
    return any(score.encoder == NOT_KEPT if _kept_its_start(run) else not score.encoder for score in whole)


def _step_to_measure(run: Run, has_start: bool) -> Step:
    """The command that measures what the run trained: `carl eval RUN` would compare a kept start with itself."""
    if _kept_its_start(run):
        return Step(
            "Measure the adapted encoder on all the data, and compare it with the one it started from:",
            f"carl eval {shlex.quote(str(run.directory.last_file))}",
        )
    before = "the encoder it started from" if has_start else "random weights"
    return Step(f"Measure it on all the data, and compare it with {before}:", f"carl eval {run.quoted}")


def _kept_its_start(run: Run) -> bool:
    return run.directory.last_file.is_file()


def _steps_if_unsettled(run: Run, last: dict[str, Any]) -> list[Step]:
    """What to know of a short run whose figures and gallery differ: probes see it with the statistics of the batch.

    An encoder that existed before the run has statistics that have settled.
    """
    if run.value("model", "init") is not None:
        return []
    step, used = last.get("step"), last.get("used")
    by_prototypes = run.gallery is not None and str(run.gallery.get("grouping")) == "prototypes"
    if not (run.gallery and by_prototypes and is_number(step) and is_number(used)):
        return []
    chosen = len(set(run.gallery["group"].tolist()))
    if not run.finished or step >= EARLY_STEPS or 2 * chosen >= used:
        return []
    return [
        Step(
            f"The {step:.0f} steps of this run are too few to judge its groups. Below, images are seen as the saved "
            f"encoder sees them, with averages (batch norm) that have not settled yet, and choose {chosen} prototypes "
            f"instead of {used:.0f}. Train for more epochs."
        )
    ]


def _steps_if_no_better(run: Run) -> list[Step]:
    """What to do with a run that made the encoder no better than the one it started from."""
    steps = []
    if _kept_its_start(run):
        steps.append(
            Step(
                "The run keeps the encoder that it started from, as encoder.safetensors. The adapted one is "
                f"{run.directory.kept_encoders.name}/{run.directory.last_file.name}."
            )
        )
    source, init = run.value("data", "source"), run.value("model", "init")
    if run.value("method", "preset") != ADAPT and isinstance(source, str) and isinstance(init, str):
        words = ["carl", "pretrain", source, "--init", init, "--method", ADAPT_METHOD, "--preset", ADAPT]
        steps.append(Step("Try the preset that changes less of the encoder:", shlex.join(words)))
    else:
        steps.append(Step("Use the encoder as it is, or adapt it on more images."))
    return steps


def _steps_without_score(run: Run) -> list[Step]:
    """What to try with photos that have no labels, or no test images, so that no score says how good the encoder is."""
    start = compared(run)
    if start is not None and not start.is_better:  # what was trained is not kept, so there is nothing to judge
        return _steps_to_use(run, "Find images like one of yours with the encoder that is kept:")
    before = "random weights" if start is None else "the encoder that the run started from"
    if start is not None and start.measure == KNN_AMONG:
        return [*_steps_to_hold_out(run), *_steps_to_use(run, "Use it. Find images like one of yours:")]
    if "labels" in run.gallery:
        judged = (
            "There are no test images, so no score says how good the encoder is. Neighbours below has how many images "
            f"that it finds alike share a class, beside the same for {before}. The first should be higher."
        )
    else:
        judged = (
            "There are no labels, so no score says how good the encoder is. Judge by eye: in Neighbours below, the "
            f"images on the left should be more alike than those of {before} beside them."
        )
    steps = [Step(judged)]
    epochs = run.value("train", "epochs")
    if is_number(epochs):
        longer = max(2 * int(epochs), int(epochs) + 20)
        otherwise = "start from pretrained weights (--init)" if start is None else "use the start as it is"
        advice = f"If not, train longer, or {otherwise}:"
        steps.append(Step(advice, f"carl pretrain --resume {run.quoted} --epochs {longer}"))
    return [*steps, *_steps_to_use(run, "If so, use it. Find images like one of yours:")]


def _steps_to_hold_out(run: Run) -> list[Step]:
    """How to judge an adapted encoder on images that it did not train on."""
    count = run.data.get("images")
    held_out = count // 10 if isinstance(count, int) else 0
    if not held_out:
        return []
    again = ["--config", str(run.directory.config_file), "--out", f"{run.directory.path}-held-out"]
    advice = (
        "There are no test images, so the training images judged each other. To compare both encoders on images that "
        "were not trained on, hold some out:"
    )
    return [Step(advice, shlex.join(["carl", "pretrain", *again, "--set", f"data.held_out={held_out}"]))]


def _steps_to_use(run: Run, search: str) -> list[Step]:
    """What the encoder of the run is good for; `search` are the words beside that command."""
    source, count = run.value("data", "source"), run.data.get("images")
    if not isinstance(source, str):
        return []
    images = shlex.quote(source)
    keep = min(100, max(1, count // 10)) if isinstance(count, int) and count > 0 else 100
    return [
        Step(search, f"carl search {run.quoted} {images} IMAGE"),
        Step("Or choose a varied part, without near-duplicates:", f"carl curate {run.quoted} {images} --keep {keep}"),
    ]


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
        shown.append(Tile(best.label, f"{best.value:.1f}%", _gain_note(run, best), SCORE_MEANING))
    if "used" in last and "prototypes" in last:
        used = f"{last['used']:.0f} of {last['prototypes']:.0f}"
        shown.append(Tile("prototypes in use", used, _entropy_note(last), USED_MEANING))
        if is_number(last.get("agreement")):
            shown.append(
                Tile(
                    "two views agree",
                    f"{100 * last['agreement']:.0f}%",
                    "of the images choose the same prototype both times",
                    AGREE_MEANING,
                )
            )
    if is_number(last.get("rank_me")):
        before = probes[0]["rank_me"] if probes[0].get("epoch") == 0 and is_number(probes[0].get("rank_me")) else None
        note = "RankMe of the features" + ("" if before is None else f"; {before:.0f} before training")
        shown.append(Tile("dimensions in use", f"{last['rank_me']:.0f}", note, RANK_MEANING))
    seconds, measured = training_seconds(run)
    if seconds:
        note = f"{_epochs(f'{run.epochs_done:.3g}')} on {run.environment.get('device', 'an unknown device')}"
        shown.append(
            Tile("training time", durations.in_words(seconds), note if measured else note + ", estimated", TIME_MEANING)
        )
    speeds = [r["images_per_second"] for r in steps if is_number(r.get("images_per_second"))]
    if speeds:
        threads = run.environment.get("threads")
        where = run.environment.get("cuda") or (f"{threads} threads" if threads and threads != 1 else "one thread")
        speed = f"{statistics.median(speeds):,.0f}"
        shown.append(Tile("images per second", speed, f"median, {where}", SPEED_MEANING))
    return shown


def _gain_note(run: Run, best: Score) -> str:
    """How far the score, or the next that the baseline has too, is over it. Random weights are a footnote."""
    other = headline(run, beside_baseline=True)
    if other is None:
        return ""
    note = f"{other.whose + ': ' if other.whose else ''}{other.gain:+.1f} points over {other.baseline_name}"
    note += f" ({other.baseline:.1f}%)"
    if other.start is not None and other.random is not None:
        note += f"; random weights {other.random:.1f}%"
    return note if other.identity == best.identity else f"{other.label}: {note}"


def _entropy_note(last: dict[str, Any]) -> str:
    if not is_number(last.get("largest")):
        return ""
    return f"the largest holds {100 * last['largest']:.0f}% of the views"


def training_seconds(run: Run) -> tuple[float, bool]:
    """Seconds of training, and whether they were measured: an interrupted run gives an estimate from its speed."""
    measured = (end_of(run.records) or {}).get("seconds")
    if is_number(measured):
        return float(measured), True
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
    before = probes[0]["knn"] if probes[0]["epoch"] == 0 else None
    from_weights = run.value("model", "init") is not None
    k, values = run.value("probe", "neighbours", "?"), run.config.get("probe", {})
    return [
        Score(
            protocol=PROBE,
            title="kNN probe, online",
            name=f"k = {k}",
            how=f"online: {_voters(run, probes[-1])} training images vote on a sample of the test images",
            data=own_data(run),
            value=probes[-1]["knn"],
            random=None if from_weights else before,
            start=before if from_weights else None,
            images=run.identity.fingerprint or run.identity.source,
            values=json.dumps({key: values.get(key) for key in ("images", "temperature", "train_images")}),
            whose=NOT_KEPT if _kept_its_start(run) else "",
        )
    ]


def _voters(run: Run, probe: dict[str, Any]) -> str:
    """How many training images a probe asked. Older runs say how many they wanted, and how many there are."""
    counts = (
        [probe[VOTERS]]
        if is_number(probe.get(VOTERS))
        else [run.value("probe", "train_images"), run.data.get("images")]
    )
    return f"{min((int(count) for count in counts if is_number(count)), default=0) or '?'}"


def headline(run: Run, beside_baseline: bool = False) -> Score | None:
    """The one score that says most of the run; with `beside_baseline`, of those that the baseline has too."""
    own = [score for score in scores(run) if not score.asides]
    return most_telling([score for score in own if score.gain is not None or not beside_baseline])


def _epochs(count: Any) -> str:
    return f"{count} epoch{'' if str(count) == '1' else 's'}"
