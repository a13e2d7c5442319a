"""The command line: parse, call, print. torch is imported only inside the commands that compute."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from carl.errors import UserError
from carl.terminal import show_progress

PATH = click.Path(path_type=Path)
PRESET_HELP = "Set of values for method and data.  [default: paper; of CARL robust on data that are not the paper's]"
MAX_BAD_HELP = "Files that cannot be decoded and may be left out.  [default: one in twenty]"


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
@click.option("--preset", metavar="NAME", help=PRESET_HELP)
@click.option("--backbone", metavar="NAME", help="Any timm model.  [default: resnet18]")
@click.option(
    "--stem",
    type=click.Choice(["imagenet", "small"]),
    help="`small` (3x3, no max-pool) is slower and better at 32 px.  [default: imagenet]",
)
@click.option("--init", metavar="FILE|timm", help="Start from pretrained weights: usually the best first thing to try.")
@click.option("--image-size", type=int, metavar="PX", help="Side of the views.  [default: that of the images]")
@click.option("--max-bad", type=int, metavar="N", help=MAX_BAD_HELP)
@click.option("--epochs", type=int, metavar="N", help="Passes over the data.  [default: 200; 8 on shapes]")
@click.option(
    "--batch-size", type=int, metavar="N", help="Images a step, over all processes.  [default: 256; 128 on shapes]"
)
@click.option("--prototypes", type=int, metavar="K", help="About ten times the classes you expect.  [default: by data]")
@click.option(
    "--prior-start",
    type=float,
    metavar="B",
    help="Weight of the prior at the start; of the paper's loss keep it above 2.  [default: by preset]",
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
    max_bad: int | None,
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

    More than a disk holds: .tar or .parquet shards, as 'shards/{000..019}.tar', also at an address (docs/scaling.md).
    The run directory then holds encoder.safetensors, metrics.jsonl, report.html and all that resume needs.
    """
    from carl.config import merge, parse_assignments, read_settings

    flags: dict[str, dict[str, Any]] = {
        "data": {"source": data, "image_size": image_size, "max_bad": max_bad},
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
    from_file = {} if config_file is None else read_settings(config_file)
    layer = merge([from_file, parse_assignments(assignments), given])

    from carl.training import commands

    commands.pretrain(layer, out, resume, sys.argv)


@cli.command("eval")
@click.argument("target", metavar="RUN|FILE|random")
@click.option(
    "--protocol", type=click.Choice(["knn", "linear", "linear-cached", "finetune", "semi", "transfer", "cluster"]),
    default="knn", show_default=True,
    help="What to measure. knn and linear-cached take seconds; linear (the paper's) and finetune train for long.",
)  # fmt: skip
@click.option("--data", metavar="DATA", help="Other data than the run's; a file or `random` has none of its own.")
@click.option("--fraction", type=float, metavar="F", help="Part of the labels for semi.  [default: 0.01, then 0.1]")
@click.option("--seeds", type=int, default=1, show_default=True, metavar="N", help="Repeat; mean and deviation.")
@click.option("--epochs", type=int, metavar="N", help="Shorter than the protocol's.  [default: linear 100, others 50]")
@click.option("--rates", metavar="R,R...", help="Of linear; of several the best on a part of train.  [default: 30]")
@click.option(
    "--centre",
    type=float,
    metavar="F",
    help="Part of each side that is seen.  [default: 0.875 for linear, linear-cached, transfer; 1]",
)
@click.option("--backbone", metavar="NAME", help="Of a file or of `random`.  [default: resnet18]")
@click.option("--out", type=PATH, metavar="DIR", help="Where results go.  [default: RUN/results, or results]")
@click.option(
    "--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="As of pretrain: data.image_size=64."
)
@click.option("--force", is_flag=True, help="Measure again although the result is there.")
def evaluate(
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
    assignments: tuple[str, ...],
    force: bool,
) -> None:
    """Measure what an encoder learned: that of RUN, of a FILE of weights (with --data and --backbone), or a random one.

    The result is a JSON file; asked again, it is shown from there.
    """
    from carl.config import parse_assignments
    from carl.evaluation.commands import evaluate_and_show

    evaluate_and_show(
        target,
        protocol,
        data,
        fraction,
        seeds,
        epochs,
        rates,
        centre,
        backbone,
        out,
        force,
        parse_assignments(assignments),
    )


@cli.command()
@click.argument("runs", type=PATH, metavar="RUN...", nargs=-1, required=True)
@click.option(
    "-o", "--output", type=PATH, metavar="FILE",
    help="Where to.  [default: RUN/report.html; comparison.html here for several runs]",
)  # fmt: skip
@click.option(
    "--map", "projection", type=click.Choice(["pca", "tsne", "umap"]), default="pca", show_default=True,
    help="How the images are laid out: pca at once; tsne and umap show groups better and take minutes.",
)  # fmt: skip
def report(runs: tuple[Path, ...], output: Path | None, projection: str) -> None:
    """Write the report of RUN, one self-contained page; with several, a page that compares them."""
    from carl.reporting.pages import write_comparison, write_report

    one = len(runs) == 1
    click.echo(write_report(runs[0], output, projection) if one else write_comparison(runs, output, projection))


@cli.command()
@click.argument("run", type=PATH)
@click.argument("images")
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", default="embeddings.parquet", show_default=True,
    help="Ends in .parquet, .npy or .csv.",
)  # fmt: skip
@click.option("--split", metavar="NAME", help="Only these images of a data set: train, test ...  [default: all]")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def embed(run: Path, images: str, output: Path, split: str | None, force: bool) -> None:
    """Write a row for each of IMAGES: its path, its embedding by the encoder of RUN, and its prototype.

    IMAGES is a folder, an image, a .parquet, .npy or .npz file, shards such as 'shards/{000..019}.tar', or a name.
    Memory stays the same for any number of images; stopped, the same command goes on. Files that cannot be decoded
    have no row and are listed.
    """
    from carl.use.commands import embed_images

    _echo_lines(embed_images(run, images, output, split, force))


