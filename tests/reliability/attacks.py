"""Commands in circumstances that a user would not choose: real processes, several at once, in places that are hostile.

Each attack makes one folder of its own, starts the command there in a way that it draws at random, and returns what
did not hold, one line each. soak.py repeats them for minutes; `ATTACKS` lists them.
"""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from carl.data.sources.shapes import make_shapes
from tests.conftest import SMALL
from tests.weights import assert_same_weights

SECONDS = 240.0  # for one command on a busy machine; what takes longer hangs
MEMORY = 3 * 2**30  # bytes of one process; a command on 40 tiny images takes 0.6 GB
TRAIN = [*SMALL, "--set", "probe.every=0", "--set", "log.report=false"]
COMMANDS = ("pretrain", "eval", "report", "embed", "search", "curate", "group", "look", "export", "info")
STRANGER = 12345  # a user id that has no name, as in `docker run --user 12345`


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it wrote."""

    words: str
    code: int | None  # None if it had to be stopped
    output: str
    error: str
    why: str = ""  # it was stopped


@dataclass
class Ground:
    """What attacks need and leave as it is."""

    root: Path
    program: list[str]  # how the command is started
    commands: int = 0  # started until now
    seconds: float = SECONDS
    expected: dict[str, list[str]] = field(default_factory=dict)  # what commands find if nothing is wrong

    @property
    def photos(self) -> Path:
        return self.root / "photos"

    @property
    def others(self) -> Path:
        return self.root / "others"

    @property
    def data(self) -> Path:
        return self.root / "small.npz"

    @property
    def many(self) -> Path:
        """Embeddings in several files."""
        return self.root / "many"

    @property
    def run(self) -> Path:
        return self.root / "run"

    def command(self, name: str, images: Path | None = None) -> list[str]:
        """The words of a command that succeeds, without its output."""
        photos, query = str(images or self.photos), str(self.photos / "a" / "000.png")
        return {
            "pretrain": ["pretrain", str(self.data), *TRAIN],
            "eval": ["eval", str(self.run), "--force"],
            "report": ["report", str(self.run)],
            "embed": ["embed", str(self.run), photos],
            "search": ["search", str(self.run), photos, query, "-k", "3"],
            "curate": ["curate", str(self.run), photos, "--keep", "5"],
            "group": ["group", str(self.run), photos, "--groups", "3"],
            "look": ["report", str(self.run), photos, "--map", "pca"],  # a report of images
            "export": ["export", str(self.run), "--to", "safetensors"],
            "info": ["data", "info", photos],
        }[name]

    def start(self, folder: Path, words: Sequence[str | Path], **options: Any) -> subprocess.Popen[bytes]:
        self.commands += 1
        usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": self.environment(folder)}
        words = [*self.program, *map(str, words)]
        return subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL, **{**usual, **options})

    def environment(self, folder: Path) -> dict[str, str]:
        return {**os.environ, "CARL_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}

    def end(self, process: subprocess.Popen[bytes]) -> Said:
        """Wait for a command, and stop one that hangs or takes all memory."""
        deadline, why = time.monotonic() + self.seconds, ""
        while not why:
            try:
                output, error = process.communicate(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    why = f"it hangs: stopped after {self.seconds:.0f} s"
                elif (used := _resident(process.pid)) > MEMORY:
                    why = f"it took {used / 2**30:.1f} GB of memory"
        else:
            process.kill()
            output, error = process.communicate()
        words = " ".join(list(process.args)[len(self.program) :])
        read = ((text or b"").decode(errors="replace") for text in (output, error))
        return Said(words, None if why else process.returncode, *read, why)

    def call(self, folder: Path, words: Sequence[str | Path], **options: Any) -> Said:
        return self.end(self.start(folder, words, **options))


def prepare(root: Path) -> Ground:
    """Two folders of images, a small data set and a trained run."""
    beside = Path(sys.executable).with_name("carl")  # as a user starts it
    program = [str(beside)] if beside.is_file() else [sys.executable, "-P", "-c", "from carl.cli import main; main()"]
    ground = Ground(root, program)
    (images, labels), (tests, test_labels) = make_shapes(96, 0), make_shapes(32, 1)
    np.savez(ground.data, x_train=images, y_train=labels, x_test=tests, y_test=test_labels)
    for folder, first, count in ((ground.photos, 0, 40), (ground.others, 40, 24)):
        for number in range(count):
            path = folder / "ab"[number % 2] / f"{number:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[first + number]).save(path)
    done = ground.call(root, [*ground.command("pretrain"), "--out", ground.run])
    if done.code == 0:
        done = ground.call(root, [*ground.command("embed"), "-o", ground.many, "--rows-per-file", "20"])
    if done.code != 0:
        raise RuntimeError(done.error)
    for name in ("search", "curate", "group"):
        ground.expected[name] = answer(ground.call(root, ground.command(name)).output)
    return ground


def wrong(said: Said, *codes: int, heard: bool = True) -> list[str]:
    """What is wrong with how a command ended: it should have one of these codes, and at 2 one line that says why.

    Not `heard` is a command whose standard error leads nowhere.
    """
    found = []
    if said.why or said.code not in codes:
        found.append(said.why or f"exit code {said.code}, not {' or '.join(map(str, codes))}: {said.error[-200:]}")
    if "Traceback (most recent call last)" in said.output + said.error:
        found.append(f"traceback: {said.error[-200:]}")
    lines = said.error.strip().split("\n")
    if said.code == 2 and heard and not lines[-1].startswith("carl: "):
        found.append(f"the last line of its words is {lines[-1][:200]!r}")
    return [f"carl {said.words}: {one}" for one in found]


def two_writers(ground: Ground, folder: Path, draw: random.Random) -> list[str]:
    """Two or three processes at one output, of which one may be killed; then one more, whose result must be right."""
    name = draw.choice(["embed", "embed", "search", "curate", "group", "look", "pretrain", "report"])
    output = draw.choice(["e.parquet", "e.npy", "e.csv", "e"]) if name == "embed" else f"{name}.csv"
    option = "--out" if name == "pretrain" else "-o"
    extra = ["--resume", "auto"] if name == "pretrain" else ["--force"]
    sources = [ground.photos, ground.others if name == "embed" and draw.random() < 0.5 else ground.photos]
    processes = []
    for number in range(draw.choice([2, 2, 3])):
        words = [*ground.command(name, sources[number % 2]), option, output, *extra]
        processes.append(ground.start(folder, words))
        time.sleep(draw.choice([0.0, draw.uniform(0, 3)]))
    victim = draw.choice([None, processes[0], processes[-1]])
    if victim is not None:
        time.sleep(draw.uniform(0, 4))
        victim.kill()
    found = []
    for process in processes:
        found += wrong(ground.end(process), *((0, 2, -9) if process is victim else (0, 2)))
    if name == "embed" and (folder / output).exists():
        found += _other_rows(folder / output, sources)
    last = ground.call(folder, [*ground.command(name), option, output, *extra])
    found += wrong(last, 0)
    if name == "embed":
        found += _other_rows(folder / output, [ground.photos])
        found += [f"{output}.parts is left" for path in [folder / f"{output}.parts"] if path.exists()]
    elif name == "pretrain":
        found += _other_weights(ground, folder / output)
    elif name in ground.expected and answer(last.output) != ground.expected[name]:
        found.append(f"{name} answers {answer(last.output)}, not {ground.expected[name]}")
    return found


def answer(output: str) -> list[str]:
    """What a command found, without the lines that name the files it wrote or how long it took."""
    own = ("sheet: ", "list: ", "pictures: ", "table: ")
    return [re.sub(", found in .*", "", line) for line in output.splitlines() if not line.startswith(own)]


MODULES = (
    "carl",
    "torch",
    "numpy",
    "PIL",
    "pydantic",
    "timm",
    "pyarrow",
    "click",
    "filelock",
    "safetensors",
    "sklearn",
)
CUSTOM = ("sitecustomize", "usercustomize", "conftest")


def hostile_folder(ground: Ground, folder: Path, draw: random.Random) -> list[str]:
    """A working directory that holds files and packages with the names of modules: none is executed."""
    trace = folder / "executed"
    code = f"open({str(trace)!r}, 'w')\nraise SystemExit('hostile')\n"
    for name in {*sys.stdlib_module_names, *MODULES, *CUSTOM}:
        path = folder / name / "__init__.py" if draw.random() < 0.3 else folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
    (folder / "matplotlibrc").write_text("backend: module://hostile\n")
    shutil.copytree(ground.photos, folder / "images")
    name = draw.choice([*COMMANDS, "compare"])
    places = {"pretrain": ["--out", "made"], "eval": ["--out", "made"], "info": []}
    if name == "compare":
        values = ["--set", "model.backbone=test_resnet", "--set", "train.batch_size=32"]
        words = ["compare", str(ground.data), "--methods", "carl", "--epochs", "1", "--out", "side", *values]
    else:
        words = [*ground.command(name, Path("images")), *places.get(name, ["-o", "made.csv"])]
    found = wrong(ground.call(folder, words), 0)
    return [*found, *([f"{name} executed a file of the working directory"] if trace.exists() else [])]


def _socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, _within(path.parent):  # a path of a socket must be short
        made.bind(path.name)


class _within:
    def __init__(self, folder: Path) -> None:
        self.folder, self.before = folder, os.getcwd()

    def __enter__(self) -> None:
        os.chdir(self.folder)

    def __exit__(self, *_: object) -> None:
        os.chdir(self.before)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": _socket_at,
    "zeros without end": lambda path: path.symlink_to("/dev/zero"),
    "null device": lambda path: path.symlink_to(os.devnull),
    "full device": lambda path: path.symlink_to("/dev/full"),
    "memory": lambda path: path.symlink_to("/proc/self/mem"),
    "folder": Path.mkdir,
    "link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
    "link in a circle": lambda path: path.symlink_to(path.name),
    "empty file": Path.touch,
}
# Where such a file may lie, and the command that would read it; {run} is a copy of the run directory.
INPUTS: dict[str, list[str]] = {
    **{f"x.{kind}": ["data", "info", f"x.{kind}"] for kind in ("npy", "npz", "parquet", "tar", "jpg", "csv", "txt")},
    **{f"images/x.{kind}": ["embed", "{run}", "images", "-o", "e.npy"] for kind in ("jpg", "png", "tif", "parquet")},
    "images/a/x.jpg": ["pretrain", "images", *TRAIN, "--out", "made"],
    "good-labels.npy": ["data", "info", "good.npy"],
    "good-test.npy": ["data", "info", "good-train.npy"],
    "values.toml": ["pretrain", "{data}", *TRAIN, "--config", "values.toml", "--out", "made"],
    "weights.safetensors": ["pretrain", "{data}", *TRAIN, "--init", "weights.safetensors", "--out", "made"],
    "weights.pt": ["eval", "weights.pt", "--data", "{data}", "--backbone", "test_resnet", "--out", "made"],
    "query.png": ["search", "{run}", "{photos}", "query.png", "-o", "made.html"],
    "e.parquet": ["search", "{run}", "e.parquet", "{photos}/a/000.png", "-o", "made.html"],
    "many/00001.parquet": ["group", "{run}", "many/{{00000..00001}}.parquet", "-o", "made.csv"],
    "names.json": ["group", "{run}", "{photos}", "--names", "names.json", "-o", "made.csv"],
    "list.csv": ["links", "list.csv", "made"],
    "timm.pth": ["embed", "timm:test_resnet@timm.pth", "{photos}", "-o", "made.npy"],
    "run/config.toml": ["embed", "{run}", "{photos}", "-o", "e.npy"],
    "run/data.json": ["embed", "{run}", "{photos}", "-o", "e.npy"],
    "run/encoder.safetensors": ["embed", "{run}", "{photos}", "-o", "e.npy"],
    "run/head.safetensors": ["embed", "{run}", "{photos}", "-o", "e.npy"],
    "run/checkpoint.pt": ["pretrain", "--resume", "run", "--epochs", "4"],
    "run/metrics.jsonl": ["report", "{run}", "-o", "made.html"],
    "run/gallery.npz": ["report", "{run}", "-o", "made.html"],
    "run/environment.json": ["report", "{run}", "-o", "made.html"],
    "run/results/knn-small.json": ["report", "{run}", "-o", "made.html"],
}


def special_inputs(ground: Ground, folder: Path, draw: random.Random) -> list[str]:
    """A pipe, a device, a socket, a folder or a bad link where a command expects a file: it is refused or left out."""
    place, kind = draw.choice(list(INPUTS)), draw.choice(list(SPECIAL))
    shutil.copytree(ground.run, folder / "run")
    shutil.copytree(ground.photos, folder / "images")
    for name in ("good.npy", "good-train.npy"):
        np.save(folder / name, np.zeros((4, 8, 8, 3), np.uint8))
    if place.startswith("many/"):
        shutil.copytree(ground.many, folder / "many")
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        path.unlink()
    SPECIAL[kind](path)
    before = _kind(path)
    names = {"run": "run", "data": str(ground.data), "photos": str(ground.photos)}
    found = wrong(ground.call(folder, [word.format(**names) for word in INPUTS[place]]), 0, 2)
    made_anew = place.startswith("run/") and kind in ("link to nothing", "empty file", "null device")
    if _kind(path) != before and not made_anew:
        found.append(f"it is no longer {before}, but {_kind(path)}")
    return [f"{kind} as {place}: {one}" for one in found]


OUTPUTS: dict[str, tuple[str, ...]] = {  # what comes before the output, after the words of the command
    "report": ("-o",),
    "search": ("-o",),
    "curate": ("-o",),
    "group": ("-o",),
    "look": ("-o",),
    "info": ("--sheet",),
    "embed": ("-o",),
    "export": ("-o",),
    "eval": ("--out",),
    "pretrain": ("--out",),
}


def special_outputs(ground: Ground, folder: Path, draw: random.Random) -> list[str]:
    """A pipe, a device, a socket, a folder, a link or a file of the user's as the output: it stays what it is."""
    name = draw.choice(list(OUTPUTS))
    kinds = {**SPECIAL, "file": lambda path: path.write_text("precious"), "link to a file": _link_to_file}
    kind = draw.choice(list(kinds))
    names = {"embed": ["e.parquet", "e.npy", "e.csv", "e"], "group": ["x.parquet", "x.csv"]}
    path = folder / draw.choice(names.get(name, ["made", "x.csv"]))
    kinds[kind](path)
    before, force = _kind(path), [] if name == "pretrain" or draw.random() < 0.7 else ["--force"]
    if name == "eval":
        force = []  # it is given by the command already
    with ExitStack() as stack:
        if kind == "pipe":  # someone reads it
            stack.callback(_stop, subprocess.Popen(["cat", path], stdout=subprocess.DEVNULL))
        said = ground.call(folder, [*ground.command(name), *OUTPUTS[name], path.name, *force])
    found = wrong(said, 0, 2)
    if _kind(path) != before:
        found.append(f"it is no longer {before}, but {_kind(path)}")
    if "file" in kind.split() and kind != "empty file" and not force and path.read_text(errors="replace") != "precious":
        found.append("a file of the user's was replaced without --force")
    return [f"{kind} as output of {name}: {one}" for one in found]


