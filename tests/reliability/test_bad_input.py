"""Every command against bad input: exit code 2, one line that names it, no traceback, and nothing written."""

from __future__ import annotations

import math
import os
import string
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from carl.config import SECTIONS, Config, parse_assignments, resolve, to_toml
from carl.errors import UserError
from carl.methods import METHODS
from carl.views.configured import check_views
from carl.views.operations import option_owners
from carl.views.operations.jitter import STRONGEST
from carl.views.recipes import ViewRecipe
from carl.views.views import Views
from tests.reliability.conftest import assert_refused, call, listed
from tests.reliability.world import DAMAGES, FORMATS, encoded, make_world

BARE = ["--backbone", "test_resnet", "--batch-size", "8", "--epochs", "2"]
TINY = [*BARE, "--prototypes", "10"]
Result = TypeVar("Result")
Case = tuple[list[str], list[str]]  # the words of the command, and words that its error must have


def pretrain(*arguments: str) -> list[str]:
    return ["pretrain", "data.npz", *TINY, *arguments]


def setting(assignment: str, *words: str) -> Case:
    return pretrain("--set", assignment), list(words) or [assignment.partition("=")[0]]


ARGUMENTS: list[Case] = [
    (["pretrian"], ["pretrian", "pretrain"]),
    (["--nonsense"], ["--nonsense"]),
    (["pretrain", "--nonsense"], ["--nonsense"]),
    (["pretrain"], ["no DATA given"]),
    (["pretrain", "data.npz", "data.npz"], ["data.npz"]),
    (pretrain("--epochs", "0"), ["train.epochs=0"]),
    (pretrain("--epochs", "-3"), ["train.epochs=-3"]),
    (pretrain("--epochs", "1.5"), ["1.5", "integer"]),
    (pretrain("--epochs", "1" + "0" * 30), ["train.epochs", "the largest number allowed"]),
    (pretrain("--batch-size", "0"), ["train.batch_size=0"]),
    (pretrain("--batch-size", "-16"), ["train.batch_size=-16"]),
    (pretrain("--batch-size", "97"), ["97", "96 images"]),
    (pretrain("--batch-size", "many"), ["many"]),
    (pretrain("--prototypes", "0"), ["method.prototypes=0"]),
    (pretrain("--prototypes", "-1"), ["method.prototypes=-1"]),
    (pretrain("--prototypes", "100000000000"), ["method.prototypes", "the largest number allowed"]),
    (pretrain("--image-size", "0"), ["data.image_size=0"]),
    (pretrain("--image-size", "-8"), ["data.image_size=-8"]),
    (pretrain("--image-size", "100000"), ["image_size=100000", "4096"]),
    (pretrain("--prior-start", "nan"), ["method.prior_start", "finite"]),
    (pretrain("--prior-start", "inf"), ["method.prior_start", "finite"]),
    (pretrain("--prior-end", "-1"), ["method.prior_end=-1"]),
    (pretrain("--prior-epochs", "-1"), ["method.prior_epochs=-1"]),
    (pretrain("--prior-epochs", "50"), ["--prior-epochs 50", "at most 2"]),
    (pretrain("--seed", "-1"), ["train.seed=-1"]),
    (pretrain("--seed", "x"), ["x", "integer"]),
    (pretrain("--method", ""), ["unknown method"]),
    (pretrain("--method", "CARL"), ["CARL", "carl"]),
    (pretrain("--preset", "paprika"), ["paprika", "paper"]),
    (pretrain("--backbone", ""), ["unknown backbone"]),
    (pretrain("--backbone", "../../etc/passwd"), ["unknown backbone"]),
    (pretrain("--backbone", "test_vit", "--stem", "small"), ["--stem small", "ResNets"]),
    (pretrain("--stem", ""), ["--stem"]),
    (pretrain("--init", ""), ["'' does not exist", "a run directory"]),
    (pretrain("--init", "timm:test_resnet@"), ["timm:test_resnet@: there is no file after the @", "leave the @ out"]),
    (pretrain("--init", "folder"), ["folder", "not a run directory"]),
    (pretrain("--init", "text.txt"), ["text.txt", "no weights"]),
    (pretrain("--init", "list.pth"), ["list.pth", "state dict"]),
    (pretrain("--init", "cut.safetensors"), ["cut.safetensors", "no weights"]),
    (pretrain("--init", "header.safetensors"), ["header.safetensors", "no weights"]),
    (pretrain("--init", "foreign.safetensors"), ["foreign.safetensors", "does not fit"]),
    (pretrain("--out", "text.txt"), ["text.txt exists"]),
    (pretrain("--out", "text.txt/run"), ["text.txt/run", "Not a directory"]),
    (pretrain("--out", "folder"), ["folder exists"]),
    (pretrain("--out", "."), ["exists"]),
    (pretrain("--out", "loop"), ["loop"]),
    (pretrain("--out", "x" * 300), ["File name too long"]),
    (pretrain("--config", "nowhere.toml"), ["nowhere.toml", "cannot read"]),
    (pretrain("--config", "folder"), ["folder", "cannot read"]),
    (pretrain("--config", "loop.toml"), ["loop.toml", "cannot read"]),
    (pretrain("--config", "broken.toml"), ["broken.toml", "not valid TOML"]),
    (pretrain("--config", "binary.toml"), ["binary.toml", "not valid TOML"]),
    (pretrain("--config", "latin1.toml"), ["latin1.toml", "not valid TOML"]),
    (pretrain("--config", "deep.toml"), ["deep.toml", "not valid TOML"]),
    (pretrain("--config", "number.toml"), ["number.toml", "not valid TOML"]),
    (pretrain("--config", "twice.toml"), ["twice.toml", "not valid TOML"]),
    (pretrain("--config", "flat.toml"), ["'train'"]),
    (pretrain("--config", "section.toml"), ["trian", "train"]),
    (pretrain("--config", "key.toml"), ["train.epoch", "epochs"]),
    (pretrain("--config", "list.toml"), ["'train'"]),
    (["pretrain", "data.npz", "--config", "value.toml"], ["train.epochs='many'"]),
    (pretrain("--resume", "nowhere"), ["nowhere does not exist"]),
    (pretrain("--resume", "text.txt"), ["text.txt is not a run directory"]),
    (pretrain("--resume", "loop"), ["loop"]),
    (pretrain("--resume", ""), ["is not a run directory"]),
    (pretrain("--resume", "auto"), ["--resume auto", "--out"]),
    (pretrain("--resume", "good", "--out", "other"), ["--resume good", "--out other"]),
    (["pretrain", "--resume", "good", "--epochs", "1"], ["train.epochs: 2 -> 1"]),
    (["pretrain", "--resume", "good", "--set", "optim.lr=3"], ["optim.lr"]),
    (["pretrain", "unlabelled.npy", *BARE, "--method", "supervised"], ["unlabelled.npy", "labels"]),
    (["pretrain", "one-class.npz", *BARE, "--method", "supervised"], ["1 classes", "at least 2"]),
    (
        ["pretrain", "data.npz", *BARE, "--method", "pcl", "--set", "method.clusters=[1000]"],
        ["method.clusters", "96 images"],
    ),
    (["pretrain", "data.npz", *BARE, "--method", "pcl", "--set", "method.clusters=[]"], ["method.clusters"]),
    (["pretrain", "data.npz", *BARE, "--method", "moco", "--set", "method.queue=0"], ["method.queue=0"]),
]
SETTINGS: list[Case] = [
    setting("train", "section.key=value"),
    setting("=3", "section.key=value"),
    setting("train.=3", "section.key=value"),
    setting(".epochs=3", "unknown section"),
    setting("train.epochs.x=3", "train.epochs.x"),
    setting("train.seed=[1, 2]", "train.seed"),
    setting("train.accumulate=", "train.accumulate"),
    setting("train.accumulate={a = 1}", "train.accumulate"),
    setting("train.accumulate=" + "[" * 3000, "train.accumulate"),
    setting("train.accumulate=1\n[x]", "train.accumulate"),
    setting("train.accumulate=" + "9" * 5000, "train.accumulate"),
    setting("train.accumulate=5", "train.accumulate=5", "divisor"),
    setting("train.precision=fp8"),
    setting("train.keep_epochs=[99]", "train.keep_epochs=99"),
    setting("train.keep_epochs=abc"),
    setting("train.device=gpu", "train.device='gpu'"),
    setting("train.device=meta", "train.device='meta'"),
    setting("train.device=cuda:99", "train.device='cuda:99'"),
    setting("train.checkpoint_steps=-1"),
    setting("method.name=3", "unknown method"),
    setting("method.nonsense=1"),
    setting("optim.name=adam", "optim.name='adam'"),
    setting("optim.lr=0"),
    setting("optim.lr=-1"),
    setting("optim.lr=nan", "optim.lr", "finite"),
    setting("optim.lr=1e999", "optim.lr", "finite"),
    setting("optim.momentum=1"),
    setting("optim.clip=-1"),
    setting("optim.warmup_epochs=9", "optim.warmup_epochs=9"),
    setting("optim.schedule=steps"),
    setting("data.limit=0"),
    setting("data.limit=1", "1 image", "at least 2"),
    setting("data.max_bad=-1"),
    setting("data.views_from=car"),
    setting("data.views_from=photos", "data.views_from='photos'", "packed"),
    setting("data.views_from=stream", "not a shard"),
    setting("data.lanes=0"),
    setting("data.buffer=0"),
    setting("data.root=3"),
    setting("views.pipeline=", "views.pipeline"),
    setting("views.pipeline=eval", "1 large view"),
    setting("views.crop_min=0"),
    setting("views.crop_min=2"),
    setting("views.jitter_strength=-1"),
    setting("views.jitter_strength=1e9", "jitter"),
    setting("views.hue=0.9"),
    setting("views.grey=2"),
    setting("views.blur=-0.1"),
    setting("views.blur_kernel=4", "blur_kernel=4", "odd"),
    setting("views.blur_kernel=101", "blur_kernel=101"),
    setting("views.blur_sigma=[1]"),
    setting("views.blur_sigma=[0, 0]", "blur_sigma"),
    setting("views.blur_sigma=[3, 1]", "blur_sigma"),
    setting("model.hidden_layers=9"),
    setting("model.hidden_dim=0"),
    setting("model.output_dim=0"),
    setting("model.hidden_dim=100000000000", "the largest number allowed"),
    setting("model.init=[1]"),
    setting("probe.images=1"),
    setting("probe.temperature=0"),
    setting("probe.neighbours=0"),
    setting("probe.every=-1"),
    setting("log.every=0"),
    setting("log.report=perhaps"),
]


def source(name: str, *words: str, command: tuple[str, ...] = ("data", "prepare")) -> Case:
    return [*command, name], list(words) or [name]


DATA: list[Case] = [
    source("", "neither a data set's name"),
    source("nosuch", "nosuch"),
    source("no/such/folder", "does not exist"),
    source("no such folder/", "does not exist"),
    source("nö/such", "nö/such"),
    source("no\nsuch/folder", "does not exist"),
    source("\x1b[31mred/", "\\x1b[31mred"),
    source("x" * 5000, "File name too long"),
    source("loop"),
    source("dangling"),
    source("text.txt", "unknown kind"),
    source("folder", "no images"),
    source("empty", "no images"),
    source("images-are-folders", "no images"),
    source("floats.npy", "float32", "uint8"),
    source("objects.npy"),
    source("flat.npy", "shape"),
    source("five.npy", "shape"),
    source("none.npy", "at least one"),
    source("deep.npy", "channels"),
    source("zero.npy"),
    source("text.npy"),
    source("cut.npy"),
    source("claims.npy"),
    source("giant.npy"),
    source("short.npy", "short-labels.npy", "12 images"),
    source("real.npy", "real-labels.npy", "integers"),
    source("range.npz", "from 5 to 7", "3 classes"),
    source("negative.npz", "from -5 to -3"),
    source("classes.npz", "more than 65536 classes"),
    source("keys.npz", "foreign"),
    source("nothing.npz", "none"),
    source("objects.npz", "Python objects"),
    source("sizes.npz", "the same shape"),
    source("text.npz", "not a readable .npz"),
    source("zero.npz", "not a readable .npz"),
    source("cut.npz", "not a readable .npz"),
    source("flipped.npz"),
    source("cut.parquet", "not a readable Parquet"),
    source("text.parquet", "not a readable Parquet"),
    source("zero.parquet", "not a readable Parquet"),
    source("noise.parquet", "not a readable Parquet"),
    source("captions.parquet", "caption", "encoded images"),
    source("rows.parquet", "no rows"),
    source("nulls.parquet", "none of the 2 files"),
    source("garbage.parquet", "none of the 2 files"),
    source("labels.parquet", "18446744073709551615"),
    source("paths.parquet", "11 of 12 files"),
    source("many.parquet", "many.parquet", "at most 65536 classes"),
    source("mixed-parquet", "1.parquet is damaged"),
    source("names.npz", "at most 65536 classes"),
    source("cifar-missing", "test_batch is missing"),
    source("cifar-text", "data_batch_1 is damaged"),
    source("cifar-cut", "data_batch_1 is damaged"),
    source("cifar-keys", "data_batch_1", "'data'"),
    source("cifar-shape", "three uint8 squares"),
    source("cifar-labels", "from 0 to 7"),
    *(source(f"cifar-names-{name}", "batches.meta[label_names]") for name in ("number", "numbers", "bytes")),
    *(source(f"cifar-batch-{name}", "three uint8 squares") for name in ("number", "flat")),
    source("cifar-batch-none", "no images"),
    *(source(f"cifar-batch-{name}", "data_batch_1", "labels") for name in ("ragged", "words", "label", "huge")),
    source("stl-cut", "partial"),
    source("stl-empty", "no images"),
    source("stl-latin1", "class_names.txt"),
    source("stl-labels", "train_y.bin", "2 images"),
    *(source(name, "fold_indices.txt") for name in ("stl-letters", "stl-digits")),
    source("tiny-missing", "val_annotations.txt"),
    *(source(f"tiny-latin1-{number}", "not the official text") for number in range(3)),
    source("tiny-outside", "points outside"),
    source("tiny-long", "words.txt", "longer than"),
    *(source(f"imagenet-line-{number}", "map_clsloc.txt") for number in range(4)),
    *(source(f"imagenet-{name}", "train_data_batch_1.npz") for name in ("scalar", "more", "fewer", "floats")),
    source("imagenet-none", "train_data_batch_1.npz"),
    source("imagenet64", "image-net.org"),
    *(source(f"cut-{ending}", "none of the 2 files") for ending in FORMATS),
    *(source(f"noise-{ending}", "none of the 1 files") for ending in FORMATS),
    *(
        source(name, "none of the")
        for name in ("zero-bytes", "svg", "html", "postscript", "pdf", "zip", "20000-px", "60000-px", "0-px")
    ),
    source("wrong-ending", "rename it"),
    source("link-loops", "none of the 1 files"),
    source("dangling-images", "none of the 1 files"),
    source("pipes", "not a regular file"),
    source("nosuch", command=("data", "info")),
    source("svg", "none of the", command=("data", "info")),
    (["data", "info"], ["SOURCE"]),
    (["data", "prepare"], ["SOURCE"]),
    (["data", "nonsense"], ["nonsense"]),
    (["data", "prepare", "data.npz", "--image-size", "0"], ["image_size=0"]),
    (["data", "prepare", "data.npz", "--image-size", "x"], ["x"]),
    (["data", "prepare", "data.npz", "--image-size", "99999"], ["image_size=99999"]),
    (["data", "info", "data.npz", "--sheet", "text.txt/sheet.png"], ["text.txt"]),
    *(
        source(name, *words, command=("pretrain", *TINY))
        for name, *words in (
            ("one-image", "1 image", "at least 2"),
            ("one.npy", "1 image", "at least 2"),
            ("tiny.npz", "data.image_size=1"),
            ("text.tar", "not a tar file"),
            ("cut.tar", "cut.tar"),
            ("zero.tar", "zero.tar"),
            ("packed.tar", "gunzip"),
            ("texts.tar", "holds no images"),
            ("bad-images.tar", "none of the 4 files"),
            ("{000..002}.tar", "000.tar"),
            ("{0..99999999}.tar", "shards"),
            ("nowhere-*.tar", "names no shards"),
            ("nosuch://x/y.tar", "nosuch"),
        )
    ),
]


def on_run(command: str, name: str, *words: str) -> Case:
    commands = {
        "resume": ["pretrain", "--resume", name],
        "eval": ["eval", name, "--data", "data.npz"],
        "embed": ["embed", name, "one-image", "-o", "made.parquet"],
        "export": ["export", name, "--to", "safetensors", "-o", "made.safetensors"],
        "search": ["search", name, "one-image", "one-image/a.png", "-o", "made.html"],
        "curate": ["curate", name, "one-image", "--keep", "1", "-o", "made.txt"],
        "report": ["report", name],
    }
    return commands[command], list(words) or [name]


READERS = ("resume", "eval", "embed", "export", "search", "curate", "report")
RUNS: list[Case] = [
    *(on_run(command, name) for command in READERS for name in ("nowhere", "empty", "text.txt", "loop", "no-config")),
    *(on_run(command, name, "config.toml") for command in READERS for name in ("text-config", "cut-config")),
    *(on_run(command, "empty-config", "config.toml") for command in ("resume", "eval", "embed", "export")),
    *(on_run(command, "foreign-config", "config.toml", "tool") for command in ("resume", "eval", "embed", "export")),
    *(on_run(command, "flat-config", "config.toml") for command in READERS),
    *(on_run(command, "method-config", "config.toml", "crl") for command in ("resume", "eval", "embed", "export")),
    *(on_run(command, "key-config", "config.toml", "train.later") for command in ("resume", "eval", "embed", "export")),
    *(on_run(command, name, "format", "version") for command in READERS for name in ("newer", "older")),
    *(on_run(command, "text-environment", "environment.json") for command in READERS),
    on_run("resume", "size-config", "data.image_size"),
    *(
        on_run(command, f"{kind}-encoder", "encoder.safetensors")
        for command in ("eval", "embed", "export")
        for kind in ("no", "cut", "text", "foreign", "nan")
    ),
    *(on_run("embed", name, "head.safetensors") for name in ("cut-head", "foreign-head")),
    (["eval", "cut-head", "--protocol", "cluster"], ["head.safetensors"]),
    *(on_run("resume", name, "checkpoint.pt") for name in DAMAGES if name.endswith("-checkpoint")),
    *(
        on_run(command, name, "data.json", "damaged")
        for command in ("eval", "embed")
        for name in DAMAGES
        if name.endswith("-data")
    ),
    *(on_run("report", name, "gallery.npz") for name in ("cut-gallery", "text-gallery", "objects-gallery")),
    on_run("report", "text-data", "data.json"),
    on_run("report", "text-result", "knn-small.json"),
]
COMMANDS: list[Case] = [
    (["eval"], ["ENCODER"]),
    (["eval", "random"], ["--data"]),
    (["eval", "random", "--data", "nosuch"], ["nosuch"]),
    (["eval", "random", "--data", "data.npz", "--backbone", "nosuch"], ["nosuch"]),
    (["eval", "good", "--protocol", "magic"], ["magic"]),
    (["eval", "good", "--fraction", "0.5"], ["--fraction", "semi"]),
    *(
        (["eval", "good", "--protocol", "semi", "--fraction", value], ["--fraction"])
        for value in ("0", "1", "-1", "nan", "x")
    ),
    (["eval", "good", "--seeds", "0"], ["--seeds 0"]),
    (["eval", "good", "--seeds", "9223372036854775807"], ["--seeds 9223372036854775807"]),
    (["eval", "good", "--epochs", "3"], ["--epochs", "knn"]),
    (["eval", "good", "--protocol", "linear", "--epochs", "0"], ["--epochs 0"]),
    *(
        (["eval", "good", "--protocol", "linear", f"--rates={value}"], ["--rates"])
        for value in ("", "a", "0", "-1", "nan", "inf", "3,,4")
    ),
    (["eval", "good", "--rates", "3"], ["--rates", "linear"]),
    (["eval", "good", "--protocol", "transfer"], ["--data"]),
    (["eval", "good", "--protocol", "transfer", "--data", "data.npz"], ["trained on"]),
    (["eval", "good", "--backbone", "resnet18"], ["resnet18", "test_resnet"]),
    (["eval", "good", "--set", "model.output_dim=3"], ["model.output_dim"]),
    (["eval", "good", "--set", "data.image_size=100000"], ["image_size=100000"]),
    (["eval", "good", "--data", "unlabelled.npy"], ["unlabelled.npy", "labels"]),
    (["eval", "good", "--data", "one-class.npz"], ["single class"]),
    (["eval", "good", "--data", "four.npz"], ["4 channels"]),
    (["eval", "good", "--data", "svg"], ["none of the"]),
    (["eval", "good", "--out", "text.txt", "--force"], ["text.txt"]),
    *(
        (["eval", name, "--data", "data.npz", "--backbone", "test_resnet"], [name])
        for name in (
            "cut.safetensors",
            "text.safetensors",
            "zero.safetensors",
            "header.safetensors",
            "foreign.safetensors",
            "nan.safetensors",
            "text.pth",
            "list.pth",
            "text.txt",
        )
    ),
    (["eval", "weights.safetensors", "--data", "data.npz", "--backbone", "resnet18"], ["--backbone"]),
    (["embed", "good"], ["IMAGES"]),
    (["embed", "good", "nosuch"], ["nosuch"]),
    (["embed", "good", "empty"], ["no images"]),
    (["embed", "good", "svg"], ["none of the 1 images"]),
    (["embed", "good", "floats.npy"], ["float32"]),
    (["embed", "good", "data.npz", "--split", "nosuch"], ["nosuch", "train"]),
    (["embed", "good", "data.npz", "-o", "made.txt"], ["made.txt", ".parquet"]),
    (["embed", "good", "data.npz", "-o", "whole.parquet"], ["whole.parquet exists"]),
    (["embed", "good", "data.npz", "-o", "text.txt/made.parquet"], ["text.txt"]),
    (["embed", "good", "four.npz"], ["4 channels"]),
    (["export", "good"], ["--to"]),
    (["export", "good", "--to", "tensorflow"], ["tensorflow"]),
    (["export", "good", "--to", "torchvision", "-o", "made.pth"], ["torchvision has no model"]),
    (["export", "good", "--to", "safetensors", "-o", "text.txt"], ["text.txt exists"]),
    (["export", "good", "--to", "safetensors", "-o", "text.txt/made"], ["text.txt"]),
    (["export", "good", "--to", "timm", "--normalise", "-o", "made"], ["--normalise"]),
    (["search", "good", "one-image"], ["QUERY"]),
    (["search", "good", "one-image", "nosuch.png"], ["nosuch.png"]),
    (["search", "good", "one-image", "text.txt"], ["text.txt", "cannot be decoded"]),
    (["search", "good", "one-image", "one-image/a.png", "-k", "0"], ["0 neighbours"]),
    (["search", "good", "one-image", "one-image/a.png", "-k", "x"], ["x"]),
    (["search", "good", "nosuch", "one-image/a.png"], ["nosuch"]),
    (["search", "good", "text.parquet", "one-image/a.png"], ["text.parquet"]),
    (["curate", "good", "one-image"], ["--keep"]),
    (["curate", "good", "one-image", "--keep", "0"], ["--keep 0"]),
    (["curate", "good", "one-image", "--keep", "-1"], ["--keep -1"]),
    (["curate", "good", "one-image", "--keep", "1000"], ["--keep 1000"]),
    (["curate", "good", "one-image", "--keep", "1", "--duplicate", "2"], ["duplicate=2"]),
    (["curate", "good", "one-image", "--keep", "1", "--outliers", "1"], ["outliers=1"]),
    (["curate", "good", "one-image", "--keep", "1", "--outliers", "nan"], ["outliers=nan"]),
    (["curate", "good", "one-image", "--keep", "1", "--links", "folder"], ["folder exists"]),
    (["curate", "good", "nosuch", "--keep", "1"], ["nosuch"]),
    (["curate", "good", "one-image", "--keep", "1", "--seed", "-1"], ["--seed -1"]),
    (["curate", "good", "one-image", "--keep", "1", "--seed", "36893488147419103228"], ["--seed 36893488147419103228"]),
    (["group", "good", "one-image", "--groups", "2", "--seed", "-1"], ["--seed -1"]),
    (["group", "good", "one-image", "--groups", "2", "--seed", "36893488147419103228"], ["--seed 3689348814741910"]),
    (["group", "good", "one-image", "--groups", "9223372036854775807"], ["--groups 9223372036854775807"]),
    (["group", "good", "one-image", "--views", "9223372036854775807"], ["--views 9223372036854775807"]),
    (["report"], ["RUN"]),
    (["report", "good", "good"], ["twice"]),
    (["report", "good", "nowhere"], ["nowhere"]),
    (["report", "good", "--map", "magic"], ["magic"]),
    (["report", "good", "-o", "text.txt/report.html"], ["text.txt"]),
    (["compare"], ["DATA"]),
    (["compare", "nosuch"], ["nosuch"]),
    (["compare", "data.npz", "--methods", "carl,simclrr"], ["simclrr"]),
    (["compare", "data.npz", "--seeds", "0"], ["--seeds 0"]),
    (["compare", "data.npz", "--seeds", "9223372036854775807"], ["--seeds 9223372036854775807"]),
    (["compare", "data.npz", "--epochs", "0"], ["train.epochs=0"]),
    (["compare", "data.npz", "--set", "train.seed=abc"], ["train.seed"]),
    (["compare", "data.npz", "--config", "broken.toml"], ["broken.toml"]),
    (["compare", "svg"], ["none of the"]),
    (["reproduce"], ["EXPERIMENT"]),
    (["reproduce", "nosuch"], ["nosuch"]),
    (["reproduce", "linear", "--scale", "huge"], ["huge"]),
    (["reproduce", "linear", "--data-root", "nowhere"], ["--data-root nowhere", "make it"]),
    (["reproduce", "linear", "--out", "text.txt"], ["--out text.txt"]),
    (["reproduce", "linear", "--own-runs"], ["--own-runs", "--scale paper"]),
    *(
        (["reproduce", "linear", "--shard", value], ["--shard"])
        for value in ("", "x", "²/4", "0/2", "3/2", "1/0", "1", "-1/2")
    ),
    (["doctor", "extra"], ["extra"]),
    (["completion"], ["bash"]),
    (["completion", "tcsh"], ["tcsh"]),
]
TABLE = [*ARGUMENTS, *SETTINGS, *DATA, *RUNS, *COMMANDS]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, run: Path, small_data: Path) -> Path:
    return make_world(tmp_path_factory.mktemp("world") / "w", run, small_data)


def _name(case: Case) -> str:
    return " ".join(word[:30] for word in case[0] if word not in TINY).encode("ascii", "replace").decode()


@pytest.mark.parametrize("case", TABLE, ids=map(_name, TABLE))
def test_bad_input_is_one_line_with_exit_code_2_and_nothing_is_written(world: Path, case: Case):
    arguments, words = case
    before = listed(world)
    done = call(world, *arguments)
    assert_refused(done, words)
    assert listed(world) == before


def test_the_table_is_as_long_as_it_is_said_to_be():
    assert len({tuple(arguments) for arguments, _ in TABLE}) == len(TABLE) >= 150


LEGAL = ["with space.png", "ünïcode.png", "日本語.png", "emoji 🐟.png", "quote'\".png", "-dash.png", "semi;colon&.png"]


def test_names_with_spaces_newlines_unicode_and_any_bytes_are_read(tmp_path: Path, run: Path):
    folder = tmp_path / "my ünïcode 🐟 photos"
    folder.mkdir()
    for name in [*LEGAL, "new\nline.png", "tab\t.png", "<b>&amp;.png"]:
        (folder / name).write_bytes(encoded())
    (folder / os.fsdecode(b"\xff\xfe.png")).write_bytes(encoded())
    done = call(tmp_path, "data", "prepare", folder.name)
    assert done.returncode == 0, done.stderr
    assert "ready: 11 train" in done.stdout
    done = call(tmp_path, "embed", run, folder.name, "-o", "ünïcode 🐟.parquet")
    assert done.returncode == 0, done.stderr
    assert "11 embeddings" in done.stdout
    done = call(tmp_path, "pretrain", folder.name, *TINY, "--epochs", "1", "--set", "log.report=false")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / f"{folder.name}-carl" / "encoder.safetensors").exists()


def test_a_folder_whose_name_is_no_unicode_is_refused_before_a_run_is_begun(tmp_path: Path):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    for number in range(9):
        (folder / f"{number}.png").write_bytes(encoded())
    done = call(tmp_path, "pretrain", folder, *TINY)
    assert_refused(done, ["data.source", "Unicode"])
    assert [path for path in tmp_path.iterdir() if path != folder] == []
    done = call(tmp_path, "data", "prepare", folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 20_000), (20_000, 2)])
def test_images_of_one_pixel_and_of_20000_pixels_a_side_are_packed(tmp_path: Path, height: int, width: int):
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (width, height), "red").save(tmp_path / "photos" / "a.png")
    Image.new("RGB", (width, height), "red").save(tmp_path / "photos" / "b.png")
    done = call(tmp_path, "data", "prepare", "photos")
    assert done.returncode == 0, done.stderr
    assert "ready: 2 train" in done.stdout


def test_one_image_one_class_and_link_loops_are_packed(tmp_path: Path):
    (tmp_path / "photos" / "only").mkdir(parents=True)
    (tmp_path / "photos" / "only" / "a.png").write_bytes(encoded())
    (tmp_path / "photos" / "self").symlink_to("self")
    (tmp_path / "photos" / "up").symlink_to("..")
    done = call(tmp_path, "data", "prepare", "photos")
    assert done.returncode == 0, done.stderr
    assert "ready: 1 train" in done.stdout


def outcome(function: Callable[[], Result]) -> tuple[Result | None, str]:
    """What a function gives, or what it says of its input."""
    try:
        return function(), ""
    except UserError as error:
        return None, str(error)


# Configuration: whatever is written into it, it is refused in one line or is whole.

VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(-2, 9), st.floats(0, 2), st.text(max_size=2)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
KEYS = {section: sorted(Config.model_fields[section].annotation.model_fields) for section in SECTIONS}  # type: ignore[union-attr]
KEYS["views"] += sorted(option_owners())


@st.composite
def layers(draw: st.DrawFn) -> tuple[str, dict[str, dict[str, Any]]]:
    name = draw(st.sampled_from(sorted(METHODS)))
    keys = {**KEYS, "method": sorted(METHODS[name].Options.model_fields)}
    layer: dict[str, dict[str, Any]] = {"data": {"source": "x"}}
    for _ in range(draw(st.integers(1, 4))):
        section = draw(st.sampled_from(SECTIONS))
        key = draw(st.one_of(st.sampled_from(keys[section]), st.text(string.ascii_lowercase, max_size=5)))
        layer.setdefault(section, {})[key] = draw(VALUES)
    return name, layer


@given(layers())
@example(("barlow", {"data": {"source": "x", "buffer": 2147483648.0}}))
@example(("carl", {"data": {"source": "x"}, "method": {"prototypes": "9223372036854775807"}}))
@example(("barlow", {"data": {"source": "x", "buffer": {"\n": 2147483648}}}))
@example(("barlow", {"data": {"source": "x", "\n": 1}}))
@settings(max_examples=300, deadline=None)
def test_any_configuration_is_refused_in_one_line_or_survives_being_written(drawn: tuple[str, dict[str, Any]]):
    name, layer = drawn

    def checked() -> Config:
        config = resolve([layer], METHODS[name].Options)
        check_views(config.views)
        return config

    config, said = outcome(checked)
    if config is None:
        assert said
        assert "\n" not in said
        return
    text = to_toml(config)
    assert resolve([tomllib.loads(text)], METHODS[name].Options) == config


