"""Every check flags what it names, and nothing of ordinary images."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from carl.data.decoding.decode import decode_measured
from carl.quality import CHECKS, Flagged, Picture, judge, measure, measures
from carl.quality.near_copies import FLIPPED, differing_bits, perceptual_hash

SHAPE = (32, 32)


def scene(number: int, width: int = 120, height: int = 90) -> Image.Image:
    """An ordinary picture: coloured boxes of many shades at random places."""
    generator = np.random.default_rng(number)
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[:] = np.linspace(40, 200, width)[None, :, None]
    for _ in range(12):
        top, left = generator.integers(0, height - 10), generator.integers(0, width - 10)
        colour = generator.integers(0, 256, 3)
        pixels[top : top + generator.integers(8, 40), left : left + generator.integers(8, 50)] = colour
    noise = generator.integers(-6, 7, pixels.shape)
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def jpeg(image: Image.Image, quality: int = 60) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def found_among(contents: Sequence[bytes]) -> dict[str, Flagged]:
    rows = [decode_measured(content, SHAPE)[1] for content in contents]
    kinds = {"float32": np.float32, "int32": np.int32, "text": np.str_}
    return judge({n: np.array([row[n] for row in rows]).astype(kinds[m.kind]) for n, m in measures().items()})


ORDINARY = [png(scene(number)) for number in range(20)]


def flagged_with(*others: bytes) -> dict[str, list[int]]:
    """The checks that flag any of `others` among ordinary images, with their places; none of the ordinary ones."""
    found = {name: flag.rows.tolist() for name, flag in found_among([*ORDINARY, *others]).items()}
    return {name: [row - len(ORDINARY) for row in rows] for name, rows in found.items() if rows}


def checkerboard(side: int = 128, square: int = 16) -> Image.Image:
    rows, columns = np.indices((side, side)) // square
    grey = ((rows + columns) % 2 * 200 + 30).astype(np.uint8)
    return Image.fromarray(np.stack([grey, grey // 2, 255 - grey], axis=2))


def test_ordinary_images_have_no_flag():
    assert flagged_with() == {}


def test_a_black_image_is_too_dark_and_a_white_one_too_bright():
    black, white = png(Image.new("RGB", (90, 90), (4, 6, 4))), png(Image.new("RGB", (90, 90), (250, 252, 254)))
    found = flagged_with(black, white)
    assert found["dark"] == [0]
    assert found["bright"] == [1]


def test_a_night_shot_with_lights_is_not_too_dark():
    pixels = np.asarray(scene(99)) // 8
    pixels[:20, :20] = 240  # 4% of the pixels
    assert "dark" not in flagged_with(png(Image.fromarray(pixels)))


def test_a_blurred_checkerboard_is_blurry_and_a_sharp_one_is_not():
    sharp = checkerboard()
    assert "blurry" not in flagged_with(png(sharp))
    assert flagged_with(png(sharp.filter(ImageFilter.GaussianBlur(24))))["blurry"] == [0]


def test_blur_does_not_depend_on_brightness():
    blurred = np.asarray(scene(5).filter(ImageFilter.GaussianBlur(12)), np.float32)
    dim, bright = (Image.fromarray((blurred * 0.3 + add).astype(np.uint8)) for add in (20, 170))
    assert flagged_with(png(dim), png(bright))["blurry"] == [0, 1]


def test_one_sharp_thing_before_a_smooth_sky_is_not_blurry():
    rows = np.linspace(120, 220, 128)[:, None, None] * np.array([0.6, 0.8, 1.0]) * np.ones((1, 128, 1))
    bird = rows.copy()
    bird[60:72, 58:74] = 20
    sky, with_bird = (Image.fromarray(pixels.astype(np.uint8)) for pixels in (rows, bird))
    assert flagged_with(png(sky), png(with_bird))["blurry"] == [0]


def test_a_constant_image_has_low_detail():
    assert flagged_with(png(Image.new("RGB", (120, 90), (90, 120, 60))))["low-detail"] == [0]


@pytest.mark.parametrize("size", [(300, 60), (60, 300)], ids=["wide", "high"])
def test_a_strip_of_one_to_five_has_an_odd_shape(size: tuple[int, int]):
    assert flagged_with(png(scene(99, *size)))["odd-shape"] == [0]


def test_a_panorama_of_one_to_two_has_no_odd_shape():
    assert "odd-shape" not in flagged_with(png(scene(99, 160, 80)))


def test_an_icon_and_a_poster_among_photos_have_an_odd_size_and_a_few_pixels_more_do_not():
    found = flagged_with(png(scene(1, 24, 18)), png(scene(2, 1200, 900)), png(scene(3, 122, 91)))
    assert sorted(found["odd-size"]) == [0, 1]


def test_grey_is_flagged_among_colour_in_whatever_mode_it_is_saved():
    grey = scene(99).convert("L")
    other = scene(98).convert("L").convert("RGB")
    assert flagged_with(png(grey), jpeg(other))["grey"] == [0, 1]


def test_grey_among_grey_is_usual():
    contents = [png(scene(number).convert("L")) for number in range(8)] + ORDINARY[:3]
    assert not len(found_among(contents)["grey"].rows)


def test_an_exact_copy_is_found_in_another_lossless_format_too():
    stream = io.BytesIO()
    scene(3).save(stream, "WEBP", lossless=True)
    flag = found_among([*ORDINARY, ORDINARY[7], stream.getvalue()])
    assert [group.tolist() for group in flag["exact-copies"].sets] == [[3, 21], [7, 20]]
    assert not len(flag["near-copies"].rows)  # what is an exact copy is not listed twice


@pytest.mark.parametrize("side", [120, 1600], ids=["small", "decoded at a part of its size"])
def test_one_changed_pixel_makes_a_near_copy_and_not_an_exact_one(side: int):
    image = scene(3, side, side)
    changed = image.copy()
    changed.putpixel((40, 40), (255, 0, 255))
    flag = found_among([*ORDINARY, jpeg(image, 95), jpeg(changed, 95), jpeg(image, 95)])
    assert [group.tolist() for group in flag["exact-copies"].sets] == [[20, 22]]
    assert [group.tolist() for group in flag["near-copies"].sets] == [[20, 21]]


def test_a_copy_saved_as_jpeg_or_scaled_is_a_near_copy():
    image = scene(3)
    half = image.resize((60, 45), Image.Resampling.BICUBIC)
    flag = found_among([*ORDINARY, jpeg(image), jpeg(scene(8), 40), png(half)])
    assert [group.tolist() for group in flag["near-copies"].sets] == [[3, 20, 22], [8, 21]]
    assert not len(flag["exact-copies"].rows)


def test_the_same_picture_in_another_colour_is_not_a_near_copy():
    red = Image.merge("RGB", [scene(3).convert("L"), *(Image.new("L", (120, 90), 20) for _ in "gb")])
    assert "near-copies" not in flagged_with(png(red))


def test_many_images_with_the_same_looks_are_one_set_and_take_no_time():
    generator = np.random.default_rng(0)
    pixels = np.asarray(scene(1))
    rows = []
    for number in range(300):
        noisy = np.clip(pixels + generator.integers(-2, 3, pixels.shape), 0, 255).astype(np.uint8)
        rows.append(measure(Picture(Image.fromarray(noisy), 120, 90, f"{number:032x}")))
    columns = {name: np.array([row[name] for row in rows]) for name in measures()}
    (crowd,) = CHECKS["near-copies"].judge(columns).sets
    assert len(crowd) == 300


def test_the_perceptual_hash_is_that_of_scipy_and_close_for_a_copy():
    from scipy.fft import dct

    image = scene(4)
    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.LANCZOS), np.float64)
    low = dct(dct(grey, axis=0), axis=1)[:8, :8]
    expected = "".join("1" if value > np.median(low) else "0" for value in low.ravel())
    ours = perceptual_hash(Picture(image, *image.size, ""))
    assert f"{int(ours, 16):064b}" == expected
    copy = Image.open(io.BytesIO(jpeg(image)))
    theirs = perceptual_hash(Picture(copy.convert("RGB"), *image.size, ""))
    bits = differing_bits(*(np.array([int(one, 16)], np.uint64) for one in (ours, theirs)))
    assert bits[0] <= FLIPPED


def test_sizes_are_those_of_the_file_upright_also_where_a_jpeg_is_decoded_at_a_part_of_its_size(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    scene(1, 1600, 1000).save(tmp_path / "a.jpg", exif=exif, quality=90)
    row = decode_measured(tmp_path / "a.jpg", SHAPE)[1]
    assert (row["width"], row["height"]) == (1000, 1600)


def test_measuring_changes_no_pixel():
    from carl.data.decoding.decode import decode

    for content in (jpeg(scene(2, 700, 500)), png(scene(2)), png(scene(3).convert("L"))):
        np.testing.assert_array_equal(decode_measured(content, SHAPE)[0], decode(content, SHAPE))


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_arrays_of_any_number_of_channels_are_measured(channels: int):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, channels), np.uint8)
    decoded, row = decode_measured(pixels, (8, 8))
    assert decoded.shape == (8, 8, channels)
    assert (row["width"], row["height"]) == (30, 20)


@pytest.mark.parametrize("size", [(1, 1), (2, 500), (1000, 1)])
def test_images_of_a_few_pixels_are_measured(size: tuple[int, int]):
    row = decode_measured(png(Image.new("RGB", size, (9, 200, 30))), SHAPE)[1]
    assert row.keys() == measures().keys()


def test_words_are_whole_sentences():
    for check in CHECKS.values():
        assert check.meaning.endswith(".")
        assert not check.rule[0].isupper()
        assert not check.rule.endswith(".")
        assert max(len(part.split()) for part in check.meaning.split(".")) <= 45


def test_the_page_about_quality_has_every_check_and_every_column():
    page = (Path(__file__).parents[2] / "docs" / "quality.md").read_text(encoding="utf-8")
    for check in CHECKS.values():
        assert f"| {check.title} | {check.meaning} | {check.rule} |\n" in page
    for column in measures():
        assert f"`{column}`" in page
