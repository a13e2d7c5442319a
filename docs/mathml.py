"""Equations of the documentation as MathML, which browsers draw by themselves: no script, no font, no network.

A hook of MkDocs. The notation is the one that forges draw too: a fenced block ```math, and $`x`$ within a line.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

BLOCK = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = r"\$`([^`]+)`\$"
# Priorities: blocks after Markdown has tidied the text (30) and before fenced code (25), lines before code spans (190).
BLOCK_PRIORITY, INLINE_PRIORITY = 27, 200


class MathBlocks(Preprocessor):
    """Fenced blocks of TeX."""

    def run(self, lines: list[str]) -> list[str]:
        return BLOCK.sub(self._stored, "\n".join(lines)).split("\n")

    def _stored(self, found: re.Match[str]) -> str:
        return "\n" + self.md.htmlStash.store(f"<p>{convert(found[1].strip(), display='block')}</p>") + "\n"


class MathInline(InlineProcessor):
    """TeX within a line."""

    def handleMatch(self, found: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override]
        return self.md.htmlStash.store(convert(found[1])), found.start(0), found.end(0)


class Equations(Extension):
    """Registers both."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(MathBlocks(md), "math-blocks", BLOCK_PRIORITY)
        md.inlinePatterns.register(MathInline(INLINE, md), "math-inline", INLINE_PRIORITY)


def on_config(config: Any) -> Any:
    """Called by MkDocs when its configuration is read."""
    config.markdown_extensions.append(Equations())
    return config
