"""The long run of the reliability tests: `make soak`, or `python -m tests.reliability.soak --help`.

Kills runs at many random moments, fills a small disk, gives every reader damaged files for minutes, and writes what
it found to results/reliability.md and .json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carl.data.shapes import make_shapes
from tests.distributed.processes import Group
from tests.reliability.conftest import call
from tests.reliability.fuzzing import TARGETS, Tally, fuzz
from tests.reliability.killing import differences, ending, make_photos, run_child
from tests.reliability.test_crashes import LIKE_RUN, assert_same_weights

RESULTS = Path(__file__).resolve().parents[2] / "results"


def kill_often(root: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill as many runs, each at a random moment of all that an uninterrupted one goes through."""
    data = make_photos(root / "photos")
    os.environ["CARL_CACHE"] = str(root / "cache-whole")
    code, output = run_child(root / "whole", data)
    assert code == 0, output
    moments: list[str] = json.loads((root / "whole" / "moments.json").read_text())
    expected = ending(root / "whole" / "run")
    source, failures, kinds = random.Random(seed), [], Counter[str]()
    for number in range(kills):
        folder = root / f"kill-{number}"
        os.environ["CARL_CACHE"] = str(folder / "cache")
        moment = source.randrange(len(moments)) + 1
        kinds[moments[moment - 1].split(",")[0].split(" ")[1]] += 1
        reason = _kill_and_resume(folder, data, moment, expected)
        if reason:
            failures.append(f"{moments[moment - 1]} (moment {moment}): {reason}")
        print(f"kill {number + 1} of {kills} {moments[moment - 1]}: {reason or 'resumed, the same bits'}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    return {"kills": kills, "moments": len(moments), "at": dict(kinds), "failures": failures}


def _kill_and_resume(folder: Path, data: Path, moment: int, expected: dict[str, Any]) -> str:
    code, output = run_child(folder, data, moment)
    if code != -9:
        return f"ended with {code}: {output[-300:]}"
    code, output = run_child(folder, data)
    if code != 0:
        return f"resume ended with {code}: {output[-300:]}"
    return ", ".join(differences(expected, ending(folder / "run")))


def fill_disk(root: Path) -> dict[str, Any]:
    """A run on a disk of a few megabytes that fills up; only where this process may mount one."""
    disk = root / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        return {"tried": False, "reason": "no disk could be mounted here"}
    try:
        return _fill_disk(root, disk)
    finally:
        subprocess.run(["umount", str(disk)], check=False, capture_output=True)


def _fill_disk(root: Path, disk: Path) -> dict[str, Any]:
    """Room for all that a run has after its first epoch and for the next encoder, not for the next checkpoint."""
    images, labels = make_shapes(96, 0)
    np.savez(root / "small.npz", images=images, labels=labels)
    arguments = ["pretrain", root / "small.npz", *LIKE_RUN]
    assert call(root, *arguments, "--out", "free").returncode == 0
    sizes = {path.name: path.stat().st_size for path in (root / "free").iterdir() if path.is_file()}
    room = sum(sizes.values()) + sizes["encoder.safetensors"] + 2**18
    (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - room))
    done = call(root, *arguments, "--out", disk / "run")
    said = done.stderr.strip()
    right = done.returncode == 2 and "No space left" in said and "last good checkpoint is" in said and "\n" not in said
    failures = [] if right else [f"exit code {done.returncode}: {said}"]
    (disk / "ballast").unlink()
    done = call(root, "pretrain", "--resume", disk / "run")
    if done.returncode:
        failures.append(done.stderr.strip())
    else:
        assert_same_weights(root / "free", disk / "run")
    return {"tried": True, "said": said, "failures": failures}


def fuzz_child(name: str, seed: int, seconds: float) -> None:
    """In a process of its own, so that a fault of a library ends that and not the soak."""
    Path("tally.json").write_text(json.dumps(asdict(fuzz(name, seed, seconds))))
    Path("memory.txt").write_text(str(_peak()))