def _link_to_file(path: Path) -> None:
    path.with_name("real").write_text("precious")
    path.symlink_to("real")


def lost_output(ground: Ground, folder: Path, draw: random.Random) -> list[str]:
    """Standard output and error that end, are full or closed, and signals: training ends with the same bits."""
    name = draw.choice(["pretrain"] * 3 + [name for name in COMMANDS if name not in ("pretrain", "export")])
    way = draw.choice(["reader goes", "full disk", "closed", *(["signal"] if name == "pretrain" else [])])
    places = {"pretrain": ["--out", "made", "--resume", "auto"], "eval": ["--out", "made"], "info": []}
    words = [*ground.command(name), *places.get(name, ["-o", "made.csv"])]
    streams = draw.choice([("stdout",), ("stderr",), ("stdout", "stderr")])
    codes: tuple[int, ...] = (0,) if name == "pretrain" else (0, 2, 141)
    if way == "closed":
        closing = " ".join({"stdout": "1>&-", "stderr": "2>&-"}[stream] for stream in streams)
        shell = ["sh", "-c", f'exec "$@" {closing}', "sh"]
        said = replace_program(ground, [*shell, *ground.program]).call(folder, words)
        ground.commands += 1
    elif way == "full disk":
        with open("/dev/full", "wb") as full:
            said = ground.call(folder, words, **dict.fromkeys(streams, full))
    elif way == "reader goes":
        process = ground.start(folder, words)
        for stream in streams:
            pipe = getattr(process, stream)
            if draw.random() < 0.5:
                os.read(pipe.fileno(), draw.randrange(1, 200))
            pipe.close()
            setattr(process, stream, None)
        said = ground.end(process)
    else:
        process = ground.start(folder, words)
        time.sleep(draw.uniform(0, 12))
        process.send_signal(draw.choice([signal.SIGHUP, signal.SIGINT, signal.SIGTERM]))
        said, codes = ground.end(process), (0, 129, 130, 143, -1, -2, -15)
    found = wrong(said, *codes, heard=way == "signal" or "stderr" not in streams)
    if name == "pretrain":
        if way == "signal":
            found += wrong(ground.call(folder, words), 0)
        found += _other_weights(ground, folder / "made")
    return [f"{way} ({' and '.join(streams)}): {one}" for one in found]


