"""The command line: parse, call, print. torch is imported only inside the commands that compute."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from carl import defaults
from carl.errors import printable, suggestion
from carl.evaluation.protocols import PROTOCOLS, EvaluationRequest, listed, usual_values
from carl.evaluation.protocols.base import parse_rates
from carl.failures import ReaderGone, exit_code
from carl.lasting_output import lasting_echo
from carl.option_words import ENCODER, ENCODER_AND_IMAGES, experiment_names, method_names, preset_words
from carl.terminal import reserve_standard_streams
from carl.use.export import FORMATS
from carl.use.requests import (
    GROUP_LOSSES,
    ROWS_PER_FILE,
    CurateRequest,
    EmbedOptions,
    EmbedRequest,
    ExportRequest,
    GroupLoss,
    GroupRequest,
    SearchRequest,
)

PATH = click.Path(path_type=Path)
PRESET_HELP = (
    "Named set of values. The run prints which one it takes.  [default: the one that the method has for such data and "
    "for --init; robust for carl on photos]"
)
FORCE_HELP = "Replace FILE even if this command did not make it."
MAX_BAD_HELP = (
    "Largest number of undecodable files to tolerate.  "
    f"[default: one in {defaults.BAD_ONE_IN}, at least {defaults.BAD_AT_LEAST}]"
)
EPOCHS_HELP = (
    f"Passes over the data.  [default: {defaults.EPOCHS} on a GPU and for the paper's data sets, "
    f"{defaults.SHAPES_EPOCHS} on shapes, otherwise {defaults.FEWEST_EPOCHS} to {defaults.EPOCHS} so that a CPU needs "
    "about an hour; fewer on a slow machine; with the preset adapt, enough to see about "
    f"{defaults.ADAPTED_IMAGES:,} images]"
)
SPLIT_HELP = "Only one split of a data set, such as train or test.  [default: all]"
SIDE_HELP = (
    f"Side to which images are scaled, unless all have one size up to {defaults.AS_IS_SIDE} px.  "
    f"[default: their usual side, at most {defaults.LARGEST_USUAL_SIDE}]"
)
BATCH_DEFAULT = (
    f"[default: {defaults.BATCH_SIZE}; {defaults.SHAPES_BATCH_SIZE} on shapes; {defaults.ADAPT_BATCH_SIZE} with the "
    "preset adapt; less for few images]"
)
EMBED_BATCH_HELP = (
    f"Images computed at once.  [default: {defaults.FEATURE_BATCH}, fewer if over {defaults.LARGEST_USUAL_SIDE} px]"
)
BACKBONE_HELP = "Architecture of a weights file: any timm model."
LABELS_WORDS = "Whether sub-folders are classes. `auto` says yes unless they are named like dates or numbers."
LABELS_HELP = f"{LABELS_WORDS}  [default: {defaults.LABELS[0]}]"
LABELS = click.Choice(defaults.LABELS)
DATA_ROOT_HELP = "Folder with the data sets known by name.  [default: the cache folder]"
QUICK = listed([name for name, protocol in PROTOCOLS.items() if protocol.epochs is None])
SLOW = listed([name for name, protocol in PROTOCOLS.items() if protocol.epochs is not None])


class InOrderOfUse(click.Group):
    """Lists commands in the order in which they are defined below, not by the alphabet."""

    group_class = type  # sub-groups too

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # of which click would make a failure, exit code 1
            raise ReaderGone from error


@click.group(cls=InOrderOfUse, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="carl-ssl", prog_name="carl")
def cli() -> None:
    """Learn image encoders from unlabelled images, and use them.

    \b
    carl report timm:tf_efficientnet_lite0 photos/   look at your photos first
    carl pretrain photos/                            train an encoder on them
    carl pretrain shapes                             try it on built-in drawings
    """


@cli.command()
@click.option("--speed/--no-speed", default=True, help="Time training steps for a few seconds.  [default: --speed]")
@click.option(
    "--check", is_flag=True,
    help="Try every method, precision and way to train on each GPU, or on the CPU if there is none. Takes minutes.",
)  # fmt: skip
def doctor(speed: bool, check: bool) -> None:
    """Check this installation: versions, devices, speed, extras.

    Also says what else could be installed, and how. With --check, the output is a summary to paste into an issue, and
    the exit code is 1 if a check failed.
    """
    from carl.training.device_check import FAILED, examine_devices
    from carl.use.doctor import examine

    failed = False
    for name, value in examine_devices() if check else examine(speed):
        click.echo(f"{name:<14} {value}")
        failed |= value.startswith(FAILED)
    if failed:
        raise SystemExit(1)


@cli.group()
def data() -> None:
    """Look at data sets, and prepare them for training."""


@data.command("list")
def data_list() -> None:
    """List the data sets and file types that can be opened."""
    from carl.data.describe import in_columns, list_sources

    _echo_lines(in_columns(list_sources()))


@data.command("info")
@click.argument("source")
@click.option("--image-size", type=int, metavar="PX", help=SIDE_HELP)
@click.option("--labels", type=LABELS, default=defaults.LABELS[0], help=LABELS_HELP)
@click.option("--max-bad", type=int, metavar="N", help=MAX_BAD_HELP)
@click.option("--data-root", type=PATH, metavar="DIR", help=DATA_ROOT_HELP)
@click.option("--sheet", type=PATH, metavar="FILE", help="Contact sheet to write.  [default: SOURCE-sheet.png]")
@click.option("--force", is_flag=True, help=FORCE_HELP)
def data_info(
    source: str,
    image_size: int | None,
    labels: defaults.Labels,
    max_bad: int | None,
    data_root: Path | None,
    sheet: Path | None,
    force: bool,
) -> None:
    """Show what a data set holds, and draw a contact sheet.

    Counts the images of SOURCE and shows its classes, its statistics and what was left out.
    """
    from carl.data.describe import DataRequest, show_info

    request = DataRequest(source=source, image_size=image_size, labels=labels, max_bad=max_bad, root=data_root)
    _echo_lines(show_info(request, sheet, force))


@data.command("prepare")
@click.argument("source")
@click.option("--image-size", type=int, metavar="PX", help=SIDE_HELP)
@click.option("--labels", type=LABELS, default=defaults.LABELS[0], help=LABELS_HELP)
@click.option("--max-bad", type=int, metavar="N", help=MAX_BAD_HELP)
@click.option("--data-root", type=PATH, metavar="DIR", help=DATA_ROOT_HELP)
def data_prepare(
    source: str, image_size: int | None, labels: defaults.Labels, max_bad: int | None, data_root: Path | None
) -> None:
    """Decode a data set into the cache, so that runs start at once."""
    from carl.data.describe import DataRequest, prepare

    request = DataRequest(source=source, image_size=image_size, labels=labels, max_bad=max_bad, root=data_root)
    _echo_lines(prepare(request))


@cli.command(epilog=ENCODER_AND_IMAGES)
@click.argument("what", metavar="RUN... | ENCODER IMAGES", nargs=-1, required=True)
@click.option(
    "-o", "--output", type=PATH, metavar="FILE",
    help="Page to write.  [default: RUN/report.html, comparison.html for several runs, report.html for IMAGES]",
)  # fmt: skip
@click.option(
    "--map", "projection", type=click.Choice(list(defaults.PROJECTIONS)), default="auto", show_default=True,
    help="Layout of the map of images. auto is t-SNE and takes seconds; pca is instant; tsne and umap take minutes.",
)  # fmt: skip
@click.option(
    "--names",
    type=PATH,
    metavar="FILE",
    help="Names of groups and tags of images, as the page saved them (names.json).",
)
@click.option(
    "--watch", "watching", is_flag=True,
    help="Show the page of a run while it trains, at an address that only this machine can reach. Ctrl-C ends it.",
)  # fmt: skip
@click.option("--port", type=int, default=0, metavar="P", help="Port of --watch.  [default: a free one]")
@click.option("--split", metavar="NAME", help=SPLIT_HELP)
@click.option("--backbone", metavar="NAME", help=BACKBONE_HELP)
@click.option("--force", is_flag=True, help=FORCE_HELP)
def report(
    what: tuple[str, ...],
    output: Path | None,
    projection: str,
    names: Path | None,
    watching: bool,
    port: int,
    split: str | None,
    backbone: str | None,
    force: bool,
) -> None:
    """Write a report: of a run, of several, or of any images.

    \b
    carl report RUN               what a run has learned
    carl report RUN RUN...        several runs beside each other
    carl report ENCODER IMAGES    any images: map, groups, copies, quality

    Each is one HTML file that needs nothing else. A run writes its own report when it ends. For IMAGES nothing is
    trained and no labels are needed. If the command is interrupted, run it again to resume.
    """
    from carl.reporting.report import ReportRequest
    from carl.reporting.report import report as write_or_watch

    request = ReportRequest(
        what=what,
        output=output,
        projection=projection,
        names=names,
        watching=watching,
        port=port,
        split=split,
        backbone=backbone,
        force=force,
    )
    write_or_watch(request, lasting_echo() if watching else lambda line: _echo_lines([line]))


@cli.command(epilog=ENCODER_AND_IMAGES)
@click.argument("encoder")
@click.argument("images")
@click.option("--groups", type=int, metavar="K", help="Number of groups.  [default: proposed from the images]")
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", default="groups.parquet", show_default=True,
    help="Table to write, .parquet or .csv. A page to look at goes beside it, as .html.",
)  # fmt: skip
@click.option("--names", type=PATH, metavar="FILE", help="Names for the groups, as saved from the page.")
@click.option(
    "--links", type=PATH, metavar="FOLDER", help="Also link the images into this new folder, sorted by group."
)
@click.option(
    "--loss", type=click.Choice(GROUP_LOSSES), default=GroupRequest.loss, show_default=True,
    help="Loss of the heads: CARL's, TEMI's or SCAN's.",
)  # fmt: skip
@click.option(
    "--views", type=int, default=GroupRequest.views, show_default=True, metavar="V",
    help="Random views of each image that should be in its group too. Each takes as long as embedding the images.",
)  # fmt: skip
@click.option("--split", metavar="NAME", help=SPLIT_HELP)
@click.option(
    "--seed", type=int, default=GroupRequest.seed, show_default=True, metavar="S", help="Seed of the grouping."
)
@click.option("--backbone", metavar="NAME", help=BACKBONE_HELP)
@click.option("--force", is_flag=True, help="Replace FILE and its page if they exist.")
def group(
    encoder: str,
    images: str,
    groups: int | None,
    output: Path,
    names: Path | None,
    links: Path | None,
    loss: GroupLoss,
    views: int,
    split: str | None,
    seed: int,
    backbone: str | None,
    force: bool,
) -> None:
    """Find out which images belong together.

    Each image gets a group, a confidence and the group that comes second. The page shows every group and lets you name
    it. No labels are needed; where there are labels, the groups are compared with them.

    IMAGES may also be a file that `carl embed` wrote; otherwise the embeddings are computed once and cached.
    """
    from carl.use.group import group_images

    request = GroupRequest(
        encoder=encoder,
        images=images,
        output=output,
        groups=groups,
        loss=loss,
        views=views,
        names=names,
        links=links,
        split=split,
        seed=seed,
        force=force,
        backbone=backbone,
    )
    _echo_lines(group_images(request))


@cli.command(epilog=ENCODER_AND_IMAGES)
@click.argument("encoder")
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
@click.option("--backbone", metavar="NAME", help=BACKBONE_HELP)
@click.option("--force", is_flag=True, help=FORCE_HELP)
def search(
    encoder: str,
    images: str,
    queries: tuple[str, ...],
    count: int,
    split: str | None,
    output: Path,
    backbone: str | None,
    force: bool,
) -> None:
    """Find the images that are most like a query image.

    QUERY is an image file, or the path of one of IMAGES. IMAGES may also be a file or folder that `carl embed`
    wrote; otherwise the embeddings are computed once and cached.
    """
    from carl.use.search import search_images

    request = SearchRequest(
        encoder=encoder,
        images=images,
        queries=queries,
        output=output,
        count=count,
        split=split,
        force=force,
        backbone=backbone,
    )
    _echo_lines(search_images(request))


@cli.command(epilog=ENCODER_AND_IMAGES)
@click.argument("encoder")
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
@click.option(
    "--seed", type=int, default=CurateRequest.seed, show_default=True, metavar="S", help="Seed of the clustering."
)
@click.option("--backbone", metavar="NAME", help=BACKBONE_HELP)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def curate(
    encoder: str,
    images: str,
    keep: int,
    output: Path,
    links: Path | None,
    duplicate: float,
    outliers: float,
    split: str | None,
    seed: int,
    backbone: str | None,
    force: bool,
) -> None:
    """Choose a varied subset of images.

    All kinds of image are covered, rare ones too; near-duplicates and outliers are left out. IMAGES may also be a file
    or folder that `carl embed` wrote.
    """
    from carl.use.curate import curate_images

    request = CurateRequest(
        encoder=encoder,
        images=images,
        keep=keep,
        output=output,
        links=links,
        duplicate=duplicate,
        outliers=outliers,
        split=split,
        seed=seed,
        force=force,
        backbone=backbone,
    )
    _echo_lines(curate_images(request))


@cli.command()
@click.argument("listing", metavar="LIST", type=PATH)
@click.argument("folder", type=PATH)
@click.option(
    "--base", type=PATH, metavar="DIR", help="Folder that the paths of LIST start from.  [default: the current folder]"
)
@click.option("--tag", metavar="NAME", help="Take the images with this tag from a names.json of a report.")
@click.option("--copy", is_flag=True, help="Copy the images instead of linking to them.")
def links(listing: Path, folder: Path, base: Path | None, tag: str | None, copy: bool) -> None:
    """Link the images of a list into a new folder.

    LIST is a .csv or .txt that a report or `carl curate` saved, or any file with one path per line. FOLDER gets the
    same sub-folders. All images appear in it, or none.
    """
    from carl.use.links import LinksRequest, link_listed

    _echo_lines(link_listed(LinksRequest(listing=listing, folder=folder, base=base, tag=tag, copy=copy)))


@cli.command(epilog=ENCODER_AND_IMAGES)
@click.argument("encoder")
@click.argument("images")
@click.option(
    "-o", "--output", type=PATH, metavar="FILE|FOLDER", default="embeddings.parquet", show_default=True,
    help="File to write: .parquet, .npy or .csv. A name without an ending is a folder of .parquet files.",
)  # fmt: skip
@click.option(
    "--rows-per-file", type=int, metavar="N", help=f"Rows of each file in FOLDER.  [default: {ROWS_PER_FILE}]"
)
@click.option(
    "--dtype", type=click.Choice(defaults.EMBEDDING_DTYPES), default=EmbedOptions.dtype, show_default=True,
    help="Type of the numbers written. float16 takes half the space.",
)  # fmt: skip
@click.option(
    "--precision", type=click.Choice(("auto", *defaults.PRECISIONS)), default="auto", show_default=True,
    help="Precision to compute in. auto is bf16 on a CPU with instructions for it, else fp32. On GPUs bf16 is faster.",
)  # fmt: skip
@click.option("--batch-size", type=int, metavar="N", help=EMBED_BATCH_HELP)
@click.option(
    "--device",
    metavar="NAME",
    default=EmbedRequest.device,
    show_default=True,
    help=f"Where to compute: {defaults.DEVICES}.",
)
@click.option("--split", metavar="NAME", help=SPLIT_HELP)
@click.option("--backbone", metavar="NAME", help=BACKBONE_HELP)
@click.option("--force", is_flag=True, help="Replace FILE or FOLDER if it exists.")
def embed(
    encoder: str,
    images: str,
    output: Path,
    rows_per_file: int | None,
    dtype: str,
    precision: str,
    batch_size: int | None,
    device: str,
    split: str | None,
    backbone: str | None,
    force: bool,
) -> None:
    """Write the embedding of every image to a file.

    Each image gets one row: its path, its embedding and, if the method has prototypes, the one it chose. Files that
    cannot be decoded get no row and are listed.

    Memory use does not grow with the number of images. If the command is interrupted, run it again to resume.
    """
    from carl.use.embed import embed_images

    request = EmbedRequest(
        encoder=encoder,
        images=images,
        output=output,
        split=split,
        force=force,
        backbone=backbone,
        device=device,
        options=EmbedOptions(batch_size=batch_size, precision=precision, dtype=dtype, rows_per_file=rows_per_file),
    )
    _echo_lines(embed_images(request))


@cli.command(epilog=preset_words())
@click.argument("data", required=False)
@click.option(
    "--method", metavar="NAME",
    help=f"Training method: {', '.join(method_names())}.  "
    f"[default: {defaults.METHOD}; {defaults.ADAPT_METHOD} with --init]",
)  # fmt: skip
@click.option("--preset", metavar="NAME", help=PRESET_HELP)
@click.option(
    "--backbone", metavar="NAME", help=f"Encoder architecture: any timm model.  [default: {defaults.BACKBONE}]"
)
@click.option(
    "--stem",
    type=click.Choice(defaults.STEMS),
    help=f"First layers of a ResNet. `small` is slower and better on 32 px images.  [default: {defaults.STEM}]",
)
@click.option(
    "--init",
    metavar="ENCODER",
    help="Adapt an encoder: a run, a weights file or timm:NAME. The run keeps it if training made it no better. The "
    f"method is {defaults.ADAPT_METHOD}, which gained most; --method {defaults.METHOD} is possible too.",
)
@click.option(
    "--image-size",
    type=int,
    metavar="PX",
    help="Side of the training views.  "
    f"[default: the images' own side, at most {defaults.LARGEST_USUAL_SIDE} for photos]",
)
@click.option("--labels", type=LABELS, help=LABELS_HELP)
@click.option("--max-bad", type=int, metavar="N", help=MAX_BAD_HELP)
@click.option("--epochs", type=int, metavar="N", help=EPOCHS_HELP)
@click.option("--batch-size", type=int, metavar="N", help=f"Images per step, over all processes.  {BATCH_DEFAULT}")
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
    help="Weight, at the start, of the prior that keeps all prototypes in use. The run warns if it is too low.  "
    "[default: set by the preset]",
)
@click.option(
    "--prior-end", type=float, metavar="A", help="Weight of the prior after E epochs.  [default: set by the preset]"
)
@click.option(
    "--prior-epochs",
    type=int,
    metavar="E",
    help="Epochs over which the weight falls from B to A.  "
    f"[default: half of all, at most {defaults.MOST_PRIOR_EPOCHS}]",
)
@click.option(
    "--seed",
    type=int,
    metavar="S",
    help=f"The same seed gives the same weights on the same machine.  [default: {defaults.SEED}]",
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
    labels: str | None,
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
    from carl.config import layer_of_flags, merge, parse_assignments, read_settings

    given = layer_of_flags(
        {
            "data": data,
            "method": method,
            "preset": preset,
            "backbone": backbone,
            "stem": stem,
            "init": init,
            "image_size": image_size,
            "labels": labels,
            "max_bad": max_bad,
            "epochs": epochs,
            "batch_size": batch_size,
            "prototypes": prototypes,
            "prior_start": prior_start,
            "prior_end": prior_end,
            "prior_epochs": prior_epochs,
            "seed": seed,
        }
    )
    from_file = {} if config_file is None else read_settings(config_file)
    layer = merge([from_file, parse_assignments(assignments), given])

    from carl.training.plan import PretrainRequest, plan
    from carl.training.run import carry_out

    carry_out(plan(PretrainRequest(layer, out=out, resume=resume, command=tuple(sys.argv), fit_time=True)))


@cli.command("eval", epilog=ENCODER)
@click.argument("target", metavar="ENCODER|random")
@click.option(
    "--protocol", metavar="NAME", default=EvaluationRequest.protocol, show_default=True,
    callback=lambda context, option, name: _name_in(PROTOCOLS, name),
    shell_complete=lambda context, option, start: [name for name in PROTOCOLS if name.startswith(start)],
    help=f"What to measure. {QUICK} take seconds to minutes; {SLOW} take much longer. The paper uses linear.",
)  # fmt: skip
@click.option(
    "--data", metavar="DATA", help="Data to measure on. Only a run has data of its own.  [default: the run's]"
)
@click.option("--labels", type=LABELS, help=f"{LABELS_WORDS}  [default: as in the run, or {defaults.LABELS[0]}]")
@click.option(
    "--fraction", type=float, metavar="F",
    help="Part of the labels to train on.  "
    f"[default: {usual_values(lambda protocol: listed(tuple(map(str, protocol.fractions))))}]",
)  # fmt: skip
@click.option(
    "--seeds",
    type=int,
    default=EvaluationRequest.seeds,
    show_default=True,
    metavar="N",
    help="Number of seeds. The table shows mean and standard deviation.",
)
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
    help="Fraction of each side of an image that the encoder sees, around the centre.  "
    f"[default: {usual_values(lambda protocol: f'{protocol.centre:g}')}]",
)  # fmt: skip
@click.option(
    "--backbone", metavar="NAME", help=f"Architecture of a file or of `random`.  [default: {defaults.BACKBONE}]"
)
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
    labels: str | None,
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

    A run is measured on its own test images, and anything else on --data. `random` stands for random weights. The
    result is saved as a JSON file, and if you ask again, the saved result is shown.
    """
    from carl.config import merge, parse_assignments

    given = {} if labels is None else {"data": {"labels": labels}}
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
        settings=merge([parse_assignments(assignments), given]),
    )

    from carl.evaluation.evaluate import evaluate_and_show

    evaluate_and_show(request)