def _peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz_all(root: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Every reader for its share of the time."""
    found = {}
    for number, name in enumerate(TARGETS):
        folder = root / f"fuzz-{number}"
        group = Group(1, folder, fuzz_child, name, seed, seconds / len(TARGETS))
        (code,) = group.wait(seconds + 120)
        if code != 0:
            tally = Tally(crashes=[f"the process ended with {code}: {group.output(0)[-300:]}"])
            found[name] = {**asdict(tally), "peak_memory_mb": None}
        else:
            peak = int((folder / "memory.txt").read_text()) // 2**20
            found[name] = {**json.loads((folder / "tally.json").read_text()), "peak_memory_mb": peak}
        print(f"{name}: {found[name]['tried']} files, {len(found[name]['crashes'])} crashes", flush=True)
    return found


def fuzz_guided(root: Path, seconds: float, seed: int) -> dict[str, Any]:
    """The same by atheris, which looks at what code a file reaches; it ends a reader's turn at the first crash."""
    found = {}
    for number, name in enumerate(TARGETS):
        folder = root / f"guided-{number}"
        folder.mkdir()
        share = str(seconds / len(TARGETS))
        command = [sys.executable, "-m", "tests.reliability.guided", name, share, str(seed), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        runs = re.findall(r"Done (\d+) runs", done.stderr)
        crash = [] if done.returncode == 0 else [f"exit code {done.returncode}: {_last_error(done.stderr)}"]
        found[name] = {"tried": int(runs[-1]) if runs else 0, "crashes": crash}
        print(f"{name}, guided: {found[name]['tried']} files, {crash or 'no crash'}", flush=True)
    return found


def _last_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "Error" in line or "ERROR" in line or "Exception" in line]
    return " / ".join(lines[-3:])[:500]


def write_results(found: dict[str, Any], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "reliability.json").write_text(json.dumps(found, indent=1) + "\n")
    kills, disk, fuzzed, guided = found["kills"], found["disk"], found["fuzz"], found["guided"]
    tallies = [*fuzzed.values(), *guided.values()]
    crashes, inputs = sum(len(tally["crashes"]) for tally in tallies), sum(tally["tried"] for tally in tallies)
    lines = [
        "# Reliability: one run of the soak",
        "",
        f"`{found['command']}` on {found['machine']}, torch {found['torch']}, {found['made']}; "
        f"{found['seconds']:.0f} s. Promises and tests: [docs/reliability.md](../docs/reliability.md).",
        "",
        "| | tried | survived |",
        "|---|---|---|",
        f"| kill -9 at a random moment, then resume: the same bits | {kills['kills']} | "
        f"{kills['kills'] - len(kills['failures'])} |",
        f"| a disk that fills up while saving, then resume: the same bits | {int(disk['tried'])} | "
        f"{int(disk['tried'] and not disk['failures'])} |",
        f"| damaged files given to readers: read or refused | {inputs:,} | {inputs - crashes:,} |",
        "",
        f"Moments of the kills, of {kills['moments']} in a run: "
        + ", ".join(f"{count} {kind}" for kind, count in sorted(kills["at"].items()))
        + ".",
        "",
        f"Fuzzer: {found['fuzzer']}",
        "",
        "| reader | files | read | refused | crashes | slowest, s | peak memory, MB | by atheris: files | crashes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, tally in fuzzed.items():
        row = [name, f"{tally['tried']:,}", f"{tally['read']:,}", f"{tally['refused']:,}", len(tally["crashes"])]
        beside = guided.get(name)
        row += [f"{tally['slowest']:.2f}", tally["peak_memory_mb"]]
        row += [f"{beside['tried']:,}", len(beside["crashes"])] if beside else ["", ""]
        lines.append("| " + " | ".join(map(str, row)) + " |")
    failures = [*kills["failures"], *disk.get("failures", [])]
    both = [*fuzzed.items(), *guided.items()]
    failures += [f"{name}: {crash[:300]}" for name, tally in both for crash in tally["crashes"][:5]]
    if not disk["tried"]:
        lines += ["", f"The full disk was not tried: {disk['reason']}."]
    lines += ["", "Failures: none." if not failures else "Failures:", *(f"- `{failure}`" for failure in failures)]
    (folder / "reliability.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="The long run of the reliability tests.")
    parser.add_argument("--kills", type=int, default=30, help="runs to kill (default 30)")
    parser.add_argument("--fuzz-seconds", type=float, default=1800, help="for all readers together (default 1800)")
    parser.add_argument("--guided-seconds", type=float, default=1800, help="the same by atheris, if it is installed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where reliability.md and .json go")
    options = parser.parse_args()
    start = time.monotonic()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="carl-soak-") as name:
        root = Path(name)
        os.environ["CARL_CACHE"] = str(root / "cache")
        found = {
            "command": f"python -m tests.reliability.soak --kills {options.kills} --fuzz-seconds "
            f"{options.fuzz_seconds:g} --guided-seconds {options.guided_seconds:g} --seed {options.seed}",
            "kills": kill_often(root, options.kills, options.seed),
            "disk": fill_disk(root),
            "fuzz": fuzz_all(root, options.fuzz_seconds, options.seed),
        }
        guided = options.guided_seconds > 0 and importlib.util.find_spec("atheris") is not None
        found["guided"] = fuzz_guided(root, options.guided_seconds, options.seed) if guided else {}
    found |= {
        "seconds": time.monotonic() - start,
        "made": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.platform()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "fuzzer": "ours, seeded and blind to coverage (tests/reliability/fuzzing.py)"
        + ("; then atheris, guided by coverage." if guided else "; atheris was not run."),
    }
    write_results(found, options.out)
    failures = found["kills"]["failures"] or found["disk"].get("failures")
    tallies = [*found["fuzz"].values(), *found["guided"].values()]
    sys.exit(1 if failures or any(tally["crashes"] for tally in tallies) else 0)


if __name__ == "__main__":
    main()
