"""The README and the pages of docs/ as data: code blocks, commands, links and headings, and the tables they owe.

`python -m tests.documents` writes the tables of commands.md, configuration.md, methods.md and quality.md anew, and the
comparison of methods in comparing.md.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [page.name for page in PAGES]

_FENCE = re.compile(r"^ *```(\S*)$")
_NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TABLE_ROW = re.compile(r"^ *\|.*$", re.MULTILINE)
_NEW_PARAGRAPH = re.compile(r"\n\s*\n|\n(?= *(?:[-*+]|\d+\.) )|^#+ .*$", re.MULTILINE)  # or a list item, or a heading
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    not_run: str | None  # why it cannot be run, from the comment before it

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def page_named(name: str) -> Path:
    return PAGES[NAMES.index(name)]


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found, reason, opened = [], None, None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened is not None:
            if fence:
                start, language, lines = opened
                found.append(Block(page.name, start, language, "".join(lines), reason))
                opened, reason = None, None
            else:
                opened[2].append(line + "\n")
        elif fence:
            opened = (number, fence[1], [])
        elif line.strip():
            comment = _NOT_RUN.match(line)
            reason = comment[1] if comment else None
    assert opened is None, f"{page.name}: a block is never closed"
    return found


def blocks_of(language: str) -> list[Block]:
    """The blocks of a language on all pages."""
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command in a block: continued lines joined, comments and redirections taken off."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            words[0] = words[0].removeprefix(".venv/bin/")
            yield words[: words.index(">")] if ">" in words else words


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    lines, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


def sentences(page: Path) -> list[str]:
    """What a page says outside of code blocks, tables, headings and comments, cut at . ! ? : and ;"""
    text = _TABLE_ROW.sub("", _COMMENT.sub("", prose(page)))
    pieces = [piece for paragraph in _NEW_PARAGRAPH.split(text) for piece in _SENTENCE_END.split(paragraph)]
    return [" ".join(piece.split()) for piece in pieces if piece.strip()]


def recipe(target: str) -> Block:
    """The commands of a target of the Makefile that call `carl`."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert found, f"the Makefile has no target {target!r}"
    lines = [line.strip().replace("$(BIN)/", "") for line in found[1].splitlines()]
    return Block("Makefile", 0, "sh", "".join(f"{line}\n" for line in lines if line.startswith("carl ")), None)


def links(page: Path) -> list[str]:
    """Targets of links and pictures."""
    return _LINK.findall(_CODE_SPAN.sub("", prose(page)))


def code_spans(page: Path) -> list[str]:
    return _CODE_SPAN.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """Headings as addresses, as MkDocs and forges make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def section(page: Path, heading: str) -> str:
    """What stands between a heading and the next one of its level, blocks included."""
    text = page.read_text(encoding="utf-8")
    level = re.escape(heading[: heading.index(" ") + 1])
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^{level}|\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"{page.name} has no heading {heading!r}"
    return found[1]


def all_commands() -> dict[str, click.Command]:
    """Commands by their whole name, such as `carl data info`."""
    from carl.cli import cli

    found: dict[str, click.Command] = {}
    for name, command in cli.commands.items():
        nested = command.commands if isinstance(command, click.Group) else {"": command}
        found |= {f"carl {name} {inner}".strip(): one for inner, one in nested.items()}
    return found


def option_table(command: click.Command) -> str:
    """The options of a command with their help, as a table in Markdown."""
    rows = [_option_row(option) for option in command.params if isinstance(option, click.Option)]
    return "".join(f"{row}\n" for row in ["| option | |", "|---|---|", *rows]) if rows else ""


def _option_row(option: click.Option) -> str:
    from carl.option_words import method_names

    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    values = option.metavar or ""
    if isinstance(option.type, click.Choice):
        values = ", ".join(map(str, option.type.choices))
    help_text = " ".join((option.help or "").split())
    help_text = help_text.replace(", ".join(method_names()), "one of [Methods](methods.md)")  # which lists them
    if option.show_default and option.default is not None:
        help_text += f" [default: {option.default}]"
    return f"| {names}{' ' if values else ''}{values.replace('|', ' or ')} | {help_text} |"


def tables_of_values() -> dict[tuple[str, str], list[tuple[str, str]]]:
    """(page, heading) -> rows, for every section of the configuration and the options of every method on its page.

    A method without a section there is named by a test that is skipped for that reason.
    """
    from carl.config import Config, MethodOptions
    from carl.methods import METHODS
    from carl.views.operations import OPERATIONS

    common = tuple(MethodOptions.model_fields)
    sections = {name: field.annotation for name, field in Config.model_fields.items() if name != "method"}
    found = {("configuration.md", f"## {name}"): field_rows(model, name) for name, model in sections.items()}
    found["configuration.md", "## views"] += [  # the pipeline has a value for what the user leaves unset
        (f"| `views.{option}` | unset | ", field.description or "")
        for operation in OPERATIONS.values()
        for option, field in operation.model_fields.items()
    ]
    described = page_named("methods.md").read_text(encoding="utf-8")
    for name, method in METHODS.items():
        if f"\n## {name}\n" in described:
            found["methods.md", f"## {name}"] = field_rows(method.Options, "method", common)
    return found


def field_rows(model: Any, prefix: str, leave_out: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Of each field of a configuration its first two cells, and its meaning if the field tells it."""
    rows = []
    for name, field in model.model_fields.items():
        if name in leave_out:
            continue
        default = "required" if field.is_required() else _default(field.default)
        choices = ", ".join(map(str, get_args(field.annotation))) if get_origin(field.annotation) is Literal else ""
        meaning = ". ".join(filter(None, (choices, " ".join((field.description or "").split()))))
        rows.append((f"| `{prefix}.{name}` | {default} | ", meaning))
    return rows