@cli.command()
@click.argument("run", type=PATH)
@click.option(
    "--to", "form", required=True, type=click.Choice(["timm", "torchvision", "safetensors", "onnx", "torch-export"]),
    help="timm suits most; onnx runs without torch.",
)  # fmt: skip
@click.option("-o", "--output", type=PATH, metavar="FILE", help="A folder for timm.  [default: in RUN/export]")
@click.option("--normalise", is_flag=True, help="The graph (onnx, torch-export) takes images in [0, 1].")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def export(run: Path, form: str, output: Path | None, normalise: bool, force: bool) -> None:
    """Write the encoder of RUN for another program, check it there, and write a card with it."""
    from carl.use.commands import export_encoder

    _echo_lines(export_encoder(run, form, output, normalise, force))


@cli.command()
@click.argument("run", type=PATH)
@click.argument("images")
@click.argument("queries", metavar="QUERY...", nargs=-1, required=True)
@click.option("-k", "--count", type=int, default=10, show_default=True, metavar="N", help="Images for each query.")
@click.option("--split", metavar="NAME", help="Only these images of a data set: train, test ...  [default: all]")
@click.option("-o", "--output", type=PATH, metavar="FILE", default="search.html", show_default=True, help="The sheet.")
def search(run: Path, images: str, queries: tuple[str, ...], count: int, split: str | None, output: Path) -> None:
    """Find those of IMAGES that the encoder of RUN takes for most like each QUERY, an image file.

    IMAGES may be what `carl embed` wrote; else embeddings are made once and kept in the cache.
    """
    from carl.use.commands import search_images

    _echo_lines(search_images(run, images, queries, count, split, output))


