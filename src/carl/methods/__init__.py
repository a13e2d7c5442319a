"""Methods by name. A new one is a file in this folder and a line in METHODS."""

from __future__ import annotations

from carl.errors import UserError, suggestion
from carl.methods.base import DataFacts, Method
from carl.methods.carl import CARL

METHODS: dict[str, type[Method]] = {
    "carl": CARL,
}


def find_method(name: str) -> type[Method]:
    if name not in METHODS:
        raise UserError(f"unknown method {name!r}{suggestion(name, METHODS)}")
    return METHODS[name]


__all__ = ["METHODS", "DataFacts", "Method", "find_method"]
