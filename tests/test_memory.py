"""Memory that is freed is used again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from carl.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def touch():
    np.ones(50_000_000, np.uint8)  # above the size from which glibc always asks the system
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is nothing to set elsewhere")
def test_freed_memory_is_used_again_without_new_pages():
    def faults(mode: str) -> int:
        command = [sys.executable, "-c", PROGRAM, mode]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults("keep") < 1_000 < faults("default")


def test_huge_pages_are_asked_for_without_occupying_memory():
    program = (
        "import torch\n"
        "from carl.memory import keep_freed_memory, peak_memory\n"
        "before = peak_memory(torch.device('cpu'))\n"
        "keep_freed_memory()\n"
        "keep_freed_memory()\n"
        "print(peak_memory(torch.device('cpu')) - before)"
    )
    grown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert int(grown) < 64 * 2**20  # of the two gigabytes of addresses
