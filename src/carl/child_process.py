"""Child processes: every Python that the package starts, it starts here."""

from __future__ import annotations

import os
import subprocess
import sys
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
