"""The long run of the reliability tests: `make soak`, or `python -m tests.reliability.soak --help`.

Gives every command the table of bad input and the hostile files, starts commands in hostile circumstances, kills runs
at many random moments, fills a small disk, gives every reader damaged files for minutes, and writes what it found to
results/reliability.md and .json, after each part; stopped by Ctrl-C or SIGTERM, what it found until then.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from carl.data.sources.shapes import make_shapes
from tests.distributed.processes import Group
from tests.reliability.attacks import ATTACKS, Losses, attack, prepare
from tests.reliability.conftest import call
from tests.reliability.fuzzing import TARGETS, Tally, fuzz
from tests.reliability.killing import (
    differences,
    ending,
    kind_of,
    lost_checkpoint,
    make_photos,
    run_child,
    spread_over_kinds,
)
from tests.reliability.test_crashes import LIKE_RUN
from tests.weights import assert_same_weights

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
INPUT_SUITES = {
    "test_bad_input": "the table of bad input",
    "test_foreign_runs": "run directories with files of other hands",
    "test_hostile": "hostile files",
    "test_hostile_weights": "hostile weights and checkpoints",
    "test_odd_files": "files and places that are not what they seem",
    "test_cut_files": "files that are cut short while they are in use",
}
# What --minutes gives to each part, once the tables of bad input are through.
SHARES = {"attacks": 0.4, "kills": 0.2, "fuzz": 0.25, "guided": 0.15}
PARTS = ("inputs", "attacks", "kills", "disk", "fuzz", "guided")
Found = dict[str, Any]


class Stopped(BaseException):
    """SIGTERM or Ctrl-C; what was found is written."""


def try_inputs(root: Path, found: Found) -> None:
    """The tables of bad input and the hostile files, each once, watched by witness.py."""
    folder = root / "inputs"
    for name in ("home", "tmp"):
        (folder / name).mkdir(parents=True)
    places = {"HOME": "home", "USERPROFILE": "home", "TMPDIR": "tmp", "TEMP": "tmp", "MPLCONFIGDIR": "tmp/matplotlib"}
    places["HYPOTHESIS_STORAGE_DIRECTORY"] = "tmp/hypothesis"
    environment = {**os.environ, **{name: str(folder / place) for name, place in places.items()}}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    figures = folder / "witness.json"
    watched = ["-p", "tests.reliability.witness", "--witness", str(figures), "-p", "no:cacheprovider"]
    suites = [f"tests/reliability/{name}.py" for name in INPUT_SUITES]
    command = [sys.executable, "-m", "pytest", *watched, "--basetemp", str(folder / "base"), *suites]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace")
    found["inputs"] = json.loads(figures.read_text()) if figures.is_file() else {}
    # Of what was written by other means than Python's own, at least nothing may be in the user's folder.
    found["home"] = sorted(str(path.relative_to(folder)) for path in (folder / "home").rglob("*"))
    if done.returncode not in (0, 1) or not found["inputs"]:  # 1: tests failed, which are listed
        raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    for name, tally in found["inputs"].items():
        print(
            f"{name}: {tally['tests']} tests, {len(tally['failures'])} failed; {tally['commands']} commands, "
            f"{tally['tracebacks']} tracebacks; {tally['writes']} writes, {len(tally['outside'])} outside",
            flush=True,
        )


def attack_often(root: Path, seconds: float, seed: int, found: Found) -> None:
    """Every attack in turn, each time in other random circumstances, until the time is over."""
    deadline, number = time.monotonic() + seconds, 0
    ground = prepare(_made(root / "attacks"))
    while time.monotonic() < deadline:
        for name in ATTACKS:
            one = attack(ground, name, number, seed)
            losses = found["attacks"].setdefault(name, asdict(Losses()))
            losses["rounds"] += one.rounds
            losses["commands"] += one.commands
            losses["lost"] += one.lost
            losses["failures"] += one.failures
            print(f"attack {number} {name}: {'; '.join(one.failures) or 'held'}", flush=True)
        number += 1


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def kill_often(root: Path, kills: int, seconds: float, seed: int, found: Found) -> None:
    """Kill as many runs, each at a random moment, as many while packing as saving, stepping and evaluating."""
    deadline = time.monotonic() + seconds
    data = make_photos(root / "photos")
    os.environ["CARL_CACHE"] = str(root / "cache-whole")
    code, output = run_child(root / "whole", data)
    assert code == 0, output
    moments: list[str] = json.loads((root / "whole" / "moments.json").read_text())
    expected = ending(root / "whole" / "run")
    tally = found["kills"] = {"kills": 0, "moments": len(moments), "of": dict(Counter(map(kind_of, moments)))}
    tally |= {"at": Counter[str](), "checkpoints": 0, "lost": [], "failures": []}
    for number, moment in enumerate(spread_over_kinds(moments, kills, seed)):
        if time.monotonic() > deadline:
            break
        folder, name = root / f"kill-{number}", moments[moment - 1]
        os.environ["CARL_CACHE"] = str(folder / "cache")
        code, output = run_child(folder, data, moment)
        lost = lost_checkpoint(moments, moment, folder / "run")
        reason = f"ended with {code}: {output[-300:]}" if code != -9 else _resume(folder, data, expected)
        tally["kills"] += 1
        tally["at"][kind_of(name)] += 1
        tally["checkpoints"] += lost is not None
        tally["lost"] += [f"{name} (moment {moment}): {lost}"] if lost else []
        tally["failures"] += [f"{name} (moment {moment}): {reason}"] if reason else []
        print(f"kill {number + 1} of {kills} {name}: {reason or 'resumed, the same bits'}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)


def _resume(folder: Path, data: Path, expected: dict[str, Any]) -> str:
    code, output = run_child(folder, data)
    if code != 0:
        return f"resume ended with {code}: {output[-300:]}"
    try:
        return ", ".join(differences(expected, ending(folder / "run")))
    except (OSError, LookupError, ValueError) as error:  # something is not there at all
        return f"{type(error).__name__}: {error}"


def fill_disk(root: Path, found: Found) -> None:
    """A run on a disk of a few megabytes that fills up; only where this process may mount one."""
    disk = root / "disk"
    disk.mkdir()
    os.environ["CARL_CACHE"] = str(root / "cache")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        found["disk"] = {"tried": False, "reason": "no disk could be mounted here"}
        return
    try:
        found["disk"] = _fill_disk(root, disk)
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
    return {"tried": True, "said": said.replace(f"{root}/", ""), "failures": failures}


def fuzz_child(name: str, seed: int, seconds: float) -> None:
    """In a process of its own, so that a fault of a library ends that and not the soak."""
    Path("tally.json").write_text(json.dumps(asdict(fuzz(name, seed, seconds))))
    Path("memory.txt").write_text(str(_peak()))


def _peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz_all(root: Path, seconds: float, seed: int, found: Found) -> None:
    """Every reader for its share of the time."""
    for number, name in enumerate(TARGETS):
        folder = root / f"fuzz-{number}"
        group = Group(1, folder, fuzz_child, name, seed, seconds / len(TARGETS))
        try:
            (code,) = group.wait(seconds + 120)
        finally:
            group.processes[0].kill()
        if code != 0:
            tally = asdict(Tally(crashes=[f"the process ended with {code}: {group.output(0)[-300:]}"]))
        else:
            tally = json.loads((folder / "tally.json").read_text())
        peak = int((folder / "memory.txt").read_text()) // 2**20 if code == 0 else None
        found["fuzz"][name] = {**tally, "peak_memory_mb": peak}
        print(f"{name}: {tally['tried']} files, {len(tally['crashes'])} crashes", flush=True)


def fuzz_guided(root: Path, seconds: float, seed: int, found: Found) -> None:
    """The same by atheris, which looks at what code a file reaches; it ends a reader's turn at the first crash."""
    for number, name in enumerate(TARGETS):
        folder = root / f"guided-{number}"
        folder.mkdir()
        share = str(seconds / len(TARGETS))
        command = [sys.executable, "-m", "tests.reliability.guided", name, share, str(seed), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=ROOT)
        runs = re.findall(r"Done (\d+) runs", done.stderr)
        crash = [] if done.returncode == 0 else [f"exit code {done.returncode}: {_last_error(done.stderr)}"]
        found["guided"][name] = {"tried": int(runs[-1]) if runs else 0, "crashes": crash}
        print(f"{name}, guided: {found['guided'][name]['tried']} files, {crash or 'no crash'}", flush=True)