@cli.command()
@click.argument("run", type=PATH)
@click.argument("images")
@click.option("--keep", type=int, required=True, metavar="N", help="Images to keep.")
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", default="curated.txt", show_default=True,
    help="Paths of what is kept; a .csv tells of every image why.",
)  # fmt: skip
@click.option("--links", type=PATH, metavar="FOLDER", help="Also link the kept images into a new folder.")
@click.option(
    "--duplicate", type=float, default=0.99, show_default=True, metavar="S",
    help="Similarity above which two images count as one. Lower it to leave out more.",
)  # fmt: skip
@click.option(
    "--outliers", type=float, default=0.01, show_default=True, metavar="P",
    help="Part of the images, the least typical, to leave out.",
)  # fmt: skip
@click.option("--split", metavar="NAME", help="Only these images of a data set: train, test ...  [default: all]")
@click.option("--seed", type=int, default=0, show_default=True, metavar="S", help="Of the clustering.")
def curate(
    run: Path,
    images: str,
    keep: int,
    output: Path,
    links: Path | None,
    duplicate: float,
    outliers: float,
    split: str | None,
    seed: int,
) -> None:
    """Choose a varied subset of IMAGES: all prototypes covered, near-duplicates and outliers left out."""
    from carl.use.commands import curate_images

    _echo_lines(curate_images(run, images, keep, output, links, duplicate, outliers, split, seed))


@cli.command()
@click.option("--speed/--no-speed", default=True, show_default=True, help="Measure a training step for some seconds.")
def doctor(speed: bool) -> None:
    """Say what machine and versions these are, how fast a step is, and what could be installed for more."""
    from carl.use.commands import examine

    for name, value in examine(speed):
        click.echo(f"{name:<13} {value}")


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes SHELL complete commands and options.

    \b
    bash: echo 'eval "$(carl completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(carl completion zsh)"' >> ~/.zshrc
    fish: carl completion fish > ~/.config/fish/completions/carl.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "carl", "_CARL_COMPLETE").source())


