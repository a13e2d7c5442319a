"""Every table and figure of the paper as runs and the cells that they fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carl.config import Layer, merge
from carl.errors import UserError, suggestion
from carl.experiments.jobs import Job, Measure
from carl.experiments.scales import TITLES, Scale

METHODS = ("supervised", "byol", "simclr", "moco", "pcl", "swav", "carl")  # in the order of table 2
TRANSFER_METHODS = ("supervised", "byol", "simclr", "carl")  # of table 3
RANDOM = "random"
SPEED, MEMORY = "images_per_second", "peak_memory_bytes"


@dataclass(frozen=True)
class Cell:
    """A number of a table: the mean over the jobs (seeds) of what one measure gave."""

    row: str
    column: str
    jobs: tuple[str, ...]
    figure: str  # key of a Measure, or SPEED or MEMORY
    paper: tuple[str, str] | None = None  # row and column of paper.toml that it answers


@dataclass(frozen=True)
class Plan:
    """An experiment at a scale."""

    name: str
    title: str
    section: str  # of the paper
    jobs: tuple[Job, ...]
    cells: tuple[Cell, ...]
    chart: str = ""  # label of the x axis where the columns are numbers and the paper draws a figure


class Builder:
    """Collects jobs, each once, and cells."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.jobs: dict[str, Job] = {}
        self.cells: list[Cell] = []

    def add(
        self,
        data: str,
        method: str,
        variant: str,
        layer: Layer,
        epochs: int,
        measures: Sequence[Measure],
        kept: int = 0,
    ) -> tuple[str, ...]:
        """Jobs of all seeds of a setting; their names."""
        names = []
        for seed in self.scale.seeds_of(method, data):
            name = "/".join(filter(None, (data, method, variant, f"{epochs}-epochs", f"seed-{seed}")))
            train = {"epochs": epochs, "seed": seed, **({"keep_epochs": [kept]} if kept else {})}
            given = merge([{"method": {"name": method}}, layer, {"train": train}])
            self._put(Job(name, self.scale.run(data, given), tuple(measures), self.scale.images(data) * epochs))
            names.append(name)
        return tuple(names)

    def add_random(self, data: str, measures: Sequence[Measure]) -> tuple[str, ...]:
        """The untrained encoder of each seed."""
        names = []
        for seed in self.scale.seeds_of(RANDOM, data):
            layer = self.scale.run(data, {"train": {"seed": seed}})
            kept = {section: values for section, values in layer.items() if section in ("data", "model")}
            self._put(Job(f"{data}/random/seed-{seed}", {**kept, "train": {"seed": seed}}, tuple(measures), 1.0))
            names.append(f"{data}/random/seed-{seed}")
        return tuple(names)

    def _put(self, job: Job) -> None:
        known = self.jobs.get(job.name)
        measures = dict.fromkeys((*(known.measures if known else ()), *job.measures))
        self.jobs[job.name] = Job(job.name, job.layer, tuple(measures), job.cost)

    def fill(self, row: str, column: str, jobs: tuple[str, ...], figure: str, paper: tuple[str, str] | None) -> None:
        self.cells.append(Cell(row, column, jobs, figure, paper))

    def plan(self, name: str, title: str, section: str, chart: str = "") -> Plan:
        return Plan(name, title, section, tuple(self.jobs.values()), tuple(self.cells), chart)


def with_preset(layer: Layer | None = None) -> Layer:
    return merge([{"method": {"preset": "paper"}}, layer or {}])


def preset_of(method: str, scale: Scale) -> Layer:
    """The paper's values; at a smaller scale MoCo's queue is cut to the data (its `small` preset)."""
    return {"method": {"preset": "small" if method == "moco" and scale.name != "paper" else "paper"}}


