"""Random numbers as a pure function of what they are for: there is no generator state to save or to share.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a counter and a
key into four 32-bit words. The counter names the draw (block, view, sample, epoch) and the key is the seed: a
sample has the same numbers in a given epoch in any batch, on any process, before or after a resumption. Our own,
because torch's generators draw one number after another, and NumPy's Philox runs on the CPU alone.

Shapes: B samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

Words = tuple[Tensor, Tensor, Tensor, Tensor]

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # Random123, philox.h: PHILOX_M4x32_0 and _1
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # Random123, philox.h: PHILOX_W32_0 (golden ratio) and _1 (sqrt(3) - 1)
ROUNDS = 10


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Philox4x32-10 of counters in int64 tensors that hold 32-bit words.

    A product of two words may reach 2^64 and wraps in int64; its bits are right all the same, so the high
    word is an arithmetic shift with the copies of the sign masked off. Not every device has unsigned types.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((second >> 32) & MASK) ^ c1 ^ k0,
            second & MASK,
            ((first >> 32) & MASK) ^ c3 ^ k1,
            first & MASK,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK, (k1 + KEY_STEPS[1]) & MASK
    return c0, c1, c2, c3


def uniforms(seed: int, epoch: int, indices: Tensor, view: int, count: int, first_block: int = 0) -> Tensor:
    """`count` numbers in [0, 1) for each sample, (B, count) float32 on the device of `indices`.

    The numbers of a sample do not depend on `count`: a longer draw begins with the shorter one. They are
    multiples of 2^-24, all of which float32 holds exactly. Only the low 32 bits of index and epoch count. Another
    `first_block` gives another list of numbers.
    """
    blocks = -(-count // 4)
    block = ((torch.arange(blocks, device=indices.device) + first_block) & MASK).expand(len(indices), blocks)
    sample = (indices.to(torch.int64)[:, None] & MASK).expand(len(indices), blocks)
    counter = (block, torch.full_like(block, view), sample, torch.full_like(block, epoch & MASK))
    words = torch.stack(philox(counter, (seed & MASK, (seed >> 32) & MASK)), dim=2)  # (B, blocks, 4)
    return (words.flatten(1)[:, :count] >> 8).to(torch.float32) * 2.0**-24
