"""A Python data set, such as torchvision's or the user's own: `len(data)` items, each an image or (image, label)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from PIL import Image

from carl.data.dataset import UNLABELLED
from carl.data.decoding.decode import pixels_of
from carl.data.listing import EncodedImage, EncodedSplit, Listing
from carl.errors import UserError


def list_python(data: Any) -> Listing:
    """The images of a Python data set: PIL images, arrays (H, W, C) or tensors (C, H, W), uint8 or floats in [0, 1].

    A change of such data cannot be noticed, so it is packed in memory at every start.
    """
    name = type(data).__name__
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise UserError(f"{name} has no length or cannot be indexed; give a map-style Dataset, a path or a name")
    count = len(data)
    if not count:
        raise UserError(f"{name} is empty; give a data set with at least one image")
    labelled = _label_of(data[0]) is not None

    def read() -> Iterator[EncodedImage]:
        for index in range(count):
            item = data[index]
            label = _label_of(item)
            pixels = _pixels(_image_of(item, name), f"item {index} of {name}")
            yield EncodedImage(f"item {index}", pixels, UNLABELLED if label is None else label)

    classes = getattr(data, "classes", None)
    is_names = isinstance(classes, list | tuple) and all(isinstance(one, str) for one in classes)
    return Listing(
        name=name,
        key=None,
        splits={"train": EncodedSplit(count, labelled, read, named=False)},
        class_names=tuple(classes) if classes is not None and is_names and labelled else (),
    )


def _image_of(item: Any, name: str) -> Any:
    if isinstance(item, Mapping):
        found = next((item[key] for key in ("image", "img", "pixels") if key in item), None)
        if found is None:
            raise UserError(f"items of {name} have the keys {', '.join(map(str, item))}; call one of them 'image'")
        return found
    return item[0] if isinstance(item, tuple | list) else item


def _label_of(item: Any) -> int | None:
    if isinstance(item, Mapping):
        label = next((item[key] for key in ("label", "labels", "target") if key in item), None)
    else:
        label = item[1] if isinstance(item, tuple | list) and len(item) > 1 else None
    try:
        return None if isinstance(label, float | str | bytes) or label is None else int(label)
    except (TypeError, ValueError):
        return None


def _pixels(image: Any, where: str) -> np.ndarray:
    if isinstance(image, Image.Image):
        return pixels_of(image)
    channels_first = type(image).__module__.partition(".")[0] in ("torch", "torchvision")
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[..., None]
    elif array.ndim == 3 and channels_first:
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.dtype.kind not in "uf":
        raise UserError(
            f"{where} is {type(image).__name__} {array.dtype} of shape {array.shape}; give a PIL image, an array "
            "(H, W, C) or a tensor (C, H, W)"
        )
    if array.dtype.kind == "f":
        if not (array.min() >= 0 and array.max() <= 1):
            raise UserError(f"{where} has values outside of [0, 1]; do not normalise them: views are normalised later")
        array = np.rint(array * 255)
    elif array.dtype != np.uint8:
        raise UserError(f"{where} is {array.dtype}; give uint8 from 0 to 255, or floats in [0, 1]")
    return np.ascontiguousarray(array.astype(np.uint8))