def linear(scale: Scale) -> Plan:
    """Table 2: seven methods by linear evaluation; the 100-epoch column is the kept encoder of the 200-epoch run."""
    build = Builder(scale)
    whole, half = scale.epochs[200], scale.epochs[100]
    both = 100 in scale.grid("kept", (100, 200))
    for data in scale.data:
        title = TITLES[data]
        for method in METHODS:
            measures = scale.linear_measures() + (scale.linear_measures(at_epoch=half) if both else ())
            jobs = build.add(data, method, "", preset_of(method, scale), whole, measures, half if both else 0)
            if both:
                key = scale.linear_measures(at_epoch=half)[0].key
                build.fill(method, f"{title} 100", jobs, key, (method, f"{title} 100"))
            for protocol in scale.linear:
                extra = "" if protocol == scale.linear[0] else f" {protocol}"
                paper = None if extra else (method, f"{title} 200")
                build.fill(method, f"{title} 200{extra}", jobs, protocol, paper)
        if scale.name != "paper":
            jobs = build.add_random(data, scale.linear_measures())
            for protocol in scale.linear:
                extra = "" if protocol == scale.linear[0] else f" {protocol}"
                build.fill("random weights", f"{title} 200{extra}", jobs, protocol, None)
    return build.plan("linear", "Linear evaluation", "Table 2, section 5")


def transfer(scale: Scale) -> Plan:
    """Table 3: cross-domain transfer, semi-supervised learning and fine-tuning."""
    build = Builder(scale)
    epochs = scale.epochs[200]
    limit = None if scale.name == "paper" else scale.limit
    for method in TRANSFER_METHODS:
        for data, other, column in (
            ("cifar10", "cifar100", "C-10 -> C-100"),
            ("cifar100", "cifar10", "C-100 -> C-10"),
        ):
            measure = Measure(scale.transfer, data=str(scale.source(other)["data"]["source"]), limit=limit)
            if scale.name == "smoke":
                measure = Measure(scale.transfer)  # one data set stands for both
            jobs = build.add(data, method, "", preset_of(method, scale), epochs, [measure])
            build.fill(method, column, jobs, measure.key, (method, column))
        labels = [Measure("semi", fraction=f, epochs=scale.train_epochs) for f in (0.01, 0.1)]
        if scale.name == "smoke":
            labels = [Measure("semi", fraction=0.2, epochs=1)] * 2
        labels.append(Measure("finetune", epochs=scale.train_epochs))
        jobs = build.add(scale.unlabelled, method, "", preset_of(method, scale), epochs, labels)
        for measure, column in zip(labels, ("1% of labels", "10% of labels", "100% of labels"), strict=True):
            build.fill(method, column, jobs, measure.key, (method, column))
    return build.plan("transfer", "Transfer, semi-supervised learning and fine-tuning", "Table 3, section 5")


def prior(scale: Scale) -> Plan:
    """Figure 2: lambda_e(a, b), from b to a over the first 100 of 200 epochs, K as in table 2."""
    build = Builder(scale)
    epochs = scale.epochs[200]
    kept = [e for e in (50, 100, 150) if 200 not in scale.grid("kept", ())]
    for a, b in ((3, 3), (2, 2), (1, 1), (1, 2), (0, 0)):
        layer = merge([with_preset(), {"method": {"prior_start": float(b), "prior_end": float(a)}}])
        measures = list(scale.linear_measures())
        measures += [m for e in kept for m in scale.linear_measures(at_epoch=scale.epochs[e])]
        jobs = build.add(scale.unlabelled, "carl", f"lambda-{a}-{b}", layer, epochs, measures)
        if kept:
            build.jobs.update({n: _keeping(build.jobs[n], [scale.epochs[e] for e in kept]) for n in jobs})
        row = f"lambda({a},{b})"
        for e in kept:
            build.fill(row, str(e), jobs, scale.linear_measures(at_epoch=scale.epochs[e])[0].key, (row, str(e)))
        for protocol in scale.linear:
            extra = "" if protocol == scale.linear[0] else f" {protocol}"
            build.fill(row, f"200{extra}", jobs, protocol, None if extra else (row, "200"))
    return build.plan("prior", "Weight of the prior", "Figure 2, section 4.1", "Training epochs")


def _keeping(job: Job, epochs: list[int]) -> Job:
    layer = merge([job.layer, {"train": {"keep_epochs": epochs}}])
    return Job(job.name, layer, job.measures, job.cost)


def prototypes(scale: Scale) -> Plan:
    """Figure 3: number of prototypes; lambda from 4 to 1.5 over the first 100 of 150 epochs."""
    build = Builder(scale)
    for data in ("cifar10", "cifar100") if scale.name != "smoke" else ("cifar10",):
        for count in scale.grid("prototypes", (10, 100, 500, 1000, 2000, 3000, 5000, 10_000)):
            jobs = build.add(
                data, "carl", f"k-{count}", _ablation(scale, count), scale.epochs[150], scale.linear_measures()
            )
            build.fill(TITLES[data], str(count), jobs, scale.linear[0], (TITLES[data], str(count)))
    return build.plan("prototypes", "Number of prototypes", "Figure 3, section 4.2", "Prototypes")


