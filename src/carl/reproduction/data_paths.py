"""Where the paper's data sets are on this machine. A run is the same run wherever its data are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# A file of this name in --data-root is taken for the data set; otherwise the root is where downloads are.
FILES = {"cifar10": ("cifar10-train.parquet",), "cifar100": ("cifar100-train.parquet", "cifar100-train-10k.parquet")}


def data_source(name: str, root: Path | None) -> dict[str, Any]:
    """`source` and `root` of the data section for a data set by its name; any other source stays as it is."""
    if root is None:
        return {"source": name}
    for file in FILES.get(name, ()):
        if (root / file).is_file():
            return {"source": str((root / file).resolve())}
    return {"source": name, "root": str(root.resolve())}


def with_data_source(section: Mapping[str, Any], root: Path | None) -> dict[str, Any]:
    """A data section whose source is where it is on this machine."""
    return {**section, **data_source(str(section["source"]), root)}
