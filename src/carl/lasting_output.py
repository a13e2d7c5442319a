"""Output that outlives its reader: hours of training do not end because a pipe, a terminal or a log's disk does."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

from carl.errors import printable
from carl.terminal import Say


class LastingOutput:
    """A text stream that never fails. Once writing to `stream` has failed, everything more is dropped."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream  # None where the program was started with it closed

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        if self._stream is not None:
            try:
                self._stream.write(text)
            except (OSError, ValueError):  # ValueError: it is closed
                self._give_up(self._stream)
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._give_up(self._stream)

    def isatty(self) -> bool:
        return self._stream is not None and not self._stream.closed and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("there is no stream")
        return self._stream.fileno()

    def _give_up(self, stream: TextIO) -> None:
        """From here on the stream leads nowhere, also for what it still holds when the interpreter ends."""
        self._stream = None
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def lasting_echo() -> Say:
    """Prints lines to standard output, and drops them once no one can read them: the work goes on."""
    output = LastingOutput(sys.stdout)

    def echo(text: str) -> None:
        for line in text.split("\n"):
            print(printable(line), file=output, flush=True)

    return echo
