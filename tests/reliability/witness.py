"""A pytest plugin that watches the tests of bad and of hostile input: commands, tracebacks, and every file written.

`python -m pytest -p tests.reliability.witness --witness FILE ...`; soak.py does this. What a process of these tests
writes is seen through Python's audit events: a test may write to its own folder, to the cache and to TMPDIR, and
whatever else it opens for writing, makes, renames or removes is outside of the target.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events with the place in their arguments of what is changed, and of the folder that a name is relative to.
EVENTS: dict[str, list[tuple[int, int]]] = {
    "os.mkdir": [(0, 2)],
    "os.remove": [(0, 1)],
    "os.rmdir": [(0, 1)],
    "os.rename": [(0, 2), (1, 3)],
    "os.symlink": [(1, 2)],
    "os.link": [(1, 3)],
    "shutil.rmtree": [(0, 1)],
}
NO_FILES = ("/proc", "/dev")  # switches and devices of the system


@dataclass
class Tally:
    """What the tests of one file did."""

    tests: int = 0
    failures: list[str] = field(default_factory=list)
    commands: int = 0
    tracebacks: int = 0
    writes: int = 0
    outside: list[str] = field(default_factory=list)


class Witness:
    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.item: pytest.Item | None = None  # the test that runs

    @property
    def now(self) -> Tally | None:
        return None if self.item is None else self.of(self.item.nodeid)

    def of(self, test: str) -> Tally:
        return self.tallies.setdefault(Path(test.partition("::")[0]).stem, Tally())

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook: nothing that it does may raise."""
        if self.item is None or (event != "open" and event not in EVENTS):
            return
        for path in _changed(event, arguments):
            tally = self.now
            assert tally is not None
            tally.writes += 1
            if not path.startswith(NO_FILES) and not any(Path(path).is_relative_to(place) for place in self._allowed()):
                tally.outside.append(f"{event} {path} in {self.item.nodeid}")

    def _allowed(self) -> list[str]:
        given = getattr(self.item, "funcargs", {})
        places = [given.get("tmp_path"), given.get("world"), os.environ.get("CARL_CACHE"), tempfile.gettempdir()]
        return [os.path.realpath(place) for place in places if place is not None]

    def watching(self, plain: Callable[[], None]) -> Callable[[], None]:
        """The command, counted; whatever leaves it but an exit code would be a traceback."""

        def main() -> None:
            tally = self.now or Tally()
            tally.commands += 1
            try:
                plain()
            except SystemExit:
                said = getattr(sys.stderr, "getvalue", str)()
                tally.tracebacks += "Traceback (most recent call last)" in said
                raise
            except BaseException:
                tally.tracebacks += 1
                raise

        return main


def _changed(event: str, arguments: tuple[Any, ...]) -> list[str]:
    """The files that an event changes, with all links followed that the system would follow."""
    if event == "open":
        path, _, flags = arguments
        return [os.path.realpath(os.fsdecode(path))] if flags & WRITING and not isinstance(path, int) else []
    found = []
    for place, folder in EVENTS[event]:
        path, relative_to = arguments[place], arguments[folder] if folder < len(arguments) else -1
        if not isinstance(path, int) and relative_to in (-1, None):  # else within a folder that was told of before
            parent, name = os.path.split(os.path.abspath(os.fsdecode(path)))
            found.append(os.path.join(os.path.realpath(parent), name))
    return found


WITNESS = Witness()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--witness", type=Path, help="where the figures go")


def pytest_sessionstart() -> None:
    from carl import cli

    cli.main = WITNESS.watching(cli.main)
    sys.addaudithook(WITNESS.hear)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    WITNESS.item = item
    try:
        return (yield)
    finally:
        WITNESS.item = None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    tally = WITNESS.of(report.nodeid)
    tally.tests += report.when == "call"
    if report.failed:
        tally.failures.append(f"{report.nodeid}: {' '.join(report.longreprtext.splitlines()[-1:])}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    figures = {name: asdict(tally) for name, tally in WITNESS.tallies.items()}
    Path(session.config.getoption("--witness")).write_text(json.dumps(figures))
