"""`carl report ENCODER IMAGES`: a page about images seen through any encoder. torch is imported when it computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from carl.errors import printable
from carl.reporting.pages import check_output, write_images_report
from carl.terminal import TimedProgress
from carl.use.requests import ImagesReportRequest

SHOWN_BAD = 10  # files that cannot be used, named one by one


def report_images(request: ImagesReportRequest) -> Iterator[str]:
    """Write the page; yields lines about it."""
    check_output(request.output, request.force)  # before the long work

    from carl.use.embed import bad_files, embeddings_for, load_for_all_processes, only_main_goes_on
    from carl.use.overview import overview

    encoder = load_for_all_processes(request.encoder, request.backbone)
    progress = TimedProgress()
    index = embeddings_for(encoder, request.images, request.split, progress)
    if not only_main_goes_on():
        return
    bad = bad_files(index)
    for one in bad[:SHOWN_BAD]:
        yield f"not used: {printable(one)}"
    if len(bad) > SHOWN_BAD:
        yield f"not used: {len(bad) - SHOWN_BAD} more"
    gallery = overview(index, encoder.shape, encoder.data_root, progress)
    if "flags" not in gallery:
        yield f"{request.images} was made before quality was measured; carl embed it again to have flags in the page"
    folder = Path(index.about.source)
    facts = [
        ("images", f"{len(index):,}"),
        ("encoder", encoder.name),
        ("groups", f"{len(gallery['group_mean'])} by k-means"),
    ]
    if bad:
        facts.append(("cannot be used", f"{len(bad):,} files"))
    write_images_report(
        gallery,
        request.output,
        title=folder.name or request.images,
        facts=facts,
        folder=folder if folder.is_dir() else None,
        projection=request.projection,
        force=request.force,
        names=request.names,
    )
    if "flags" in gallery:
        counts = zip(gallery["flag_names"], gallery["flag_counts"], strict=True)
        flags = ", ".join(f"{count:,} {str(name).lower()}" for name, count in counts if count)
        yield f"flags: {flags or 'none'}"
    yield f"{len(index):,} images: {request.output}"
