"""Every kind of image file becomes upright RGB with 8 bits."""

from __future__ import annotations

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from carl.data.decoding import decode as module
from carl.data.decoding.decode import DecodeError, OversizedError, decode, image_size, pixels_of, strict_decoding
from carl.data.listing import Unusable


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


@pytest.fixture
def rgb() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_files_keep_every_pixel(rgb, form):
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(rgb), form), None), rgb)


@pytest.mark.parametrize("form", ["JPEG", "WEBP"])
def test_lossy_files_are_close(form):
    grey = np.full((16, 16, 3), 90, np.uint8)
    assert np.abs(decode(encoded(Image.fromarray(grey), form), None).astype(int) - 90).max() <= 3


def test_grey_images_get_three_equal_channels(rgb):
    decoded = decode(encoded(Image.fromarray(rgb[..., 0]), "PNG"), None)
    np.testing.assert_array_equal(decoded, np.repeat(rgb[..., :1], 3, axis=2))


def test_16_bit_grey_is_scaled_and_not_clipped():
    values = np.array([[0, 257, 32_768, 65_535]], np.uint16)
    decoded = decode(encoded(Image.fromarray(values), "PNG"), None)
    assert decoded[0, :, 0].tolist() == [0, 1, 128, 255]


def test_transparent_pixels_become_white():
    image = Image.new("RGBA", (2, 1), (200, 0, 0, 255))
    image.putpixel((1, 0), (200, 0, 0, 0))
    assert decode(encoded(image, "PNG"), None).tolist() == [[[200, 0, 0], [255, 255, 255]]]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "RGB", "L", "P", "P with degrees"])
def test_a_large_transparent_image_is_composited_in_strips_to_the_same_pixels(monkeypatch, mode):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (11, 7, 4), np.uint8))
    if "A" not in mode:
        image = image.convert("RGB")
    image = image.convert(mode.partition(" ")[0])
    if "A" not in mode:  # one colour is transparent, or colours of a palette are by degrees
        colour = image.getpixel((2, 5))
        image.info["transparency"] = bytes(range(256)) if "degrees" in mode else colour
    at_once = pixels_of(image)
    monkeypatch.setattr(module, "STRIP", 14)
    np.testing.assert_array_equal(pixels_of(image), at_once)
    assert bool((at_once[5, 2] == 255).all()) == (mode in ("RGB", "L", "P"))


def test_a_pipe_or_a_link_to_nothing_has_no_size(tmp_path):
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to("nowhere")
    assert [image_size(path) for path in tmp_path.iterdir()] == [None] * len(list(tmp_path.iterdir()))


def test_palette_images_with_and_without_transparency():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    assert decode(encoded(image, "PNG"), None).tolist() == [[[10, 20, 30], [40, 50, 60]]]
    assert decode(encoded(image, "PNG", transparency=1), None).tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_cmyk_becomes_rgb():
    decoded = decode(encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95), None)
    assert np.abs(decoded.astype(int) - [255, 0, 0]).max() <= 4


