"""Typed, frozen, validated configuration; TOML in and out. Imports no torch.

A configuration is built from layers, later ones winning: defaults here, the method's preset for the data, a
TOML file, `--set section.key=value`, and the command's own flags. The options of a method are declared in the
method's own file, as a subclass of `MethodOptions`; those of a view operation in the operation's file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, model_validator

from carl import defaults, files
from carl.errors import UserError, one_line, suggestion
from carl.framing import Interpolation
from carl.terminal import warn

Layer = Mapping[str, Any]
ViewsFrom = Literal["auto", "packed", "photos", "stream"]
LimitBy = Literal["balanced", "first"]
Probability = Annotated[float, Field(ge=0, le=1)]
Model = TypeVar("Model", bound=BaseModel)
LARGEST_NUMBER = 2**31 - 1  # of any whole number except a seed: beyond it, sizes in memory pass 64 bits


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataConfig(Section):
    source: str = Field(
        description="Images to train on: a name (shapes, cifar10 ...), a folder, a .parquet, .npy or .npz file, or "
        "shards: '{00..19}.tar'."
    )
    image_size: int | None = Field(
        None,
        ge=8,
        description="Side of the views in pixels. Unset: the size of the images. For photos that is at most "
        f"{defaults.LARGEST_USUAL_SIDE}, or with `model.init` the size that the weights expect.",
    )
    normalise: Literal["auto", "images"] = Field(
        "auto",
        description="`images` normalises with the images' own mean and deviation. `auto` does so too, unless training "
        "starts from weights (`model.init`): then it keeps the values that the weights were trained with.",
    )
    mean: tuple[float, ...] | None = Field(
        None, description="Mean per channel, for pixel values in [0, 1]. Unset: that of the images, or of `model.init`."
    )
    std: tuple[float, ...] | None = Field(
        None, description="Standard deviation per channel. Unset: that of the images, or of `model.init`."
    )
    interpolation: Interpolation = Field(
        "bicubic",
        description="How images of varied or large size are scaled when they are packed. With `model.init`: what the "
        "weights were trained with.",
    )
    root: str | None = Field(None, description="Folder for downloaded data sets. Unset: the cache folder.")
    max_bad: int | None = Field(
        None,
        ge=0,
        description="Files that may be left out because they cannot be decoded. "
        f"Unset: one in {defaults.BAD_ONE_IN}, at least {defaults.BAD_AT_LEAST}.",
    )
    labels: defaults.Labels = Field(
        defaults.LABELS[0],
        description="`auto` uses the labels in the data, and takes sub-folders for classes unless they are named like "
        "dates or numbers; `folders` takes sub-folders of any name; `none` uses no labels.",
    )
    limit: int | None = Field(None, ge=1, description="Train on only this many images. Unset: all.")
    limit_by: LimitBy = Field(
        "balanced",
        description="Which images `limit` takes. `balanced`: a random part, always the same one, with classes as equal "
        "in size as possible. `first`: the first ones, as in older versions.",
    )
    held_out: int = Field(
        0,
        ge=0,
        description="Keep this many training images, evenly spaced, out of training and judge on them instead of the "
        "test images. Use it to choose values. The other images are copied into memory.",
    )
    views_from: ViewsFrom = Field(
        "auto",
        description="What the views are cut from: `packed` pixels of one size, or the `photos` themselves, decoded for "
        "each batch. `stream` reads shards during training. `auto` chooses `photos` if most files have at least twice "
        "the view's side, and `stream` for tar files, patterns and addresses.",
    )
    lanes: int | None = Field(
        None,
        ge=1,
        description=f"For streams: parts read at the same time. Must divide the batch. Unset: up to {defaults.LANES}.",
    )
    buffer: int = Field(
        4096, ge=1, description="For streams: images that wait in memory to be mixed, over all processes (our value)."
    )

    @model_validator(mode="after")
    def _one_normalisation(self) -> DataConfig:
        mean, std = self.mean, self.std
        if (mean is None) != (std is None) or (mean is not None and std is not None and len(mean) != len(std)):
            raise ValueError(
                f"data.mean={mean} and data.std={std} do not go together; give one number per channel each"
            )
        if std is not None and (not std or min(std) <= 0):
            raise ValueError(f"data.std={std} has a value that is not above zero; use the deviation of the images")
        return self


class ViewsConfig(Section):
    """Options that are unset keep the pipeline's own values.

    The operations in `carl/views/operations/` declare all other keys of this section. They import torch, so their
    keys and values are checked by `carl.views.configured.check_views`, not here.
    """

    model_config = ConfigDict(extra="allow")

    pipeline: str = Field("simclr", description="Named augmentation pipeline.")
    crop_min: float | None = Field(
        None, gt=0, le=1, description="Smallest area of a crop, as a fraction of the image. Large views only."
    )
    count: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Large views per image. Unset: as many as the pipeline has, usually two. Only some methods can "
        "compare more than two; the others refuse.",
    )
    small_count: int | None = Field(
        None,
        ge=0,
        le=64,
        description="Small views per image, in addition to the large ones (multi-crop). They are cheap: half the side "
        "means a quarter of the work. Unset: as many as the pipeline has, usually none.",
    )
    small_size: int | None = Field(
        None, ge=8, description="Side of the small views in pixels. Unset: half of a large view's, as in SwAV."
    )
    small_area: tuple[float, float] | None = Field(
        None, description="Smallest and largest area of a small view's crop. Unset: 0.05 and 0.14, as in SwAV."
    )

    @model_validator(mode="before")
    @classmethod
    def _set_and_frozen(cls, values: Any) -> Any:
        """Options of operations without those that are unset, and with tuples for lists."""
        if not isinstance(values, dict):
            return values
        kept = {key: value for key, value in values.items() if value is not None or key in cls.model_fields}
        return {key: tuple(value) if isinstance(value, list) else value for key, value in kept.items()}

    @property
    def of_operations(self) -> dict[str, Any]:
        """The options of operations that are set."""
        return dict(self.model_extra or {})


class ModelConfig(Section):
    backbone: str = Field(defaults.BACKBONE, description="Name of a timm model. The paper's is resnet18.")
    stem: defaults.Stem = Field(
        defaults.STEM,
        description="`imagenet` fits the paper's numbers; `small` (3x3, stride 1, no max-pool) suits 32 px.",
    )
    init: str | None = Field(None, description="Encoder to start from: a run, a file or timm:NAME. Unset: random.")
    head: Literal["mlp", "none"] = Field(
        "mlp",
        description="What is between the encoder and the loss. `mlp`: a projection head, as in the papers. `none`: "
        "nothing, so that the loss compares the encoder's features themselves.",
    )
    hidden_dim: int = Field(512, ge=1, description="Neurons in each hidden layer of the head (paper, appendix A).")
    hidden_layers: int = Field(
        1, ge=0, le=4, description="Hidden layers of the head. The paper can be read as one or two."
    )
    head_batch_norm: bool | None = Field(
        None, description="Batch norm after each hidden layer of the head. Unset: as each method's paper has it."
    )
    output_dim: int = Field(128, ge=1, description="Size of the embedding z (paper, appendix A).")
    tiny_maps: bool = Field(True, description="Faster, exact convolutions on 1x1 and 2x2 maps. CPU only.")
    keep_statistics: bool = Field(
        False,
        description="Keep the encoder's batch-norm statistics as they are during training. Only useful with `init`.",
    )
    keep_layers: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Fraction of the encoder's layers, counted from the input, whose weights stay as they are. A layer "
        "is a stage of a convolutional network or a block of a transformer. Only useful with `init`.",
    )


class MethodOptions(Section):
    """What a method declares as its options; `name` is its key in METHODS."""

    name: str = defaults.METHOD
    preset: str = Field("", description="Named set of values to start from. Empty: the default for the data.")

    @classmethod
    def of(cls, config: Config) -> Self:
        """The options in a configuration, typed as the method that declares them knows them."""
        if not isinstance(config.method, cls):
            raise TypeError(f"the configuration is for {config.method.name}, which has no {cls.__name__}")
        return config.method


# Our own. SGD's rate worked best in a few thousand steps of CARL at batch 256; AdamW's is where users usually start.
OWN_RATES: dict[str, dict[str, float]] = {"sgd": {"lr": 0.06}, "adamw": {"lr": 1e-3, "lr_end": 1e-6}}


class OptimConfig(Section):
    name: Literal["lars", "sgd", "adamw"] = Field("lars", description="Optimiser. The paper's is LARS.")
    lr: float = Field(0.6, gt=0, description="Highest learning rate (paper, appendix A).")
    lr_end: float = Field(0.0006, ge=0, description="Learning rate at the end (paper, appendix A).")
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", description="How the learning rate falls.")
    warmup_epochs: float = Field(0.0, ge=0, description="Epochs of linear warm-up. The paper mentions none.")
    weight_decay: float = Field(5e-4, ge=0, description="Weight decay (paper, appendix A).")
    exclude: Literal["1d", "none"] = Field(
        "1d",
        description="What weight decay and LARS skip: `1d` skips biases and norms, as is usual; `none` skips nothing, "
        "as in the code of SwAV, MoCo and PCL. The paper leaves it open.",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of SGD and LARS, beta1 of AdamW. Not in the paper.")
    beta2: float = Field(0.999, gt=0, lt=1, description="beta2 of AdamW.")
    trust_coefficient: float = Field(0.001, gt=0, description="Eta of LARS (You et al. 2017).")
    trust_clip: bool = Field(
        False,
        description="Let LARS lower the rate of a layer, but not raise it above `lr`. It is on by default in apex's "
        "LARC; SwAV's code turns it off. The paper leaves it open.",
    )
    clip: float = Field(
        0.0, ge=0, description="Norm at which gradients are clipped; 0 does not clip. 1 to 3 is usual for ViTs."
    )
    scale_lr: bool = Field(False, description="Multiply the learning rate by batch size / 256 (Goyal et al. 2017).")

    @model_validator(mode="before")
    @classmethod
    def _own_rates(cls, values: Any) -> Any:
        """SGD or AdamW with the rate of LARS would collapse or diverge: each has its own, unless the user gives one."""
        return {**OWN_RATES.get(str(values.get("name")), {}), **values} if isinstance(values, dict) else values


class TrainConfig(Section):
    epochs: int = Field(
        defaults.EPOCHS,
        ge=1,
        le=10**9,
        description="Passes over the data (paper, appendix A). On a CPU or a slow machine, the default may be lower, "
        "except for the paper's data sets.",
    )
    steps: int | None = Field(
        None,
        ge=1,
        description="Length of the run in steps instead of epochs. It may end in the middle of an epoch, which then "
        "counts as a whole one wherever a value is in epochs. Unset: whole epochs.",
    )
    batch_size: int = Field(
        defaults.BATCH_SIZE,
        ge=2,
        description="Images per step, over all processes (paper, appendix A). "
        f"With fewer than {2 * defaults.BATCH_SIZE} images, the default is lower.",
    )
    accumulate: int = Field(
        1, ge=1, description="Parts in which a batch goes through the encoder. The loss still sees the whole batch."
    )
    seed: int = Field(
        defaults.SEED,
        ge=0,
        le=defaults.LARGEST_SEED,
        description="The same seed gives the same weights on the same machine.",
    )
    device: str = Field("auto", description=f"{defaults.DEVICES}.")
    precision: Literal["auto", defaults.Precision] = Field(
        "auto",
        description="Number type of training. bf16 and fp16 save time and memory on GPUs, and bf16 also on CPUs with "
        "instructions for it (AVX512_BF16, AMX). `auto` takes bf16 on such a CPU and fp32 elsewhere.",
    )
    sync_batch_norm: bool | None = Field(
        None, description="Batch norm over the batch of all processes. Unset: on GPUs, not on CPUs."
    )
    compile: bool = Field(False, description="Compile the encoder with torch.compile.")
    channels_last: bool = Field(False, description="Keep images and weights in channels-last order.")
    drop_last: bool = Field(True, description="Leave out the last batch of an epoch if it is not full.")
    keep_epochs: tuple[int, ...] = Field((), description="Epochs after which the encoder is kept, in encoders/.")
    checkpoint_steps: int = Field(
        0, ge=0, description="Also save a checkpoint after every so many steps. 0: only once per epoch."
    )

    @property
    def length_in_words(self) -> str:
        """Such as `20 epochs`."""
        count, unit = (self.epochs, "epoch") if self.steps is None else (self.steps, "step")
        return f"{count} {unit}{'' if count == 1 else 's'}"


class ProbeConfig(Section):
    """How the model is examined while it trains."""

    every: int | None = Field(
        None,
        ge=0,
        description=f"Epochs between two probes; 0 never probes. Unset: about {defaults.PROBES} probes per run.",
    )
    images: int = Field(1000, ge=10, description="Images to measure prototype health on, and test images for kNN.")
    train_images: int = Field(2000, ge=10, description="Labelled training images that vote in kNN.")
    neighbours: int = Field(
        defaults.KNN_NEIGHBOURS, ge=1, description="Neighbours that vote in kNN. Small data sets prefer fewer."
    )
    temperature: float = Field(
        defaults.KNN_TEMPERATURE, gt=0, description="Temperature of the vote (Wu et al. 2018 use 0.07, lightly 0.1)."
    )


class LogConfig(Section):
    every: int = Field(10, ge=1, description="Steps between two lines of metrics.jsonl.")
    details: bool = Field(False, description="Show all figures of training and probes, not only the main ones.")
    tensorboard: bool = Field(False, description="Also log to TensorBoard, in the run directory.")
    wandb: bool = Field(False, description="Also log to Weights & Biases.")
    wandb_project: str = Field("carl", description="The Weights & Biases project to log to.")
    report: bool = Field(True, description="Write gallery.npz and report.html at the end of a run.")


class Config(Section):
    data: DataConfig
    views: ViewsConfig = ViewsConfig()
    model: ModelConfig = ModelConfig()
    method: SerializeAsAny[MethodOptions]
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    probe: ProbeConfig = ProbeConfig()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _rules_across_sections(self) -> Config:
        train, optim = self.train, self.optim
        if train.batch_size % train.accumulate:
            raise ValueError(
                f"train.accumulate={train.accumulate} does not divide train.batch_size={train.batch_size}; "
                "use a divisor"
            )
        if optim.warmup_epochs > train.epochs:
            raise ValueError(
                f"optim.warmup_epochs={optim.warmup_epochs:g} is over train.epochs={train.epochs}; lower it"
            )
        late = [epoch for epoch in train.keep_epochs if not 1 <= epoch <= train.epochs]
        if late:
            raise ValueError(
                f"train.keep_epochs={late[0]} is not among the epochs 1 to {train.epochs}; name epochs that happen"
            )
        return self


SECTIONS: tuple[str, ...] = tuple(Config.model_fields)
# What a run was made with if its config.toml, from an older version, does not say.
BEFORE: Layer = {"data": {"labels": "folders", "limit_by": "first"}, "train": {"precision": "fp32"}}
OLD_NAMES: dict[str, dict[str, str]] = {"data": {"road": "views_from"}}  # section: {old key: its present name}


# Options of `carl pretrain` with a name of their own, which `carl.pretrain` shares, and the value that each sets.
FLAGS: dict[str, str] = {
    "data": "data.source",
    "image_size": "data.image_size",
    "labels": "data.labels",
    "max_bad": "data.max_bad",
    "backbone": "model.backbone",
    "stem": "model.stem",
    "init": "model.init",
    "method": "method.name",
    "preset": "method.preset",
    "prototypes": "method.prototypes",
    "prior_start": "method.prior_start",
    "prior_end": "method.prior_end",
    "prior_epochs": "method.prior_epochs",
    "epochs": "train.epochs",
    "batch_size": "train.batch_size",
    "seed": "train.seed",
}


def layer_of_flags(given: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    """The layer that the user's options make, each under its name in FLAGS; None is an option that was not given."""
    layer: dict[str, dict[str, Any]] = {}
    for flag, value in given.items():
        if value is not None:
            section, _, key = FLAGS[flag].partition(".")
            layer.setdefault(section, {})[key] = value
    return layer


