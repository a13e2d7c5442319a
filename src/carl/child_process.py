"""Child processes: every Python that the package starts, it starts here."""

from __future__ import annotations

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
    """To be called in a child. Once the process `parent` has ended, the child gets SIGTERM, on which it can save.

    A parent that is killed cannot tell its children, so a thread asks every `interval` seconds whose child this is.
    Linux could send a signal instead (PR_SET_PDEATHSIG), but it sends one for each thread of the parent, and a second
    SIGTERM ends a training at once.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(interval)
        if os.name == "nt":
            signal.raise_signal(signal.SIGTERM)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
