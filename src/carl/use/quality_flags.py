"""Quality flags of images, from what was measured while they were decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from carl.errors import UserError
from carl.quality import CHECKS, Flagged, judge, measures
from carl.use.embedding_files import EmbeddingFile


def flagged(index: EmbeddingFile) -> dict[str, Flagged] | None:
    """What each check finds among the rows of a file; None if the file was made before there were checks."""
    wanted = measures()
    if not wanted.keys() <= set(index.columns):
        return None
    values = {name: index.column(name) for name in wanted}
    try:
        return flagged_by(values)
    except ValueError as error:  # the texts are not those that carl writes
        reason = " ".join(str(error).split())
        raise UserError(
            f"{index.path} has qualities of images that cannot be ({reason}); make it again with carl embed --force"
        ) from None


def flagged_by(values: Mapping[str, Sequence[object]]) -> dict[str, Flagged]:
    """What each check finds among images of which all that checks measure is given, by column."""
    kinds = {"float32": np.float32, "int32": np.int32, "text": np.str_}
    return judge({name: np.array(values[name]).astype(kinds[one.kind]) for name, one in measures().items()})


def flag_arrays(found: dict[str, Flagged], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a gallery (carl/records/gallery.py) for the images at `rows`, in rising order."""
    bits = np.zeros(len(rows), np.uint32)
    duplicate_of = np.full(len(rows), -1)
    counts = []
    for bit, flag in enumerate(found.values()):
        repeated = np.concatenate([*(one[1:] for one in flag.sets), np.empty(0, np.int64)])  # the first one stays
        flagged_rows = repeated if flag.sets else flag.rows
        counts.append(len(flagged_rows))
        bits[_places(rows, flagged_rows)[0]] |= np.uint32(1 << bit)
        firsts = np.repeat([one[0] for one in flag.sets], [len(one) - 1 for one in flag.sets]).astype(np.int64)
        places, known = _places(rows, repeated)
        kept, kept_known = _places(rows, firsts[known])
        duplicate_of[places[kept_known]] = kept
    return {
        "flags": bits,
        "flag_names": np.array([CHECKS[name].title for name in found], np.str_),
        "flag_words": np.array([CHECKS[name].meaning for name in found], np.str_),
        "flag_counts": np.array(counts, np.int64),
        "duplicate_of": duplicate_of,
    }


def _places(rows: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of those `wanted` rows that are among `rows`, and which of the wanted these are."""
    places = np.searchsorted(rows, wanted)
    known = (places < len(rows)) & (rows[np.minimum(places, len(rows) - 1)] == wanted)
    return places[known], known
