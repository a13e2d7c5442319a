"""Runs jobs one after another: skips finished ones, resumes interrupted ones, and continues after a failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from carl import files
from carl.child_process import end_with_parent, start_python
from carl.errors import UserError
from carl.records.run_directory import RunDirectory
from carl.reproduction.cost import Estimate
from carl.reproduction.jobs import (
    DONE,
    FAILED,
    InUseError,
    Job,
    Outcome,
    is_measured,
    job_lock,
    outcome_file,
    read_outcome,
    run_job,
    stored_outcome,
)
from carl.terminal import Say, show_line
from carl.training.console import duration, roughly
from carl.training.forecast import WILL_TAKE, whole_run_foretold

WAITING, INTERRUPTED = "waiting", "interrupted"  # states of a job without an outcome
IN_USE = 75  # exit code of a job's process if another process works on the job (EX_TEMPFAIL)
LONGEST_START = 2**16  # bytes that a job says before its forecast, at most
WINDOWS = os.name == "nt"
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@dataclass(frozen=True)
class Shard:
    """Every `of`-th job from the `number`-th on, for splitting over processes or machines."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        number, slash, of = text.partition("/")
        whole = number.isascii() and of.isascii() and number.isdigit() and of.isdigit()
        if not (slash and whole and 1 <= int(number) <= int(of)):
            raise UserError(f"--shard {text!r} is not a shard such as 2/4; use I/N with I from 1 to N")
        return cls(int(number), int(of))

    def take(self, jobs: Sequence[Job]) -> list[Job]:
        return list(jobs)[self.number - 1 :: self.of]


def job_state(root: Path, job: Job) -> str:
    """`done`, `measures missing`, `failed`, `interrupted` or `waiting`. A process may be at work on the last two."""
    outcome = read_outcome(root, job)
    if outcome is None:
        return INTERRUPTED if RunDirectory(root / job.name).checkpoint_file.exists() else WAITING
    return outcome_state(outcome, job)


def outcome_state(outcome: Outcome, job: Job) -> str:
    if outcome["state"] != DONE:
        return str(outcome["state"])
    return DONE if all(is_measured(outcome, measure) for measure in job.measures) else "measures missing"


def run_jobs(
    jobs: Sequence[Job],
    root: Path,
    say: Say,
    own_process: bool,
    data_root: Path | None = None,
    expected: Estimate | None = None,
) -> dict[str, str]:
    """Run the jobs that are not done; returns those that failed, with the reason. A signal saves the job and ends all.

    `own_process` gives each job a process of its own: its peak memory is its own, and a crash takes nothing with it.
    `expected` is the estimate for the jobs that are not done, if there is one.
    """
    todo = [job for job in jobs if job_state(root, job) != DONE]
    if len(todo) < len(jobs):
        say(f"{len(jobs) - len(todo)} of {len(jobs)} runs are finished already")
    failed: dict[str, str] = {}
    for place, job in enumerate(todo, start=1):
        left = time_left(jobs, todo[place - 1 :], root, expected)
        say(f"[{place}/{len(todo)}] {job.name}" + ("" if left is None else f", about {duration(left)} left"))
        tell = partial(_say_time, say, job, todo[place - 1 :] if left is None else [])
        try:
            reason = _run_in_own_process(job, root, tell, data_root) if own_process else _run_here(job, root, data_root)
        except InUseError:
            say("  another process is at this run, so it is skipped here")
            continue
        if reason is not None:
            failed[job.name] = reason
            say(f"  failed: {reason}")
            _note_failure(job, root, reason)
    return failed


def _say_time(say: Say, job: Job, left: Sequence[Job], line: str) -> None:
    """Pass on a run's own forecast, and what follows from it for the runs that are `left`, this one included."""
    whole, runs = whole_run_foretold(line), [one for one in left if one.trains]
    if whole is not None and len(runs) > 1:
        seconds = whole * sum(one.cost for one in runs) / job.cost
        line += f"; training all {len(runs)} runs that are left, about {roughly(seconds)}"
    show_line("")
    say(f"  {line}")


def time_left(jobs: Sequence[Job], left: Sequence[Job], root: Path, expected: Estimate | None = None) -> float | None:
    """Seconds: what is expected, corrected by the time that finished jobs took.

    Without an estimate, training is assumed to take as long per image as it did; None before a job is finished.
    Untrained encoders and failures are left out: they take next to no time and say nothing about the rest.
    """
    sizes = expected.whole if expected else {job.name: job.cost for job in jobs if job.trains}
    done = [(sizes[job.name], found) for job in jobs if job.name in sizes and (found := read_outcome(root, job))]
    known = [(size, spent) for size, found in done if (spent := _seconds_spent(found)) is not None]
    if not known and not expected:
        return None
    pace = sum(spent for _, spent in known) / sum(size for size, _ in known) if known else 1.0
    rest = expected.left if expected else sizes
    return pace * sum(rest.get(job.name, 0.0) for job in left)