def _last_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "Error" in line or "ERROR" in line or "Exception" in line]
    return " / ".join(lines[-3:])[:500]


def failures_of(found: Found) -> list[str]:
    """All that went wrong, a line each."""
    listed = [*found["kills"]["failures"], *found["kills"]["lost"], *found["disk"].get("failures", [])]
    for tally in found["inputs"].values():
        listed += [*tally["failures"], *(f"outside of the target: {place}" for place in tally["outside"])]
    listed += [f"outside of the target: {place}" for place in found["home"]]
    listed += [failure for losses in found["attacks"].values() for failure in losses["failures"]]
    listed += found["broken"]
    for name, tally in [*found["fuzz"].items(), *found["guided"].items()]:
        listed += [f"{name}: {crash[:300]}" for crash in tally["crashes"][:5]]
    return listed


def _tried(found: Found) -> Iterator[str]:
    """The rows of the first table: what was tried, and survived."""
    kills, disk = found["kills"], found["disk"]
    yield _row("kill -9 at a random moment, then resume: the same bits", kills["kills"], len(kills["failures"]))
    yield _row(
        "of these, after a checkpoint was saved: it is there and whole", kills["checkpoints"], len(kills["lost"])
    )
    full = int(disk["tried"])
    yield _row("a disk that fills up while saving, then resume: the same bits", full, int(bool(disk.get("failures"))))
    for name, losses in found["attacks"].items():
        yield _row(ATTACKS[name].promise, losses["rounds"], losses["lost"])
    for name, tally in found["inputs"].items():
        yield _row(f"tests of {INPUT_SUITES[name]} (`{name}.py`)", tally["tests"], len(tally["failures"]))
    commands = sum(tally["commands"] for tally in found["inputs"].values())
    yield _row(
        "commands in these tests: no traceback",
        commands,
        sum(tally["tracebacks"] for tally in found["inputs"].values()),
    )
    outside = sum(len(tally["outside"]) for tally in found["inputs"].values()) + len(found["home"])
    writes = sum(tally["writes"] for tally in found["inputs"].values())
    yield _row("files made, changed or removed in these tests: none outside of the target", writes, outside)
    tallies = [*found["fuzz"].values(), *found["guided"].values()]
    inputs, crashes = sum(tally["tried"] for tally in tallies), sum(len(tally["crashes"]) for tally in tallies)
    yield _row("damaged files given to readers: read or refused", inputs, crashes)


