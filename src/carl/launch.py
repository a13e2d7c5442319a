"""What torchrun, or another launcher that sets its variables, says about this process. Without torch."""

from __future__ import annotations

import os

from carl.errors import UserError


def number(name: str, otherwise: int, least: int = 0) -> int:
    """The whole number in an environment variable, `otherwise` where it is not set."""
    text = os.environ.get(name, str(otherwise))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= least):
        raise UserError(f"{name}={text!r} is not a number from {least} on; start with torchrun, or unset {name}")
    return int(text)


def processes() -> int:
    """How many processes were started as one run."""
    return number("WORLD_SIZE", 1, least=1)


def processes_here() -> int:
    """How many of them share this machine."""
    return number("LOCAL_WORLD_SIZE", 1, least=1)


def one_of_many() -> bool:
    """Whether there are other processes. No error if the launcher's variable makes no sense: errors ask this too."""
    said = os.environ.get("WORLD_SIZE", "1")
    return said.isdecimal() and int(said) > 1


def is_first() -> bool:
    """Whether this is the process that speaks to the user."""
    return not one_of_many() or os.environ.get("RANK", "0") == "0"


def gpu() -> int:
    """The number of this process on its machine, which is that of its GPU."""
    return number("LOCAL_RANK", 0)


def attempt() -> int:
    """How often torchrun has started the processes again."""
    return number("TORCHELASTIC_RESTART_COUNT", 0)


def may_restart() -> bool:
    """Whether torchrun will start a process again that has failed."""
    return number("TORCHELASTIC_MAX_RESTARTS", 0) > 0


def store_address() -> tuple[str, int] | None:
    """Where the processes meet; None if there is no such place."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    return (host, int(port)) if host and port.isdecimal() else None


def check() -> None:
    """Refuse what a launcher left half set, before torch waits for processes that will not come."""
    count = processes()
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise UserError(
            f"WORLD_SIZE={count} says that this is one of {count} processes, but {missing[0]} is not set; "
            "start them with torchrun, or unset WORLD_SIZE"
        )
    number("MASTER_PORT", 0)
    if number("RANK", 0) >= count:
        raise UserError(f"RANK={os.environ['RANK']} is not below WORLD_SIZE={count}; start the processes with torchrun")
