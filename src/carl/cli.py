"""The command line: parse, call, print. torch is imported only inside the commands that compute."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from carl.errors import UserError, printable, suggestion
from carl.evaluation.protocols import PROTOCOLS, EvaluationRequest, listed, usual_values
from carl.evaluation.protocols.base import parse_rates
from carl.files import check_replaceable
from carl.lasting_output import LastingOutput
from carl.terminal import reserve_standard_streams, show_progress
from carl.use.export import FORMATS
from carl.use.requests import CurateRequest, EmbedRequest, ExportRequest, SearchRequest

PATH = click.Path(path_type=Path)
PRESET_HELP = "Named set of values to start from.  [default: robust, or paper on the paper's data sets]"
FORCE_HELP = "Replace FILE even if this command did not make it."
MAX_BAD_HELP = "Largest number of undecodable files to tolerate.  [default: one in twenty, at least 10]"
SPLIT_HELP = "Only one split of a data set, such as train or test.  [default: all]"
SIDE_HELP = (
    "Side to which images are scaled, unless all have one size up to 256 px.  [default: their usual side, at most 96]"
)
DATA_ROOT_HELP = "Folder with the data sets known by name.  [default: the cache folder]"
QUICK = listed([name for name, protocol in PROTOCOLS.items() if protocol.epochs is None])
SLOW = listed([name for name, protocol in PROTOCOLS.items() if protocol.epochs is not None])


class InOrderOfUse(click.Group):
    """Lists commands in the order in which they are defined below, not by the alphabet."""

    group_class = type  # sub-groups too

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=InOrderOfUse, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="carl-ssl", prog_name="carl")
def cli() -> None:
    """Learn image encoders from unlabelled images.

    \b
    carl pretrain shapes         try it on built-in drawings
    carl eval runs/shapes-carl   measure what was learned
    carl pretrain photos/        train on a folder of your own
    """


@cli.command()
@click.argument("data", required=False)
@click.option("--method", metavar="NAME", help="Training method, such as carl, simclr or byol.  [default: carl]")
@click.option("--preset", metavar="NAME", help=PRESET_HELP)
@click.option("--backbone", metavar="NAME", help="Encoder architecture: any timm model.  [default: resnet18]")
@click.option(
    "--stem",
    type=click.Choice(["imagenet", "small"]),
    help="First layers of a ResNet. `small` is slower and better on 32 px images.  [default: imagenet]",
)
@click.option(
    "--init", metavar="FILE|timm", help="Start from pretrained weights. Measure whether that helps, with carl eval."
)
@click.option(
    "--image-size",
    type=int,
    metavar="PX",
    help="Side of the training views.  [default: the images' own side, at most 96 for photos]",
)
@click.option("--max-bad", type=int, metavar="N", help=MAX_BAD_HELP)
@click.option("--epochs", type=int, metavar="N", help="Passes over the data.  [default: 200, or 8 on shapes]")
@click.option(
    "--batch-size", type=int, metavar="N", help="Images per step, over all processes.  [default: 256, or 128 on shapes]"
)
@click.option(
    "--prototypes",
    type=int,
    metavar="K",
    help="Number of prototypes: about ten per class you expect.  [default: set by the preset]",
)
@click.option(
    "--prior-start",
    type=float,
    metavar="B",
    help="Weight of the prior at the start. The run warns if it is too low.  [default: set by the preset]",
)
@click.option(
    "--prior-end", type=float, metavar="A", help="Weight of the prior after E epochs.  [default: set by the preset]"
)
@click.option(
    "--prior-epochs",
    type=int,
    metavar="E",
    help="Epochs over which the weight falls from B to A.  [default: half of all, at most 100]",
)
@click.option(
    "--seed", type=int, metavar="S", help="The same seed gives the same weights on the same machine.  [default: 0]"
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="RUN", help="Run directory to make.  [default: runs/DATA-METHOD]"
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="Read values from a TOML file.",
)
@click.option(
    "--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Set any other value. May be repeated."
)
@click.option(
    "--resume", metavar="RUN|auto", help="Resume a run. `auto` resumes --out if it exists, and starts it otherwise."
)
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
    """Train an encoder on unlabelled images.

    DATA is a folder of images, a .parquet, .npy or .npz file, or a name that `carl data list` shows. Images that do
    not fit on one disk may be .tar or .parquet shards, here or at an address: 'shards/{000..019}.tar'.

    The run directory will hold encoder.safetensors, report.html, metrics.jsonl and all that is needed to resume.
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

    from carl.training.plan import PretrainRequest, plan
    from carl.training.run import carry_out

    carry_out(plan(PretrainRequest(layer, out, resume, tuple(sys.argv))))


