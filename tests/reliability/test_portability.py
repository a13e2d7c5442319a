"""Nothing assumes Linux: what only some systems have is asked for, and file names are ones that all of them allow.

Read from the source, since there is no other system to run on here (docs/reliability.md says what that leaves open).
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import carl
from carl.files import portable_name

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


def guarded(tree: ast.Module) -> set[int]:
    """Lines within an `if`, a `try`, a conditional expression or a function, where a system can be asked for first."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.Try | ast.IfExp | ast.FunctionDef):
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


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
