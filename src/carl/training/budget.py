"""How long a run is and how large its batches are if the user does not say: values that fit the data and the device.

The data and the kind of device give the batch size and a number of epochs. A machine on which that many would take too
long gets fewer: `training/trial.py` measures it before the run begins. config.toml records what was chosen, and a
resumed run keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass

from carl.config import TrainConfig
from carl.data.facts import DataFacts
from carl.defaults import EPOCHS, FEWEST_EPOCHS, PROBES
from carl.methods.paper import PAPER_VALUES
from carl.training.console import roughly

# Ours. A ResNet-18 on two CPU cores takes about an hour for this many pixels of training images: 75,000 images of 96 px
# or 675,000 of 32 px, each seen in two views (docs/speed.md has the time of a step).
CPU_PIXELS = 75_000 * 96**2
# Seconds of training; ours. CPU_PIXELS aims at an hour, and half as much again leaves a machine that is a little
# slower, or busy, the same number of epochs.
LONGEST_USUAL_RUN = 90 * 60.0
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


def follows_speed(facts: DataFacts, epochs: int) -> bool:
    """Whether the usual number of epochs may be lowered: not the paper's, and not the fewest."""
    return facts.name not in PAPER_VALUES and epochs > CHOICES[0]


@dataclass(frozen=True)
class Pace:
    """What takes time on this machine, in seconds."""

    epoch: float  # the steps of an epoch
    probe: float = 0.0
    probe_every: int | None = None  # epochs; None: as usual

    def of_run(self, epochs: int) -> float:
        """Seconds of so many epochs with their probes."""
        every = max(1, epochs // PROBES) if self.probe_every is None else self.probe_every
        return epochs * self.epoch + (1 + epochs // every if every else 0) * self.probe


def shorter_lengths(most: int, pace: Pace) -> list[int]:
    """Numbers of epochs below `most`, from the best up: the largest that does not take too long, but at least 10.

    None if `most` does not take too long.
    """
    if pace.of_run(most) <= LONGEST_USUAL_RUN:
        return []
    best = max(number for number in CHOICES if number == CHOICES[0] or pace.of_run(number) <= LONGEST_USUAL_RUN)
    return [number for number in CHOICES if best <= number < most]


def remark_on_data(epochs: int, facts: DataFacts) -> str:
    """Why a run on a CPU has fewer epochs than one on a GPU."""
    return (
        f"{epochs} epochs, as usual on a CPU for {facts.images} images with views of {facts.image_size} px "
        f"(on a GPU {EPOCHS}); --epochs sets another number"
    )


def remark_on_speed(epochs: int, most: int, pace: Pace) -> str:
    """Why a run has fewer epochs than its data would give it, how long it takes, and how to get more."""
    why = f"an epoch takes about {roughly(pace.of_run(epochs) / epochs)} here"
    if pace.of_run(epochs) <= LONGEST_USUAL_RUN:
        why += f", and without --epochs a run stays within {roughly(LONGEST_USUAL_RUN)}"
    else:
        why += ", and a run has no fewer unless --epochs says so"
    return (
        f"{epochs} epochs instead of {most}, about {roughly(pace.of_run(epochs))}: {why}; "
        f"--epochs {most} takes about {roughly(pace.of_run(most))}"
    )


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
        found.append(remark_on_data(train.epochs, facts))
    if train.batch_size < batch_before:
        found.append(
            f"batches of {train.batch_size} images, not {batch_before}, because there are only {facts.images}; "
            "--batch-size sets another number"
        )
    return found
