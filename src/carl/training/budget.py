"""How long a run is and how large its batches are if the user does not say: values that fit the data and the device.

They are functions of the data and of the kind of device, never of a measured speed, so that the same command makes the
same run. config.toml records them, and a resumed run keeps them.
"""

from __future__ import annotations

from carl.config import TrainConfig
from carl.data.facts import DataFacts
from carl.defaults import EPOCHS, FEWEST_EPOCHS
from carl.methods.paper import PAPER_VALUES

# Ours. A ResNet-18 on two CPU cores takes about an hour for this many pixels of training images: 75,000 images of 96 px
# or 675,000 of 32 px, each seen in two views (docs/speed.md has the time of a step).
CPU_PIXELS = 75_000 * 96**2
CHOICES = (
    FEWEST_EPOCHS,
    15,
    20,
    30,
    50,
    75,
    100,
    150,
    EPOCHS,
)  # numbers of epochs; the first is taken however large the data


def usual_epochs(facts: DataFacts, device: str) -> int:
    """200 on a GPU and for the paper's data sets; on a CPU as many as make about an hour, but at least 10."""
    if device != "cpu" or facts.name in PAPER_VALUES:
        return EPOCHS
    affordable = CPU_PIXELS / (facts.images * facts.image_size**2)
    return max(number for number in CHOICES if number <= max(affordable, CHOICES[0]))


def usual_batch_size(usual: int, images: int, smallest: int = 2) -> int:
    """`usual`, halved until an epoch has two steps or more, but not below `smallest`."""
    size = usual
    while size > images // 2 and size // 2 >= smallest:
        size //= 2
    return size


def remarks(train: TrainConfig, facts: DataFacts, epochs_chosen: bool, batch_before: int) -> list[str]:
    """What was chosen here instead of the usual values, and how to choose otherwise."""
    found = []
    if epochs_chosen and train.epochs < EPOCHS:
        found.append(
            f"{train.epochs} epochs, as usual on a CPU for {facts.images} images with views of {facts.image_size} px "
            f"(on a GPU {EPOCHS}); --epochs sets another number"
        )
    if train.batch_size < batch_before:
        found.append(
            f"batches of {train.batch_size} images, not {batch_before}, because there are only {facts.images}; "
            "--batch-size sets another number"
        )
    return found
