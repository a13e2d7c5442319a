"""Starts several processes as torchrun would, forked from one that has imported everything: seconds less a test."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["carl.cli", "carl.training.run", "carl.methods", "carl.data.batches.stream"])


class Group:
    """Running processes, one a rank."""

    def __init__(self, ranks: int, folder: Path, function: Callable[..., None], *arguments: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        shared = {
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "CARL_CACHE": os.environ["CARL_CACHE"],
        }
        self.processes = [
            CONTEXT.Process(
                target=_enter,
                args=({**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, folder, function, arguments),
            )
            for rank in range(ranks)
        ]
        for process in self.processes:
            process.start()

    def wait(self, seconds: float = 240) -> list[int | None]:
        """Exit codes of all processes; whoever is late is killed."""
        for process in self.processes:
            process.join(seconds)
            if process.is_alive():
                process.kill()
                process.join()
        return [process.exitcode for process in self.processes]

    def output(self, rank: int) -> str:
        return (self.folder / f"output-{rank}.txt").read_text()

    def outputs(self) -> str:
        return "".join(self.output(rank) for rank in range(len(self.processes)))


def run(ranks: int, folder: Path, function: Callable[..., None], *arguments: Any) -> None:
    """Until all processes are done, and well."""
    group = Group(ranks, folder, function, *arguments)
    codes = group.wait()
    assert codes == [0] * ranks, group.outputs()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _enter(
    environment: dict[str, str], folder: Path, function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    import torch

    os.environ.update(environment)
    if environment["WORLD_SIZE"] == "1":
        del os.environ["MASTER_ADDR"]
    os.chdir(folder)
    output = os.open(f"output-{environment['RANK']}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    torch.set_num_threads(1)
    function(*arguments)


def command(*arguments: str | Path) -> None:
    """The `carl` command."""
    from carl.cli import main

    sys.argv = ["carl", *map(str, arguments)]
    main()
