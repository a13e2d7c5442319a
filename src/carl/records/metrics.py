"""metrics.jsonl: one record per line, and which values a record can hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from carl import files

Record = dict[str, Any]

TEXTS = ("kind", "event", "verdict", "knn_right", "neighbours_shared")
FINISHED = "finished"  # event of a run that has reached its last epoch
LISTS_OF_TEXTS = ("findings", "warnings")
LARGEST = 1e300  # figures below this can be averaged with others without overflow


def is_record(record: Record) -> bool:
    """Whether carl can have written this line; resume ignores all others."""
    kind, step, epoch = record.get("kind"), record.get("step"), record.get("epoch")
    if not isinstance(kind, str) or not isinstance(step, int) or not _is_figure(epoch) or not math.isfinite(epoch):
        return False
    allowed = _is_anything if kind == "event" else _is_figure  # events may hold anything
    return all(_fits(key, value, allowed) for key, value in record.items())


def read_records(path: Path) -> list[Record]:
    """The lines that can be shown, each with only the values that can be shown."""
    cleaned = (_cleaned(record) for record in files.read_json_lines(path))
    return [record for record in cleaned if record is not None]


def has_finished(records: Sequence[Record]) -> bool:
    """Whether the run reached its last epoch, and has not been extended and resumed since."""
    return bool(records) and records[-1].get("event") == FINISHED


def end_of(records: Sequence[Record]) -> Record | None:
    """The last record of an end, with the time and memory that the run took; None if it never finished."""
    return next((record for record in reversed(records) if record.get("event") == FINISHED), None)


def is_number(value: object) -> TypeGuard[float]:
    """A finite number; a metric may be NaN in a run that went wrong."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _cleaned(record: Record) -> Record | None:
    kind = record.get("kind")
    if not isinstance(kind, str) or (kind in ("step", "probe") and not _can_be_shown(record.get("epoch"))):
        return None
    return {key: value for key, value in record.items() if _fits(key, value, _can_be_shown)}


def _fits(key: str, value: object, allowed: Callable[[object], bool]) -> bool:
    """Whether a value has the type that `key` requires; the values of other keys must be `allowed`."""
    if key in LISTS_OF_TEXTS:
        return isinstance(value, list) and all(isinstance(text, str) for text in value)
    return isinstance(value, str) if key in TEXTS else allowed(value)


def _is_anything(value: object) -> bool:
    return True


def _is_figure(value: object) -> TypeGuard[float]:
    """Whether this is a number that fits in 64 bits; a metric may be NaN."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _can_be_shown(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST  # not NaN either
