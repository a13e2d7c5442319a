"""The command line: parse, call, print. torch is imported only inside the commands that compute."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from carl.errors import UserError
from carl.terminal import show_progress

if TYPE_CHECKING:
    from carl.data import Dataset

PATH = click.Path(path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="carl-ssl", prog_name="carl")
def cli() -> None:
    """Learn image encoders from unlabelled images.

    \b
    carl pretrain photos/        learn from a folder of images
    carl pretrain shapes         try it on the built-in data
    carl eval runs/shapes-carl   measure what was learned
    """


@cli.command()
@click.argument("data", required=False)
@click.option("--method", metavar="NAME", help="How to learn.  [default: carl]")
@click.option("--preset", metavar="NAME", help="Set of values for method and data.  [default: paper; shapes on shapes]")
@click.option("--backbone", metavar="NAME", help="Any timm model.  [default: resnet18]")
@click.option(
    "--stem",
    type=click.Choice(["imagenet", "small"]),
    help="`small` (3x3, no max-pool) is slower and better at 32 px.  [default: imagenet]",
)
@click.option("--init", metavar="FILE|timm", help="Start from pretrained weights: usually the best first thing to try.")
@click.option("--image-size", type=int, metavar="PX", help="Side of the views.  [default: that of the images]")
@click.option("--epochs", type=int, metavar="N", help="Passes over the data.  [default: 200; 8 on shapes]")
@click.option(
    "--batch-size", type=int, metavar="N", help="Images a step, over all processes.  [default: 256; 128 on shapes]"
)
@click.option("--prototypes", type=int, metavar="K", help="About ten times the classes you expect.  [default: by data]")
@click.option(
    "--prior-start",
    type=float,
    metavar="B",
    help="Weight of the prior at the start; keep it above 2.  [default: by data]",
)
@click.option("--prior-end", type=float, metavar="A", help="Weight of the prior after E epochs.  [default: by data]")
@click.option(
    "--prior-epochs",
    type=int,
    metavar="E",
    help="Epochs over which the weight falls.  [default: min(100, half of all)]",
)
@click.option("--seed", type=int, metavar="S", help="Same seed, same machine: same weights.  [default: 0]")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="RUN", help="Run directory.  [default: runs/DATA-METHOD]"
)
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE.toml", help="Values from a file."
)
@click.option(
    "--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Any other value; may be repeated."
)
@click.option("--resume", metavar="RUN|auto", help="Go on with a run; `auto`: go on if --out exists, else start.")
def pretrain(
    data: str | None,
    method: str | None,
    preset: str | None,
    backbone: str | None,
    stem: str | None,
    init: str | None,
    image_size: int | None,
    epochs: int | None,
    batch_size: int | None,
    prototypes: int | None,
    prior_start: float | None,
    prior_end: float | None,
    prior_epochs: int | None,
    seed: int | None,
    out: Path | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    resume: str | None,
) -> None:
    """Learn an encoder from DATA: a name (shapes, cifar10 ...), a folder of images, or a .parquet, .npy or .npz file.

    The run directory then holds encoder.safetensors, metrics.jsonl, report.html and all that resume needs.
    """
    from carl.config import merge, parse_assignments, read_toml

    flags: dict[str, dict[str, Any]] = {
        "data": {"source": data, "image_size": image_size},
        "model": {"backbone": backbone, "stem": stem, "init": init},
        "method": {
            "name": method,
            "preset": preset,
            "prototypes": prototypes,
            "prior_start": prior_start,
            "prior_end": prior_end,
            "prior_epochs": prior_epochs,
        },
        "train": {"epochs": epochs, "batch_size": batch_size, "seed": seed},
    }
    given = {s: {k: v for k, v in values.items() if v is not None} for s, values in flags.items()}
    from_file = {} if config_file is None else read_toml(config_file)
    layer = merge([from_file, parse_assignments(assignments), given])

    from carl.training import commands

    commands.pretrain(layer, out, resume, sys.argv)


@cli.command("eval")
@click.argument("run")
@click.option("--protocol", type=click.Choice(["knn"]), default="knn", show_default=True, help="What to measure.")
@click.option("--data", metavar="DATA", help="Other data than the run's.")
@click.option("--force", is_flag=True, help="Measure again although the result is there.")
def evaluate(run: str, protocol: str, data: str | None, force: bool) -> None:
    """Measure what the encoder of RUN learned, beside the same encoder with random weights."""
    from carl.evaluation.evaluate import evaluate_knn, table

    for line in table(evaluate_knn(Path(run), data, force)):
        click.echo(line)


@cli.command()
@click.argument("run", type=PATH)
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Where to.  [default: RUN/report.html]")
def report(run: Path, output: Path | None) -> None:
    """Write the report of RUN, one self-contained page."""
    from carl.reporting.report import write_report

    click.echo(write_report(run, output))


@cli.group()
def data() -> None:
    """Look at data sets and prepare them."""


@data.command("list")
def data_list() -> None:
    """Name the data sets that are known by name, and the kinds of files that open."""
    from carl.data.inspect import list_sources

    _echo_rows(list_sources())


@data.command("info")
@click.argument("source")
@click.option("--image-size", type=int, metavar="PX", help="Side to which images of varied size are brought.")
@click.option("--sheet", type=PATH, metavar="FILE", help="Where the contact sheet goes.  [default: SOURCE-sheet.png]")
def data_info(source: str, image_size: int | None, sheet: Path | None) -> None:
    """Count SOURCE, name its classes and statistics, and draw a contact sheet."""
    from carl.data.inspect import contact_sheet, describe

    dataset = _opened(source, image_size)
    _echo_rows(describe(dataset))
    path = sheet or Path(f"{Path(source).stem}-sheet.png")
    contact_sheet(dataset, path)
    click.echo(f"contact sheet: {path}")


@data.command("prepare")
@click.argument("source")
@click.option("--image-size", type=int, metavar="PX", help="Side to which images of varied size are brought.")
def data_prepare(source: str, image_size: int | None) -> None:
    """Decode and pack SOURCE into the cache, so that later starts are instant."""
    dataset = _opened(source, image_size)
    for note in dataset.notes:
        click.echo(note)
    counts = ", ".join(f"{len(split)} {name}" for name, split in dataset.splits.items())
    click.echo(f"ready: {counts}")


def _opened(source: str, image_size: int | None) -> Dataset:
    from carl.data import open_dataset

    return open_dataset(source, image_size=image_size, progress=show_progress)


def _echo_rows(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}")


def main() -> None:
    """Entry point: errors of the user are one line and exit code 2."""
    try:
        code = cli.main(prog_name="carl", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        sys.exit(0)
    except (UserError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        print(f"carl: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the reader of our output has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)
        where = f" {error.filename}" if error.filename else ""
        print(
            f"carl: cannot use{where}: {error.strerror or error}; check the path, its rights and the disk",
            file=sys.stderr,
        )
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        print("carl: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
