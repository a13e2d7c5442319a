"""Invented outcomes, as jobs write them."""

from __future__ import annotations

import json
from typing import Any

from carl.evaluation.protocols import PROTOCOLS
from carl.reproduction.dry_run import assumed_facts, resolved_config
from carl.reproduction.jobs import Job


def invented(job: Job, value: float = 40.0, **changes: Any) -> dict[str, Any]:
    """What the job would have written had every measure given `value`."""
    facts = assumed_facts(job)
    measures = {}
    for measure in job.measures:
        shown = {"20": value} if measure.protocol == "knn" else {"top-1": value}
        measures[measure.key] = {
            "protocol": measure.protocol,
            "data": measure.data or facts.name,
            "epochs": measure.epochs or PROTOCOLS[measure.protocol].epochs,
            "hyperparameters": measure.values,
            "centre": PROTOCOLS[measure.protocol].centre,
            "pretraining_epochs": measure.at_epoch,
            "accuracy": {"trained": shown, "random": dict.fromkeys(shown, 10.0)},
            "seconds": 30.0,
        }
    outcome = {"name": job.name, "state": "done", "layer": job.to_json()["layer"], "measures": measures}
    outcome |= {"made": "2026-11-16", "machine": MACHINE}
    if job.trains:
        config = resolved_config(job)
        with_prototypes = config.method.name in ("carl", "swav", "pcl")
        last = {"images": 1000, **({"used": 80, "information": 2.0} if with_prototypes else {})}
        probes = [{"epoch": epoch, "knn": 20.0 + epoch, **last} for epoch in range(1, config.train.epochs + 1)]
        outcome |= {
            "config": json.loads(config.model_dump_json(exclude_none=True)),
            "data": facts.name,
            "images": facts.images,
            "classes": facts.classes,
            "images_per_second": 300.0,
            "clustering_seconds": 12.5 if config.method.name == "pcl" else None,
            "peak_memory_bytes": 1.5e9,
            "train_seconds": 600.0,
            "verdict": "healthy",
            "collapsed_at": None,
            "probes": probes,
        }
    return outcome | changes


MACHINE = {"device": "cpu", "cuda": None, "processor": "x86_64", "cores": 2, "threads": 2}
