"""A result as lines for a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from carl.evaluation.protocols import Protocol, find_protocol

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
    if "trained" not in accuracy:
        return [*lines, *_random_alone(accuracy["random"])]
    return [*lines, *_beside_random(accuracy["trained"], accuracy["random"], protocol.names_count)]


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


def _random_alone(random: dict[str, Figure]) -> list[str]:
    width = max(10, *(len(name) for name in random))
    return [f"  {name:>{width}}   random weights {_shown(value)}" for name, value in random.items()]


def _beside_random(trained: dict[str, Figure], random: dict[str, Figure], names_count: str) -> list[str]:
    width = max(10, *(len(name) for name in trained))
    lines = [f"  {names_count:>{width}}   {'this encoder':>14}" + ("   random weights     gain" if random else "")]
    for name, value in trained.items():
        line = f"  {name:>{width}}   {_shown(value):>14}"
        other = random.get(name)
        if other is not None:
            line += f"   {_shown(other):>14}   {_mean(value) - _mean(other):+6.2f}"
        lines.append(line)
    return lines


def _shown(value: Figure) -> str:
    return f"{value['mean']:.2f} ± {value['std']:.2f}%" if isinstance(value, dict) else f"{value:.2f}%"


def _mean(value: Figure) -> float:
    return value["mean"] if isinstance(value, dict) else value
