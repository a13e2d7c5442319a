"""Computing in full precision where the rest of the step does not."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def full_precision(device_type: str) -> AbstractContextManager[object]:
    """Autocast off for a while; devices that have no autocast, such as `meta`, need nothing."""
    return torch.autocast(device_type, enabled=False) if torch.amp.is_autocast_available(device_type) else nullcontext()
