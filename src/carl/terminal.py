"""What any command may show on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress


def show_progress(what: str, done: int, total: int) -> None:
    """Show `decoding train: 300 of 2000` on one line of the terminal, rewritten each time; nothing without a terminal.

    Among the processes that torchrun starts, only the first shows it.
    """
    if _on_terminal() and _is_first():
        known = f" of {total}" if total else ""
        _write(f"\r{what}: {done}{known} " + ("\n" if done == total else ""))


def show_line(text: str) -> None:
    """Show `text`, cut to the width of the terminal, over the line shown before; nothing without a terminal."""
    if _on_terminal():
        width = shutil.get_terminal_size().columns - 1
        _write(f"\r{text[:width].ljust(width)}" + ("" if text else "\r"))


def warn(text: str) -> None:
    """Write one line to standard error; among the processes that torchrun starts, only the first does."""
    if _is_first():
        _write(f"carl: {text}\n")


def reserve_standard_streams() -> None:
    """Put the null device where a standard stream is closed.

    Otherwise the next file to be opened gets its number, and what a library writes to standard error ends up in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _on_terminal() -> bool:
    with suppress(ValueError):  # the stream was closed
        return sys.stderr is not None and sys.stderr.isatty()
    return False


def _write(text: str) -> None:
    """Write to standard error if that is possible: work goes on whether anyone listens or not."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
