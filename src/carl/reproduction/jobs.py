"""A job: one pretraining run and its measurements. Its outcome is one JSON file."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from carl import files
from carl.config import BEFORE, Layer, merge, with_present_names
from carl.data.facts import DataFacts
from carl.data.open import known_names, recognised_name
from carl.defaults import RANDOM
from carl.device import hardware, pick_device
from carl.errors import UserError
from carl.evaluation.evaluate import evaluate
from carl.evaluation.protocols import EvaluationRequest, find_protocol
from carl.evaluation.results import centre_of
from carl.methods.health import TOO_EARLY
from carl.methods.run_config import read_config, with_absolute_paths
from carl.records.environment import machine
from carl.records.metrics import end_of
from carl.records.regular_files import read_text
from carl.records.run_directory import JOB_FILE, JOB_LOCK, RunDirectory
from carl.records.verdicts import COLLAPSED
from carl.records.weights_hash import file_hash
from carl.reproduction.data_paths import data_source, with_data_source
from carl.training.plan import FREE_ON_RESUME, PretrainRequest, completed, plan
from carl.training.run import carry_out
from carl.training.starting_weights import starting_weights, with_their_values

Outcome = dict[str, Any]
DONE, FAILED = "done", "failed"  # states of an outcome


@dataclass(frozen=True)
class Measure:
    """An evaluation of a job's encoder."""

    protocol: str
    data: str | None = None  # by name, other than the run's
    limit: int | None = None  # training images of that other data
    fraction: float | None = None
    epochs: int | None = None  # of the protocol
    at_epoch: int | None = None  # of the pretraining: a kept encoder; the last if None

    @property
    def key(self) -> str:
        parts = [self.protocol, *([self.data] if self.data else [])]
        parts += [f"{self.fraction:g}"] if self.fraction else []
        return "-".join(parts + ([f"epoch-{self.at_epoch}"] if self.at_epoch else []))

    def request(self, target: str) -> EvaluationRequest:
        return EvaluationRequest(target, self.protocol, fraction=self.fraction, epochs=self.epochs)

    @property
    def values(self) -> dict[str, Any]:
        """The protocol's values as a result file has them; they are the same for every target."""
        values: dict[str, Any] = json.loads(json.dumps(find_protocol(self.protocol).values(self.request(RANDOM))))
        return values


@dataclass(frozen=True)
class Job:
    """`layer` is the run's configuration; without a method in it, the untrained encoder is measured."""

    name: str  # of its folder; the same name is the same run, whichever experiment asks for it
    layer: Layer
    measures: tuple[Measure, ...]
    cost: float = 1.0  # images seen in training, to estimate the time left

    @property
    def trains(self) -> bool:
        return "method" in self.layer

    @property
    def identity(self) -> Layer:
        return identity(self.layer)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "layer": json.loads(json.dumps(self.layer))}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Job:
        measures = tuple(Measure(**measure) for measure in values["measures"])
        return cls(values["name"], values["layer"], measures, values["cost"])


def identity(layer: Layer) -> Layer:
    """The values that affect the weights. Two layers with the same ones, and the same presets, are the same run."""
    plain = with_present_names(json.loads(json.dumps(layer)))
    found = {
        section: {
            key: value
            for key, value in values.items()
            if value is not None
            and not f"{section}.{key}".startswith(FREE_ON_RESUME)
            and BEFORE.get(section, {}).get(key) != value  # outcomes of older versions do not say so
        }
        for section, values in plain.items()
    }
    return {section: values for section, values in found.items() if values}


def outcome_file(root: Path, job: Job) -> Path:
    return root / job.name / JOB_FILE


def stored_outcome(root: Path, job: Job) -> Outcome | None:
    """What the job's file holds, whatever values it was measured with."""
    return _read(outcome_file(root, job))


def _read(path: Path) -> Outcome | None:
    """An outcome; None if there is none or its file is damaged."""
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and _is_whole(found) else None