def replace_program(ground: Ground, program: list[str]) -> Ground:
    return Ground(ground.root, program, seconds=ground.seconds, expected=ground.expected)


def no_home(ground: Ground, folder: Path, draw: random.Random) -> list[str]:
    """No home, one that does not exist or one that is a file; and, where this process may, a user without a name."""
    name = draw.choice(COMMANDS)
    home = draw.choice([None, "/nonexistent/home", str(ground.data), "/proc/1", ""])
    environment = {key: value for key, value in ground.environment(folder).items() if key not in ("CARL_CACHE", "HOME")}
    environment = {key: value for key, value in environment.items() if not key.startswith("XDG_")}
    environment |= {"HOME": home} if home is not None else {}
    places = {"pretrain": ["--out", "made"], "eval": ["--out", "made"], "info": []}
    words = [*ground.command(name), *places.get(name, ["-o", "made.csv"])]
    here = ground
    if stranger := as_stranger():
        os.chown(folder, STRANGER, STRANGER)
        here = replace_program(ground, [*stranger, *ground.program])
        ground.commands += 1
    said = here.call(folder, words, env=environment)
    needs_cache = name in ("search", "curate", "group", "look")
    found = wrong(said, 2 if needs_cache else 0)
    if needs_cache and "CARL_CACHE" not in said.error:
        found.append(f"it does not name CARL_CACHE: {said.error[-200:]}")
    if (folder / "~").exists():
        found.append("it made a folder named ~")
    if name == "pretrain" and not found:
        found += _other_weights(ground, folder / "made")
    return [f"HOME={home!r}: {one}" for one in found]