@cli.command("eval")
@click.argument("target", metavar="RUN|FILE|random")
@click.option(
    "--protocol", metavar="NAME", default="knn", show_default=True,
    callback=lambda context, option, name: _name_in(PROTOCOLS, name),
    shell_complete=lambda context, option, start: [name for name in PROTOCOLS if name.startswith(start)],
    help=f"What to measure. {QUICK} take seconds to minutes; {SLOW} train for long. The paper's is linear.",
)  # fmt: skip
@click.option("--data", metavar="DATA", help="Other data than the run's; a file or `random` has none of its own.")
@click.option(
    "--fraction", type=float, metavar="F",
    help="Part of the labels to train on.  "
    f"[default: {usual_values(lambda protocol: ', then '.join(map(str, protocol.fractions)))}]",
)  # fmt: skip
@click.option("--seeds", type=int, default=1, show_default=True, metavar="N", help="Repeat; mean and deviation.")
@click.option(
    "--epochs", type=int, metavar="N",
    help=f"How long to train.  [default: {usual_values(lambda protocol: str(protocol.epochs or ''))}]",
)  # fmt: skip
@click.option(
    "--rates", metavar="R,R...",
    help="Learning rates to try for the linear classifier; the best on held-out training images wins.  "
    f"[default: {usual_values(lambda protocol: ','.join(f'{rate:g}' for rate in protocol.rates))}]",
)  # fmt: skip
@click.option(
    "--centre", type=float, metavar="F",
    help="Part of each side of an image that is seen.  "
    f"[default: {usual_values(lambda protocol: f'{protocol.centre:g}')}]",
)  # fmt: skip
@click.option("--backbone", metavar="NAME", help="Architecture of a file or of `random`.  [default: resnet18]")
@click.option("--out", type=PATH, metavar="DIR", help="Where results go.  [default: RUN/results, or results]")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Same as for carl pretrain, for example data.image_size=64.",
)
@click.option("--force", is_flag=True, help="Measure again even if there is a result.")
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
    """Measure how good an encoder is.

    Give a run directory, a FILE of weights (with --data and --backbone), or `random` for random weights. The result is
    kept as a JSON file. Asked again, the command shows that file.
    """
    from carl.config import parse_assignments

    request = EvaluationRequest(
        target=target,
        protocol=protocol,
        data=data,
        fraction=fraction,
        seeds=seeds,
        epochs=epochs,
        rates=parse_rates(rates),
        centre=centre,
        backbone=backbone,
        out=out,
        force=force,
        settings=parse_assignments(assignments),
    )

    from carl.evaluation.evaluate import evaluate_and_show

    evaluate_and_show(request)


@cli.command()
@click.argument("runs", type=PATH, metavar="RUN...", nargs=-1, required=True)
@click.option(
    "-o", "--output", type=PATH, metavar="FILE",
    help="Page to write.  [default: RUN/report.html, or comparison.html for several runs]",
)  # fmt: skip
@click.option(
    "--map", "projection", type=click.Choice(["pca", "tsne", "umap"]), default="pca", show_default=True,
    help="Layout of the map of images. pca is instant; tsne and umap show groups better and take minutes.",
)  # fmt: skip
@click.option("--force", is_flag=True, help=FORCE_HELP)
def report(runs: tuple[Path, ...], output: Path | None, projection: str, force: bool) -> None:
    """Write the report of a run, or a page that compares several.

    Each is one HTML file that needs nothing else. A run writes its own report when it ends.
    """
    from carl.reporting.pages import write_comparison, write_report

    one = len(runs) == 1
    page = (
        write_report(runs[0], output, projection, force) if one else write_comparison(runs, output, projection, force)
    )
    _echo_lines([str(page)])