@cli.command()
@click.argument("data")
@click.option("--methods", metavar="A,B,...", help="Which methods.  [default: all]")
@click.option("--epochs", type=int, metavar="N", help="Passes over the data, the same for all.  [default: by data]")
@click.option("--seeds", type=int, default=1, show_default=True, metavar="N", help="Runs of each method.")
@click.option("--out", type=PATH, metavar="DIR", help="Where the runs and the table go.  [default: runs/compare-DATA]")
@click.option("--config", "config_file", type=PATH, metavar="FILE.toml", help="Values from a file, for all methods.")
@click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Any other value, for all.")
def compare(
    data: str,
    methods: str | None,
    epochs: int | None,
    seeds: int,
    out: Path | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Train methods on DATA under equal conditions and print one table: accuracy, images/s, memory.

    Stopped, the same command goes on; finished runs are not trained again.
    """
    from carl.config import merge, parse_assignments, read_settings

    given: dict[str, dict[str, Any]] = {"data": {"source": data}, "train": {} if epochs is None else {"epochs": epochs}}
    from_file = {} if config_file is None else read_settings(config_file)
    layer = merge([from_file, parse_assignments(assignments), given])

    from carl.reproduction.compare import compare as run_comparison

    sys.exit(run_comparison(layer, methods.split(",") if methods else (), seeds, out, click.echo))


@cli.command()
@click.argument("experiment")
@click.option(
    "--scale", type=click.Choice(["smoke", "cpu", "paper"]), default="cpu", show_default=True,
    help="smoke: minutes, on shapes; cpu: hours, real CIFAR; paper: the paper's own settings.",
)  # fmt: skip
@click.option("--data-root", type=PATH, metavar="DIR", help="Where data sets are.  [default: the cache folder]")
@click.option("--out", type=PATH, metavar="DIR", help="Where tables and runs go.  [default: results/reproduction]")
@click.option("--shard", metavar="I/N", help="Only every N-th run from the I-th on, for many machines.")
@click.option("--dry-run", is_flag=True, help="Print every run with all its values, and stop.")
@click.option("--status", is_flag=True, help="Say what is done, and stop.")
@click.option("--yes", is_flag=True, help="Start even if it takes more than a day.")
@click.option("--own-runs", is_flag=True, help="Of table 2: 100 epochs trained anew, not half-way of 200.")
def reproduce(
    experiment: str,
    scale: str,
    data_root: Path | None,
    out: Path | None,
    shard: str | None,
    dry_run: bool,
    status: bool,
    yes: bool,
    own_runs: bool,
) -> None:
    """Repeat an EXPERIMENT of the paper: linear, transfer, prior, prototypes, batch-size, claims, or all.

    Writes tables and figures that show the paper's numbers and ours. Stopped, the same command goes on.
    """
    from carl.reproduction.reproduce import reproduce as run_reproduction

    sys.exit(run_reproduction(experiment, scale, data_root, out, shard, dry_run, status, yes, own_runs, click.echo))


@cli.group()
def data() -> None:
    """Look at data sets and prepare them."""


@data.command("list")
def data_list() -> None:
    """Name the data sets that are known by name, and the kinds of files that open."""
    from carl.data.describe import list_sources

    _echo_rows(list_sources())


@data.command("info")
@click.argument("source")
@click.option("--image-size", type=int, metavar="PX", help="Side to which images of varied size are brought.")
@click.option("--max-bad", type=int, metavar="N", help=MAX_BAD_HELP)
@click.option("--data-root", type=PATH, metavar="DIR", help="Where a data set known by name is.  [default: the cache]")
@click.option("--sheet", type=PATH, metavar="FILE", help="Where the contact sheet goes.  [default: SOURCE-sheet.png]")
def data_info(
    source: str, image_size: int | None, max_bad: int | None, data_root: Path | None, sheet: Path | None
) -> None:
    """Count SOURCE, name its classes and statistics, and draw a contact sheet."""
    from carl.data import open_dataset
    from carl.data.describe import contact_sheet, describe

    dataset = open_dataset(source, image_size=image_size, root=data_root, max_bad=max_bad, progress=show_progress)
    _echo_rows(describe(dataset))
    path = sheet or Path(f"{Path(source).stem}-sheet.png")
    contact_sheet(dataset, path)
    click.echo(f"contact sheet: {path}")


@data.command("prepare")
@click.argument("source")
@click.option("--image-size", type=int, metavar="PX", help="Side to which images of varied size are brought.")
@click.option("--max-bad", type=int, metavar="N", help=MAX_BAD_HELP)
@click.option("--data-root", type=PATH, metavar="DIR", help="Where a data set known by name is.  [default: the cache]")
def data_prepare(source: str, image_size: int | None, max_bad: int | None, data_root: Path | None) -> None:
    """Decode and pack SOURCE into the cache, so that later starts are instant."""
    from carl.data import open_dataset

    dataset = open_dataset(source, image_size=image_size, root=data_root, max_bad=max_bad, progress=show_progress)
    for note in dataset.notes:
        click.echo(note)
    counts = ", ".join(f"{len(split)} {name}" for name, split in dataset.splits.items())
    click.echo(f"ready: {counts}")


def _echo_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _echo_rows(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}")


def main() -> None:
    """Entry point: errors of the user are one line and exit code 2."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may be any bytes
    try:
        code = cli.main(prog_name="carl", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        sys.exit(0)
    except (UserError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        _complain(message)
        sys.exit(2)
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the reader of our output has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)
        where = f" {error.filename}" if error.filename else ""
        _complain(f"cannot use{where}: {error.strerror or error}; check the path, its rights and the disk")
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted")
        sys.exit(130)
    except Exception as error:
        if _out_of_memory(error):
            _complain(f"not enough memory ({error}); lower --batch-size, --image-size or --prototypes")
            sys.exit(2)
        if _one_of_many() and _is_echo(error):
            sys.exit(1)
        raise
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> None:
    """One line on standard error; of many processes the first that fails speaks, since the others fail by it."""
    if not _one_of_many() or _fails_first():
        line = " ".join(message.split())
        shown = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)  # no codes for the terminal
        print(f"carl: {shown}", file=sys.stderr)


def _out_of_memory(error: Exception) -> bool:
    """NumPy's and Python's own, CUDA's and MPS's, and what torch says on a CPU."""
    said = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and any(words in said for words in ("out of memory", "can't allocate memory", "not enough memory"))
    )


def _one_of_many() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _fails_first() -> bool:
    from carl.distributed import fails_first

    return fails_first()


def _is_echo(error: Exception) -> bool:
    """Whether an error has nothing to say, because another process failed before; a lost one is told in a line."""
    from carl.distributed import means_lost_peer

    if not _fails_first():
        return True
    lost = means_lost_peer(error)
    if lost:
        print("carl: another process of this run was lost; started again, the run goes on", file=sys.stderr)
    return lost
