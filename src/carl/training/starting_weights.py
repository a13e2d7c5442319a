"""The weights that a run starts from (`--init`), and what they ask of it: architecture, normalisation, size."""

from __future__ import annotations

from dataclasses import dataclass

from carl.config import Config, Layer, merge
from carl.data.dataset import Dataset
from carl.models.architectures import published
from carl.models.pretrained import PretrainedWeights, find_weights, usual_backbone


@dataclass(frozen=True)
class StartedFrom:
    """What a run keeps about the weights it started from, for its model card."""

    name: str
    origin: str
    licence: str

    @classmethod
    def of(cls, weights: PretrainedWeights | None) -> StartedFrom | None:
        return None if weights is None else cls(weights.name, weights.origin, weights.licence)


def starting_weights(layer: Layer) -> PretrainedWeights | None:
    """The weights that the user names, if any; they are not loaded yet."""
    model = merge([layer]).get("model", {})
    init, backbone = model.get("init"), model.get("backbone")
    if not isinstance(init, str):
        return None
    return find_weights(init, str(backbone) if backbone is not None else usual_backbone(init))


def with_their_values(layer: Layer, weights: PretrainedWeights | None) -> Layer:
    """The layer with the architecture and the input of the weights, where the user gives no other."""
    if weights is None:
        return layer
    given = merge([layer]).get("data", {})
    theirs: dict[str, object] = {"mean": weights.wanted.mean, "std": weights.wanted.std}
    if given.get("normalise") == "images" or "mean" in given or "std" in given:
        theirs = {}
    theirs["interpolation"] = weights.wanted.framing.interpolation
    return merge([{"model": {"backbone": weights.backbone, "stem": weights.stem}, "data": theirs}, layer])


def without_normalisation(layer: Layer) -> Layer:
    """The layer for images of other channels than the weights were trained on: they are normalised by their own."""
    data = {key: value for key, value in merge([layer])["data"].items() if key not in ("mean", "std")}
    return {**layer, "data": data}


def side_to_pack(config: Config, weights: PretrainedWeights | None) -> int | None:
    """The side to which photos are packed: the one that was asked for, or that of the weights."""
    return config.data.image_size or (None if weights is None else weights.wanted.image_size)


def side_of_views(config: Config, weights: PretrainedWeights | None, dataset: Dataset) -> int | None:
    """The side of the views: for photos the one of the weights; images of one size keep theirs, which costs less."""
    if config.data.image_size is not None or weights is None:
        return config.data.image_size
    keeps_size = not dataset.fitted and not published(weights.backbone).fixed_input_size
    return None if keeps_size else weights.wanted.image_size


def remarks_on_weights(weights: PretrainedWeights | None, image_size: int, normalised: bool) -> list[str]:
    """What the user should know about the weights before the training begins."""
    if weights is None:
        return []
    remarks = [f"starts from {weights.name}: {weights.origin} (licence: {weights.licence})"]
    if normalised:
        remarks.append("images are normalised as those that these weights were trained on")
    if image_size != weights.wanted.image_size:
        remarks.append(
            f"views of {image_size} px, and these weights were trained at {weights.wanted.image_size} px; "
            f"--image-size {weights.wanted.image_size} is slower and may be better"
        )
    return remarks