def _seconds_spent(outcome: Outcome) -> float | None:
    """Seconds of training, including what came before interruptions, and of measuring."""
    if outcome["state"] != DONE or outcome.get("train_seconds") is None:
        return None
    return float(outcome["train_seconds"] + sum(measure["seconds"] for measure in outcome["measures"].values()))


def _note_failure(job: Job, root: Path, reason: str) -> None:
    """Write the failure down, except over a finished outcome or while another process works on the job."""
    with job_lock(job, root) as alone:
        found = stored_outcome(root, job)
        if alone and (found is None or found["state"] != DONE):
            files.write_json(outcome_file(root, job), failed_outcome(job, reason))


def failed_outcome(job: Job, reason: str) -> Outcome:
    return {"name": job.name, "state": FAILED, "reason": reason, "layer": job.to_json()["layer"], "measures": {}}


def _run_here(job: Job, root: Path, data_root: Path | None) -> str | None:
    try:
        run_job(job, root, data_root)
    except InUseError:
        raise
    except UserError as error:
        return str(error)
    except Exception as error:  # our own fault in one job: the others still run, and the exit code tells
        return f"{type(error).__name__}: {error}"
    return None


def _run_in_own_process(job: Job, root: Path, tell: Say, data_root: Path | None) -> str | None:
    """None if it went well, otherwise the last line that the job printed; its output is in `logs/` of `root`.

    `tell` gets the line in which the job says how long its training takes.
    """
    log = root / "logs" / f"{job.name.replace('/', '-')}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    where = [] if data_root is None else [str(data_root)]
    arguments = ["-m", "carl.reproduction.runner", str(os.getpid()), json.dumps(job.to_json()), str(root), *where]
    with log.open("ab") as output:
        before = output.tell()  # what earlier attempts said
        # In a session of its own, so that Ctrl-C reaches it once, from us.
        child = start_python(arguments, stdout=output, stderr=subprocess.STDOUT, own_session=True)
        with signals_to(child) as passed_on:
            code = _wait(child, log, before, tell)
    signum = passed_on[0] if passed_on else code - 128
    if signum in ENDING:
        raise KeyboardInterrupt if signum == signal.SIGINT else SystemExit(128 + signum)
    if code == 0:
        return None
    if code == IN_USE:
        raise InUseError(job.name)
    said = _last_line(log, before)
    return said if said and code > 0 else f"the process of the job ended with code {code}, see {log}"


def _wait(child: subprocess.Popen[bytes], log: Path, begin: int, tell: Say) -> int:
    """The exit code; until then a terminal shows what the child said last, and `tell` gets its forecast."""
    told = False
    while True:
        try:
            code = child.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            if not told and (line := _forecast(log, begin)):
                told = True
                tell(line)
            show_line(f"  {_last_line(log)}")
        else:
            show_line("")
            return code


def _forecast(log: Path, begin: int) -> str:
    """The line after byte `begin` that says how long the training takes, once it is whole."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read(LONGEST_START).decode(errors="replace").splitlines(keepends=True)
    return next((line.strip() for line in lines if f" {WILL_TAKE} " in line and line.endswith("\n")), "")


def _last_line(log: Path, begin: int = 0) -> str:
    """The last line after byte `begin` that is not empty."""
    with log.open("rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - 4096))
        lines = file.read().decode(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "")


@contextmanager
def signals_to(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Passes signals that would end this process on to the child, which saves. Gives a list of the signals that came.

    A second one reaches the child too, and ends it at once.
    """
    came: list[int] = []

    def pass_on(signum: int, frame: FrameType | None) -> None:
        came.append(signum)
        if signum != signal.SIGINT:
            child.terminate()
        elif not WINDOWS:  # there the console tells all its processes, and no other may
            child.send_signal(signal.SIGINT)

    previous = {}
    try:
        for signum in ENDING:
            previous[signum] = signal.signal(signum, pass_on)
    except ValueError:  # not in the main thread: the caller handles signals
        pass
    try:
        yield came
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def main() -> None:
    """The child's side: one job from the command line. It saves and ends if the parent is killed."""
    parent, job, root, *data_root = sys.argv[1:]
    end_with_parent(int(parent))
    try:
        run_job(Job.from_json(json.loads(job)), Path(root), Path(data_root[0]) if data_root else None)
    except UserError as error:
        print(f"carl: {error}")
        sys.exit(IN_USE if isinstance(error, InUseError) else 2)


if __name__ == "__main__":
    main()
