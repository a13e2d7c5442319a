"""Images read from shards as training goes: which, in which order, and what hostile or damaged shards do."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from carl.data import open_dataset
from carl.data.batches.stream import Line, StreamBatches, buffered_order, check_lanes, choose_lanes
from carl.data.decoding import tar
from carl.data.sources.shards import Shards, count_images, expand, find_shards, names_shards, read_images, stated_sizes
from carl.errors import UserError
from carl.terminal import silent
from carl.views.recipes import pipeline
from carl.views.views import Views


def encoded(number: int, kind: str = "PNG") -> bytes:
    """An image that knows its number: its red and green are the number's two bytes."""
    file = io.BytesIO()
    Image.new("RGB", (12 + number % 3, 12), (number // 256, number % 256, 9)).save(file, kind)
    return file.getvalue()


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mtime = 1234.5  # a fraction, for which Python's tarfile writes a pax header
    archive.addfile(member, io.BytesIO(content))


def write_tar(path: Path, numbers: range, form: int = tarfile.PAX_FORMAT) -> None:
    with tarfile.open(path, "w", format=form) as archive:
        for number in numbers:
            add(archive, f"{number:06d}.png", encoded(number))
            add(archive, f"{number:06d}.cls", b"3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six shards of 5 to 10 images, 45 in all."""
    first = 0
    for shard in range(6):
        write_tar(tmp_path / f"{shard:03d}.tar", range(first, first + 5 + shard))
        first += 5 + shard
    return tmp_path


def batches(shards: Shards, lanes: int = 4, rank: int = 0, ranks: int = 1, max_bad: int | None = None) -> StreamBatches:
    views = Views(pipeline("eval", 8), (0.0,) * 3, (1.0,) * 3, seed=0)
    return StreamBatches(
        shards,
        views,
        8,
        seed=0,
        device=torch.device("cpu"),
        lanes=lanes,
        buffer=12,
        max_bad=max_bad,
        rank=rank,
        ranks=ranks,
        whole_size=(8, 8),
    )


def numbers_shown(view: torch.Tensor) -> list[int]:
    """The numbers of the images that are seen in a view."""
    pixels = (view[:, :, 4, 4] * 255).round().int()
    return (pixels[:, 0] * 256 + pixels[:, 1]).tolist()


def test_an_epoch_shows_each_image_at_most_once_and_leaves_out_less_than_a_batch(folder: Path):
    stream = batches(find_shards(str(folder), silent))
    for epoch in range(2):
        indices = [int(i) for batch in stream.epoch(epoch) for i in batch.indices]
        assert len(indices) == 40
        assert max(Counter(indices).values()) == 1
    assert indices != sorted(indices)


def test_an_index_names_the_same_image_in_every_epoch(folder: Path):
    for epoch in range(2):
        for batch in batches(find_shards(str(folder), silent)).epoch(epoch):
            assert numbers_shown(batch.views[0]) == batch.indices.tolist()


def test_epochs_and_seeds_have_orders_of_their_own(folder: Path):
    shards = find_shards(str(folder), silent)
    orders = [[b.indices.tolist() for b in batches(shards).epoch(epoch)] for epoch in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert list(Line(shards, 0, 0).order) != list(Line(shards, 1, 0).order) or len(shards) < 3


@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_read_together_what_one_reads_and_in_its_order(folder: Path, ranks: int):
    shards = find_shards(str(folder), silent)
    whole = [batch.indices for batch in batches(shards).epoch(0)]
    parts = [[b.indices for b in batches(shards, rank=rank, ranks=ranks).epoch(0)] for rank in range(ranks)]
    for step, indices in enumerate(whole):
        dealt = torch.stack([part[step] for part in parts], dim=1).flatten()
        assert torch.equal(dealt, indices)


@pytest.mark.parametrize("first", [1, 3, 5])
def test_an_epoch_goes_on_after_any_step_as_if_it_had_not_stopped(folder: Path, first: int):
    shards = find_shards(str(folder), silent)
    whole = [batch.indices.tolist() for batch in batches(shards).epoch(0)]
    assert [batch.indices.tolist() for batch in batches(shards).epoch(0, first)] == whole[first:]


def test_each_image_is_read_once_when_all_are_embedded(folder: Path):
    shards = find_shards(str(folder), silent)
    found = [n for rank in range(2) for part, _ in batches(shards, rank=rank, ranks=2).whole_images() for n in part]
    assert found == list(range(45))
    _, pixels = next(batches(shards).whole_images())
    assert pixels[:, 4, 4, 1].tolist() == list(range(45))


def test_a_buffer_mixes_and_holds_no_more_than_its_size():
    order = buffered_order(1000, 50, seed=3)
    assert sorted(order) == list(range(1000))
    assert max(number - turn for turn, number in enumerate(order)) <= 50  # nothing comes before it was read
    assert np.abs(np.diff(order)).mean() > 10
    assert list(buffered_order(5, 50, seed=3)) != list(buffered_order(5, 50, seed=4))


@pytest.mark.parametrize(
    ("batch", "shards", "ranks", "lanes"),
    [(256, 1000, 8, 64), (256, 20, 2, 16), (96, 20, 3, 12), (6, 1, 2, 2), (12, 3, 4, 4)],
)
def test_lanes_divide_the_batch_and_the_processes_divide_the_lanes(batch: int, shards: int, ranks: int, lanes: int):
    assert choose_lanes(batch, shards, ranks) == lanes


def test_a_number_of_processes_that_does_not_fit_is_refused_with_those_that_do():
    with pytest.raises(UserError, match=r"4 lanes, which do not divide over 3 processes; use \[1, 2, 4\] processes"):
        check_lanes(4, 12, 3)
    with pytest.raises(UserError, match=r"data\.lanes=5 does not divide the batch size 12"):
        check_lanes(5, 12, 1)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_formats_of_tar_are_read(tmp_path: Path, form: int):
    path = tmp_path / "one.tar"
    with tarfile.open(path, "w", format=form) as archive:
        for number in range(3):
            add(archive, f"{'deep/' * 25}{number}.png", encoded(number))  # longer than the 100 letters of a header
    assert count_images(str(path)) == 3
    assert [content for _, content in read_images(str(path), {0, 2})] == [encoded(0), b"", encoded(2)]


def test_parquet_shards_are_read_too(tmp_path: Path):
    for shard in range(2):
        rows = [{"bytes": encoded(10 * shard + n), "path": None} for n in range(10)]
        pq.write_table(pa.table({"image": rows}), tmp_path / f"{shard}.parquet", row_group_size=4)
    shards = find_shards(str(tmp_path / "{0,1}.parquet"), silent)
    assert shards.counts == (10, 10)
    for batch in batches(shards).epoch(0):
        assert numbers_shown(batch.views[0]) == batch.indices.tolist()


def test_an_address_of_fsspec_is_read_and_its_counts_can_be_stated(folder: Path):
    memory = fsspec.filesystem("memory")
    for path in folder.glob("*.tar"):
        memory.pipe(f"/bucket/{path.name}", path.read_bytes())
    shards = find_shards("memory://bucket/*.tar", silent)
    assert shards.counts == (5, 6, 7, 8, 9, 10)
    assert len(list(batches(shards).epoch(0))) == 5
    memory.pipe("/bucket/sizes.json", b'{"000.tar": 4}')
    memory.pipe("/bucket/000.tar", (folder / "001.tar").read_bytes())
    assert find_shards("memory://bucket/{000..001}.tar", silent).counts == (4, 6)


def test_patterns_stand_for_many_shards(folder: Path):
    assert [Path(a).name for a in expand(f"{folder}/{{000..002}}.tar")] == ["000.tar", "001.tar", "002.tar"]
    assert expand(f"{folder}/00[01].tar") == expand(f"{folder}/{{000,001}}.tar")
    assert len(expand(str(folder))) == 6
    assert names_shards("x/{00..19}.tar")
    assert names_shards("s3://bucket/x.parquet")
    assert not names_shards("x.parquet")
    assert not names_shards("photos")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("none-*.tar", "names no shards"),
        ("{0..99999999}.tar", "more than 1000000 shards"),
        ("gone.tar", "cannot read .*gone.tar"),
        ("nowhere://x/0.tar", "cannot read nowhere://x/0.tar"),
    ],
)
def test_a_source_that_is_not_there_is_named(tmp_path: Path, source: str, complaint: str):
    with pytest.raises(UserError, match=complaint):
        find_shards(source if "://" in source else str(tmp_path / source), silent)


def test_hostile_members_are_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tar, "LARGEST_IMAGE", 10_000)
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        add(archive, "../../escaped.png", encoded(0))
        add(archive, "/etc/absolute.png", encoded(1))
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        device = tarfile.TarInfo("device.png")
        device.type = tarfile.CHRTYPE
        archive.addfile(device)
        add(archive, "huge.png", bytes(20_000))
        add(archive, "last.png", encoded(2))
    before = set(tmp_path.parent.rglob("*"))
    found = [content for _, content in read_images(str(tmp_path / "0.tar"), range(99))]
    assert found == [encoded(0), encoded(1), None, encoded(2)]  # links and devices are no images
    assert set(tmp_path.parent.rglob("*")) == before


@pytest.mark.parametrize(("size", "complaint"), [(2**33, "ends in the middle"), (2**60, "damaged")])
def test_an_extended_header_that_claims_any_size_takes_no_memory(tmp_path: Path, size: int, complaint: str):
    header = bytearray(tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT))
    header[156:157], header[124:136] = b"x", b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    path = tmp_path / "0.tar"
    path.write_bytes(header)
    with pytest.raises(UserError, match=complaint):
        count_images(str(path))