def _is_whole(found: Outcome) -> bool:
    """Whether everything that the tables read is there, with the right type."""
    kinds: dict[str, type] = {"state": str, "layer": dict, "measures": dict}
    if found.get("state") == DONE:
        kinds |= {"machine": dict, "made": str}
        if "config" in found:
            kinds |= {"config": dict, "data": str, "images": int, "classes": int}
    if not all(isinstance(found.get(name), kind) for name, kind in kinds.items()):
        return False
    sections = [part for name in ("layer", "measures", "config") for part in found.get(name, {}).values()]
    return all(isinstance(section, dict) for section in sections)


def read_outcome(root: Path, job: Job) -> Outcome | None:
    """The job's outcome so far, None before it has run; an outcome with other values does not count."""
    found = stored_outcome(root, job)
    return found if found is not None and is_outcome_of(found, job) else None


def is_outcome_of(outcome: Outcome, job: Job) -> bool:
    """Whether the outcome has the values that the job asks for and that its preset gives now for such data."""
    if identity(outcome["layer"]) != job.identity:
        return False
    if outcome["state"] != DONE or not job.trains:
        return True
    if (config := outcome.get("config")) is None:
        return False
    facts = DataFacts(outcome["data"], outcome["images"], 3, config["data"].get("image_size", 0), outcome["classes"])
    # How long a run is and how large its batches, where the user does not say, also depends on the machine.
    own = {"train": {key: config["train"][key] for key in ("epochs", "batch_size") if key in config.get("train", {})}}
    layer = with_their_values(job.layer, starting_weights(job.layer))
    asked = completed(merge([own, layer]), facts)
    if asked.data.limit is not None and merge([BEFORE, config])["data"]["limit_by"] != asked.data.limit_by:
        return False
    now = identity(json.loads(asked.model_dump_json(exclude_none=True)))
    trained = {section: values for section, values in identity(config).items() if section != "data"}
    return all(now.get(s, {}).get(key) == value for s, values in trained.items() for key, value in values.items())


def kept_file(results: Path, name: str) -> Path:
    """Where an outcome is kept beside the tables made from it, so that others have it too."""
    return results / "jobs" / f"{name.replace('/', '--')}.json"


def adopt_outcomes(jobs: Sequence[Job], results: Path, root: Path) -> int:
    """Let finished outcomes that are kept in `results` count for jobs that have no run here; how many there were.

    So a clone, or another machine, goes on where the outcomes end, without the weights.
    """
    found = [(job, outcome) for job in jobs if (outcome := adoptable_outcome(job, results, root)) is not None]
    for job, outcome in found:
        files.write_json(outcome_file(root, job), outcome)
    return len(found)


def adoptable_outcome(job: Job, results: Path, root: Path) -> Outcome | None:
    here, run = read_outcome(root, job), RunDirectory(root / job.name)
    if (here is not None and here["state"] == DONE) or run.checkpoint_file.exists() or run.encoder_file.exists():
        return None
    return kept_outcome(results, job)


def kept_outcome(results: Path, job: Job) -> Outcome | None:
    """A finished outcome of the job, kept beside the tables."""
    found = _read(kept_file(results, job.name))
    return found if found is not None and found["state"] == DONE and is_outcome_of(found, job) else None


def keep_outcome(job: Job, outcome: Outcome, results: Path) -> None:
    """Keep an outcome beside the tables if it is finished; a failure says nothing to other machines."""
    if outcome["state"] == DONE:
        files.write_json(kept_file(results, job.name), outcome)


def is_measured(outcome: Outcome | None, measure: Measure) -> bool:
    """Whether the outcome has this measure, taken as the protocol takes it now."""
    found = None if outcome is None else outcome["measures"].get(measure.key)
    if found is None:
        return False
    same_part = centre_of(found) == find_protocol(measure.protocol).centre
    return same_part and bool(found.get("hyperparameters", measure.values) == measure.values)


@contextmanager
def job_lock(job: Job, root: Path) -> Iterator[bool]:
    """Whether no other process works on this job, now and while the context lasts."""
    path = root / job.name / JOB_LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.only_holder(path, patience=0.2) as held:  # `is_in_progress` lets go at once
        yield held


def is_in_progress(job: Job, root: Path) -> bool:
    """Whether a process works on this job now."""
    path = root / job.name / JOB_LOCK
    if not path.exists():
        return False
    with files.only_holder(path) as held:
        return not held


