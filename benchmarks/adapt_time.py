"""How long adapting takes, and whether a run that is killed ends with the same bits.

    python -m benchmarks.adapt_time flowers-train.parquet --out results/adapt/time.json

Adapts the encoder with the command that a user would type, once in one go and once killed and resumed, and compares
all weights. Nothing else may run meanwhile: the time is that of the clock.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from carl import files
from carl.device import hardware
from carl.records.environment import machine
from carl.records.metrics import Record, end_of, read_records

CARL = [sys.executable, "-m", "carl", "pretrain"]


def arguments(given: argparse.Namespace) -> list[str]:
    """What is trained, as a user would type it."""
    return [
        str(Path(given.data).absolute()), "--init", given.encoder, "--method", given.method,
        "--image-size", str(given.image_size), "--set", f"data.limit={given.images}",
        *(["--epochs", str(given.epochs)] if given.epochs else []),
    ]  # fmt: skip


def records_of(run: Path) -> list[Record]:
    file = run / "metrics.jsonl"
    return read_records(file) if file.is_file() else []


def in_one_go(command: list[str], run: Path) -> dict[str, Any]:
    """Seconds of the whole command by the clock, and of training alone, with what the run said at its end."""
    begun = time.monotonic()
    done = subprocess.run([*CARL, *command, "--out", str(run)], check=True, stdout=subprocess.PIPE, text=True)
    seconds = time.monotonic() - begun
    end = end_of(records_of(run)) or {}
    said = [line for line in done.stdout.splitlines() if "than the one it started from" in line]
    return {
        "seconds": round(seconds, 1),
        "training_seconds": round(end.get("seconds", 0.0), 1),
        "peak_memory_mb": round(end.get("peak_memory_bytes", 0) / 2**20),
        "epochs": end.get("epoch"),
        "said": said,
    }


def killed_and_resumed(command: list[str], run: Path, epochs: float) -> float:
    """Kill the run in its second half, resume it, and return the epoch at which it was killed."""
    process = subprocess.Popen([*CARL, *command, "--out", str(run)], stdout=subprocess.DEVNULL)
    epoch = 0.0
    while epoch <= epochs / 2:
        if process.poll() is not None:
            raise RuntimeError("the run ended before it could be killed; use more epochs")
        time.sleep(0.2)
        epoch = max((record["epoch"] for record in records_of(run)), default=0.0)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run([*CARL, "--resume", str(run)], check=True, stdout=subprocess.DEVNULL)
    return epoch


def weights_of(run: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for file in sorted(run.rglob("*.safetensors"))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--method", default="simclr")
    parser.add_argument("--encoder", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--epochs", type=int, help="other than the preset's")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    command = arguments(given)
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = Path(folder) / "whole", Path(folder) / "cut"
        found = in_one_go(command, whole)
        epoch = killed_and_resumed(command, cut, found["epochs"])
        result = {
            "command": ["carl", "pretrain", Path(given.data).name, *command[1:]], "images": given.images,
            "image_size": given.image_size, **found, "killed_at_epoch": epoch,
            "same_bits_after_the_kill": weights_of(whole) == weights_of(cut), "files": sorted(weights_of(whole)),
            "made": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": machine(hardware(torch.device("cpu"))),
        }  # fmt: skip
    print(result)
    files.write_json(given.out, result)


if __name__ == "__main__":
    main()
