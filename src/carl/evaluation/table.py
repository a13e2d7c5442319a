"""A result as lines for a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from carl.evaluation.intervals import EXPLAINED, Interval
from carl.evaluation.protocols import Protocol, find_protocol
from carl.evaluation.results import AT_START, RANDOM_WEIGHTS, START, TRAINED, UNTRAINED, interval_of

Figure = float | dict[str, float]  # of one seed, or mean and deviation over several


def table(result: dict[str, Any]) -> list[str]:
    protocol, accuracy = find_protocol(result["protocol"]), result["accuracy"]
    judged = "held-out training images" if result.get("held_out") else "images"
    images = f"{result['train_images']} / {result['test_images']} {judged}"
    what = f"{protocol.heading or protocol.title} on {Path(result['data']).name}{_conditions(result, protocol)}"
    lines = [f"{what}, {result['kind']} ({images})"]
    if len(result["seeds"]) > 1:
        lines.append(f"  mean and standard deviation over {len(result['seeds'])} seeds")
    lines += [f"  note: {note}" for note in [*_notes_on_data(result), *protocol.notes(result["per_seed"])]]
    if TRAINED not in accuracy:
        return [*lines, *_random_alone(result, accuracy[UNTRAINED])]
    start, random = accuracy.get(AT_START) or {}, accuracy.get(UNTRAINED) or {}
    if start:
        footnote = ", ".join(f"{name} {_shown(value)}" for name, value in random.items() if name in accuracy[TRAINED])
        more = [f"  (random weights: {footnote})"] if footnote else []
        return [*lines, *_beside(result, protocol.names_count, START, start, "gain_over_start"), *more]
    return [*lines, *_beside(result, protocol.names_count, RANDOM_WEIGHTS, random, "gain")]


def _conditions(result: dict[str, Any], protocol: Protocol) -> str:
    """What differs from the protocol's usual values."""
    found = ""
    if protocol.fractions:
        labels = result["per_seed"][0]["labels"]
        found = f", {100 * result['hyperparameters']['fraction']:g}% of the labels ({labels})"
    if result["centre"] < 1:
        found += f", the central {100 * result['centre']:g}% of each side"
    if result["epochs"] != protocol.epochs:
        found += f", {result['epochs']} epochs instead of the protocol's {protocol.epochs}"
    return found


def _notes_on_data(result: dict[str, Any]) -> list[str]:
    shared = result["test_images_in_train"]
    if shared is None:
        return ["the data are too large to look for test images among the training images"]
    return [f"{shared} test images are among the training images, pixel by pixel"] if shared else []


def _random_alone(result: dict[str, Any], random: dict[str, Figure]) -> list[str]:
    width = max(10, *(len(name) for name in random))
    return [
        f"  {name:>{width}}   random weights {_shown(value)}{_ends(interval_of(result, UNTRAINED, name))}"
        for name, value in random.items()
    ]


def _beside(
    result: dict[str, Any], names_count: str, other_name: str, others: dict[str, Figure], gain_name: str
) -> list[str]:
    """One line per figure: value and 95% interval, that of the other weights, and the gain with its interval."""
    trained = result["accuracy"][TRAINED]
    width = max(10, *(len(name) for name in trained))
    known = {name: _ends(interval_of(result, TRAINED, name)) for name in trained}
    room = max(map(len, known.values()))
    beside = f"   {other_name:>14}     gain" if others else ""
    lines = [f"  {names_count:>{width}}   {'this encoder':>14}{'':{room}}{beside}"]
    for name, value in trained.items():
        line = f"  {name:>{width}}   {_shown(value):>14}{known[name]:<{room}}"
        other = others.get(name)
        if other is not None:
            line += f"   {_shown(other):>14}   {_mean(value) - _mean(other):+6.2f}"
            gain = interval_of(result, gain_name, name)
            line += _ends(gain, "+") + ("" if gain is None or gain.is_clear else ": no clear difference")
        lines.append(line)
    if room:
        lines.append(f"  ({EXPLAINED})")
    return lines


def _ends(found: Interval | None, sign: str = "") -> str:
    return "" if found is None else f" ({found.low:{sign}.1f} to {found.high:{sign}.1f})"


def _shown(value: Figure) -> str:
    return f"{value['mean']:.2f} ± {value['std']:.2f}%" if isinstance(value, dict) else f"{value:.2f}%"


def _mean(value: Figure) -> float:
    return value["mean"] if isinstance(value, dict) else value
