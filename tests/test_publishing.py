"""What a public repository needs beside the code: workflows, forms, the container file. None of it can run here."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.documents import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SCHEMAS = {  # schemas that come with check-jsonschema, so no network is needed
    "vendor.github-workflows": WORKFLOWS,
    "vendor.github-issue-forms": [GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug", "device", "wish")],
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}
BY_HAND = {
    "dist",
    "docs",
    "test-oldest",
}  # targets that .ci/run leaves out; tests/test_installing.py does what `dist` does
WORDS_PER_MINUTE = 300
HADOLINT = [] if sys.platform == "win32" else [("hadolint", "Dockerfile")]  # there is no package of it for Windows


def validates(schema: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8")


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_that_github_reads_are_as_it_wants_them(schema: str):
    done = validates(schema, *SCHEMAS[schema])
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_workflow_with_a_misspelt_key_is_noticed(tmp_path: Path):
    wrong = tmp_path / "tests.yml"
    wrong.write_text(WORKFLOWS[0].read_text(encoding="utf-8").replace("runs-on:", "run-on:"), encoding="utf-8")
    assert validates("vendor.github-workflows", wrong).returncode == 1


def test_every_make_target_of_a_workflow_exists_and_is_run():
    called = {name for path in WORKFLOWS for name in re.findall(r"\bmake ([\w-]+)", path.read_text(encoding="utf-8"))}
    defined = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    in_ci = set(re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE))
    assert called <= defined
    assert called - in_ci == BY_HAND


@pytest.mark.parametrize("command", HADOLINT)
def test_the_container_file_has_nothing_to_complain_of(command: tuple[str, ...]):
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_container_file_copies_only_what_exists_and_is_let_in():
    text, let_in = (ROOT / "Dockerfile").read_text("utf-8"), (ROOT / ".dockerignore").read_text("utf-8").split()
    copied = [name for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for name in line.split()[:-1]]
    assert copied
    assert all((ROOT / name).exists() and f"!{name}" in let_in for name in copied)


@pytest.mark.parametrize(
    ("index", "asked"),
    [("", "install torch torchvision"), ("an index", "install torch torchvision --index-url an index")],
)
@pytest.mark.skipif(sys.platform == "win32", reason="the commands of the container file are for a POSIX shell")
def test_the_container_file_takes_torch_from_the_usual_index_unless_told(index: str, asked: str):
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    assert "://" not in text
    (command,) = re.findall(r"^RUN (.*torchvision.*)$", text, re.MULTILINE)
    script = f'pip() {{ echo $# "$@"; }}; {command}'
    done = subprocess.run(["sh", "-c", script], env={"TORCH_INDEX": index}, capture_output=True, text=True)
    assert done.stdout.split(maxsplit=1) == [str(5 if index else 3), f"{asked}\n"]


def test_hooks_before_a_commit_run_what_make_check_runs():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    check = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ncheck:")[2].partition("\n\n")[0]
    entries = re.findall(r"entry: \.venv/bin/(.+)", hooks)
    assert len(entries) == hooks.count("- id:")
    assert sorted(entry.split()[0] for entry in entries) == sorted(re.findall(r"\$\(BIN\)/(\w+)", check))


def test_the_version_is_the_same_wherever_it_is_written():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0] == version


def test_the_news_of_a_version_are_read_in_about_a_minute():
    """What it lets you do comes first, and in few words; lists for those who look something up follow."""
    news = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## ")[2].partition("\n###")[0]
    assert 0 < len(news.split()) <= WORDS_PER_MINUTE


def test_the_tests_for_the_oldest_dependencies_exist():
    named = re.findall(r"tests/\S+\.py", (ROOT / "tests" / "oldest.sh").read_text(encoding="utf-8"))
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []
