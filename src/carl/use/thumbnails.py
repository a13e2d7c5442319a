"""Small pictures of embedded images, for the pages that `carl search` and `carl curate` write."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator

import numpy as np
from jinja2 import Environment, PackageLoader
from PIL import Image

from carl.data.decoding.decode import DecodeError, OversizedError, decode, strict_decoding
from carl.data.listing import Content
from carl.data.open import open_images
from carl.errors import UserError
from carl.use.embedding_files import EmbeddingFile, name_from_text

THUMBNAIL = 96  # px: a sheet of 100 images stays below a megabyte
_ENDING = 9  # letters of a name that stay together, so that no extension is broken


def pages() -> Environment:
    """Templates of pages; `ending` is the part of a name that is not broken."""
    environment = Environment(loader=PackageLoader("carl.use"), autoescape=True)
    environment.filters["ending"] = lambda name: name[-_ENDING:] if "." in name[-6:] else ""
    return environment


def pictures_of(index: EmbeddingFile, rows: set[int], root: str | None) -> dict[int, str]:
    """The images of these rows as data addresses; empty where an image cannot be read."""
    with strict_decoding():
        return {row: picture(content) for row, content in contents_of(index, rows, root)} if rows else {}


def contents_of(index: EmbeddingFile, rows: set[int], root: str | None) -> Iterator[tuple[int, Content]]:
    """The images of these rows: paths of files, or the content of what has to be read from one end to the other."""
    names = index.names()
    paths = {row: path for row in rows if (path := index.file_of(names[row])) is not None and path.is_file()}
    if paths:
        gone = next((names[row] for row in rows if row not in paths), None)
        if gone is not None:
            raise UserError(f"{gone} is no longer there; embed the images again")
        yield from sorted(paths.items())
        return
    row, last, names = 0, max(rows), [name_from_text(str(name)) for name in index.column("path")]
    for _, image in open_images(index.about.source, index.about.split, root).read():
        # A bad image has no row. Images in shards have names that are relative to where they were embedded.
        if image.name in (names[row], os.path.join(index.about.base, names[row])):
            if row in rows:
                yield row, image.content
            row += 1
            if row > last:
                return
    raise UserError(f"{index.about.source} no longer has the image {names[row]}; embed it again")


def picture(content: Content) -> str:
    """The image as a data address, at most THUMBNAIL px per side; empty if it cannot be read."""
    try:
        pixels = _viewable(content)
    except DecodeError:
        return ""
    colours = pixels[..., :3] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, axis=2)
    image = Image.fromarray(np.ascontiguousarray(colours))
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    small = max(image.size) < 64  # JPEG would smear what few pixels there are
    image.save(buffer, format="PNG" if small else "JPEG", quality=85)
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _viewable(content: Content) -> np.ndarray:
    """The pixels as they are, or the middle square of a large image."""
    try:
        return decode(content, None)
    except OversizedError:
        return decode(content, (2 * THUMBNAIL, 2 * THUMBNAIL))
