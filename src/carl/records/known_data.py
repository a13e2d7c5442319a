"""The data sets that are known by name: how many images they have, and what these are like."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownData:
    """A data set as its authors publish it."""

    title: str  # as the paper prints it
    labelled: int  # training images with labels
    test: int
    side: int  # of the images, in pixels
    classes: int
    unlabelled: int = 0  # more images to train on, where these are published without labels
    judged_on: str = "test"  # what its authors call the images in `test`

    @property
    def images(self) -> int:
        """The images that a method without labels trains on."""
        return self.unlabelled or self.labelled

    def in_words(self) -> str:
        """`CIFAR-10: 50,000 training and 10,000 test images of 32 pixels in 10 classes`"""
        unlabelled = f"{self.unlabelled:,} unlabelled, " if self.unlabelled else ""
        images = f"{unlabelled}{self.labelled:,} training and {self.test:,} {self.judged_on} images"
        return f"{self.title}: {images} of {self.side} pixels in {self.classes:,} classes"


KNOWN_DATA = {
    "cifar10": KnownData("CIFAR-10", 50_000, 10_000, side=32, classes=10),
    "cifar100": KnownData("CIFAR-100", 50_000, 10_000, side=32, classes=100),
    "stl10": KnownData("STL-10", 5000, 8000, side=96, classes=10, unlabelled=100_000),
    "imagenet64": KnownData("DS ImageNet", 1_281_167, 50_000, side=64, classes=1000, judged_on="validation"),
    "tiny-imagenet": KnownData("Tiny-ImageNet", 100_000, 10_000, side=64, classes=200, judged_on="validation"),
    "shapes": KnownData("shapes", 10_000, 2000, side=32, classes=10),
}


def title_of(name: str) -> str:
    """The title of a known data set, and the name of any other."""
    return KNOWN_DATA[name].title if name in KNOWN_DATA else name
