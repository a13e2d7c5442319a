"""Runs jobs one after another: skips what is finished, goes on with what was cut off, and survives a failure."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from carl import files
from carl.errors import UserError
from carl.experiments.jobs import Job, Outcome, outcome_file, read_outcome, run_job
from carl.training.console import duration

Say = Callable[[str], None]


@dataclass(frozen=True)
class Shard:
    """Every `of`-th job from the `number`-th on, for splitting over processes or machines."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        number, slash, of = text.partition("/")
        if not (slash and number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
            raise UserError(f"--shard {text!r} is not a part such as 2/4; the first number is 1 to the second")
        return cls(int(number), int(of))

    def take(self, jobs: Sequence[Job]) -> list[Job]:
        return list(jobs)[self.number - 1 :: self.of]


def state(root: Path, job: Job) -> str:
    """`done`, `failed`, `cut off` or `waiting`."""
    outcome = read_outcome(root, job)
    if outcome is not None:
        return str(outcome["state"])
    return "cut off" if (root / job.name / "checkpoint.pt").exists() else "waiting"


def run_jobs(jobs: Sequence[Job], root: Path, say: Say, own_process: bool) -> list[Job]:
    """Run what is not done; the jobs that failed are given back. Ctrl-C ends the job, saved, and then the rest.

    `own_process` gives each job a process of its own: honest peak memory, and a crash takes nothing with it.
    """
    todo = [job for job in jobs if state(root, job) != "done"]
    if len(todo) < len(jobs):
        say(f"{len(jobs) - len(todo)} of {len(jobs)} runs are finished already")
    failed, spent, covered = [], 0.0, 0.0
    for place, job in enumerate(todo, start=1):
        left = sum(other.cost for other in todo[place - 1 :])
        remaining = f", about {duration(spent / covered * left)} left" if covered else ""
        say(f"[{place}/{len(todo)}] {job.name}{remaining}")
        start = time.monotonic()
        reason = _in_own_process(job, root) if own_process else _here(job, root)
        spent, covered = spent + time.monotonic() - start, covered + job.cost
        if reason is not None:
            failed.append(job)
            say(f"  failed: {reason}")
            files.write_json(outcome_file(root, job), failure(job, reason))
    return failed


def failure(job: Job, reason: str) -> Outcome:
    return {"name": job.name, "state": "failed", "reason": reason, "layer": job.to_json()["layer"], "measures": {}}


def _here(job: Job, root: Path) -> str | None:
    try:
        run_job(job, root)
    except UserError as error:
        return str(error)
    return None


def _in_own_process(job: Job, root: Path) -> str | None:
    """None when it went well, else the last line that the job said; its output is in `log.txt` of its folder."""
    folder = root / job.name
    folder.mkdir(parents=True, exist_ok=True)
    log = root / "logs" / f"{job.name.replace('/', '-')}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.toml").exists():
        folder.rmdir() if not any(folder.iterdir()) else None  # a run directory must be new
    command = [sys.executable, "-m", "carl.experiments.runner", json.dumps(job.to_json()), str(root)]
    with log.open("a", encoding="utf-8") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = child.wait()
        except KeyboardInterrupt:  # the terminal sent it to the child as well, which saves and ends
            child.wait()
            raise
    if code in (130, 143):
        raise KeyboardInterrupt
    if code == 0:
        return None
    said = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return said[-1] if said else f"ended with code {code}"


def main() -> None:
    """The child's side: one job from the command line."""
    try:
        run_job(Job.from_json(json.loads(sys.argv[1])), Path(sys.argv[2]))
    except UserError as error:
        print(f"carl: {error}")
        sys.exit(2)


if __name__ == "__main__":
    main()
