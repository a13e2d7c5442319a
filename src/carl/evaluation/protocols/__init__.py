"""Protocols by name. A new one is a file in this folder and a line in PROTOCOLS. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from carl.errors import UserError, suggestion
from carl.evaluation.protocols.base import EvaluationRequest, Outcome, Protocol
from carl.evaluation.protocols.cluster import CLUSTER
from carl.evaluation.protocols.finetune import FINETUNE
from carl.evaluation.protocols.knn import KNN
from carl.evaluation.protocols.linear import LINEAR
from carl.evaluation.protocols.linear_cached import LINEAR_CACHED
from carl.evaluation.protocols.semi import SEMI
from carl.evaluation.protocols.transfer import TRANSFER

MOST_REPETITIONS = 10_000  # ours: each takes at least a second
PROTOCOLS: dict[str, Protocol] = {  # those that say most about an encoder come first; scores are listed in this order
    "linear": LINEAR,
    "linear-cached": LINEAR_CACHED,
    "knn": KNN,
    "finetune": FINETUNE,
    "semi": SEMI,
    "transfer": TRANSFER,
    "cluster": CLUSTER,
}


def find_protocol(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise UserError(f"unknown protocol {name!r}{suggestion(name, PROTOCOLS)}")
    return PROTOCOLS[name]


def check_repetitions(seeds: int) -> None:
    if not 1 <= seeds <= MOST_REPETITIONS:
        raise UserError(f"--seeds {seeds} is not a number of repetitions; use 1 to {MOST_REPETITIONS}")


def check_request(request: EvaluationRequest) -> None:
    """Refuse options that do not go together, before anything is read."""
    name, protocol = request.protocol, find_protocol(request.protocol)
    check_repetitions(request.seeds)
    if request.fraction is not None and not protocol.fractions:
        takers = listed([known for known, other in PROTOCOLS.items() if other.fractions])
        raise UserError(f"--fraction is for --protocol {takers}, not {name}; leave it out")
    if request.rates and not protocol.rates:
        takers = listed([known for known, other in PROTOCOLS.items() if other.rates])
        raise UserError(f"--rates is for --protocol {takers}, not {name}; leave it out")
    if request.epochs is not None and protocol.epochs is None:
        raise UserError(f"--epochs has no meaning for --protocol {name}; leave it out")
    if request.epochs is not None and request.epochs < 1:
        raise UserError(f"--epochs {request.epochs} is not a training; use 1 or more")
    if not 0 < protocol.part_seen(request) <= 1:
        raise UserError(f"--centre {request.centre:g} is not a part of an image's side; use a number such as 0.875")
    if protocol.other_data and request.data is None:
        raise UserError(f"--protocol {name} needs --data, other data than the run's; for the run's own use linear")
    protocol.check(request)


def each_fraction(request: EvaluationRequest) -> list[EvaluationRequest]:
    """The request, or one for each part of the labels that the protocol measures unless the user names one."""
    fractions = find_protocol(request.protocol).fractions
    if request.fraction is not None or not fractions:
        return [request]
    return [replace(request, fraction=fraction) for fraction in fractions]


def usual_values(value_of: Callable[[Protocol], str]) -> str:
    """`100 for linear, 50 for semi and transfer`, for a help text; protocols whose value is "" are left out."""
    by_value: dict[str, list[str]] = {}
    for name, protocol in PROTOCOLS.items():
        if value := value_of(protocol):
            by_value.setdefault(value, []).append(name)
    return ", ".join(f"{value} for {listed(names)}" for value, names in by_value.items())


def listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


__all__ = [
    "PROTOCOLS",
    "EvaluationRequest",
    "Outcome",
    "Protocol",
    "check_repetitions",
    "check_request",
    "each_fraction",
    "find_protocol",
    "listed",
    "usual_values",
]
