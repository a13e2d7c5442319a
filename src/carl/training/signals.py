"""Ctrl-C and SIGTERM: noticed when they come, acted upon between two steps, by all processes after the same step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from carl import distributed


class Interrupted(Exception):
    """Ctrl-C or SIGTERM; the run is saved."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Signals:
    """The signals of all processes; to be made when they have met."""

    def __init__(self) -> None:
        self._own: int | None = None  # that this process got
        self._shared = distributed.SharedSignal()

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Inside, a signal only leaves a note; a second one ends the process at once.

        Not with many processes: there torchrun and the cluster's scheduler each pass the same signal on.
        """

        def notice(signum: int, frame: FrameType | None) -> None:
            if self._own is not None and distributed.launched() == 1:
                raise KeyboardInterrupt
            self._own = signum

        previous = {}
        try:
            for signum in (signal.SIGINT, signal.SIGTERM):
                previous[signum] = signal.signal(signum, notice)
        except ValueError:  # not in the main thread: the caller handles signals
            pass
        try:
            yield
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)

    def after_step(self) -> int:
        """The number of a signal that all processes know of by now, 0 for none; to be called after each step."""
        return self._shared.agreed(self._own or 0)

    def after_epoch(self) -> int:
        """The same, of the last step too: it waits for the other processes."""
        return self._shared.agreed(self._own or 0) or self._shared.last()
