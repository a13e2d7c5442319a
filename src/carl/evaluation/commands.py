"""What `carl eval` does: one result, or one a fraction for `semi`, shown as tables."""

from __future__ import annotations

from pathlib import Path

from carl import distributed
from carl.config import Layer
from carl.errors import UserError
from carl.evaluation.evaluate import evaluate, table
from carl.evaluation.protocols import SEMI_FRACTIONS, Request


def evaluate_and_show(
    target: str,
    protocol: str,
    data: str | None,
    fraction: float | None,
    seeds: int,
    epochs: int | None,
    rates: str | None,
    centre: float | None,
    backbone: str | None,
    out: Path | None,
    force: bool,
    layer: Layer,
) -> None:
    fractions = SEMI_FRACTIONS if protocol == "semi" and fraction is None else (fraction,)
    for part in fractions:
        request = Request(protocol, part, seeds, epochs, parse_rates(rates), centre)
        result = evaluate(target, request, data, backbone, out, force, layer)
        if distributed.is_main():
            for line in table(result):
                print(line, flush=True)
    distributed.stop()


def parse_rates(text: str | None) -> tuple[float, ...]:
    try:
        return () if text is None else tuple(float(rate) for rate in text.split(","))
    except ValueError:
        raise UserError(f"--rates {text!r} is not a list of numbers; use for example 30,3,0.3") from None