class InUseError(UserError):
    """Another process works on the job."""


def run_job(job: Job, root: Path, data_root: Path | None = None) -> Outcome:
    """Train or resume, measure what is not measured yet, and write the outcome."""
    with job_lock(job, root) as alone:
        if not alone:
            raise InUseError(f"{root / job.name} is in use by another process; wait until that has ended")
        return _train_and_measure(job, root, data_root)


def _train_and_measure(job: Job, root: Path, data_root: Path | None) -> Outcome:
    start, folder = time.monotonic(), root / job.name
    if job.trains:
        layer = with_absolute_paths(merge([job.layer, {"data": with_data_source(job.layer["data"], data_root)}]))
        _prepare_resume(folder, job, layer)
        carry_out(plan(PretrainRequest(layer, folder, "auto", ("carl", "experiment", job.name))))
    known = read_outcome(root, job)
    if known is not None and job.trains and not _is_of_these_weights(known, folder):
        known = None  # of a run that is elsewhere, or gone
    now = {"machine": machine(hardware(pick_device("auto"))), "made": time.strftime("%Y-%m-%d")}
    known = known or {"measures": {}}
    measures = dict(known["measures"])
    for measure in job.measures:
        if not is_measured(known, measure):
            measures[measure.key] = measured(job, measure, folder, data_root)
    outcome: Outcome = {
        "name": job.name,
        "state": DONE,
        "layer": job.to_json()["layer"],
        "measures": measures,
        **(training_figures(folder) if job.trains else {}),
        "seconds": round(time.monotonic() - start, 1),
        **{name: known.get(name, value) for name, value in now.items()},  # those of the training, which gave the speed
    }
    files.write_json(outcome_file(root, job), outcome)
    return outcome


def _is_of_these_weights(outcome: Outcome, folder: Path) -> bool:
    run = RunDirectory(folder)
    encoders = [run.encoder_file, *run.kept_encoders.glob("*.safetensors")]
    return {m.get("encoder_hash") for m in outcome["measures"].values()} <= {file_hash(path) for path in encoders}


def _prepare_resume(folder: Path, job: Job, layer: Layer) -> None:
    """Refuse to extend a run of another length, and tell a run that began elsewhere where its data are now.

    When the run resumes, the fingerprint in the checkpoint tells whether they are the same images.
    """
    run = RunDirectory(folder)
    if not run.config_file.is_file():
        return
    config, data = read_config(run), layer["data"]
    epochs = layer.get("train", {}).get("epochs", config.train.epochs)
    if config.train.epochs != epochs:  # `pretrain` would go on, with another schedule than a run of this length has
        raise UserError(
            f"{folder} is a run of {config.train.epochs} epochs, and {epochs} are asked for; choose another --out"
        )
    if job.layer["data"]["source"] not in known_names():
        return
    here = {"source": str(data["source"]), "root": data.get("root")}
    if here != {"source": config.data.source, "root": config.data.root}:
        run.write_config(config.model_copy(update={"data": config.data.model_copy(update=here)}))


def measured(job: Job, measure: Measure, folder: Path, data_root: Path | None) -> Outcome:
    """The figures of one evaluation, also of random weights if the protocol measures them, and what was judged."""
    if job.trains:
        kept_of = measure.at_epoch
        request = measure.request(str(folder if kept_of is None else RunDirectory(folder).kept_encoder(kept_of)))
        if measure.data is not None:
            other = {**data_source(measure.data, data_root), "limit": measure.limit}
            request = replace(request, data=str(other.pop("source")), settings={"data": other})
    else:
        data = with_data_source(job.layer["data"], data_root)
        layer: Layer = {
            "data": {key: value for key, value in data.items() if key != "source"},
            "model": job.layer.get("model", {}),
            "train": {"seed": job.layer.get("train", {}).get("seed", 0)},
        }
        out = folder / "results"
        request = replace(measure.request(RANDOM), data=str(data["source"]), out=out, settings=layer)
    result = evaluate(request)
    kept = (
        "protocol", "kind", "epochs", "hyperparameters", "centre", "data_fingerprint", "train_images", "test_images",
        "accuracy", "intervals", "correct", "encoder_hash", "seconds",
    )  # fmt: skip
    about = {"data": recognised_name(result["data"]), "pretraining_epochs": measure.at_epoch}
    return {**about, **{name: result[name] for name in kept if name in result}}


