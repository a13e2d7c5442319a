"""Nothing assumes Linux: what only some systems have is asked for, and file names are ones that all of them allow.

Read from the source, since there is no other system to run on here (docs/reliability.md says what that leaves open).
"""

from __future__ import annotations

import ast
import re
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import carl
from carl.files import portable_name
from carl.reproduction import runner

ROOT = Path(carl.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
# Modules and functions that Windows, and some of them macOS, has not.
MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "msvcrt", "posix"}
FUNCTIONS = {
    "os": {"fork", "forkpty", "sched_getaffinity", "mkfifo", "uname", "getuid", "geteuid", "setsid", "killpg", "wait"}
    | {"O_NONBLOCK", "O_BINARY", "O_DIRECTORY"},
    "signal": {"SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "alarm", "setitimer", "pause"},
}
FIXED_PATHS = re.compile(r"^/(tmp|proc|dev|etc|home|usr|var)\b")


ASKS = re.compile(r"platform|hasattr|\.exists\(|WINDOWS|os\.name")  # in a condition
CATCHES = re.compile(r"ImportError|AttributeError|OSError|Exception")  # in an `except`


def guarded(tree: ast.Module) -> set[int]:
    """Lines of an `if` or conditional expression that asks for the system, or of a `try` that can do without."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp):
            asked = bool(ASKS.search(ast.unparse(node.test)))
        elif isinstance(node, ast.Try):
            asked = any(handler.type is None or CATCHES.search(ast.unparse(handler.type)) for handler in node.handlers)
        elif isinstance(node, ast.With):
            asked = any(CATCHES.search(one) for item in node.items if "suppress" in (one := ast.unparse(item)))
        else:
            continue
        if asked:
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import os\ndef f():\n    import fcntl\n", set()),
        ("if os.environ:\n    import fcntl\n", set()),
        ("try:\n    import fcntl\nexcept KeyError:\n    pass\n", set()),
        ("try:\n    import fcntl\nexcept ImportError:\n    pass\n", {1, 2, 3, 4}),
        ("if sys.platform == 'linux':\n    import fcntl\n", {1, 2}),
    ],
)
def test_a_line_is_guarded_only_where_the_system_is_asked_for(text: str, lines: set[int]):
    assert guarded(ast.parse(text)) == lines


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_that_only_some_systems_have_are_imported_where_they_are_asked_for(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
        names |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
        if names & MODULES:
            assert node.lineno in guarded(tree), f"{path.name}:{node.lineno} imports {names & MODULES}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_that_only_some_systems_have_are_asked_for(path: Path):
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            continue
        if node.attr in FUNCTIONS.get(node.value.id, ()):
            line = text.splitlines()[node.lineno - 1]
            assert "hasattr" in line or "getattr" in line, f"{path.name}:{node.lineno} uses {node.value.id}.{node.attr}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_path_of_one_system_is_written_down_and_workers_are_not_forked(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FIXED_PATHS.match(node.value):
            assert node.lineno in guarded(tree), f"{path.name}:{node.lineno} has {node.value}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
            assert not any(name.startswith("multiprocessing") for name in names), path


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_signals_are_sent_only_where_the_system_can(path: Path):
    """Windows has no way to send SIGINT to one process."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith((".send_signal", "os.kill", "os.killpg")):
            assert node.lineno in guarded(tree), f"{path.name}:{node.lineno} uses {node.attr}"


@pytest.mark.parametrize(("windows", "told"), [(True, []), (False, [signal.SIGINT])])
def test_ctrl_c_of_a_comparison_is_told_to_its_job_once(
    monkeypatch: pytest.MonkeyPatch, windows: bool, told: list[int]
):
    """On Windows the console has told the job, and to send it SIGINT raises a ValueError."""
    sent: list[int] = []

    class Child:
        def send_signal(self, signum: int) -> None:
            if windows and signum != signal.SIGTERM:
                raise ValueError(f"Unsupported signal: {signum}")
            sent.append(signum)

        def terminate(self) -> None:
            sent.append(signal.SIGTERM)

    monkeypatch.setattr(runner, "WINDOWS", windows)
    with runner.signals_to(Child()) as came:  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert came == [signal.SIGINT, signal.SIGTERM]
    assert sent == [*told, signal.SIGTERM]


FORBIDDEN = set('<>:"/\\|?*') | {chr(code) for code in range(32)}
DEVICES = {"CON", "PRN", "AUX", "NUL", *(f"COM{i}" for i in range(10)), *(f"LPT{i}" for i in range(10))}


@given(st.text(st.characters(codec=None), max_size=12))
def test_names_made_from_names_of_data_are_allowed_everywhere(text: str):
    name = portable_name(text)
    assert name
    assert not FORBIDDEN & set(name)
    assert not name.endswith((".", " "))
    assert name.split(".")[0].upper() not in DEVICES
    name.encode()


def test_ordinary_names_stay_as_they_are():
    for name in ("shapes-carl", "my photos-carl", "日本語-carl", "cifar10-train-carl", "{00..19}-carl"):
        assert portable_name(name) == name
