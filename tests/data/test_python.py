"""Python data sets through the API."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from carl.data import UNLABELLED, open_dataset
from carl.errors import UserError

pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), np.uint8)


class Items(Dataset):
    def __init__(self, items: list[object]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> object:
        return self.items[index]


@pytest.mark.parametrize(
    "convert",
    [
        Image.fromarray,
        lambda image: image,
        lambda image: torch.from_numpy(image).permute(2, 0, 1),
        lambda image: torch.from_numpy(image).permute(2, 0, 1) / 255,
        lambda image: image.astype(np.float64) / 255,
    ],
    ids=["PIL", "array", "tensor", "float tensor", "float array"],
)
def test_images_of_every_kind_come_out_equal(convert):
    dataset = open_dataset(Items([(convert(image), label) for label, image in enumerate(pixels)]))
    np.testing.assert_array_equal(dataset.train.images.pixels, pixels)
    assert dataset.train.labels.tolist() == [0, 1, 2, 3]
    assert dataset.name == "Items"
    assert dataset.class_names == ("0", "1", "2", "3")


def test_labels_are_optional_and_items_may_be_dicts():
    assert open_dataset(Items(list(pixels))).train.labels is None
    labelled = open_dataset(Items([{"image": image, "label": 1} for image in pixels]))
    assert labelled.train.labels.tolist() == [1] * 4
    tensors = TensorDataset(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.tensor([1, 0, 1, 1]))
    assert open_dataset(tensors).train.labels.tolist() == [1, 0, 1, 1]


def test_an_item_without_a_label_among_others_is_unlabelled():
    items = [(pixels[0], 1), (pixels[1], None)]
    assert open_dataset(Items(items)).train.labels.tolist() == [1, UNLABELLED]


def test_class_names_are_taken_from_torchvisions_attribute():
    data = Items([(pixels[0], 1)])
    data.classes = ["a", "b"]
    assert open_dataset(data).class_names == ("a", "b")


def test_varied_sizes_are_fitted():
    data = Items([np.zeros((20, 30, 3), np.uint8), np.zeros((25, 20, 3), np.uint8)])
    assert open_dataset(data, image_size=10).train.images.pixels.shape == (2, 10, 10, 3)


def test_the_user_is_told_that_nothing_is_cached(cache):
    assert "not cached" in open_dataset(Items(list(pixels))).notes[-1]
    assert not (cache / "packed").exists()


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "empty"),
        ([torch.zeros(3, 4, 4) - 1], r"outside of \[0, 1\]"),
        ([np.zeros((4, 4, 3), np.int64)], "int64"),
        ([np.zeros((4, 4, 3), np.uint16)], "uint16"),
        ([np.zeros(4, np.uint8)], r"shape \(4,\)"),
        ([{"picture": 1}], "keys picture"),
        (["text"], "PIL image"),
    ],
)
def test_what_is_not_an_image_is_an_error(items, message):
    with pytest.raises(UserError, match=message):
        open_dataset(Items(items))


def test_an_endless_stream_is_an_error():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([])

    with pytest.raises(UserError, match="map-style"):
        open_dataset(Stream())
