"""Draw architecture.svg: the run directory in the middle, what writes it on the left, what reads it on the right.

python docs/images/architecture.py
"""

from __future__ import annotations

from pathlib import Path

INK, SOFT, FILL, MAIN = "#24292f", "#57606a", "#eef1f8", "#dfe5ff"
WRITERS = [
    ("images", "folder, file, shards, name"),
    ("data/", "one door, one batch interface"),
    ("views/", "two random views"),
    ("methods/", "encoder, head, loss"),
    ("training/", "plan, then run"),
]
FILES = ["config.toml", "encoder.safetensors", "metrics.jsonl", "checkpoint.pt", "results/*.json"]
READERS = [
    ("evaluation/", "how good is it?"),
    ("use/", "embed, search, curate, export"),
    ("reporting/", "pages for people"),
    ("reproduction/", "the paper's tables"),
]


def box(x: int, y: int, width: int, height: int, fill: str = FILL) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{SOFT}"/>'


def text(x: int, y: int, words: str, size: int = 15, colour: str = INK, weight: str = "normal") -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" font-weight="{weight}" text-anchor="middle">'
        f"{words}</text>"
    )


def arrow(x1: int, y1: int, x2: int, y2: int) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}" stroke-width="1.6" marker-end="url(#tip)"/>'


def picture() -> str:
    parts = []
    for place, (name, words) in enumerate(WRITERS):
        top = 20 + 78 * place
        parts += [box(20, top, 230, 54), text(135, top + 24, name, weight="bold"), text(135, top + 43, words, 12, SOFT)]
        if place:
            parts.append(arrow(135, top - 24, 135, top - 3))
    parts += [box(330, 76, 220, 256, MAIN), text(440, 106, "run directory", 18, weight="bold")]
    parts += [text(440, 142 + 30 * place, name, 14) for place, name in enumerate(FILES)]
    parts += [text(440, 312, "records/ knows its files", 12, SOFT), arrow(250, 359, 327, 300)]
    for place, (name, words) in enumerate(READERS):
        top = 30 + 92 * place
        parts += [
            box(630, top, 230, 54),
            text(745, top + 24, name, weight="bold"),
            text(745, top + 43, words, 12, SOFT),
        ]
        parts.append(arrow(550, 120 + 56 * place, 627, top + 27))
    return "\n".join(parts)


if __name__ == "__main__":
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 406" font-family="DejaVu Sans, Arial, sans-serif">'
        '<rect width="880" height="406" fill="white"/>'
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L10,5 L0,10 z" fill="{INK}"/></marker></defs>'
    )
    Path(__file__).with_suffix(".svg").write_text(f"{head}\n{picture()}\n</svg>\n", encoding="utf-8")
