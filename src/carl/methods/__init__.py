"""Methods by name. A new one is a file in this folder and a line in METHODS."""

from __future__ import annotations

from carl.errors import UserError, suggestion
from carl.methods.barlow import BarlowTwins
from carl.methods.base import Method
from carl.methods.byol import BYOL
from carl.methods.carl import CARL
from carl.methods.carp import CARP
from carl.methods.deepcluster import DeepCluster
from carl.methods.moco import MoCo
from carl.methods.pcl import PCL
from carl.methods.scan import SCAN
from carl.methods.simclr import SimCLR
from carl.methods.simsiam import SimSiam
from carl.methods.supervised import Supervised
from carl.methods.swav import SwAV
from carl.methods.vicreg import VICReg

METHODS: dict[str, type[Method]] = {
    "carl": CARL,
    "simclr": SimCLR,
    "byol": BYOL,
    "moco": MoCo,
    "pcl": PCL,
    "swav": SwAV,
    "supervised": Supervised,
    "simsiam": SimSiam,
    "barlow": BarlowTwins,
    "scan": SCAN,
    "vicreg": VICReg,
    "carp": CARP,
    "deepcluster": DeepCluster,
}


def find_method(name: str) -> type[Method]:
    if name not in METHODS:
        raise UserError(f"unknown method {name!r}{suggestion(name, METHODS)}")
    return METHODS[name]


__all__ = ["METHODS", "Method", "find_method"]
