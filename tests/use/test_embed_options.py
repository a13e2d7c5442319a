"""Options of `carl embed`: batches, precision, half the space, many files; what they change, and what they do not."""

from __future__ import annotations

import functools
import math
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from carl.data.listing import BadFile
from carl.data.open import open_images
from carl.errors import UserError
from carl.terminal import TimedProgress
from carl.use import embed as embed_module
from carl.use.embed import NOTHING_DONE, embed
from carl.use.embedding_files import EmbeddingFile, embeddings_of
from carl.use.embedding_parts import Parts
from carl.use.encoder import TrainedModel
from carl.use.requests import EmbedOptions
from tests.conftest import Run
from tests.reliability.conftest import assert_refused, listed
from tests.use.test_embed import Killed, cut, shards, small_parts, stop_after

__all__ = ["shards", "small_parts"]  # fixtures


@pytest.fixture
def whole(trained: TrainedModel, folder: Path, tmp_path: Path) -> pa.Table:
    """The rows as they are without any option."""
    embed(trained, open_images(str(folder)), tmp_path / "whole.parquet")
    return pq.read_table(tmp_path / "whole.parquet")


def test_the_batch_size_is_that_of_the_passes_through_the_encoder(
    trained: TrainedModel, folder: Path, whole: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = stop_after(monkeypatch, 1000)
    embed(trained, open_images(str(folder)), tmp_path / "e.parquet", options=EmbedOptions(batch_size=40))
    assert seen == [40, 40, 16]
    np.testing.assert_allclose(embeddings_of(pq.read_table(tmp_path / "e.parquet")), embeddings_of(whole), atol=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_used_and_gives_nearly_the_same(
    trained: TrainedModel, folder: Path, whole: pa.Table, tmp_path: Path, precision: str
):
    embed(trained, open_images(str(folder)), tmp_path / "e.parquet", options=EmbedOptions(precision=precision))
    found, expected = embeddings_of(pq.read_table(tmp_path / "e.parquet")), embeddings_of(whole)
    assert not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, atol=0.03 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["e.parquet", "e.npy", "many"])
def test_float16_is_the_rounded_number_in_half_the_space(
    trained: TrainedModel, folder: Path, whole: pa.Table, tmp_path: Path, name: str
):
    embed(trained, open_images(str(folder)), tmp_path / name, options=EmbedOptions(dtype="float16"))
    if name == "e.npy":
        found = np.load(tmp_path / name, allow_pickle=False)
    else:
        found = embeddings_of(pq.read_table(tmp_path / name))
        assert EmbeddingFile(tmp_path / name).embeddings().dtype == np.float32
    assert found.dtype == np.float16
    assert np.array_equal(found, embeddings_of(whole).astype(np.float16))


def test_embeddings_too_large_for_float16_are_refused(
    trained: TrainedModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plain = TrainedModel.represent

    def represent(self: TrainedModel, pixels: np.ndarray) -> object:
        result = plain(self, pixels)
        result.features[0, 0] = 70_000
        return result

    monkeypatch.setattr(TrainedModel, "represent", represent)
    with pytest.raises(UserError, match=r"65504.*--dtype float32"):
        embed(trained, open_images(str(folder)), tmp_path / "e.npy", options=EmbedOptions(dtype="float16"))
    assert embed(trained, open_images(str(folder)), tmp_path / "e.npy").rows == 96


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--batch-size", "0"], ["--batch-size 0", "1 to 4096"]),
        (["--batch-size", "5000"], ["--batch-size 5000", "1 to 4096"]),
        (["--precision", "int8"], ["--precision", "bf16"]),
        (["--dtype", "float64"], ["--dtype", "float16"]),
        (["--dtype", "float16", "-o", "e.csv"], ["text", ".npy"]),
        (["--rows-per-file", "10"], ["--rows-per-file needs a folder"]),
        (["--rows-per-file", "0", "-o", "many"], ["--rows-per-file 0"]),
        (["--device", "gpu"], ["--device='gpu' is not a device", "cuda"]),
        (["--device", "cuda:99"], ["--device='cuda:99'"]),
        (["-o", "e.v2"], ["e.v2 ends in none of .parquet, .npy, .csv", "a folder"]),
    ],
)
def test_bad_options_are_one_line_and_write_nothing(
    carl: Run, run: Path, folder: Path, tmp_path: Path, given: list[str], words: list[str]
):
    assert_refused(carl("embed", run, folder, *given), words)
    assert not listed(tmp_path)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("name", ["e.parquet", "many"])
