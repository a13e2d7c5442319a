"""Every table and figure of the paper as runs and the cells that they fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from carl.config import Layer, merge, resolve
from carl.data.facts import DataFacts
from carl.defaults import BATCH_SIZE, EPOCHS, RANDOM
from carl.errors import UserError, suggestion
from carl.evaluation.protocols import find_protocol
from carl.evaluation.protocols.semi import FRACTIONS
from carl.methods import find_method
from carl.methods.paper import PAPER_TARGETS, PAPER_VALUES
from carl.records.known_data import title_of
from carl.reproduction.jobs import Job, Measure
from carl.reproduction.scales import PAPER_SIZE, SMOKE_SIZE, Scale, paper_images

METHODS = ("supervised", "byol", "simclr", "moco", "pcl", "swav", "carl")  # in the order of table 2
TRANSFER_METHODS = ("supervised", "byol", "simclr", "carl")  # of table 3
TARGETS_NOTE = (
    "CARL's targets are averaged unless a row says joint: each view in turn is a fixed target of the other, which the "
    "paper leaves open."
)
# Figures of a job other than accuracies.
SPEED, MEMORY, PAIRS = "images_per_second", "peak_memory_bytes", "pairs_per_batch"
CLUSTERING, PER_PROTOTYPE = "clustering_seconds", "images_per_prototype"
COSTS = (SPEED, CLUSTERING, MEMORY, PAIRS, PER_PROTOTYPE)


Stated = tuple[tuple[str, object], ...]  # name in the configuration, value

# What the paper says of the training itself: head, optimiser and views in appendix A. What it leaves open is not here:
# lambda of table 2, the number of hidden layers, and whatever is "as in the original implementations".
HEAD: dict[str, object] = {"model.backbone": "resnet18", "model.hidden_dim": 512, "model.output_dim": 128}
COSINE = {"optim.schedule": "cosine"}
STATED: dict[str, dict[str, object]] = {
    "supervised": {"model.backbone": "resnet18", "optim.name": "sgd", "optim.lr": 0.03, "optim.lr_end": 0.0, **COSINE},
    "byol": {**HEAD, "optim.name": "sgd", "optim.lr": 0.03, **COSINE},
    "simclr": {**HEAD, "optim.name": "sgd", "optim.lr": 0.03, **COSINE, "method.temperature": 0.2},
    "moco": {**HEAD, **COSINE},
    "pcl": {**HEAD, **COSINE},
    "swav": {**HEAD, **COSINE},
    "carl": {
        **HEAD,
        "optim.name": "lars",
        "optim.lr": 0.6,
        "optim.lr_end": 0.0006,
        "optim.weight_decay": 5e-4,
        **COSINE,
        "views": "pipeline simclr",  # and nothing else is set
    },
}


PRIOR_EPOCHS = 100  # over which lambda falls in section 4


def lambda_stated(start: float, end: float) -> dict[str, object]:
    """lambda_e(end, start) of Eq. 8, where the paper says it: sections 4.1 and 4.2."""
    return {"method.prior_start": start, "method.prior_end": end, "method.prior_epochs": PRIOR_EPOCHS}


@dataclass(frozen=True)
class Setting:
    """What a number was measured with; only numbers with equal settings are the same experiment."""

    data: str  # that the encoder was trained on
    images: int
    epochs: int
    batch_size: int
    prototypes: int | None  # of CARL and SwAV
    targets: str | None  # of CARL: how gradients flow in Eq. 4
    judged_on: str
    protocol: str
    seeds: int
    stated: Stated = ()  # of lambda, optimiser, head and views: the values that the paper gives


@dataclass(frozen=True)
class Cell:
    """A number in a table: the mean of one measure over the jobs, which differ in their seed."""

    row: str
    column: str
    jobs: tuple[str, ...]  # none where this scale leaves the cell out
    figure: str  # key of a Measure, or one of COSTS
    paper: tuple[str, str] | None = None  # row and column of its counterpart in paper.toml
    setting: Setting | None = None  # that the paper's number was measured with


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper at a scale: its runs, and the cells that they fill."""

    name: str
    title: str
    section: str  # of the paper
    jobs: tuple[Job, ...]
    cells: tuple[Cell, ...]
    note: str = ""  # what else its tables must say
    chart: str = ""  # label of the x axis where the columns are numbers and the paper draws a figure
    prototype_counts: tuple[int, ...] = ()  # for each, the cost of choosing among so many is measured


def protocol_in_words(protocol: str, epochs: int | None, fraction: float | None = None) -> str:
    """`semi 1%, 50 epochs`"""
    part = "" if fraction is None else f" {100 * fraction:g}%"
    return f"{protocol}{part}" + ("" if epochs is None else f", {epochs} epochs")