def as_stranger() -> list[str]:
    """What starts a command as a user without a name, who may read everything and write only what is theirs."""
    if os.name == "nt" or os.getuid() != 0 or shutil.which("setpriv") is None:
        return []
    rights = "-all,+dac_read_search"
    return [
        "setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups",
        f"--inh-caps={rights}", f"--ambient-caps={rights}", "--",
    ]  # fmt: skip


class Attack(NamedTuple):
    make: Callable[[Ground, Path, random.Random], list[str]]
    promise: str


ATTACKS: Mapping[str, Attack] = {
    "two_writers": Attack(two_writers, "two or three processes at one output, one may be killed: a whole result"),
    "hostile_folder": Attack(hostile_folder, "a working directory with files named like modules: none is executed"),
    "special_inputs": Attack(special_inputs, "pipes, devices, sockets, bad links as inputs: refused or left out"),
    "special_outputs": Attack(
        special_outputs, "the same, and files of the user's, as outputs: they stay what they are"
    ),
    "lost_output": Attack(
        lost_output, "output that ends, is full or closed, and signals: training ends with the same bits"
    ),
    "no_home": Attack(no_home, "no home folder, and a user without a name: only the cache is missing"),
}


def _kind(path: Path) -> str:
    """What is there, links not followed; a link with where it leads."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return "there"
    kind = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    return f"a link to {os.readlink(path)}" if stat.S_ISLNK(mode) else kind.get(stat.S_IFMT(mode), "a device")


def _other_rows(output: Path, sources: Sequence[Path]) -> list[str]:
    """Whether a file of embeddings has other rows than those of one of the sources, in order."""
    import csv

    import pyarrow.parquet as pq

    if output.suffix == ".parquet" or output.is_dir():
        names = pq.read_table(output).column("path").to_pylist()
    else:
        table = output.with_name(f"{output.stem}.rows.csv") if output.suffix == ".npy" else output
        with table.open(newline="") as file:
            names = [row["path"] for row in csv.DictReader(file)]
        if output.suffix == ".npy" and len(np.load(output, allow_pickle=False)) != len(names):
            return [f"{output.name} and {table.name} have different numbers of rows"]
    expected = [[str(path) for path in sorted(source.rglob("*.png"))] for source in sources]
    return [] if names in expected else [f"{output.name} has {len(names)} rows that are not those of one call"]


def _other_weights(ground: Ground, run: Path) -> list[str]:
    try:
        assert_same_weights(ground.run, run)
    except (AssertionError, OSError) as error:
        return [f"other weights than of a run that nothing disturbed: {type(error).__name__} {str(error)[:200]}"]
    return []


def _resident(process: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        return 1024 * int(Path(f"/proc/{process}/status").read_text().split("VmRSS:")[1].split()[0])
    return 0


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@dataclass
class Losses:
    """What an attack found."""

    rounds: int = 0
    commands: int = 0
    lost: int = 0  # rounds in which something did not hold
    failures: list[str] = field(default_factory=list)


def attack(ground: Ground, name: str, number: int, seed: int) -> Losses:
    """One round of an attack, in a folder that is removed unless something did not hold."""
    folder = ground.root / f"{name}-{number}"
    folder.mkdir()
    before = ground.commands
    try:
        failures = ATTACKS[name][0](ground, folder, random.Random(f"{seed} {name} {number}"))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            raise
        failures = [f"{type(error).__name__}: {error}"]
    shutil.rmtree(folder, ignore_errors=True)
    return Losses(1, ground.commands - before, int(bool(failures)), [f"{name} {number}: {one}" for one in failures])