@pytest.mark.parametrize("kept", [100, 700, 2000])
def test_a_shard_that_is_cut_off_is_named(tmp_path: Path, kept: int):
    write_tar(tmp_path / "0.tar", range(4))
    content = (tmp_path / "0.tar").read_bytes()
    (tmp_path / "0.tar").write_bytes(content[:kept])
    with pytest.raises(UserError, match=r"0.tar (ends in the middle|is not a tar)"):
        list(read_images(str(tmp_path / "0.tar"), range(9)))


@pytest.mark.parametrize("digits", [b"9" * 5000, b"0" * 5000 + b"9"])
def test_a_pax_record_with_a_length_of_thousands_of_digits_is_passed_over(tmp_path: Path, digits: bytes):
    record = tarfile.TarInfo("pax")
    record.type, record.size = tarfile.XHDTYPE, len(digits) + 10
    write_tar(tmp_path / "0.tar", range(2), tarfile.USTAR_FORMAT)
    body = (digits + b" path=x.py").ljust(-(-record.size // 512) * 512, b"\0")
    whole = record.tobuf(tarfile.USTAR_FORMAT) + body + (tmp_path / "0.tar").read_bytes()
    (tmp_path / "0.tar").write_bytes(whole)
    assert count_images(str(tmp_path / "0.tar")) == 2


class LostError(Exception):
    """What a service raises, such as aiohttp's ClientPayloadError: no OSError."""


@pytest.mark.parametrize(("kind", "kept"), [("tar", 0), ("tar", 600), ("parquet", 0)])
def test_a_service_that_is_lost_while_a_shard_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, kept: int
):
    path = tmp_path / f"0.{kind}"
    if kind == "tar":
        write_tar(path, range(4))
    else:
        pq.write_table(pa.table({"image": [encoded(number) for number in range(4)]}), path)

    class Lost(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() >= kept:
                raise LostError("the connection\nis lost")
            return super().read(size)

    monkeypatch.setattr("carl.data.sources.shards.open_address", lambda address: Lost(path.read_bytes()))
    for read in (count_images, lambda address: list(read_images(address, range(9)))):
        with pytest.raises(UserError, match=r"cannot read https://x/0.*: the connection; check the address"):
            read(f"https://x/{path.name}")
    assert stated_sizes("https://x") == {}


@pytest.mark.parametrize("stated", [b"[" * 5000, b"[1]", b'{"0.tar": 1e999}', b'{"0.tar": 1e30}', b"\xff"])
def test_sizes_that_cannot_be_are_not_believed(monkeypatch: pytest.MonkeyPatch, stated: bytes):
    monkeypatch.setattr("carl.data.sources.shards.open_address", lambda address: io.BytesIO(stated))
    assert stated_sizes("https://x") == {}


def test_a_compressed_or_foreign_file_is_named_with_a_remedy(tmp_path: Path):
    with tarfile.open(tmp_path / "0.tar", "w:gz") as archive:
        add(archive, "0.png", encoded(0) * 40)
    with pytest.raises(UserError, match=r"compressed.*gunzip"):
        count_images(str(tmp_path / "0.tar"))
    (tmp_path / "1.tar").write_bytes(b"no tar file " * 100)
    with pytest.raises(UserError, match="is not a tar file"):
        count_images(str(tmp_path / "1.tar"))


def test_an_image_that_cannot_be_decoded_shows_another_of_its_batch_until_there_are_too_many(tmp_path: Path):
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        for number in range(16):
            add(archive, f"{number}.png", b"broken" if number in (3, 5) else encoded(number))
    shards = find_shards(str(tmp_path), silent)
    stream = batches(shards, max_bad=2)
    shown = [n for batch in stream.epoch(0) for n in numbers_shown(batch.views[0])]
    assert len(shown) == 16
    assert not {3, 5} & set(shown)
    assert set(stream.bad) == {3, 5}
    with pytest.raises(UserError, match=r"cannot be decoded.*0.tar#[35].*at most 1 may fail"):
        list(batches(shards, max_bad=1).epoch(0))


def test_each_process_takes_its_share_of_the_bad_images_that_may_be(tmp_path: Path):
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        for number in range(32):
            add(archive, f"{number}.png", b"broken" if number % 4 == 0 else encoded(number))
    shards = find_shards(str(tmp_path), silent)  # eight bad images, four for each process
    assert len(list(batches(shards, rank=1, ranks=2, max_bad=8).epoch(0))) == 4
    both = [batches(shards, rank=rank, ranks=2, max_bad=6) for rank in range(2)]
    with pytest.raises(UserError, match="at most 3 of the 2 processes' shares may fail"):  # one has more than three
        [list(stream.epoch(0)) for stream in both]


def test_an_empty_shard_is_no_hindrance(folder: Path):
    write_tar(folder / "006.tar", range(0))
    shards = find_shards(str(folder), silent)
    assert shards.counts[-1] == 0
    assert [n for part, _ in batches(shards).whole_images() for n in part] == list(range(45))
    assert len(list(batches(shards).epoch(0))) == 5


def test_a_shard_that_has_changed_since_it_was_counted_is_named(folder: Path):
    shards = find_shards(str(folder), silent)
    write_tar(folder / "005.tar", range(2))
    with pytest.raises(UserError, match=r"005\.tar has fewer images than when they were counted"):
        list(batches(shards).epoch(0))


def test_an_opened_stream_has_a_packed_sample_and_says_what_it_is(folder: Path):
    dataset = open_dataset(folder)
    assert dataset.views_from == "stream"
    assert dataset.training_images == 45
    assert len(dataset.train) == 45
    assert "reads 45 images from 6 shards" in dataset.notes[-1]
    write_tar(folder / "000.tar", range(3, 8))
    assert open_dataset(folder).fingerprint != dataset.fingerprint