def paper_protocol(protocol: str, fraction: float | None = None) -> str:
    """The protocol as in the paper, which has the length that it has here."""
    return protocol_in_words(protocol, find_protocol(protocol).epochs, fraction)


@cache
def paper_prototypes(data: str, method: str) -> int | None:
    """K in the paper, of a method that learns prototypes."""
    kind, source = find_method(method), {"data": {"source": data}}
    return kind.prototype_count(resolve([source, kind.preset("paper", DataFacts.known(data))], kind.Options))


def paper_setting(
    data: str,
    method: str,
    epochs: int = EPOCHS,
    batch_size: int = BATCH_SIZE,
    prototypes: int | None = None,
    judged_on: str | None = None,
    protocol: str = paper_protocol("linear"),
    also: Mapping[str, object] | None = None,  # stated of this number besides what is stated of the method
) -> Setting:
    """A setting as in sections 4 and 5 and appendix A of the paper."""
    return Setting(
        data=data,
        images=paper_images(data, method),
        epochs=epochs,
        batch_size=batch_size,
        prototypes=prototypes or paper_prototypes(data, method),
        targets=PAPER_TARGETS if method == "carl" else None,
        judged_on=judged_on or data,
        protocol=protocol,
        seeds=1 if data == "imagenet64" else 3,
        stated=tuple({**STATED[method], **(also or {})}.items()),
    )


class Builder:
    """Collects jobs, each once, and cells."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.jobs: dict[str, Job] = {}
        self.cells: list[Cell] = []

    def add(
        self, data: str, method: str, variant: str, layer: Layer, epochs: int, measures: Sequence[Measure]
    ) -> tuple[str, ...]:
        """Add a job for each seed; returns their names. Encoders that are measured on the way are kept."""
        names = []
        kept = sorted({measure.at_epoch for measure in measures if measure.at_epoch is not None})
        for seed in self.scale.seeds_of(method, data, variant):
            name = "/".join(filter(None, (data, method, variant, f"{epochs}-epochs", f"seed-{seed}")))
            train = {"epochs": epochs, "seed": seed, "keep_epochs": kept}
            given = merge([{"method": {"name": method}}, layer, {"train": train}])
            cost = self.scale.images(data, method) * epochs
            self._put(Job(name, self.scale.run_layer(data, given), tuple(measures), cost))
            names.append(name)
        return tuple(names)

    def add_random(self, data: str, measures: Sequence[Measure]) -> tuple[str, ...]:
        """Add the untrained encoder of each seed."""
        names = []
        for seed in self.scale.seeds_of(RANDOM, data):
            layer = self.scale.run_layer(data, {"train": {"seed": seed}})
            kept = {section: values for section, values in layer.items() if section in ("data", "model")}
            self._put(Job(f"{data}/{RANDOM}/seed-{seed}", {**kept, "train": {"seed": seed}}, tuple(measures), 1.0))
            names.append(f"{data}/{RANDOM}/seed-{seed}")
        return tuple(names)

    def _put(self, job: Job) -> None:
        known = self.jobs.get(job.name)
        self.jobs[job.name] = job if known is None else merge_jobs(known, job)

    def fill(
        self,
        row: str,
        column: str,
        jobs: tuple[str, ...],
        figure: str,
        setting: Setting | None = None,
        paper: tuple[str, str] | None = None,
    ) -> None:
        """Add a cell. The paper's number, if it has one, is at the same row and column unless `paper` names others."""
        place = paper or ((row, column) if setting is not None else None)
        self.cells.append(Cell(row, column, jobs, figure, place, setting))

    def fill_linear(
        self,
        row: str,
        place: str,
        epochs: int,
        jobs: tuple[str, ...],
        setting: Setting | None = None,
        paper: tuple[str, str] | None = None,
    ) -> None:
        """Add a cell for each protocol that stands for linear evaluation; the first answers the paper's number."""
        first, *others = self.scale.linear
        self.fill(row, f"{place} {epochs}" if place else f"{epochs} epochs", jobs, first, setting, paper)
        for protocol in others:
            self.fill(row, f"{place} {protocol}".strip(), jobs, protocol)

    def experiment(self, name: str, title: str, section: str, note: str = "", chart: str = "") -> Experiment:
        return Experiment(
            name=name,
            title=title,
            section=section,
            jobs=tuple(self.jobs.values()),
            cells=tuple(self.cells),
            note=note,
            chart=chart,
        )


