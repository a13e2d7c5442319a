"""The page that shows how a method is added shows the package's own file."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import carl
from carl.cli import cli
from carl.methods import METHODS
from carl.methods.base import Method
from carl.methods.simsiam import SimSiam

PACKAGE = Path(carl.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "adding-a-method.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_code_shown_is_the_file_in_the_package():
    shown, registry = blocks("python")
    assert shown == (PACKAGE / "methods" / "simsiam.py").read_text(encoding="utf-8")
    lines = (PACKAGE / "methods" / "__init__.py").read_text(encoding="utf-8").splitlines()
    assert all(line in lines for line in registry.splitlines() if line.strip() != "...")
    assert METHODS["simsiam"] is SimSiam


def test_every_part_of_the_interface_is_explained_and_every_name_explained_exists():
    own = {name for name in vars(Method) if not name.startswith("_")} - {"preset", "forward"}
    assert {name for name in own if f"`{name}" not in PAGE} == set()
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    known = {"__init__", *vars(Method), *Method.__annotations__}
    assert named - known == set()


def test_the_commands_shown_are_understood():
    shown = [shlex.split(line) for block in blocks("") for line in block.splitlines() if line.startswith("carl ")]
    assert {words[1] for words in shown} == {"pretrain", "compare"}
    for words in shown:
        command = cli.commands[words[1]]
        command.make_context(words[1], words[2:])
