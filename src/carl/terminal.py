"""What any command may show on a terminal."""

from __future__ import annotations

import sys


def show_progress(what: str, done: int, total: int) -> None:
    """`decoding train: 300 of 2000` on one line of a terminal, rewritten as it goes; nothing elsewhere."""
    if sys.stderr.isatty():
        known = f" of {total}" if total else ""
        print(f"\r{what}: {done}{known} ", end="\n" if done == total else "", file=sys.stderr, flush=True)