def training_figures(folder: Path) -> Outcome:
    """Data, speed, memory and health of a finished run, from its own files."""
    run = RunDirectory(folder)
    config, data = read_config(run), run.read_data()
    records = files.read_json_lines(run.metrics_file)
    probes = [r for r in records if r["kind"] == "probe" and r["epoch"] > 0]
    end = end_of(records) or {}
    prepared = {r["step"]: r["seconds"] for r in records if r.get("event") == "prepared"}
    values = json.loads(config.model_dump_json(exclude_none=True))
    # Where the data are on this machine is nobody's business: outcomes are for others to have.
    values["data"] = {**values["data"], "source": Path(config.data.source).name}
    values["data"].pop("root", None)
    return {
        "config": values,
        "data": recognised_name(config.data.source),
        "data_fingerprint": None if data is None else data.fingerprint,
        "images": None if data is None else data.images,
        "classes": 0 if data is None else len(data.class_names),
        "images_per_second": images_per_second(records, list(prepared.values()), config.train.batch_size),
        "clustering_seconds": clustering_seconds(list(prepared.values())),
        "peak_memory_bytes": end.get("peak_memory_bytes"),
        "train_seconds": round(end["seconds"], 1) if end else None,
        "verdict": probes[-1].get("verdict") if probes else None,
        "collapsed_at": collapsed_at(probes),
        "losses": mean_losses(records),
        "probes": [_probe_summary(probe) for probe in probes],
    }


def mean_losses(records: Sequence[Outcome]) -> list[float]:
    """For each epoch, the mean over the steps that were logged in it."""
    found: dict[int, list[float]] = {}
    for record in records:
        if record["kind"] == "step" and record.get("loss") is not None:
            found.setdefault(math.ceil(record["epoch"]), []).append(record["loss"])
    return [round(statistics.fmean(values), 4) for _, values in sorted(found.items())]


def images_per_second(records: Sequence[Outcome], prepared: Sequence[float], batch_size: int) -> float | None:
    """Over the whole training: all steps and what came before each epoch (PCL's clustering), without probes."""
    seconds, before = sum(prepared), 0
    for record in records:
        if record["kind"] == "step" and record["step"] > before:
            seconds += (record["step"] - before) * batch_size / record["images_per_second"]
            before = record["step"]
    return round(before * batch_size / seconds, 1) if before else None


def clustering_seconds(prepared: Sequence[float]) -> float | None:
    """For one clustering; None for methods without. Epochs before the first take no time and do not count."""
    taken = [seconds for seconds in prepared if seconds >= 0.001]
    return round(statistics.median(taken), 3) if taken else None


def collapsed_at(probes: Sequence[Outcome]) -> float | None:
    """The epoch since which every probe found a collapse; None if the last did not."""
    first = None
    for probe in reversed(probes):
        if probe.get("verdict") != COLLAPSED:
            break
        first = probe["epoch"]
    return first


def _probe_summary(probe: Outcome) -> Outcome:
    wanted = (
        "epoch", "images", "knn", "rank_me", "spread", "used", "covering", "dead", "duplicates", "information",
        "agreement",
    )  # fmt: skip
    short = {name: round(probe[name], 4) for name in wanted if name in probe}
    findings = [kind for kind in probe.get("findings", ()) if kind != TOO_EARLY]
    return {**short, "verdict": probe.get("verdict"), **({"findings": findings} if findings else {})}


def machine_in_words(machine: dict[str, Any]) -> str:
    """The machine that a run was measured on, which need not be this one."""
    where = machine["cuda"] if machine["device"].startswith("cuda") else machine["processor"]
    counts = ", ".join(f"{machine[f'{one}s']} {one}{'s' * (machine[f'{one}s'] != 1)}" for one in ("core", "thread"))
    return f"{where}, {counts}"