@cli.command()
@click.argument("run", type=PATH)
@click.argument("images")
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", default="embeddings.parquet", show_default=True,
    help="File to write: .parquet, .npy or .csv.",
)  # fmt: skip
@click.option("--split", metavar="NAME", help=SPLIT_HELP)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def embed(run: Path, images: str, output: Path, split: str | None, force: bool) -> None:
    """Write the embedding of every image to a file.

    IMAGES is a folder, an image, a .parquet, .npy or .npz file, shards such as 'shards/{000..019}.tar', or the name of
    a data set. Each image gets one row: its path, its embedding and the prototype it chose. Files that cannot be
    decoded get no row and are listed.

    Memory use does not grow with the number of images. If it is interrupted, the same command resumes.
    """
    from carl.use.embed import embed_images

    _echo_lines(embed_images(EmbedRequest(run, images, output, split, force)))


@cli.command()
@click.argument("run", type=PATH)
@click.argument("images")
@click.argument("queries", metavar="QUERY...", nargs=-1, required=True)
@click.option(
    "-k",
    "--count",
    type=int,
    default=SearchRequest.count,
    show_default=True,
    metavar="N",
    help="Images to find per query.",
)
@click.option("--split", metavar="NAME", help=SPLIT_HELP)
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", default="search.html", show_default=True, help="Page to write."
)
@click.option("--force", is_flag=True, help=FORCE_HELP)
def search(
    run: Path, images: str, queries: tuple[str, ...], count: int, split: str | None, output: Path, force: bool
) -> None:
    """Find the images that are most like a query image.

    QUERY is an image file, or the path of one of IMAGES. IMAGES may also be a file that `carl embed` wrote; otherwise
    the embeddings are computed once and cached.
    """
    from carl.use.search import search_images

    _echo_lines(search_images(SearchRequest(run, images, queries, output, count, split, force)))


@cli.command()
@click.argument("run", type=PATH)
@click.argument("images")
@click.option("--keep", type=int, required=True, metavar="N", help="Number of images to keep.")
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", default="curated.txt", show_default=True,
    help="List of the images kept. A .csv lists every image with the reason.",
)  # fmt: skip
@click.option("--links", type=PATH, metavar="FOLDER", help="Also link the images kept into this new folder.")
@click.option(
    "--duplicate", type=float, default=CurateRequest.duplicate, show_default=True, metavar="S",
    help="Similarity above which an image is a near-duplicate. Lower it to leave out more.",
)  # fmt: skip
@click.option(
    "--outliers", type=float, default=CurateRequest.outliers, show_default=True, metavar="P",
    help="Fraction of the images to leave out as the least typical.",
)  # fmt: skip
@click.option("--split", metavar="NAME", help=SPLIT_HELP)
@click.option("--seed", type=int, default=0, show_default=True, metavar="S", help="Seed of the clustering.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
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
    force: bool,
) -> None:
    """Choose a varied subset of images.

    All kinds of image are covered, rare ones too; near-duplicates and outliers are left out. IMAGES may also be a file
    that `carl embed` wrote.
    """
    from carl.use.curate import curate_images

    _echo_lines(curate_images(CurateRequest(run, images, keep, output, links, duplicate, outliers, split, seed, force)))


