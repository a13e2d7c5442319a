"""The operations that follow the crop of a view. A new one is a file in this folder and a line in `OPERATIONS`."""

from __future__ import annotations

from carl.views.operations.blur import Blur
from carl.views.operations.greyscale import Greyscale
from carl.views.operations.jitter import Jitter
from carl.views.operations.operation import Operation
from carl.views.operations.solarise import Solarise

OPERATIONS: dict[str, type[Operation]] = {  # in the order in which they are applied
    "jitter": Jitter,
    "grey": Greyscale,
    "blur": Blur,
    "solarise": Solarise,
}


def option_owners() -> dict[str, str]:
    """For every option, the name of the operation that declares it."""
    return {option: name for name, kind in OPERATIONS.items() for option in kind.model_fields}