def _row(what: str, tried: int, failed: int) -> str:
    return f"| {what} | {tried:,} | {tried - failed:,} |"


def _readers(found: Found) -> Iterator[str]:
    """The rows of the second table: the readers under damaged files."""
    for name, tally in found["fuzz"].items():
        row = [name, f"{tally['tried']:,}", f"{tally['read']:,}", f"{tally['refused']:,}", len(tally["crashes"])]
        beside = found["guided"].get(name)
        row += [f"{tally['slowest']:.2f}", tally["peak_memory_mb"]]
        row += [f"{beside['tried']:,}", len(beside["crashes"])] if beside else ["", ""]
        yield "| " + " | ".join(map(str, row)) + " |"


def write_results(found: Found, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "reliability.json").write_text(json.dumps(found, indent=1) + "\n")
    kills, disk, failures = found["kills"], found["disk"], failures_of(found)
    at = ", ".join(f"{count} {kind} (of {kills['of'][kind]})" for kind, count in sorted(kills["at"].items()))
    lines = [
        "# Reliability: one run of the soak",
        "",
        f"`{found['command']}` on {found['machine']}, torch {found['torch']}, {found['made']}; "
        f"{found['seconds']:.0f} s. Promises and tests: [docs/reliability.md](../docs/reliability.md).",
        *(["", "It was stopped before its end: the figures are of what was done until then."] * found["stopped"]),
        "",
        "| | tried | survived |",
        "|---|---|---|",
        *_tried(found),
        "",
        f"Hostile circumstances are drawn at random (`tests/reliability/attacks.py`); the commands in them: "
        f"{sum(losses['commands'] for losses in found['attacks'].values())}.",
        "",
        f"Moments of the kills, of {kills['moments']} in a run: {at or 'none'}.",
        "",
        "What the tests write is seen through Python's audit events, in the process of the commands "
        "(`tests/reliability/witness.py`); the folder of the user is looked at besides.",
        "",
        f"Fuzzer: {found['fuzzer']}",
        "",
        "| reader | files | read | refused | crashes | slowest, s | peak memory, MB | by atheris: files | crashes |",
        "|---|---|---|---|---|---|---|---|---|",
        *_readers(found),
        *([] if disk["tried"] else ["", f"The full disk was not tried: {disk['reason']}."]),
        "",
        "Failures: none." if not failures else "Failures:",
        *(f"- `{failure}`" for failure in failures),
    ]
    (folder / "reliability.md").write_text("\n".join(lines) + "\n")


