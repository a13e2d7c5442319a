"""Writes metrics.jsonl, and logs to TensorBoard and Weights & Biases if asked to."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TextIO

from carl import files
from carl.config import Config, LogConfig
from carl.errors import UserError
from carl.records.metrics import Record, is_record


class Journal:
    """Appends records and flushes each at once. On resume, records after the checkpoint are dropped.

    The file is only changed once there is something to write, so a resume that is refused changes nothing.
    """

    def __init__(self, path: Path, config: Config, last_step: int, write: bool = True) -> None:
        self.records = [r for r in files.read_json_lines(path) if is_record(r) and r["step"] <= last_step]
        self._path = path if write else None
        self._file: TextIO | None = None
        self._sinks = _open_sinks(config.log, path.parent, config) if write else []

    def write(self, kind: str, step: int, epoch: float, **values: Any) -> None:
        """Write a line of one kind: `step`, `probe` or `event`."""
        record = {"kind": kind, "step": step, "epoch": round(epoch, 4), **values}
        if self._path is not None:
            if self._file is None:
                files.write_text(self._path, "".join(json.dumps(r) + "\n" for r in self.records))
                self._file = self._path.open("a", encoding="utf-8")
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        self.records.append(record)
        numbers = {k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        for sink in self._sinks:
            sink.write(kind, step, numbers)

    def of_kind(self, kind: str) -> list[Record]:
        return [r for r in self.records if r["kind"] == kind]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        for sink in self._sinks:
            sink.close()


class _Sink(Protocol):
    def write(self, kind: str, step: int, numbers: dict[str, float]) -> None: ...

    def close(self) -> None: ...


def check_sinks(log: LogConfig) -> None:
    """Report a missing package before the run directory is made."""
    if log.tensorboard and find_spec("tensorboard") is None:
        raise UserError("log.tensorboard needs TensorBoard; pip install 'carl-ssl[tensorboard]' or leave it off")
    if log.wandb and find_spec("wandb") is None:
        raise UserError("log.wandb needs wandb; pip install 'carl-ssl[wandb]' or leave it off")


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def write(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, folder: Path, config: Config) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=config.log.wandb_project,
            dir=str(folder),
            name=folder.name,
            id=folder.name,
            resume="allow",
            config=config.model_dump(mode="json"),
        )

    def write(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        self._run.log({f"{kind}/{name}": value for name, value in numbers.items()}, step=step)

    def close(self) -> None:
        self._run.finish()


def _open_sinks(log: LogConfig, folder: Path, config: Config) -> list[_Sink]:
    check_sinks(log)
    sinks: list[_Sink] = []
    if log.tensorboard:
        sinks.append(_TensorBoard(folder))
    if log.wandb:
        sinks.append(_Wandb(folder, config))
    return sinks
