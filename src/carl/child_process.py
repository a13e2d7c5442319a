"""Child processes: every Python that the package starts, it starts here."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO


def start_python(
    arguments: Sequence[str],
    *,
    stdin: int | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    own_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start this Python with `arguments`, for example `-m` and the name of a module.

    It imports nothing from the working directory, and neither does what it starts in turn: a folder of images may
    hold a file with the name of a module.
    """
    return subprocess.Popen(
        [sys.executable, "-P", *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=own_session,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )


def end_with_parent(parent: int, interval: float = 1.0) -> None:
    """To be called in a child: from now on it gets SIGTERM, and so can save, once the process `parent` has ended.

    A parent that is killed cannot tell its children. Linux tells them; on other systems the child looks every
    `interval` seconds whose child it is.
    """
    if _linux_tells() and os.getppid() == parent:
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(interval)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _linux_tells() -> bool:
    """Ask the system for SIGTERM when the parent ends; False where it has no such service."""
    if not sys.platform.startswith("linux"):
        return False
    set_signal_of_parents_death = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
    try:
        return bool(ctypes.CDLL(None).prctl(set_signal_of_parents_death, signal.SIGTERM, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