def merge_jobs(one: Job, other: Job) -> Job:
    """Two jobs with the same name as one run, which keeps and measures what both ask for."""
    if one.identity != other.identity:
        raise ValueError(f"{one.name} names two different runs")
    measures = tuple(dict.fromkeys((*one.measures, *other.measures)))
    if not one.trains:
        return replace(one, measures=measures)
    kept = sorted({*one.layer["train"]["keep_epochs"], *other.layer["train"]["keep_epochs"]})
    return replace(one, measures=measures, layer=merge([one.layer, {"train": {"keep_epochs": kept}}]))


PAPER_PRESET: Layer = {"method": {"preset": "paper"}}
# The other reading of Eq. 4: both views carry its gradient. The consistency then has twice the weight beside lambda.
JOINT: Layer = {"method": {"targets": "joint"}}
OF_JOINT = ", joint targets"
# Why some are below random weights after a short run is put to the test with one value that is for such runs. BYOL's
# target follows in hundreds of steps; SwAV's codes are sharper, as its built-in-data preset here has them.
FOR_SHORT_RUNS: dict[str, tuple[str, Layer]] = {
    "byol": ("momentum 0.99", {"method": {"momentum": 0.99}}),
    "swav": ("epsilon 0.01", {"method": {"epsilon": 0.01}}),
}


def preset_of(method: str, scale: Scale) -> Layer:
    """The paper's values; at a smaller scale MoCo's queue is cut to the data (its `small` preset)."""
    return {"method": {"preset": "small"}} if method == "moco" and scale.name != PAPER_SIZE else PAPER_PRESET


def linear(scale: Scale) -> Experiment:
    """Table 2: seven methods by linear evaluation."""
    build = Builder(scale)
    both, notes = scale.on_the_way, []
    if both and not scale.own_runs:
        notes.append("The columns of 100 epochs are of encoders kept half-way of the runs of 200.")
    notes.append(TARGETS_NOTE)
    if "imagenet64" in scale.data:
        notes.append("SwAV on DS ImageNet has two views of full size, as all methods, and not its repository's eight.")
    measures = scale.linear_measures()
    for data in scale.data:
        title = title_of(data)
        for method in METHODS:
            layer = preset_of(method, scale)
            if scale.own_runs:
                jobs = build.add(data, method, "", layer, scale.epochs[100], measures)
                build.fill_linear(method, title, 100, jobs, paper_setting(data, method, 100))
            half = scale.linear_measures(at_epoch=scale.epochs[100]) if both and not scale.own_runs else ()
            jobs = build.add(data, method, "", layer, scale.epochs[200], measures + half)
            if half:
                build.fill(method, f"{title} 100", jobs, half[0].key, paper_setting(data, method, 100))
            build.fill_linear(method, title, 200, jobs, paper_setting(data, method))
        if scale.joint:
            jobs = build.add(data, "carl", "joint", merge([PAPER_PRESET, JOINT]), scale.epochs[200], measures)
            paper = ("carl", f"{title} 200")
            build.fill_linear("carl" + OF_JOINT, title, 200, jobs, paper_setting(data, "carl"), paper)
        for method, (value, changed) in FOR_SHORT_RUNS.items() if scale.reasons else ():
            layer = merge([preset_of(method, scale), changed])
            jobs = build.add(data, method, value.replace(" ", "-"), layer, scale.epochs[200], measures)
            paper = (method, f"{title} 200")
            build.fill_linear(f"{method}, {value}", title, 200, jobs, paper_setting(data, method), paper)
        if scale.name != PAPER_SIZE:
            build.fill_linear("random weights", title, 200, build.add_random(data, measures))
    return build.experiment("linear", "Linear evaluation", "Table 2, section 5", " ".join(notes))


