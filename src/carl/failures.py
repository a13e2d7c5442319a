"""How a command ends: the line that it says if it fails, and its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import click

from carl.errors import UserError, printable
from carl.lasting_output import LastingOutput
from carl.launch import one_of_many
from carl.option_words import as_setting

MISTAKE = 2  # of the user, or of the machine: no memory, no room, no rights
INTERRUPTED = 130  # as a shell reports a program that SIGINT ended
READER_GONE = 141  # as a shell reports a program that SIGPIPE ended

NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "Storage size calculation overflowed")


class ReaderGone(Exception):
    """Whoever read our output has gone, as in `carl search ... | head -1`."""


def exit_code(run: Callable[[], object]) -> int:
    """Run a command and return its exit code. An error that is neither the user's nor the machine's goes on."""
    try:
        code = run()
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 0
    except (UserError, click.ClickException) as error:
        _complain(_words(error))
        return MISTAKE
    except ReaderGone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return READER_GONE
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        _complain(f"cannot use{where}: {error.strerror or error}; check the path, its rights and the disk")
        return MISTAKE
    except (KeyboardInterrupt, click.Abort) as error:
        _complain(str(error.__cause__ or error) or "interrupted")  # click puts its own in the place of ours
        return INTERRUPTED
    except Exception as error:
        if _out_of_memory(error):
            _complain(f"not enough memory ({error}); lower --batch-size, --image-size or --prototypes")
            return MISTAKE
        if one_of_many() and _is_echo(error):
            return 1
        raise
    return code if isinstance(code, int) else 0


def _words(error: UserError | click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        instead = as_setting(error.option_name, error.ctx.command, sys.argv)
        return instead or error.format_message()
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


def _complain(message: str) -> None:
    """Print one line on standard error. With many processes only the first to fail does; the others follow from it."""
    if not one_of_many() or _fails_first():
        line = printable(" ".join(message.split()))  # no control codes reach the terminal
        print(f"carl: {line}", file=LastingOutput(sys.stderr), flush=True)


def _out_of_memory(error: Exception) -> bool:
    """Whether a library ran out of memory: Python, NumPy, CUDA, MPS and torch on a CPU each have their own words."""
    said = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in said for words in NO_MEMORY)
    )


def _fails_first() -> bool:
    from carl.distributed import fails_first

    return fails_first()


def _is_echo(error: Exception) -> bool:
    """Whether the error only means that another process failed first. A process that was lost is reported here."""
    from carl.distributed import means_lost_peer

    if not _fails_first():
        return True
    lost = means_lost_peer(error)
    if lost:
        print("carl: another process of this run was lost; start it again to resume", file=sys.stderr)
    return lost
