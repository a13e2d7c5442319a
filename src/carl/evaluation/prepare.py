"""From the user's request to an encoder and the images to judge it on."""

from __future__ import annotations

from dataclasses import dataclass

from carl import distributed
from carl.config import Config
from carl.data.dataset import Dataset
from carl.data.facts import DataFacts
from carl.device import pick_device
from carl.errors import UserError
from carl.evaluation.evaluation_data import EvaluationData, labelled_data
from carl.evaluation.protocols import EvaluationRequest, Protocol, find_protocol
from carl.evaluation.protocols.linear import MOCO_CROP
from carl.evaluation.target import Target, facts_for, find_target, own_record, packed_side, resizing_for, statistics_for
from carl.methods.training_data import load_data_for
from carl.terminal import show_progress


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An encoder, the images to judge it on, and what was asked."""

    request: EvaluationRequest
    target: Target
    dataset: Dataset
    data: EvaluationData
    facts: DataFacts
    normalisation: str  # in words, whose it is

    @property
    def protocol(self) -> Protocol:
        return find_protocol(self.request.protocol)

    @property
    def own_conditions(self) -> bool:
        """Whether the images are those that the run was trained on, in the size that it was trained on."""
        record = own_record(self.target)
        if record is None or record.fingerprint != self.dataset.fingerprint:
            return False
        return DataFacts.recorded(record) == self.facts

    @property
    def seeds(self) -> range:
        first = self.target.first_seed
        return range(first, first + self.request.seeds)

    @property
    def source(self) -> str:
        return self.target.config.data.source


def prepare(request: EvaluationRequest) -> Evaluation:
    """The target that the user named with its data opened; nothing is computed yet."""
    target, protocol = find_target(request), find_protocol(request.protocol)
    config = target.config
    device = distributed.start(pick_device(config.train.device))
    dataset = load_data_for(_packed_at(config, packed_side(target)))
    record = own_record(target)
    if protocol.other_data and record is not None and record.fingerprint == dataset.fingerprint:
        raise UserError(
            f"{config.data.source} is what the run was trained on; --protocol {request.protocol} is for other data, "
            "for its own use linear"
        )
    statistics, whose = statistics_for(target, dataset)
    facts = facts_for(target, dataset)
    seen = 1.0 if target.pretrained is None or request.centre is not None else target.pretrained.wanted.framing.seen
    centre = min(seen, protocol.part_seen(request))
    data = labelled_data(
        dataset,
        source=config.data.source,
        statistics=statistics,
        image_size=facts.image_size,
        # A run whose views are large crops says that small ones lose what the classes are; else MoCo's.
        crop_min=config.views.crop_min or MOCO_CROP,
        device=device,
        progress=show_progress,
        centre=centre,
        # Photos were packed as the weights want them; images that are as they are have not been resized yet.
        framing=None if dataset.fitted else resizing_for(target, facts.image_size, centre),
    )
    return Evaluation(request, target, dataset, data, facts, whose)


def _packed_at(config: Config, side: int | None) -> Config:
    return config.model_copy(update={"data": config.data.model_copy(update={"image_size": side})})
