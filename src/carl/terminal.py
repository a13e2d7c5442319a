"""What any command may show on a terminal."""

from __future__ import annotations

import os
import shutil
import sys


def show_progress(what: str, done: int, total: int) -> None:
    """`decoding train: 300 of 2000` on one line of a terminal, rewritten as it goes; nothing elsewhere.

    Of the processes that torchrun starts only the first shows it.
    """
    if sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":
        known = f" of {total}" if total else ""
        print(f"\r{what}: {done}{known} ", end="\n" if done == total else "", file=sys.stderr, flush=True)


def show_line(text: str) -> None:
    """`text`, as far as it fits, in place of what this showed before; nothing where there is no terminal."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{text[:width].ljust(width)}", end="" if text else "\r", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """One line on standard error; of the processes that torchrun starts only the first says it."""
    if os.environ.get("RANK", "0") == "0":
        print(f"carl: {text}", file=sys.stderr)
