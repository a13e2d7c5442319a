"""Runs that are killed (SIGKILL, from within) at a moment that can be counted to, and what they should end with.

A moment is just before or just after something that matters: a step, a file that gets its name, an image decoded, a
probe, an evaluation. A run that nothing stops counts them; the others are told at which to die.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from carl.errors import UserError
from carl.training.checkpoint import load_checkpoint
from tests.distributed.processes import Group

IMAGES = 40
ARGUMENTS = [
    "--backbone", "test_resnet", "--batch-size", "8", "--prototypes", "10", "--epochs", "3", "--image-size", "16",
    "--set", "probe.images=16", "--set", "probe.train_images=16", "--set", "log.every=2", "--set", "log.report=false",
    "--set", "train.checkpoint_steps=3", "--set", "train.keep_epochs=[2]",
]  # fmt: skip


def make_photos(folder: Path) -> Path:
    """Small photos of varied size in two classes and two splits, so that they have to be decoded and packed."""
    generator = np.random.default_rng(0)
    for number in range(IMAGES + 16):
        split = "train" if number < IMAGES else "test"
        path = folder / split / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (20 + number % 5, 20, 3), np.uint8)).save(path)
    return folder


class Moments:
    """Counts moments by kind; dies at number `last`, from 1."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.seen: list[str] = []
        self.numbers = itertools.count(1)

    def pass_(self, kind: str) -> None:
        self.seen.append(kind)
        if next(self.numbers) == self.last:  # images are decoded by several threads: no number may be passed over
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str, kind: str | Callable[..., str]) -> None:
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def counted(*arguments: Any, **options: Any) -> Any:
            word = kind if isinstance(kind, str) else kind(*arguments)
            self.pass_(f"before {word}")
            result = plain(*arguments, **options)
            self.pass_(f"after {word}")
            return result

        setattr(owner, name, counted)


def train_and_evaluate(data: str, last: int) -> None:
    """In a process of its own: `carl pretrain --resume auto`, then `carl eval`; writes moments.json if it lives."""
    from carl.cli import main
    from carl.data.decoding import parallel
    from carl.evaluation import evaluate
    from carl.evaluation.evaluation_data import EvaluationData
    from carl.training import probe
    from carl.training.journal import Journal
    from carl.training.learner import Learner
    from carl.training.probe import Probe

    moments = Moments(last)
    moments.around(os, "replace", lambda _, target: f"saving {Path(target).name}")
    moments.around(os, "rename", lambda _, target: f"packing {Path(target).name[:3]}")
    moments.around(os, "fsync", "saving")
    moments.around(parallel, "decode", "packing")
    moments.around(Learner, "take_step", "stepping")
    moments.around(Journal, "write", "stepping, noted")
    moments.around(Probe, "run", "evaluating")
    moments.around(probe, "map_images", "evaluating, features of a probe")
    moments.around(evaluate, "measure", "evaluating")
    moments.around(EvaluationData, "cached_features", "evaluating, features")
    commands = [["pretrain", data, *ARGUMENTS, "--out", "run", "--resume", "auto"], ["eval", "run"]]
    for command in commands:
        sys.argv = ["carl", *command]
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise
    Path("moments.json").write_text(json.dumps(moments.seen))


def run_child(folder: Path, data: Path, last: int = 0) -> tuple[int | None, str]:
    """Exit code and output of such a process in `folder`; -9 if it was killed."""
    group = Group(1, folder, train_and_evaluate, str(data), last)
    try:
        (code,) = group.wait()
    finally:  # whoever waits may be stopped
        group.processes[0].kill()
    return code, group.output(0)


def kind_of(moment: str) -> str:
    """`packing`, `saving`, `stepping` or `evaluating`."""
    return moment.split(",")[0].split(" ")[1]


def spread_over_kinds(moments: list[str], count: int, seed: int) -> list[int]:
    """Numbers of `count` random moments, as many of each kind, and none twice before all of its kind had their turn."""
    source = random.Random(seed)
    kinds = sorted({kind_of(moment) for moment in moments})
    decks: dict[str, list[int]] = {kind: [] for kind in kinds}
    chosen = []
    for turn in range(count):
        kind = kinds[turn % len(kinds)]
        if not decks[kind]:
            decks[kind] = [number for number, moment in enumerate(moments, start=1) if kind_of(moment) == kind]
            source.shuffle(decks[kind])
        chosen.append(decks[kind].pop())
    return chosen


def lost_checkpoint(moments: list[str], moment: int, run: Path) -> str | None:
    """What is wrong with the checkpoint of a run that was killed at `moment`; "" if all is well, None before the first.

    The last one that got its name before that must be there, whole, and of no earlier step.
    """
    passed = moments[:moment]
    if "after saving checkpoint.pt" not in passed:
        return None
    last = len(passed) - 1 - passed[::-1].index("after saving checkpoint.pt")
    steps = passed[:last].count("after stepping")
    try:
        found = load_checkpoint(run / "checkpoint.pt").step
    except UserError as error:
        return str(error)
    return "" if found >= steps else f"the checkpoint is of step {found}, one of step {steps} was saved"


def choose(moments: list[str], kind: str, seed: int) -> int:
    """The number of a random moment of a kind."""
    numbers = [number for number, moment in enumerate(moments, start=1) if kind in moment]
    return random.Random(seed).choice(numbers)


def ending(run: Path) -> dict[str, Any]:
    """What a finished run leaves that must not depend on how often it was killed."""
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    result = json.loads((run / "results" / "knn-photos.json").read_text())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "weights": {**load_file(run / "encoder.safetensors"), **load_file(run / "head.safetensors")},
        "kept": load_file(run / "encoders" / "epoch-0002.safetensors"),
        "method": state["method"],
        "step": state["step"],
        "accuracy": result["accuracy"],
        "steps": [r["step"] for r in records if r["kind"] == "step"],  # a mean since the resume is of fewer steps
        "probes": [(r["epoch"], r["knn"]) for r in records if r["kind"] == "probe"],
    }


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    found = []
    for name, value in first.items():
        other = second[name]
        if isinstance(value, dict) and value and isinstance(next(iter(value.values())), torch.Tensor):
            same = value.keys() == other.keys() and all(torch.equal(value[key], other[key]) for key in value)
        else:
            same = value == other
        if not same:
            found.append(name)
    return found