def batch_size(scale: Scale) -> Plan:
    """Table 1: batch size against the number of prototypes on CIFAR-100, the rate scaled with the batch."""
    build = Builder(scale)
    data = "cifar100"
    for size in scale.grid("batches", (64, 128, 256, 512, 1024)):
        for count in scale.grid("prototypes", (10, 100, 500, 1000, 3000, 5000, 10_000)):
            layer, variant = _ablation(scale, count), f"k-{count}"
            if size != 256:  # the reference of the rate's scaling: those are the runs of figure 3
                layer = merge([layer, {"train": {"batch_size": size}, "optim": {"scale_lr": True}}])
                variant = f"batch-{size}-k-{count}"
            jobs = build.add(data, "carl", variant, layer, scale.epochs[150], scale.linear_measures())
            build.fill(str(size), str(count), jobs, scale.linear[0], (str(size), str(count)))
    return build.plan("batch-size", "Batch size and prototypes", "Table 1, section 4.3")


def _ablation(scale: Scale, count: int) -> Layer:
    """Section 4: 150 epochs, lambda falling over 100 of them, from 4 to 1.5."""
    fall = round(scale.epochs[150] * 100 / 150)
    values = {"prototypes": count, "prior_start": 4.0, "prior_end": 1.5, "prior_epochs": max(1, fall)}
    return merge([with_preset(), {"method": values}])


def claims(scale: Scale) -> Plan:
    """What the paper says in passing."""
    build = Builder(scale)
    epochs, data = scale.epochs[200], "cifar10"
    images = scale.images(data)
    variants: dict[str, Layer] = {
        "CARL": {},
        "SGD instead of LARS": {"optim": {"name": "sgd", "lr": 0.03, "lr_end": 0.0}},  # the rate it found for SGD
        "cosine decay of lambda": {"method": {"prior_schedule": "cosine"}},
        "exponential decay of lambda": {"method": {"prior_schedule": "exponential"}},
        "as many prototypes as images": {"method": {"prototypes": images}},
    }
    for title, layer in variants.items():
        variant = "" if not layer else title.replace(" ", "-")
        jobs = build.add(data, "carl", variant, merge([with_preset(), layer]), epochs, scale.linear_measures())
        _cost(build, title, jobs, scale.linear[0])
    for method in ("simclr", "pcl", "swav"):
        jobs = build.add(data, method, "", preset_of(method, scale), epochs, scale.linear_measures())
        _cost(build, method, jobs, scale.linear[0])
    return build.plan("claims", "What the paper says in passing", "Sections 3 to 5, appendix A")


def _cost(build: Builder, row: str, jobs: tuple[str, ...], figure: str) -> None:
    build.fill(row, "accuracy", jobs, figure, None)
    build.fill(row, "images/s", jobs[:1], SPEED, None)
    build.fill(row, "peak MB", jobs[:1], MEMORY, None)


RECIPES: dict[str, Callable[[Scale], Plan]] = {
    "linear": linear,
    "transfer": transfer,
    "prior": prior,
    "prototypes": prototypes,
    "batch-size": batch_size,
    "claims": claims,
}


def find_plans(name: str, scale: Scale) -> list[Plan]:
    if name == "all":
        return [recipe(scale) for recipe in RECIPES.values()]
    if name not in RECIPES:
        raise UserError(f"unknown experiment {name!r}{suggestion(name, [*RECIPES, 'all'])}")
    return [RECIPES[name](scale)]


def distinct_jobs(plans: Sequence[Plan]) -> list[Job]:
    """Jobs of all plans, each once with all that is measured of it."""
    found: dict[str, Job] = {}
    for job in (job for plan in plans for job in plan.jobs):
        known = found.get(job.name)
        if known is not None and known.layer != job.layer:
            layer = known.layer if "keep_epochs" in known.layer.get("train", {}) else job.layer
            job = Job(job.name, layer, job.measures, job.cost)
        measures = dict.fromkeys((*(known.measures if known else ()), *job.measures))
        found[job.name] = Job(job.name, job.layer, tuple(measures), job.cost)
    return list(found.values())