def transfer(scale: Scale) -> Experiment:
    """Table 3: cross-domain transfer, semi-supervised learning and fine-tuning."""
    build = Builder(scale)
    epochs = scale.epochs[200]
    rows = [(method, joint) for joint in scale.readings for method in TRANSFER_METHODS if method == "carl" or not joint]
    for method, joint in rows:
        row, variant = method + OF_JOINT * joint, "joint" * joint
        layer = merge([preset_of(method, scale), JOINT if joint else {}])
        for data, other, column in (
            ("cifar10", "cifar100", "C-10 -> C-100"),
            ("cifar100", "cifar10", "C-100 -> C-10"),
        ):
            measure = Measure(scale.transfer, data=other, limit=scale.limit)
            if scale.source is not None:
                measure = Measure(scale.transfer)  # one data set stands for both
            left_out = data == "cifar100" and method not in scale.back
            jobs = () if left_out else build.add(data, method, variant, layer, epochs, [measure])
            setting = paper_setting(data, method, judged_on=other, protocol=paper_protocol("transfer"))
            build.fill(row, column, jobs, measure.key, setting, (method, column))
        few = (0.2, 0.5) if scale.name == SMOKE_SIZE else FRACTIONS  # 1% of 128 images leaves classes without any
        labels = [Measure("semi", fraction=part, epochs=scale.train_epochs) for part in few]
        labels.append(Measure("finetune", epochs=scale.train_epochs))
        jobs = build.add(scale.unlabelled, method, variant, layer, epochs, labels)
        for measure, protocol, column in zip(
            labels,
            (*(paper_protocol("semi", fraction) for fraction in FRACTIONS), paper_protocol("finetune")),
            ("1% of labels", "10% of labels", "100% of labels"),
            strict=True,
        ):
            setting = paper_setting("stl10", method, protocol=protocol)
            build.fill(row, column, jobs, measure.key, setting, (method, column))
    title = "Transfer, semi-supervised learning and fine-tuning"
    return build.experiment("transfer", title, "Table 3, section 5", TARGETS_NOTE)


def prior(scale: Scale) -> Experiment:
    """Figure 2: lambda_e(a, b), from b to a over the first 100 of 200 epochs, K as in table 2."""
    build = Builder(scale)
    epochs = scale.epochs[200]
    kept = (50, 100, 150) if scale.on_the_way else ()
    measures = list(scale.linear_measures())
    measures += [m for e in kept for m in scale.linear_measures(at_epoch=scale.epochs[e])]
    settings = ((3, 3), (2, 2), (1, 1), (1, 2), (0, 0))
    for joint, (a, b) in product(scale.readings, settings):
        values: Layer = {"method": {"prior_start": float(b), "prior_end": float(a)}}
        variant = f"lambda-{a}-{b}" + "-joint" * joint
        if not joint and lambda_of(scale.unlabelled) == (b, a):
            values, variant = {}, ""  # CARL's run of table 2
        layer = merge([PAPER_PRESET, values, JOINT if joint else {}])
        jobs = build.add(scale.unlabelled, "carl", variant, layer, epochs, measures)
        paper, stated = f"lambda({a},{b})", lambda_stated(float(b), float(a))
        row = paper + OF_JOINT * joint
        for e in kept:
            key = scale.linear_measures(at_epoch=scale.epochs[e])[0].key
            build.fill(row, f"{e} epochs", jobs, key, paper_setting("stl10", "carl", e, also=stated), (paper, str(e)))
        build.fill_linear(row, "", 200, jobs, paper_setting("stl10", "carl", also=stated), (paper, "200"))
    return build.experiment("prior", "Weight of the prior", "Figure 2, section 4.1", TARGETS_NOTE, "Training epochs")


def prototypes(scale: Scale) -> Experiment:
    """Figure 3: number of prototypes; lambda as in table 2, but falling over the first 100 of 150 epochs."""
    build = Builder(scale)
    counts = scale.grid("prototypes", (10, 100, 500, 1000, 2000, 3000, 5000, 10_000))
    rows = [("cifar10", False), *([("cifar100", False)] if scale.name != SMOKE_SIZE else [])]
    rows += [("cifar10", True)] if scale.joint else []
    for (data, joint), count in product(rows, counts):
        layer = merge([_ablation(scale, data, count), JOINT if joint else {}])
        variant = f"k-{count}" + "-joint" * joint
        jobs = build.add(data, "carl", variant, layer, scale.epochs[150], scale.linear_measures())
        setting = paper_setting(data, "carl", 150, prototypes=count, also=lambda_stated(*lambda_of(data)))
        row, paper = title_of(data) + OF_JOINT * joint, (title_of(data), str(count))
        build.fill(row, f"K = {count}", jobs, scale.linear[0], setting, paper)
    return build.experiment("prototypes", "Number of prototypes", "Figure 3, section 4.2", TARGETS_NOTE, "Prototypes")


def batch_size(scale: Scale) -> Experiment:
    """Table 1: batch size against the number of prototypes on CIFAR-100, the rate scaled with the batch."""
    build = Builder(scale)
    data = "cifar100"
    for size in scale.grid("batches", (64, 128, 256, 512, 1024)):
        for count in scale.grid("prototypes", (10, 100, 500, 1000, 3000, 5000, 10_000)):
            layer, variant = _ablation(scale, data, count), f"k-{count}"
            if size != 256:  # the reference of the rate's scaling: those are the runs of figure 3
                layer = merge([layer, {"train": {"batch_size": size}, "optim": {"scale_lr": True}}])
                variant = f"batch-{size}-k-{count}"
            jobs = build.add(data, "carl", variant, layer, scale.epochs[150], scale.linear_measures())
            stated = {**lambda_stated(*lambda_of(data)), "optim.scale_lr": size != 256}
            setting = paper_setting(data, "carl", 150, size, count, also=stated)
            place = (str(size), str(count))
            build.fill(f"batch {size}", f"K = {count}", jobs, scale.linear[0], setting, place)
    return build.experiment("batch-size", "Batch size and prototypes", "Table 1, section 4.3", TARGETS_NOTE)


