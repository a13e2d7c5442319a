"""Imports point one way through the package, as docs/architecture.md says."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import carl

ROOT = Path(carl.__file__).parent
LAYERS = [  # each may import from the ones before it and from itself
    {
        "errors",
        "defaults",
        "durations",
        "files",
        "framing",
        "user_paths",
        "launch",
        "child_process",
        "terminal",
        "lasting_output",
        "safe_pages",
        "config",
    },
    {"records"},
    {"memory", "precision", "device", "distributed", "clustering", "nearest"},
    {"optim", "models", "views", "quality"},
    {"data"},
    {"methods"},
    {"evaluation"},
    {"use"},
    {"reporting"},
    {"training"},
    {"reproduction"},
    {"api", "cli", "failures", "option_words", "__main__", "__init__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path: Path) -> set[str]:
    """Parts of carl that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "carl":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("carl."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("carl.")}
    return found


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_imports_point_one_way():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in ROOT.rglob("*.py")
        for name in imports(path)
        if LEVEL[name] > LEVEL[part(path)]
    ]
    assert not wrong


def test_models_know_neither_data_nor_views_and_these_know_no_models():
    for path in ROOT.glob("models/*.py"):
        assert not imports(path) & {"views", "data"}, path
    for path in [*ROOT.glob("data/**/*.py"), *ROOT.glob("views/**/*.py")]:
        assert not imports(path) & {"models"}, path


def module_name(path: Path) -> str:
    parts = ("carl", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def test_records_protocols_and_reports_leave_torch_unimported():
    single = [
        ROOT / name for name in ("config.py", "cli.py", "files.py", "evaluation/results.py", "evaluation/table.py")
    ]
    light = ("records", "evaluation/protocols", "quality", "reporting")
    folders = [path for name in light for path in ROOT.glob(f"{name}/*.py")]
    names = ", ".join(module_name(path) for path in [*single, *folders])
    code = f"import sys, {names}; assert not {{'torch', 'timm'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
