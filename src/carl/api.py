"""`carl pretrain` as a function."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from carl import files
from carl.config import layer_of_flags, merge, warn_of_old_names
from carl.errors import UserError


def pretrain(
    data: Any,
    *,
    out: str | Path | None = None,
    method: str | None = None,
    preset: str | None = None,
    backbone: str | None = None,
    init: str | Path | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    image_size: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, object] | None = None,
    resume: bool = False,
) -> Path:
    """Learn an encoder as `carl pretrain` does, and return the run directory.

    `data` is what the command takes, or a map-style Dataset, whose images are first written to the cache as one file.
    None takes the command's default. `init` is an encoder to adapt, named as for the command; then `method` is simclr
    if it is None. `settings` holds any other value as {"section.key": value}. With `resume`, a run that is already at
    `out` is resumed.
    """
    from carl.training.plan import PretrainRequest, plan
    from carl.training.run import carry_out

    if not isinstance(data, str | Path):
        data = _written(data, image_size)
    layer: dict[str, dict[str, object]] = {}
    for path, value in (settings or {}).items():
        section, dot, key = path.partition(".")
        if not dot:
            raise UserError(f"settings[{path!r}] names no section; for example {{'views.crop_min': 0.2}}")
        layer.setdefault(section, {})[key] = value
    warn_of_old_names(layer)
    named = layer_of_flags(
        {
            "data": str(data),
            "image_size": image_size,
            "backbone": backbone,
            "init": None if init is None else str(init),
            "method": method,
            "preset": preset,
            "epochs": epochs,
            "batch_size": batch_size,
            "seed": seed,
        }
    )
    where = None if out is None else Path(out)
    again = "auto" if resume else None
    request = PretrainRequest(merge([layer, named]), where, again, ("carl.pretrain",), fit_time=True)
    return carry_out(plan(request))


def _written(data: Any, image_size: int | None) -> Path:
    """A Python data set as a file in the cache, named by its content: runs are resumed and evaluated from it."""
    from carl.data import open_dataset
    from carl.user_paths import cache_folder

    dataset = open_dataset(data, image_size=image_size)
    train = dataset.train
    path = cache_folder() / "python" / f"{files.portable_name(dataset.name)}-{dataset.fingerprint[:16]}.npz"
    if not path.exists():
        arrays: dict[str, Any] = {"images": train.images.pixels}
        if train.labels is not None:
            arrays |= {"labels": train.labels, "class_names": np.array(dataset.class_names)}
        with files.atomic_writer(path) as file:
            np.savez(file, **arrays)
    return path
