"""How alike two images must be to count as nearly the same. Three words are kept apart, because they mean three things.

- *Near-duplicates* are images that an encoder can hardly tell apart. `carl curate` keeps one of them.
- *Almost the same* are pairs in a report: alike to the encoder, and alike in their coarse pixels too.
- *Near copies* are most likely one picture, saved again. No encoder has a say in it, and `quality/near_copies.py` has
  the rule, because a quality check is one file.

Prototypes that nearly coincide have a word of their own, twins (`records/prototypes.py`).
"""

from __future__ import annotations

# Cosine of centred embeddings. With CARL's ResNet-18 after 12 epochs on 20,000 images of CIFAR-10, 0.99 leaves out
# 1.5%, 0.98 10% and 0.95 half: images that a hardly trained encoder finds equal often are not.
NEAR_DUPLICATE = 0.99

# Cosine of whitened embeddings, and correlation of pixels at 8 x 8. Ours, by looking: among CIFAR-10's first 4,000
# images there are 7 such pairs, all the same picture; the cosine alone, of an encoder of 12 epochs, mixes them with
# pairs that merely look alike.
ALMOST_SAME_COSINE, ALMOST_SAME_PIXELS = 0.75, 0.95
