"""A method whose gradients are averaged over the processes."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from carl.errors import UserError
from carl.methods import Method


def data_parallel(method: Method) -> DistributedDataParallel:
    """The method with its gradients averaged over the processes, and its buffers left alone.

    Buffers stay equal by themselves (queues are of gathered keys) or are averaged when they are read. To broadcast
    them, as is torch's default, would send MoCo's queue of 33 MB with each step.
    """
    named = inspect.signature(DistributedDataParallel.__init__).parameters
    key = (
        "forward_sync_buffers" if "forward_sync_buffers" in named else "broadcast_buffers"
    )  # its name in older versions
    options: dict[str, Any] = {key: False}
    # A 1x1 convolution that is a matrix product (models/tiny_maps.py) has gradients of other strides in dimensions of
    # length one. Nothing has to be copied, and the user need not know.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    return DistributedDataParallel(method, **options)


def check_all_learn(method: Method, backbone: str) -> None:
    """Call after the first backward pass. torch waits for a gradient of every weight, so the next pass would fail."""
    idle = [name for name, p in method.named_parameters() if p.requires_grad and p.grad is None]
    if idle:
        raise UserError(
            f"{len(idle)} weights of {backbone} have no part in its output ({idle[0]} is one), "
            "and with many processes all must; use --set train.accumulate=2, which can do without, or another "
            "backbone"
        )