def lambda_of(data: str) -> tuple[float, float]:
    """b and a of Eq. 8: lambda at the start, and once it has fallen."""
    return PAPER_VALUES[data].prior_start, PAPER_VALUES[data].prior_end


def _ablation(scale: Scale, data: str, count: int) -> Layer:
    """Section 4: 150 epochs, lambda falling over 100 of them."""
    start, end = lambda_of(data)
    fall = round(scale.epochs[150] * PRIOR_EPOCHS / 150)
    values = {"prototypes": count, "prior_start": start, "prior_end": end, "prior_epochs": max(1, fall)}
    return merge([PAPER_PRESET, {"method": values}])


def claims(scale: Scale) -> Experiment:
    """What the paper says in passing."""
    build = Builder(scale)
    epochs, data = scale.epochs[200], "cifar10"
    images = scale.images(data, "carl")
    variants: dict[str, Layer] = {
        "carl": {},
        "SGD instead of LARS": {"optim": {"name": "sgd", "lr": 0.03, "lr_end": 0.0}},  # the rate it found for SGD
        "cosine decay of lambda": {"method": {"prior_schedule": "cosine"}},
        "exponential decay of lambda": {"method": {"prior_schedule": "exponential"}},
        "as many prototypes as images": {"method": {"prototypes": images}},
    }
    for joint, (title, layer) in product(scale.readings, variants.items()):
        variant = "-".join([*(title.split() if layer else []), *(["joint"] if joint else [])])
        given = merge([PAPER_PRESET, layer, JOINT if joint else {}])
        jobs = build.add(data, "carl", variant, given, epochs, scale.linear_measures())
        _costs(build, title + OF_JOINT * joint, "carl", jobs)
    for method in ("simclr", "pcl", "swav"):
        jobs = build.add(data, method, "", preset_of(method, scale), epochs, scale.linear_measures())
        _costs(build, method, method, jobs)
    experiment = build.experiment(
        "claims", "What the paper says in passing", "Sections 1 to 5, appendix A", TARGETS_NOTE
    )
    return replace(experiment, prototype_counts=scale.grid("prototypes", (100, 1000, 10_000)))


def _costs(build: Builder, row: str, method: str, jobs: tuple[str, ...]) -> None:
    """Accuracy and cost. Pairs are the paper's count for a batch of 256: 256 for CARL, 130,560 for SimCLR."""
    build.fill(row, "accuracy", jobs, build.scale.linear[0])
    build.fill(row, "images/s", jobs, SPEED)
    build.fill(row, "peak MB", jobs, MEMORY)
    if method == "pcl":
        build.fill(row, "s per clustering", jobs, CLUSTERING)
    if row in ("carl", "simclr"):
        build.fill(row, "pairs per batch", jobs, PAIRS, paper=(row, "pairs per batch"))
    if method == "carl":
        build.fill(row, "images per prototype in use", jobs, PER_PROTOTYPE)


RECIPES: dict[str, Callable[[Scale], Experiment]] = {
    "linear": linear,
    "transfer": transfer,
    "prior": prior,
    "prototypes": prototypes,
    "batch-size": batch_size,
    "claims": claims,
}


def find_experiments(name: str, scale: Scale) -> list[Experiment]:
    """The experiment, or `all`. A run that several experiments share keeps what all of them need."""
    if name not in (*RECIPES, "all"):
        raise UserError(f"unknown experiment {name!r}{suggestion(name, [*RECIPES, 'all'])}")
    experiments = {known: recipe(scale) for known, recipe in RECIPES.items()}
    whole = {job.name: job for job in distinct_jobs(list(experiments.values()))}
    asked = experiments.values() if name == "all" else [experiments[name]]
    return [replace(p, jobs=tuple(replace(job, layer=whole[job.name].layer) for job in p.jobs)) for p in asked]


def distinct_jobs(experiments: Sequence[Experiment]) -> list[Job]:
    """The jobs of all experiments, each once, with everything that any of them keeps and measures."""
    found: dict[str, Job] = {}
    for job in (job for experiment in experiments for job in experiment.jobs):
        found[job.name] = merge_jobs(found[job.name], job) if job.name in found else job
    return list(found.values())