def test_of_an_animation_the_first_frame_is_taken():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    decoded = decode(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), None)
    assert decoded[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF"])
def test_exif_orientation_is_respected(form):
    image = Image.new("RGB", (32, 16), "black")
    image.paste("white", (0, 0, 16, 16))  # left half
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    decoded = decode(encoded(image, form, exif=exif), None)
    assert decoded.shape == (32, 16, 3)
    assert decoded[:14].min() > 240
    assert decoded[18:].max() < 15


def test_a_jpeg_fitted_by_reduced_decoding_looks_like_one_decoded_in_full():
    ramp = np.linspace(0, 255, 1024, dtype=np.uint8)
    image = Image.fromarray(
        np.stack([np.tile(ramp, (512, 1)), np.tile(ramp[::2, None], (1, 1024)), np.full((512, 1024), 9, np.uint8)], 2)
    )
    jpeg = encoded(image, "JPEG", quality=95)
    fitted = decode(jpeg, (32, 32)).astype(int)
    full = np.asarray(Image.open(io.BytesIO(jpeg)).resize((32, 32), Image.Resampling.BICUBIC, (256, 0, 768, 512)))
    assert np.abs(fitted - full).max() <= 3


def _bomb() -> bytes:
    """A few bytes that claim 144 million pixels: enough for Pillow to warn, too few for it to refuse."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 12_000, 12_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("side", "fitted"), [(47, 46), (225, 224), (3, 187)])
def test_an_image_is_fitted_although_its_side_divided_and_multiplied_again_is_a_hair_longer(side, fitted):
    assert side / fitted * fitted > side
    file = io.BytesIO()
    Image.new("RGB", (side, side + 3), "white").save(file, "PNG")
    assert decode(file.getvalue(), (fitted, fitted)).shape == (fitted, fitted, 3)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"some text", "not an image"),
        (_bomb(), "more pixels"),
        (encoded(Image.new("RGB", (64, 64), "red"), "JPEG")[:300], "(?i)truncated"),
        (Unusable("because"), "because"),
    ],
    ids=["empty", "text", "bomb", "truncated", "unusable"],
)
def test_what_cannot_be_decoded_says_why(content, reason):
    with strict_decoding(), pytest.raises(DecodeError, match=reason):
        decode(content, None)


def test_images_too_large_to_be_packed_as_they_are_are_not_decoded_in_full():
    with pytest.raises(OversizedError):
        decode(encoded(Image.new("RGB", (257, 4)), "PNG"), None)
    assert decode(encoded(Image.new("RGB", (256, 4)), "PNG"), None).shape == (4, 256, 3)


def _tiff(
    pixels: np.ndarray,
    planar: bool,
    deflate: bool,
    predictor: bool,
    order: str = "<",
    photometric: int = 1,
    extra_samples: int | None = None,
) -> bytes:
    """A TIFF with any number of bands in one strip (a plane)."""
    height, width, bands = pixels.shape
    planes = [pixels[..., i : i + 1] for i in range(bands)] if planar else [pixels]
    if predictor:
        planes = [np.diff(plane, axis=1, prepend=np.zeros_like(plane[:, :1])) for plane in planes]
    stored = [plane.astype(plane.dtype.newbyteorder(order)).tobytes() for plane in planes]
    stored = [zlib.compress(strip) for strip in stored] if deflate else stored
    offsets = [8 + sum(map(len, stored[:i])) for i in range(len(stored))]
    data_end = 8 + sum(map(len, stored))
    tags = {256: [width], 257: [height], 258: [8 * pixels.itemsize] * bands, 259: [8 if deflate else 1],
            262: [photometric],
            273: offsets, 277: [bands], 278: [height], 279: [len(strip) for strip in stored],
            284: [2 if planar else 1], 317: [2 if predictor else 1]}  # fmt: skip
    tags |= {} if extra_samples is None else {338: [extra_samples]}
    extra, entries, extra_start = b"", b"", data_end + 2 + 12 * len(tags) + 4
    for tag, values in tags.items():
        packed = struct.pack(f"{order}{len(values)}I", *values)
        if len(values) > 1:
            packed, extra = struct.pack(f"{order}I", extra_start + len(extra)), extra + packed
        entries += struct.pack(f"{order}HHI", tag, 4, len(values)) + packed
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", data_end)
    return head + b"".join(stored) + struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + extra


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize("predictor", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
def test_tiffs_with_other_bands_keep_them(planar, deflate, predictor, order):
    pixels = np.random.default_rng(1).integers(0, 256, (6, 5, 7), np.uint8)
    np.testing.assert_array_equal(decode(_tiff(pixels, planar, deflate, predictor, order), None), pixels)


@pytest.mark.parametrize(("extra", "channels"), [(None, 4), (0, 4), (2, 3)])
def test_a_fourth_band_of_an_rgb_tiff_is_kept_unless_it_is_opacity(extra, channels):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 9, 4), np.uint8)
    decoded = decode(_tiff(pixels, False, False, False, photometric=2, extra_samples=extra), None)
    assert decoded.shape == (8, 9, channels)
    if channels == 4:
        np.testing.assert_array_equal(decoded, pixels)


@pytest.mark.parametrize("order", "<>")
def test_16_bit_bands_are_scaled(order):
    pixels = np.zeros((2, 2, 6), np.uint16)
    pixels[0, 0], pixels[1, 1] = 65_535, 257
    decoded = decode(_tiff(pixels, False, False, False, order), None)
    assert decoded[0, 0].tolist() == [255] * 6
    assert decoded[1, 1].tolist() == [1] * 6


def test_bands_are_fitted_one_by_one():
    pixels = np.full((20, 40, 5), 77, np.uint8)
    fitted = decode(_tiff(pixels, False, True, False), (10, 10))
    assert fitted.shape == (10, 10, 5)
    assert (fitted == 77).all()


def test_a_damaged_tiff_with_other_bands_is_a_bad_file():
    pixels = np.zeros((6, 5, 7), np.uint8)
    with pytest.raises(DecodeError):
        decode(_tiff(pixels, False, True, False)[:60], None)