@given(st.lists(st.text(max_size=30), max_size=3))
@settings(max_examples=200, deadline=None)
def test_any_assignment_is_read_or_refused_with_an_example(assignments: list[str]):
    layer, said = outcome(lambda: parse_assignments(assignments))
    if layer is None:
        assert "train.epochs=20" in said
    else:
        assert sum(len(values) for values in layer.values()) <= len(assignments)


# Views: whatever the parameters, they are refused or give finite pixels in range.

PART = st.one_of(st.floats(-0.2, 1.2), st.floats(0, 1), st.just(math.nan))
RANGE = st.one_of(st.tuples(st.floats(-1, 3), st.floats(-1, 3)), st.just((0.5, 1.0)))


@given(
    size=st.integers(-1, 24),
    crop_area=st.one_of(st.none(), RANGE),
    crop_aspect=RANGE,
    centre=PART,
    probabilities=st.tuples(PART, PART, PART, PART, PART),
    strengths=st.tuples(*[st.one_of(st.floats(-1, 4), st.just(STRONGEST), st.floats())] * 3),
    hue=st.floats(-0.5, 1),
    sigma=RANGE,
    kernel=st.one_of(st.none(), st.integers(-3, 60)),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_parameters_of_a_view_are_refused_or_give_finite_pixels_in_range(
    size: int,
    crop_area: tuple[float, float] | None,
    crop_aspect: tuple[float, float],
    centre: float,
    probabilities: tuple[float, ...],
    strengths: tuple[float, ...],
    hue: float,
    sigma: tuple[float, float],
    kernel: int | None,
    seed: int,
):
    flip, jitter, grey, blur, solarise = probabilities
    brightness, contrast, saturation = strengths
    colours = {"jitter": jitter, "brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
    others = {"grey": grey, "blur": blur, "blur_sigma": sigma, "blur_kernel": kernel, "solarise": solarise}
    recipe, said = outcome(lambda: ViewRecipe(size, crop_area, crop_aspect, flip, centre=centre, **colours, **others))
    if recipe is None:
        assert said
        assert "\n" not in said
        return
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 9, 13, 3), np.uint8))
    (view,) = Views([recipe], (0.0,) * 3, (1.0,) * 3, seed)(images, torch.arange(4), 0)
    assert view.shape == (4, 3, size, size)
    assert bool(view.isfinite().all())
    assert float(view.min()) >= -1e-4
    assert float(view.max()) <= 1 + 1e-4
