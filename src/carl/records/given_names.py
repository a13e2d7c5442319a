"""The file in which people keep their names for groups and their tags of images, torch-free.

A report's page saves it, and `carl report --names` and `carl group --names` read it:

    {"carl": "names", "version": 1, "of": "3f2a...",
     "groups": {"3": "owls", "17": "night shots"},
     "tags": {"to delete": ["photos/a.jpg", "photos/b.jpg"]}}

`groups` maps the number of a group to its name, `tags` maps a tag to paths of images. `of` is the fingerprint of the
groups that were named (`fingerprint`); other groups have the same numbers, and must not get these names. By hand,
`{"groups": {"3": "owls"}}` is enough.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from carl import files
from carl.errors import UserError
from carl.files import open_regular

VERSION = 1
LARGEST_FILE = 64 * 2**20  # bytes: a million paths of 60 letters
LONGEST_NAME = 100  # letters of a group's name or a tag


@dataclass(frozen=True)
class GivenNames:
    """Names of groups and tags of images."""

    groups: Mapping[int, str] = field(default_factory=dict)
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    of: str = ""  # fingerprint of the groups; empty if the file does not say


def fingerprint(groups: np.ndarray) -> str:
    """Tells one grouping from another, by the float figures of its groups: centres (K, D), or a figure each (K,)."""
    return hashlib.sha256(np.ascontiguousarray(groups, "<f4").tobytes()).hexdigest()[:16]


def read_names(path: Path, of: str = "") -> GivenNames:
    """The names in a file. `of` is the fingerprint of the groups they are for; names of other groups are refused."""
    try:
        with open_regular(path) as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise ValueError(f"it is larger than {LARGEST_FILE} bytes")
        found = _checked(json.loads(text))
    except FileNotFoundError:
        raise UserError(f"--names {path} does not exist; save it from a report's page, or write it by hand") from None
    except (ValueError, RecursionError) as error:
        said = " ".join(str(error).split()[:14])
        raise UserError(
            f'--names {path} is not a file of names ({said}); it holds {{"groups": {{"3": "owls"}}, "tags": {{}}}}'
        ) from None
    if of and found.of and found.of != of:
        raise UserError(
            f"--names {path} names other groups: they have been computed again since. Name them again in the page, or "
            'remove "of" from the file if the numbers still fit'
        )
    return found


def write_names(path: Path, names: GivenNames) -> None:
    files.write_json(
        path,
        {
            "carl": "names",
            "version": VERSION,
            "of": names.of,
            "groups": {str(number): name for number, name in sorted(names.groups.items())},
            "tags": {tag: list(paths) for tag, paths in names.tags.items()},
        },
    )


def _checked(content: Any) -> GivenNames:
    if not isinstance(content, dict) or not content.keys() & {"groups", "tags"}:
        raise ValueError("it has neither groups nor tags")
    if content.get("version", VERSION) != VERSION:
        raise ValueError(f"version {content['version']!r} is not known here")
    groups, tags, of = content.get("groups", {}), content.get("tags", {}), content.get("of", "")
    if not isinstance(groups, dict) or not isinstance(tags, dict) or not isinstance(of, str):
        raise ValueError("groups and tags must be objects, of a text")
    return GivenNames(
        {_number(key): _name(value) for key, value in groups.items()},
        {_name(tag): _paths(tag, paths) for tag, paths in tags.items()},
        of,
    )


def _number(key: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) <= 9):
        raise ValueError(f"{key!r} is not the number of a group")
    return int(key)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_NAME:
        raise ValueError(f"{str(value)[:40]!r} is not a name of 1 to {LONGEST_NAME} letters")
    if any("\ud800" <= sign <= "\udfff" for sign in value):  # JSON can write half a letter, and no table can
        raise ValueError(f"{value!r} is not text")
    return value.strip()


def _paths(tag: str, paths: Any) -> tuple[str, ...]:
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError(f"tag {tag!r} has no list of paths")
    return tuple(paths)
