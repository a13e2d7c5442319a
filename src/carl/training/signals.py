"""Ctrl-C, SIGTERM and SIGHUP: noticed when they come, obeyed between two steps, by all processes after the same one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from carl import distributed, launch


class Interrupted(Exception):
    """A signal asked the run to end; it is saved."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


def _ending() -> list[signal.Signals]:
    """The signals that end a run. `nohup` has SIGHUP, from a terminal that is closed, ignored, and so it stays."""
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    heeded = hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([hangup] if hangup is not None and heeded else [])]


class Signals:
    """The signals that any process of the run got. To be made once the processes have met."""

    def __init__(self) -> None:
        self._own: int | None = None  # the signal that this process got
        self._shared = distributed.SharedSignal()

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Inside, a signal only leaves a note; a second one ends the process at once.

        Not with many processes: there torchrun and the cluster's scheduler each pass the same signal on.
        """

        def notice(signum: int, frame: FrameType | None) -> None:
            if self._own is not None and launch.processes() == 1:
                raise KeyboardInterrupt
            self._own = signum

        previous = {}
        try:
            for signum in _ending():
                previous[signum] = signal.signal(signum, notice)
        except ValueError:  # not in the main thread: the caller handles signals
            pass
        try:
            yield
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)

    def after_step(self) -> int:
        """The number of a signal that all processes know of by now, 0 for none. To be called after each step."""
        return self._shared.agreed(self._own or 0)

    def after_epoch(self) -> int:
        """The same, including signals during the last step: it waits for the other processes."""
        return self._shared.agreed(self._own or 0) or self._shared.last()