def soak(root: Path, options: argparse.Namespace, guided: bool, found: Found) -> None:
    """One part after the other, each of which writes what is known by then; a part that fails ends none of the rest."""
    start = time.monotonic()
    parts: dict[str, Callable[[], None]] = {
        "inputs": lambda: try_inputs(root, found),
        "attacks": lambda: attack_often(root, options.attacks_seconds, options.seed, found),
        "kills": lambda: kill_often(root, options.kills, options.kills_seconds, options.seed, found),
        "disk": lambda: fill_disk(root, found),
        "fuzz": lambda: fuzz_all(root, options.fuzz_seconds, options.seed, found),
    }
    if guided:
        parts["guided"] = lambda: fuzz_guided(root, options.guided_seconds, options.seed, found)
    for name, part in parts.items():
        if options.only not in (None, name):
            continue
        try:
            part()
        except Exception:  # a fault of the soak itself
            found["broken"].append(f"{name}: " + " ".join(traceback.format_exc().split())[-1000:])
        found["seconds"] = time.monotonic() - start
        write_results({**found, "stopped": True}, options.out)
        if name == "inputs" and options.minutes is not None:
            rest = 60 * options.minutes - found["seconds"]
            for other, share in SHARES.items():
                setattr(options, f"{other}_seconds", max(60.0, share * rest))


def stop(signum: int, frame: FrameType | None) -> None:
    raise Stopped


def main() -> None:
    parser = argparse.ArgumentParser(description="The long run of the reliability tests.")
    parser.add_argument("--kills", type=int, default=32, help="runs to kill (default 32: 8 of each kind of moment)")
    parser.add_argument("--kills-seconds", type=float, default=math.inf, help="after which no more runs are killed")
    parser.add_argument("--attacks-seconds", type=float, default=1800, help="for all attacks together (default 1800)")
    parser.add_argument("--fuzz-seconds", type=float, default=1800, help="for all readers together (default 1800)")
    parser.add_argument("--guided-seconds", type=float, default=1800, help="the same by atheris, if it is installed")
    parser.add_argument("--minutes", type=float, help="for all of it, instead of the seconds of each part")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where reliability.md and .json go")
    options = parser.parse_args()
    start = time.monotonic()
    torch.set_num_threads(1)
    guided = options.guided_seconds > 0 and importlib.util.find_spec("atheris") is not None
    found: Found = {
        "command": " ".join(["python -m tests.reliability.soak", *sys.argv[1:]]),
        "inputs": {},
        "home": [],
        "attacks": {},
        "kills": {"kills": 0, "moments": 0, "of": {}, "at": {}, "checkpoints": 0, "lost": [], "failures": []},
        "disk": {"tried": False, "reason": "it was not reached"},
        "fuzz": {},
        "guided": {},
        "broken": [],
        "stopped": False,
        "seconds": 0.0,
        "made": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.platform()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "fuzzer": "ours, seeded and blind to coverage (tests/reliability/fuzzing.py)"
        + ("; then atheris, guided by coverage." if guided else "; atheris was not run."),
    }
    for name in ("SIGTERM", "SIGINT"):
        signal.signal(getattr(signal, name), stop)
    print(f"process {os.getpid()}; stopped by SIGTERM it writes what it has found", flush=True)
    with tempfile.TemporaryDirectory(prefix="carl-soak-", ignore_cleanup_errors=True) as name:
        try:
            soak(Path(name), options, guided, found)
        except Stopped:
            found["stopped"] = True
    found["seconds"] = time.monotonic() - start
    write_results(found, options.out)
    sys.exit(1 if failures_of(found) else 0)


if __name__ == "__main__":
    main()
