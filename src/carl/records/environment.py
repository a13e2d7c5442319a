"""Where and with what a run or a result was made."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

# What decides the speed of matrix products on a CPU, by the names in /proc/cpuinfo.
MULTIPLY_BFLOAT16 = ("avx512_bf16", "amx_bf16")  # without one of these, bfloat16 is emulated and slow
INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_vnni", *MULTIPLY_BFLOAT16)
PACKAGES = ("carl-ssl", "torch", "torchvision", "timm", "numpy", "pillow", "safetensors")


@dataclass(frozen=True)
class Hardware:
    """What only torch knows about the machine; `carl.device.hardware` asks it."""

    device: str  # cpu, cuda:0 ...
    threads: int
    cuda: str | None  # name of the GPU


def environment(command: Sequence[str], seed: int, hardware: Hardware) -> dict[str, Any]:
    """The content of environment.json, except for the format of the directory."""
    return {
        "command": list(command),
        "device": hardware.device,
        "seed": seed,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "instruction_sets": list(instruction_sets()),
        "cores": os.cpu_count(),
        "threads": hardware.threads,
        "packages": {name: installed_version(name) for name in PACKAGES},
        "cuda": hardware.cuda,
        "git_revision": _git_revision(),
        "executable": sys.executable,
    }


def machine(hardware: Hardware) -> dict[str, Any]:
    """What a result file says about where it was measured."""
    return {
        "device": hardware.device,
        "processor": processor(),
        "instruction_sets": list(instruction_sets()),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": hardware.threads,
        "cuda": hardware.cuda,
        "python": platform.python_version(),
        "git_revision": _git_revision(),
        "torch": installed_version("torch"),
    }


def processor() -> str:
    named = next(
        (line.partition(":")[2].strip() for line in lines_about_the_cpu() if line.startswith("model name")), ""
    )
    return named or platform.processor() or platform.machine()


def instruction_sets() -> tuple[str, ...]:
    """Those of INSTRUCTION_SETS that the processor has; none where the system does not say."""
    flags = next((line.partition(":")[2].split() for line in lines_about_the_cpu() if line.startswith("flags")), [])
    return tuple(name for name in INSTRUCTION_SETS if name in flags)


def lines_about_the_cpu() -> list[str]:
    """What Linux says about the processor; nothing on other systems."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def installed_version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    """Revision of the source this package runs from, None for an installed copy."""
    here = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD", "--show-toplevel"],
            capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    revision, _, top = answer.stdout.strip().partition("\n")
    # An environment within a repository of the user's is no part of it.
    return revision if here.is_relative_to(Path(top).resolve() / "src") else None
