"""Near copies: the same picture saved again, scaled, or slightly changed.

Two images are near copies if their perceptual hashes differ in few of 64 bits, and their mean colours and their shapes
are alike. The hash is pHash as the package ImageHash computes it: which of the 8 x 8 lowest frequencies of the image,
in grey at 32 x 32, are above their median. CleanVision asks for equal hashes, but saving a photo as JPEG again already
flips a few bits. Computed here, because ImageHash would be one more dependency for two products of matrices.

Pairs are found without comparing all of them: of hashes cut into BANDS pieces, two with at most FLIPPED differing bits
share at least BANDS - FLIPPED pieces. So only images that share two pieces are compared, and memory is a few numbers
per image.
"""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
from PIL import Image

from carl.quality.check import HEIGHT, WIDTH, Check, Columns, Flagged, Measure
from carl.quality.exact_copies import first_of_each, flagged_sets, sets_of
from carl.quality.picture import Picture

SIDE, LOW = 32, 8  # ImageHash 4.3: highfreq_factor 4, hash_size 8
# Ours, by looking at pairs of CIFAR-10 with a colour limit of 12; results/quality says what was seen and what was not.
FLIPPED = 6  # bits
COLOUR = 16  # of 255: difference of the mean red, green or blue
SHAPE = 1.1  # factor between the aspects
PLAIN = 64.0  # frequencies of an image whose shades differ by about one: a hash of them would be noise
BANDS = FLIPPED + 2
CROWD = 200  # images that share two pieces: of more, each is compared with the next ones, and meets others through them


def _cosines() -> np.ndarray:
    """The lowest rows of the discrete cosine transform, type II: (LOW, SIDE)."""
    places = np.arange(SIDE)
    rows = 2 * np.cos(np.pi * np.arange(LOW)[:, None] * (2 * places + 1) / (2 * SIDE))
    return np.asarray(rows, np.float32)


_COSINES = _cosines()
_ONES = np.unpackbits(np.arange(2**16, dtype=">u2").view(np.uint8).reshape(-1, 2), axis=1).sum(1).astype(np.uint8)


def perceptual_hash(picture: Picture) -> str:
    """64 bits as 16 hexadecimal digits, the lowest frequency first."""
    grey = np.asarray(picture.grey.resize((SIDE, SIDE), Image.Resampling.LANCZOS), np.float32)
    low = (_COSINES @ grey @ _COSINES.T).reshape(-1)
    if np.abs(low[1:]).max() < PLAIN:
        return "0" * 16
    return np.packbits(low > np.median(low)).tobytes().hex()


def looks(picture: Picture) -> str:
    """The hash and the mean colour in 22 hexadecimal digits."""
    return perceptual_hash(picture) + bytes(picture.mean_colour).hex()


def _judge(columns: Columns) -> Flagged:
    """Sets of near copies; of exact copies only the first is in them."""
    rows = np.sort(first_of_each(columns["content"])[0])
    digits = np.char.encode(columns["looks"][rows].astype(str), "ascii")
    parts = np.frombuffer(bytes.fromhex(b"".join(digits.tolist()).decode()), np.uint8).reshape(-1, 11)
    hashes = parts[:, :8].copy().view(">u8").astype(np.uint64)[:, 0]
    shapes = np.rint(100 * np.log(columns["width"][rows] / columns["height"][rows]))  # in steps of 1%
    looks_of_each = np.column_stack([hashes, parts[:, 8:], (shapes + 10_000).astype(np.uint64)])  # (R, 5) uint64
    different, which = np.unique(looks_of_each, axis=0, return_inverse=True)
    numbers = _joined(different[:, 0].copy(), different[:, 1:4].astype(int), different[:, 4].astype(int))
    return flagged_sets(tuple(rows[group] for group in sets_of(numbers[which.reshape(-1)])))


def _joined(hashes: np.ndarray, colours: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """The number of the set that each of some different looks belongs to."""
    numbers = np.arange(len(hashes))
    firsts: list[np.ndarray] = []
    seconds: list[np.ndarray] = []
    for keys in _keys(hashes):
        order = np.lexsort((hashes, keys))
        keys = keys[order]
        same = np.arange(len(keys))
        for distance in range(1, min(CROWD, len(keys))):  # the next in the order of the key, the next but one, ...
            same = same[: np.searchsorted(same, len(keys) - distance)]
            same = same[keys[same + distance] == keys[same]]
            if not len(same):
                break
            one, other = order[same], order[same + distance]
            apart = numbers[one] != numbers[other]  # spares what is known already: copies come in crowds
            one, other = one[apart], other[apart]
            close = (
                (differing_bits(hashes[one], hashes[other]) <= FLIPPED)
                & (np.abs(colours[one] - colours[other]).max(1, initial=0) <= COLOUR)
                & (np.abs(shapes[one] - shapes[other]) <= 100 * np.log(SHAPE))
            )
            if close.any():
                firsts.append(one[close])
                seconds.append(other[close])
        numbers = _merged(numbers, firsts, seconds)
    return numbers


def _merged(numbers: np.ndarray, firsts: list[np.ndarray], seconds: list[np.ndarray]) -> np.ndarray:
    """The numbers of sets after those of linked images became one; the links are used up."""
    from scipy.sparse import coo_array  # here: it takes as long to import as the rest of the command line
    from scipy.sparse.csgraph import connected_components

    one, other = (numbers[np.concatenate([*links, np.empty(0, int)])] for links in (firsts, seconds))
    firsts.clear()
    seconds.clear()
    links = coo_array((np.ones(len(one), bool), (one, other)), shape=(len(numbers), len(numbers)))
    merged: np.ndarray = connected_components(links, directed=False)[1][numbers]
    return merged


def differing_bits(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """In how many bits hashes (P,) uint64 differ."""
    return np.asarray(_ONES[(one ^ other).view(np.uint16).reshape(-1, 4)].sum(1))


def _keys(hashes: np.ndarray) -> list[np.ndarray]:
    """For each pair of bands, the bits of both: hashes that are close agree in at least one of these."""
    edges = [round(64 * band / BANDS) for band in range(BANDS + 1)]
    masks = [sum(1 << bit for bit in range(low, high)) for low, high in pairwise(edges)]
    return [hashes & np.uint64(one | other) for one, other in combinations(masks, 2)]


NEAR_COPIES = Check(
    title="Near copies",
    meaning="Most likely the same picture, saved again, scaled or slightly changed. Look before you delete.",
    rule=(
        f"at most {FLIPPED} of the 64 bits of the perceptual hash differ, the mean colours by at most {COLOUR} of 255 "
        f"and the shapes by at most {SHAPE - 1:.0%}"
    ),
    measures={
        "content": Measure("text", lambda picture: picture.digest),
        "looks": Measure("text", looks),
        "width": WIDTH,
        "height": HEIGHT,
    },
    judge=_judge,
)