def _default(value: Any) -> str:
    if value is None or value == "":
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)


def table_of_checks() -> str:
    """The quality flags with their meaning and their rule, as a table in Markdown."""
    from carl.quality import CHECKS

    rows = [f"| {check.title} | {check.meaning} | {check.rule} |" for check in CHECKS.values()]
    return "".join(f"{row}\n" for row in ["| flag | what it means | flagged if |", "|---|---|---|", *rows])


_TABLE = re.compile(r"^\| .*\n\|---.*\n(?:\|.*\n)*", re.MULTILINE)


def refresh() -> None:
    """Put the program's tables in the place of the last table of each section."""
    for name, command in all_commands().items():
        _replace_table(page_named("commands.md"), f"## {name}", option_table(command))
    for (page, heading), rows in tables_of_values().items():
        written = dict(re.findall(r"^(\| `[^|]*\| [^|]*\| )(.*) \|$", section(page_named(page), heading), re.MULTILINE))
        lines = [f"{start}{meaning or written.get(start, 'SAY WHAT IT IS')} |\n" for start, meaning in rows]
        _replace_table(page_named(page), heading, "".join(["| key | default | |\n", "|---|---|---|\n", *lines]))
    quality = page_named("quality.md")
    old = next(table for table in _TABLE.findall(quality.read_text(encoding="utf-8")) if table.startswith("| flag |"))
    quality.write_text(quality.read_text(encoding="utf-8").replace(old, table_of_checks()), encoding="utf-8")


COMPARISON = re.compile(r"(?<=<!-- comparison: from results/compare-shapes.json -->\n).*?(?=<!-- end -->)", re.DOTALL)

COMPARED = (ROOT / "README.md", ROOT / "docs" / "comparing.md")


def comparison_of_methods(found: dict[str, Any]) -> str:
    """A table of all methods, from the comparison that is kept in results/."""
    rows = [row for row in found["rows"] if row["state"] == "done"]

    def cell(row: dict[str, Any], name: str) -> str:
        low, high = row[f"{name}_interval"]
        return f"{row[name]:.1f} ({low:.1f} to {high:.1f})"

    seeds = max(row["seeds"] for row in rows)
    how = f"{seeds} seed{'s' * (seeds > 1)}, 95% intervals; details are in `results/compare-shapes.md`"
    lines = [
        f"On the built-in drawings, with equal views, head, learning rate and budget ({how}):",
        "",
        "| method | linear classifier (%) | 20 nearest neighbours (%) |",
        "|---|---|---|",
        *(f"| {row['method']} | {cell(row, 'linear')} | {cell(row, 'knn')} |" for row in rows),
        "",
        *(f"{title}: {found['conclusions'][name][0]}" for name, title in (("linear", "Linear"), ("knn", "Neighbours"))),
    ]
    return "\n".join(lines) + "\n"


def refresh_comparison() -> None:
    found = json.loads((ROOT / "results" / "compare-shapes.json").read_text(encoding="utf-8"))
    for page in COMPARED:
        text = COMPARISON.sub(lambda _: comparison_of_methods(found), page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")


def _replace_table(page: Path, heading: str, table: str) -> None:
    old = section(page, heading)
    tables = _TABLE.findall(old)
    if not tables and table.count("\n") > 2:
        raise SystemExit(f"{page.name}, {heading}: no table to replace; put one there")
    if tables:
        new = old.replace(tables[-1], table)
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(f"{heading}\n{old}", f"{heading}\n{new}"), encoding="utf-8")


if __name__ == "__main__":
    refresh()
    refresh_comparison()