def with_present_names(layer: Layer) -> dict[str, Any]:
    """The layer with renamed keys under their present names, so that files from older versions can be read."""

    def renamed(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
        names = OLD_NAMES.get(section, {})
        return {names.get(key, key): value for key, value in values.items() if names.get(key) not in values}

    return {
        section: renamed(section, values) if isinstance(values, Mapping) else values
        for section, values in layer.items()
    }


def warn_of_old_names(layer: Layer) -> None:
    """Tell the user who wrote `layer` which of its keys have been renamed."""
    for section, names in OLD_NAMES.items():
        values = layer.get(section)
        for old, present in names.items():
            if isinstance(values, Mapping) and old in values:
                warn(f"{section}.{old} is now called {section}.{present}; both work, the new name is the one to use")


def merge(layers: Sequence[Layer]) -> dict[str, dict[str, Any]]:
    """One table of sections from many, later layers winning key by key."""
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for section, values in with_present_names(layer).items():
            if section not in SECTIONS:
                raise UserError(f"unknown section {section!r}{suggestion(section, SECTIONS)}")
            if not isinstance(values, Mapping):
                raise UserError(f"section {section!r} must hold keys, not {values!r}; write {section}.KEY = value")
            merged.setdefault(section, {}).update(values)
    return merged


def resolve(layers: Sequence[Layer], options: type[MethodOptions]) -> Config:
    """The configuration that the layers give, or a UserError that names the first value that breaks a rule."""
    merged = merge(layers)
    _check_whole_numbers(merged)
    method = validated(options, merged.pop("method", {}), "method.")
    config = validated(Config, {**merged, "method": method}, "")
    _check_whole_numbers({**config.model_dump(), "method": method.model_dump()})  # also 3e9 and "3"
    return config


def _check_whole_numbers(layer: Layer) -> None:
    """Refuse what no library below can count to. One rule here spares each option a limit of its own."""
    for name, value in _single_values(layer):
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER and name != "train.seed":
            raise UserError(
                f"{one_line(name)}={value} is beyond {LARGEST_NUMBER}, the largest number allowed; use a smaller one"
            )


def _single_values(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """The numbers, words and so on in tables and lists, each with `section.key`."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _single_values(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _single_values(inner, name)
    else:
        yield name, value


def validated(model: type[Model], values: Mapping[str, Any], prefix: str) -> Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(_in_one_line(error, model, prefix)) from None


def _in_one_line(error: ValidationError, model: type[BaseModel], prefix: str) -> str:
    first = error.errors()[0]
    place = one_line(prefix + ".".join(str(part) for part in first["loc"]))
    if first["type"] == "extra_forbidden":
        known = _known_keys(model, first["loc"][:-1])
        return f"unknown key {place}{suggestion(str(first['loc'][-1]), known)}"
    if first["type"] == "value_error":  # raised by a rule of ours, which names the value itself
        return prefix + first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"{place} is not set; give it a value"
    rule = first["msg"][0].lower() + first["msg"][1:]
    return f"{place}={first['input']!r}: {rule}; change it"


def _known_keys(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    fields = model.model_fields
    for part in location:
        annotation = fields[str(part)].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        fields = annotation.model_fields
    return list(fields)


def parse_assignments(assignments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A layer from `section.key=value` words; values are read as TOML, and as plain text where that fails."""
    layer: dict[str, dict[str, Any]] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        section, dot, key = path.strip().partition(".")
        if not equals or not dot or not key:
            raise UserError(f"--set {assignment!r} is not section.key=value; for example --set train.epochs=20")
        try:
            read = tomllib.loads(f"value = {text}")
            value = read["value"] if len(read) == 1 else text  # several lines are not one value
            if isinstance(value, date | time):  # a folder may be called 2024-05-01
                value = text
        except (ValueError, RecursionError):
            value = text
        layer.setdefault(section, {})[key] = value
    warn_of_old_names(layer)
    return layer


def parse_assignments_per_method(assignments: Sequence[str]) -> tuple[dict[str, dict[str, Any]], dict[str, Layer]]:
    """The layer for all methods, and one per method from words such as `simclr:method.temperature=0.1`."""
    own: dict[str, list[str]] = {}
    shared: list[str] = []
    for assignment in assignments:
        name, colon, rest = assignment.partition(":")
        if colon and "=" not in name:
            own.setdefault(name.strip(), []).append(rest)
        else:
            shared.append(assignment)
    return parse_assignments(shared), {name: parse_assignments(words) for name, words in own.items()}


def read_settings(path: Path) -> dict[str, Any]:
    """The values that a user wrote into a file, for --config."""
    layer = _parsed_toml(path)
    warn_of_old_names(layer)
    return layer


def read_toml(path: Path) -> dict[str, Any]:
    """The values in a file that carl wrote, by this version or an older one, under their present names."""
    return with_present_names(_parsed_toml(path))


def _parsed_toml(path: Path) -> dict[str, Any]:
    try:
        with files.open_regular(path) as file:
            layer = tomllib.load(file)
        dates = [name for name, value in _single_values(layer) if isinstance(value, date | time)]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the path") from None
    except (ValueError, RecursionError) as error:  # bad syntax, other encodings, numbers and nesting beyond reason
        raise UserError(f"{path} is not valid TOML: {error}; correct it") from None
    if dates:
        raise UserError(f"{path}: {dates[0]} is a date, which no option takes; put it in quotation marks if it is text")
    return layer


def to_toml(config: Config) -> str:
    """All values that are set. `read_toml` reads them back as the same configuration."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def differences(old: Config, new: Config) -> list[str]:
    """`section.key: old -> new` for each value that is not the same."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    return [
        f"{section}.{key}: {before[section].get(key)!r} -> {after[section].get(key)!r}"
        for section in SECTIONS
        for key in sorted({*before[section], *after[section]})
        if before[section].get(key) != after[section].get(key)
    ]