def test_work_is_resumed_with_its_options_and_with_others_only_started_again_by_force(
    trained: TrainedModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    source, options = open_images(str(folder)), EmbedOptions(batch_size=5, precision="bf16", rows_per_file=40)
    if name == "e.parquet":
        options = EmbedOptions(batch_size=5, precision="bf16")
    embed(trained, source, tmp_path / f"whole-{name}", options=options)
    with monkeypatch.context() as patch:
        stop_after(patch, 9)  # batches of 5, 5, 5, 1: in the third part
        with pytest.raises(Killed):
            embed(trained, source, tmp_path / name, options=options)
    before = listed(tmp_path)
    for other in (EmbedOptions(), EmbedOptions(batch_size=5), EmbedOptions(5, "bf16", "float16")):
        with pytest.raises(UserError, match=r"--batch-size 5 --precision bf16 --dtype float32; give these options"):
            embed(trained, source, tmp_path / name, options=other)
    assert listed(tmp_path) == before
    assert embed(trained, source, tmp_path / name, options=options).resumed == 32
    assert pq.read_table(tmp_path / name).equals(pq.read_table(tmp_path / f"whole-{name}"))
    with monkeypatch.context() as patch:
        stop_after(patch, 9)
        with pytest.raises(Killed):
            embed(trained, source, tmp_path / name, force=True, options=options)
    assert embed(trained, source, tmp_path / name, force=True).resumed == 0
    assert not (tmp_path / f"{name}.parts").exists()


# Many files


@pytest.mark.parametrize("rows", [1, 7, 40, 96, 1000])
@pytest.mark.usefixtures("small_parts")
def test_a_folder_of_files_has_the_same_rows_in_the_same_order(
    trained: TrainedModel, folder: Path, whole: pa.Table, tmp_path: Path, rows: int
):
    done = embed(trained, open_images(str(folder)), tmp_path / "many", options=EmbedOptions(rows_per_file=rows))
    assert done.rows == 96
    names = sorted(path.name for path in (tmp_path / "many").iterdir())
    assert names == [f"{number:05d}.parquet" for number in range(-(-96 // rows))]
    assert [len(pq.read_table(tmp_path / "many" / name)) for name in names[:-1]] == [rows] * (len(names) - 1)
    index = EmbeddingFile(tmp_path / "many")
    assert len(index) == 96
    assert index.names() == whole.column("path").to_pylist()
    assert index.column("prototype") == whole.column("prototype").to_pylist()
    assert np.allclose(index.embeddings(), embeddings_of(whole), atol=1e-5)
    assert sorted(listed(tmp_path)) == sorted(["many", "whole.parquet", *(f"many/{name}" for name in names)])


def test_search_and_curate_read_a_folder_of_files_and_a_pattern(carl: Run, run: Path, folder: Path, tmp_path: Path):
    done = carl("embed", run, folder, "-o", "many/", "--rows-per-file", "30", "--dtype", "float16")
    assert done.returncode == 0, done.stderr
    assert "96 embeddings: many (4 files)" in done.stdout
    query = folder / "part 0" / "003.png"
    expected = carl("search", run, folder, query, "-k", "3", "-o", "a.html").stdout.splitlines()
    for images in ("many", "many/", "many/*.parquet", "many/{00000..00003}.parquet"):
        found = carl("search", run, images, query, "-k", "3", "-o", "b.html")
        assert found.returncode == 0, found.stderr
        assert [line.split("  ")[-1] for line in found.stdout.splitlines()[:-1]] == [
            line.split("  ")[-1] for line in expected[:-1]
        ]
        done = carl("curate", run, images, "--keep", "5", "-o", "c.txt", "--force")
        assert done.returncode == 0, done.stderr
        assert "5 of 96 images kept" in done.stdout
    assert "5 of 60 images" in carl("curate", run, "many/0000[01].parquet", "--keep", "5", "-o", "d.txt").stdout


def test_files_that_are_missing_doubled_or_of_other_calls_are_named(
    carl: Run, trained: TrainedModel, run: Path, folder: Path, tmp_path: Path
):
    source = open_images(str(folder))
    for name, part in (("many", source), ("other", open_images(str(folder / "part 0")))):
        embed(trained, part, tmp_path / name, options=EmbedOptions(rows_per_file=30))
    first = tmp_path / "many" / "00000.parquet"
    content = first.read_bytes()
    first.unlink()
    assert_refused(carl("curate", run, "many", "--keep", "5"), ["many lacks 00000.parquet, one of 4 files", "--force"])
    first.write_bytes((tmp_path / "other" / "00000.parquet").read_bytes())
    assert_refused(carl("curate", run, "many", "--keep", "5"), ["not from the same call of carl embed"])
    first.write_bytes(content)
    (tmp_path / "many" / "copy.parquet").write_bytes(content)
    assert_refused(carl("curate", run, "many", "--keep", "5"), ["has the rows of", "give it once"])


@pytest.mark.usefixtures("small_parts")
def test_a_folder_is_replaced_only_by_force_and_never_one_of_the_users(
    carl: Run, run: Path, trained: TrainedModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options = EmbedOptions(rows_per_file=30)
    (tmp_path / "many").mkdir()  # empty: nothing is lost
    embed(trained, open_images(str(folder)), tmp_path / "many", options=options)
    before = listed(tmp_path)
    assert_refused(carl("embed", run, folder, "-o", "many"), ["many holds embeddings", "--force"])
    assert listed(tmp_path) == before
    other = open_images(str(folder / "part 0"))
    with monkeypatch.context() as patch:
        patch.setattr("os.rename", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            embed(trained, other, tmp_path / "many", force=True, options=options)
    assert len(EmbeddingFile(tmp_path / "many")) == 96  # the old one is whole until the new one is
    done = embed(trained, other, tmp_path / "many", options=options)  # what was begun needs no force to be finished
    assert (done.rows, done.resumed) == (50, 50)
    assert len(EmbeddingFile(tmp_path / "many")) == 50
    assert not (tmp_path / "many.parts").exists()
    (tmp_path / "many" / "thesis.txt").write_text("precious")
    assert_refused(carl("embed", run, folder, "-o", "many", "--force"), ["carl embed did not make"])
    assert (tmp_path / "many" / "thesis.txt").read_text() == "precious"
    (tmp_path / "file").write_text("precious")
    assert_refused(carl("embed", run, folder, "-o", "file", "--force"), ["file exists and is not a folder"])


def test_a_folder_of_images_with_embeddings_in_it_is_still_one_of_images(
    carl: Run, run: Path, folder: Path, tmp_path: Path
):
    import shutil

    shutil.copytree(folder, tmp_path / "photos")
    assert carl("embed", run, "photos", "-o", "photos/embeddings.parquet").returncode == 0
    done = carl("search", run, "photos", "photos/part 0/003.png", "-k", "1")
    assert done.returncode == 0, done.stderr


# What is said


@pytest.mark.usefixtures("small_parts")
def test_ctrl_c_says_what_is_done_and_the_same_command_resumes(
    carl: Run, run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for batches, words in (
        (1, NOTHING_DONE),
        (7, "interrupted; 48 of 96 images are done and kept in e.parquet.parts: the same command resumes"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr("tests.use.test_embed.Killed", KeyboardInterrupt)
            stop_after(patch, batches)
            done = carl("embed", run, folder, "-o", "e.parquet")
        assert (done.returncode, done.stderr.strip()) == (130, f"carl: {words}")
    done = carl("embed", run, folder, "-o", "e.parquet")
    assert done.returncode == 0, done.stderr
    assert "resumed after the 48 images that were done" in done.stdout


@pytest.mark.usefixtures("small_parts")
def test_ctrl_c_in_a_command_that_embeds_for_itself_says_the_same_and_the_next_call_resumes(
    carl: Run, run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    command = ["group", run, folder, "--groups", "3", "-o", "g.parquet"]
    with monkeypatch.context() as patch:
        patch.setattr("tests.use.test_embed.Killed", KeyboardInterrupt)
        stop_after(patch, 7)
        done = carl(*command)
    assert done.returncode == 130
    assert "interrupted; 48 of 96 images are done and kept in " in done.stderr
    assert done.stderr.strip().endswith("the same command resumes")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    seen = stop_after(monkeypatch, 100)
    assert carl(*command).returncode == 0
    assert sum(seen) == 48


def test_ctrl_c_before_the_work_begins_says_what_a_new_call_does(
    carl: Run, run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    for before in ("load_for_all_processes", "open_images"):
        with monkeypatch.context() as patch:
            patch.setattr(embed_module, before, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            done = carl("embed", run, folder, "-o", "e.parquet")
        assert (done.returncode, done.stderr.strip()) == (130, f"carl: {NOTHING_DONE}")


@pytest.fixture
def kept_often(small_parts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done is kept after every batch. A batch of six does not divide a part of sixteen."""
    monkeypatch.setattr(embed_module, "KEEP_EVERY", 0.0)


@pytest.mark.usefixtures("kept_often")
@pytest.mark.parametrize("name", ["e.parquet", "e.npy", "e.csv", "many"])
def test_work_of_a_part_that_is_not_whole_is_kept_and_the_end_has_the_same_bits(
    trained: TrainedModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    shutil.copytree(folder, tmp_path / "photos")
    for bad in ("000", "007", "049", "050"):  # before, within and between batches, and at the end of a part
        (tmp_path / f"photos/part {int(bad) // 50}" / f"{bad}.png").write_bytes(b"no image")
    source, options = open_images(str(tmp_path / "photos")), EmbedOptions(batch_size=6)
    (tmp_path / "whole").mkdir()
    monkeypatch.setattr(embed_module, "KEEP_EVERY", math.inf)
    expected = embed(trained, source, tmp_path / "whole" / name, options=options)
    whole = {path.relative_to(tmp_path / "whole"): path for path in (tmp_path / "whole").rglob("*") if path.is_file()}
    monkeypatch.setattr(embed_module, "KEEP_EVERY", 0.0)
    done_before = 0
    for batches in (1, 1, 1, 5, 2, 100):  # each call resumes what the one before kept
        with monkeypatch.context() as patch:
            seen = stop_after(patch, batches)
            stopped = nullcontext() if batches == 100 else pytest.raises(Killed)
            with stopped:
                done = embed(trained, source, tmp_path / name, options=options)
        done_before += sum(seen)
    assert done_before == done.rows == expected.rows == 92  # none was computed twice
    assert done.bad == expected.bad
    for relative, path in whole.items():
        assert (tmp_path / relative).read_bytes() == path.read_bytes(), relative
    assert not (tmp_path / f"{name}.parts").exists()


@pytest.mark.usefixtures("kept_often")
def test_what_is_kept_of_a_part_is_counted_and_made_again_if_it_is_damaged(
    carl: Run, run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr("tests.use.test_embed.Killed", KeyboardInterrupt)
        stop_after(patch, 3)
        done = carl("embed", run, folder, "-o", "e.parquet")
    assert done.stderr.strip() == (
        "carl: interrupted; 24 of 96 images are done and kept in e.parquet.parts: the same command resumes"
    )
    assert_refused(carl("embed", run, folder, "-o", "e.parquet", "--dtype", "float16"), ["embedded with", "--force"])
    cut(tmp_path / "e.parquet.parts" / "000001.begun.parquet", b"")
    done = carl("embed", run, folder, "-o", "e.parquet")
    assert "resumed after the 16 images that were done" in done.stdout


@pytest.mark.usefixtures("small_parts")
def test_within_a_part_work_is_kept_every_half_minute(
    trained: TrainedModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock = Clock()
    monkeypatch.setattr("carl.use.embed.time.monotonic", clock)
    plain, kept = Parts.write_begun, []

    def write_begun(parts: Parts, number: int, rows: pa.Table, bad: Sequence[BadFile]) -> None:
        kept.append((number, len(rows)))
        plain(parts, number, rows, bad)

    monkeypatch.setattr(Parts, "write_begun", write_begun)
    whole = TrainedModel.represent

    def represent(self: TrainedModel, pixels: np.ndarray) -> object:
        clock.now += 16 if len(kept) == 0 else 1  # the first part takes 64 seconds in batches of 4
        return whole(self, pixels)

    monkeypatch.setattr(TrainedModel, "represent", represent)
    embed(trained, open_images(str(folder)), tmp_path / "e.parquet", options=EmbedOptions(batch_size=4))
    assert kept == [(0, 8)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_tells_rate_and_time_left(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    clock = Clock()
    progress = TimedProgress(clock)
    for done in range(0, 40_000, 50):  # 50 images/s, from 10,000 on after a resume
        progress("embedding", 10_000 + done, 50_000)
        clock.now += 1
    said = capsys.readouterr().err
    if terminal:
        lines = [line.strip() for line in said.split("\r")[1:]]
        assert lines[0] == "embedding: 10,000 of 50,000 images"
        assert lines[20] == "embedding: 11,000 of 50,000 images, 50 images/s, 13m00s left"
        assert lines[-1].endswith("1s left")
    else:
        lines = said.splitlines()
        assert lines[0] == "carl: embedding: 10,500 of 50,000 images, 50 images/s, 13m10s left"
        assert len(lines) == 1 + (800 - 10) // 60  # one line per minute after the first


def test_progress_without_a_total_tells_the_rate_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    clock = Clock()
    progress = TimedProgress(clock)
    for done in range(0, 20, 2):
        progress("embedding", done, 0)
        clock.now += 1
    assert capsys.readouterr().err.split("\r")[-1].strip() == "embedding: 18 images, 2.0 images/s"


def test_progress_of_steps_tells_the_time_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    clock = Clock()
    progress = TimedProgress(clock, unit="")
    progress("preparing", 0, 0)
    for done in range(0, 20, 2):
        progress("grouping", done, 20)
        clock.now += 1
    lines = [line.strip() for line in capsys.readouterr().err.split("\r")[1:]]
    assert lines[0] == "preparing ..."
    assert lines[-1] == "grouping: 18 of 20, 1s left"


# Addresses


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The folder of the test, as a loopback web server gives it."""
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("shards")
def test_shards_at_an_address_are_embedded_as_those_on_the_disk(
    carl: Run, run: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(embed_module, "PART", 10)
    assert carl("embed", run, "shards/{000..001}.tar", "-o", "local.parquet").returncode == 0
    done = carl("embed", run, f"{address}/shards/{{000..001}}.tar", "-o", "remote", "--rows-per-file", "9")
    assert done.returncode == 0, done.stderr
    local, remote = EmbeddingFile(tmp_path / "local.parquet"), EmbeddingFile(tmp_path / "remote")
    assert remote.names() == [f"{address}/{name}" for name in local.names()]
    assert np.array_equal(remote.embeddings(), local.embeddings())
    found = carl("search", run, "remote", f"{address}/shards/001.tar#5", "-k", "2")
    assert found.returncode == 0, found.stderr
