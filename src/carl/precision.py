"""Computing in half precision, and in full precision where the rest of the step does not."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from carl import defaults
from carl.errors import UserError
from carl.records.environment import MULTIPLY_BFLOAT16, instruction_sets

AUTO_VARIABLE = "CARL_PRECISION"  # what `auto` means, for a cluster of unlike machines that should compute alike
PRECISIONS: dict[str, torch.dtype | None] = dict(
    zip(defaults.PRECISIONS, (None, torch.bfloat16, torch.float16), strict=True)
)


def computing_in(precision: str, device_type: str) -> torch.autocast:
    """Autocast to a precision in PRECISIONS, or what `auto` is on this machine; for fp32 it does nothing."""
    dtype = PRECISIONS[settled_precision(precision, device_type)]
    return torch.autocast(device_type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def settled_precision(wanted: str, device_type: str) -> str:
    """The precision that a word of train.precision means on this machine.

    `auto` is bf16 on a CPU that multiplies bfloat16 itself. Without such instructions (AVX2) it is emulated and slower
    than float32. On other devices `auto` is fp32, because no other choice has been measured there. CARL_PRECISION, if
    it is set, is what `auto` means.
    """
    if wanted != "auto":
        return wanted
    if named := os.environ.get(AUTO_VARIABLE):
        if named not in PRECISIONS:
            raise UserError(f"{AUTO_VARIABLE}={named} is not a precision; use {', '.join(PRECISIONS)}, or unset it")
        return named
    multiplies_bfloat16 = any(one in MULTIPLY_BFLOAT16 for one in instruction_sets())
    return "bf16" if device_type == "cpu" and multiplies_bfloat16 else "fp32"


def full_precision(device_type: str) -> AbstractContextManager[object]:
    """Autocast off for a while; where it is off already, and on devices that have none such as `meta`, nothing.

    Leaving a context of autocast empties its cache of weights for all threads. A thread that makes views would do that
    in the middle of a step, and a weight that is used twice in the step would have a gradient with other last bits.
    """
    off = not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type)
    return nullcontext() if off else torch.autocast(device_type, enabled=False)