@cli.command(epilog=ENCODER)
@click.argument("encoder")
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
@click.option("--backbone", metavar="NAME", help=BACKBONE_HELP)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def export(encoder: str, form: str, output: Path | None, normalise: bool, backbone: str | None, force: bool) -> None:
    """Save an encoder for use in another program.

    The export is loaded again and its features are compared with those of ENCODER. A model card is written with it.
    """
    from carl.use.export.export import export_encoder

    request = ExportRequest(
        encoder=encoder, format=form, output=output, normalise=normalise, force=force, backbone=backbone
    )
    _echo_lines(export_encoder(request))


@cli.command()
@click.argument("data")
@click.option("--methods", metavar="A,B,...", help="Methods to compare.  [default: all]")
@click.option(
    "--preset", metavar="NAME", default=defaults.COMPARED, show_default=True,
    help="Set of values to start from. `robust` gives all methods the same views, head and learning rate; with `paper` "
    "each has its own.",
)  # fmt: skip
@click.option(
    "--encoders", metavar="E,E,...",
    help="Encoders to measure beside the methods, without training: random, or whatever carl eval takes.",
)  # fmt: skip
@click.option(
    "--backbone", metavar="NAME",
    help=f"Architecture of a weights file in --encoders: any timm model.  [default: {defaults.BACKBONE}]",
)  # fmt: skip
@click.option("--image-size", type=int, metavar="PX", help="Side of the views, for all methods.")
@click.option(
    "--epochs",
    type=int,
    metavar="N",
    help="Passes over the data, for all methods.  [default: as for carl pretrain on a fast machine]",
)
@click.option(
    "--seeds", type=int, default=1, show_default=True, metavar="N", help="Runs per method, one for each seed."
)
@click.option(
    "--rates", metavar="R,R,...",
    help="Learning rates that each method tries with one seed; the best on held-out training images is used.  "
    "[default: the preset's, the same for all]",
)  # fmt: skip
@click.option("--out", type=PATH, metavar="DIR", help="Folder for runs and table.  [default: runs/compare-DATA]")
@click.option(
    "--config", "config_file", type=PATH, metavar="FILE.toml", help="Read values for all methods from a TOML file."
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="[METHOD:]SECTION.KEY=VALUE",
    help="Set any other value for all methods, or with METHOD: for one of them. May be repeated.",
)
def compare(
    data: str,
    methods: str | None,
    preset: str,
    encoders: str | None,
    backbone: str | None,
    image_size: int | None,
    epochs: int | None,
    seeds: int,
    rates: str | None,
    out: Path | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Train several methods on the same data and compare them.

    All methods have the same views, head, encoder, learning rate, batch size and epochs. The table says what they share
    and what is each method's own, and whether they differ by more than chance. If the command is interrupted, run it
    again to resume; finished runs are not trained again.
    """
    from carl.config import layer_of_flags, merge, parse_assignments_per_method, read_settings

    given = layer_of_flags({"data": data, "image_size": image_size, "epochs": epochs})
    from_file = {} if config_file is None else read_settings(config_file)
    for_all, own = parse_assignments_per_method(assignments)
    layer = merge([from_file, for_all, given])

    from carl.reproduction.compare import CompareRequest
    from carl.reproduction.compare import compare as run_comparison

    request = CompareRequest(
        layer=layer,
        methods=_split(methods),
        seeds=seeds,
        out=out,
        preset=preset,
        own=own,
        rates=parse_rates(rates),
        encoders=_split(encoders),
        backbone=backbone,
    )
    sys.exit(run_comparison(request, lasting_echo()))


@cli.command(epilog=f"EXPERIMENT is {', '.join(experiment_names())} or all.")
@click.argument("experiment")
@click.option(
    "--scale", type=click.Choice(defaults.SCALES), default="cpu", show_default=True,
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

    Tables and figures show our numbers beside the paper's. If the command is interrupted, run it again to resume.
    """
    from carl.reproduction.reproduce import ReproduceRequest
    from carl.reproduction.reproduce import reproduce as run_reproduction

    request = ReproduceRequest(
        experiment=experiment,
        scale=scale,
        data_root=data_root,
        out=out,
        shard=shard,
        dry_run=dry_run,
        status=status,
        yes=yes,
        own_runs=own_runs,
    )
    sys.exit(run_reproduction(request, lasting_echo()))


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


def _split(names: str | None) -> tuple[str, ...]:
    """The names in a list such as `carl,simclr`."""
    return tuple(name.strip() for name in names.split(",") if name.strip()) if names else ()


def _echo_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(printable(line))


def main() -> None:
    """Entry point. A mistake of the user is reported in one line, with exit code 2."""
    reserve_standard_streams()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may be any bytes
    sys.exit(exit_code(lambda: cli.main(prog_name="carl", standalone_mode=False)))