@cli.command()
@click.argument("run", type=PATH)
@click.option(
    "--to", "form", required=True, metavar="FORMAT",
    shell_complete=lambda context, option, begun: [name for name in FORMATS if name.startswith(begun)],
    help=" ".join(f"{name}: {form.words}." for name, form in FORMATS.items()),
)  # fmt: skip
@click.option(
    "-o", "--output", type=PATH, metavar="FILE",
    help=f"File to write, a folder for {listed([name for name, form in FORMATS.items() if form.is_own_folder])}."
    "  [default: in RUN/export]",
)  # fmt: skip
@click.option(
    "--normalise", is_flag=True,
    help=f"Let the graph ({', '.join(name for name, form in FORMATS.items() if form.is_graph)}) normalise images in "
    "[0, 1] itself.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def export(run: Path, form: str, output: Path | None, normalise: bool, force: bool) -> None:
    """Save an encoder for use in another program.

    The export is loaded again and its features are compared with those of RUN. A model card is written with it.
    """
    from carl.use.export.export import export_encoder

    _echo_lines(export_encoder(ExportRequest(run, form, output, normalise, force)))


@cli.command()
@click.argument("data")
@click.option("--methods", metavar="A,B,...", help="Methods to compare.  [default: all]")
@click.option(
    "--epochs", type=int, metavar="N", help="Passes over the data, for all methods.  [default: 200, or 8 on shapes]"
)
@click.option(
    "--seeds", type=int, default=1, show_default=True, metavar="N", help="Runs per method, one for each seed."
)
@click.option("--out", type=PATH, metavar="DIR", help="Folder for runs and table.  [default: runs/compare-DATA]")
@click.option(
    "--config", "config_file", type=PATH, metavar="FILE.toml", help="Read values for all methods from a TOML file."
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Set any other value for all methods. May be repeated.",
)
def compare(
    data: str,
    methods: str | None,
    epochs: int | None,
    seeds: int,
    out: Path | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Train several methods on the same data and compare them.

    All methods use the same encoder, batch size and epochs. The table shows accuracy, images per second and memory. If
    it is interrupted, the same command resumes; finished runs are not trained again.
    """
    from carl.config import merge, parse_assignments, read_settings

    given: dict[str, dict[str, Any]] = {"data": {"source": data}, "train": {} if epochs is None else {"epochs": epochs}}
    from_file = {} if config_file is None else read_settings(config_file)
    layer = merge([from_file, parse_assignments(assignments), given])

    from carl.reproduction.compare import CompareRequest
    from carl.reproduction.compare import compare as run_comparison

    names = tuple(methods.split(",")) if methods else ()
    sys.exit(run_comparison(CompareRequest(layer, names, seeds, out), _lasting_echo()))


@cli.command()
@click.argument("experiment")
@click.option(
    "--scale", type=click.Choice(["smoke", "cpu", "paper"]), default="cpu", show_default=True,
    help="smoke takes minutes, on shapes; cpu takes hours, on real CIFAR; paper uses the paper's own settings.",
)  # fmt: skip
@click.option("--data-root", type=PATH, metavar="DIR", help=DATA_ROOT_HELP)
@click.option("--out", type=PATH, metavar="DIR", help="Folder for tables and runs.  [default: results/reproduction]")
@click.option("--shard", metavar="I/N", help="Do every N-th run from the I-th on, to share the work among machines.")
@click.option("--dry-run", is_flag=True, help="Print every run with all its values, then stop.")
@click.option("--status", is_flag=True, help="Show what is finished, then stop.")
@click.option("--yes", is_flag=True, help="Start even if it takes more than a day.")
@click.option(
    "--own-runs", is_flag=True, help="Train the 100-epoch runs of table 2 on their own, not half-way through 200."
)
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
    """Repeat an experiment of the paper.

    EXPERIMENT is linear, transfer, prior, prototypes, batch-size, claims or all. Tables and figures show our numbers
    beside the paper's. If it is interrupted, the same command resumes.
    """
    from carl.reproduction.reproduce import ReproduceRequest
    from carl.reproduction.reproduce import reproduce as run_reproduction

    request = ReproduceRequest(experiment, scale, data_root, out, shard, dry_run, status, yes, own_runs)
    sys.exit(run_reproduction(request, _lasting_echo()))


@cli.group()
def data() -> None:
    """Look at data sets, and prepare them for training."""


@data.command("list")
def data_list() -> None:
    """List the known data sets and the kinds of files that open."""
    from carl.data.describe import list_sources

    _echo_rows(list_sources())


@data.command("info")
@click.argument("source")
@click.option("--image-size", type=int, metavar="PX", help=SIDE_HELP)
@click.option("--max-bad", type=int, metavar="N", help=MAX_BAD_HELP)
@click.option("--data-root", type=PATH, metavar="DIR", help=DATA_ROOT_HELP)
@click.option("--sheet", type=PATH, metavar="FILE", help="Contact sheet to write.  [default: SOURCE-sheet.png]")
@click.option("--force", is_flag=True, help=FORCE_HELP)
def data_info(
    source: str, image_size: int | None, max_bad: int | None, data_root: Path | None, sheet: Path | None, force: bool
) -> None:
    """Show what a data set holds, and draw a contact sheet.

    Counts the images of SOURCE and shows its classes, its statistics and what was left out.
    """
    from carl.data import open_dataset
    from carl.data.describe import SHEET_MARK, contact_sheet, describe

    path = sheet or Path(f"{Path(source).stem}-sheet.png")
    check_replaceable(path, force, SHEET_MARK)
    dataset = open_dataset(source, image_size=image_size, root=data_root, max_bad=max_bad, progress=show_progress)
    _echo_rows(describe(dataset))
    contact_sheet(dataset, path)
    _echo_lines([f"contact sheet: {path}"])


@data.command("prepare")
@click.argument("source")
@click.option("--image-size", type=int, metavar="PX", help=SIDE_HELP)
@click.option("--max-bad", type=int, metavar="N", help=MAX_BAD_HELP)
@click.option("--data-root", type=PATH, metavar="DIR", help=DATA_ROOT_HELP)
def data_prepare(source: str, image_size: int | None, max_bad: int | None, data_root: Path | None) -> None:
    """Decode a data set into the cache, so that runs start at once."""
    from carl.data import open_dataset

    dataset = open_dataset(source, image_size=image_size, root=data_root, max_bad=max_bad, progress=show_progress)
    _echo_lines(dataset.notes)
    counts = ", ".join(f"{len(split)} {name}" for name, split in dataset.splits.items())
    _echo_lines([f"ready: {counts}"])


@cli.command()
@click.option("--speed/--no-speed", default=True, help="Time training steps for a few seconds.  [default: --speed]")
def doctor(speed: bool) -> None:
    """Check this installation: versions, devices, speed, extras.

    Also says what else could be installed, and how.
    """
    from carl.use.doctor import examine

    for name, value in examine(speed):
        click.echo(f"{name:<13} {value}")


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that lets your shell complete commands.

    \b
    bash: echo 'eval "$(carl completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(carl completion zsh)"' >> ~/.zshrc
    fish: carl completion fish > ~/.config/fish/completions/carl.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "carl", "_CARL_COMPLETE").source())


def _name_in(registry: Mapping[str, object], name: str) -> str:
    """The name, if it is known when the command runs: names added from outside the package count too."""
    if name not in registry:
        raise click.BadParameter(f"{name!r} is unknown{suggestion(name, registry)}")
    return name


def _lasting_echo() -> Callable[[str], None]:
    """Prints lines, and drops them once no one can read them: the work goes on."""
    output = LastingOutput(sys.stdout)

    def echo(line: str) -> None:
        print(line, file=output, flush=True)

    return echo


def _echo_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(printable(line))


def _echo_rows(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    _echo_lines(f"{name:<{width}}  {value}" for name, value in rows)


def main() -> None:
    """Entry point. A mistake of the user is reported in one line, with exit code 2."""
    reserve_standard_streams()
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
    """Print one line on standard error. With many processes only the first to fail does; the others follow from it."""
    if not _one_of_many() or _fails_first():
        line = printable(" ".join(message.split()))  # no control codes reach the terminal
        print(f"carl: {line}", file=LastingOutput(sys.stderr), flush=True)


NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "Storage size calculation overflowed")


def _out_of_memory(error: Exception) -> bool:
    """Whether a library ran out of memory: Python, NumPy, CUDA, MPS and torch on a CPU each have their own words."""
    said = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in said for words in NO_MEMORY)
    )


def _one_of_many() -> bool:
    return os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")


def _fails_first() -> bool:
    from carl.distributed import fails_first

    return fails_first()


def _is_echo(error: Exception) -> bool:
    """Whether the error only means that another process failed first. A process that was lost is reported here."""
    from carl.distributed import means_lost_peer

    if not _fails_first():
        return True
    lost = means_lost_peer(error)
    if lost:
        print("carl: another process of this run was lost; start it again to resume", file=sys.stderr)
    return lost
