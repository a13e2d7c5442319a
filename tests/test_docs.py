"""What the README and docs/ say is true: blocks run, commands parse, tables match the program, links lead somewhere."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import carl
from carl.cli import cli
from carl.config import Config, parse_assignments_per_method, resolve
from carl.views.configured import check_views
from carl.views.operations import option_owners
from tests import documents
from tests.browser import browser, find_browser
from tests.conftest import Run
from tests.documents import NAMES, PAGES, ROOT, Block, all_commands, page_named

LANGUAGES = {"sh", "python", "toml", "math", "bibtex", ""}  # without a language: output, or a diagram
# Blocks that are marked as not run; each has its reason in a comment before it. A new one is a decision: add it here.
NOT_RUN = {
    ("adding-a-method.md", "a part of a file; tests/methods/test_adding_a_method.py compares it"),
    ("scaling.md", "needs SLURM"),
}
STALE = "`python -m tests.documents` writes the tables anew"
LONGEST_SENTENCE = 45  # words
LONGEST_README = 130  # lines
SMALLER = [  # a tiny encoder, one epoch of a few steps; what is said later on the command line wins
    "--backbone", "test_resnet", "--batch-size", "8", "--prototypes", "10", "--epochs", "1", "--image-size", "32",
    "--prior-epochs", "1", "--set", "train.accumulate=1", "--set", "probe.images=16", "--set", "probe.train_images=16",
]  # fmt: skip
METHOD_ONLY = ("--prototypes", "--prior-epochs")  # options that methods other than CARL do not all have
CHANGES = [  # in blocks of Python: smaller, and on data that are there
    ('open_dataset("shapes")', 'open_dataset("loop.npz")'),
    ("range(10)", "range(1)"),
    ('("resnet18", num_classes=0)\nencoder.load', '("test_resnet", num_classes=0)\nencoder.load'),
    ("epochs=20)", 'epochs=1, backbone="test_resnet", batch_size=8, settings={"log.report": False})'),
]  # fmt: skip


# Every block is accounted for.


def test_every_block_is_in_a_language_that_is_tested():
    wrong = [b.where for page in PAGES for b in documents.blocks(page) if b.language not in LANGUAGES]
    assert not wrong, f"use one of {sorted(LANGUAGES)}"


def test_blocks_that_are_not_run_are_these():
    marked = {(b.page, b.not_run) for page in PAGES for b in documents.blocks(page) if b.not_run is not None}
    assert marked == NOT_RUN


# Commands are understood.


def shell_blocks() -> list[Block]:
    return documents.blocks_of("sh") + [b for b in documents.blocks_of("") if b.text.startswith("carl ")]


def test_every_command_line_is_one_that_exists():
    for block in shell_blocks():
        for words in documents.commands(block):
            try:
                check_command(words, block)
            except (click.ClickException, carl.UserError, AssertionError, SystemExit) as error:
                message = error.format_message() if isinstance(error, click.ClickException) else error
                pytest.fail(f"{block.where}: {' '.join(words)}: {message}")


def check_command(words: list[str], block: Block) -> None:
    """Fails unless the program exists and takes these options."""
    match words:
        case ["carl", *arguments]:
            check_carl(arguments)
        case ["torchrun", *arguments] | ["srun", "torchrun", *arguments]:
            check_torchrun(arguments)
        case ["eval", nested]:
            check_carl(nested.removeprefix("$(carl ").removesuffix(")").split())
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
        case ["pip", "install", *requirements]:
            check_extras(requirements)
        case ["pipx", "install", *requirements]:
            check_extras(requirements)
        case ["uvx", "--from", requirement, "carl", *arguments]:
            check_extras([requirement])
            check_carl(arguments)
        case ["docker", "build", *options]:
            arguments = re.findall(r"^ARG (\w+)=", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
            assert {word.partition("=")[0] for word in options if "=" in word} <= set(arguments)
        case ["docker", "run", "--rm", "-v", "$PWD:/data", "carl", *arguments]:
            check_carl(arguments)
        case [".", ".venv/bin/activate"]:
            pass
        case ["python", "-m", "pytest", path, *_]:
            assert (ROOT / path).exists()
        case ["python", "-m", module, *_]:
            assert (ROOT / f"{module.replace('.', '/')}.py").is_file()
        case _:
            assert block.not_run, "an unknown program; teach this test, or mark the block as not run"


def check_carl(arguments: list[str]) -> click.Context | None:
    """The command parsed, and what it sets checked against the configuration of its method."""
    if arguments[0] in ("--help", "--version"):
        return None
    command, rest = cli.commands.get(arguments[0]), arguments[1:]
    assert command is not None, f"no command {arguments[0]!r}"
    if isinstance(command, click.Group):
        command, rest = command.commands.get(rest[0]), rest[1:]
        assert command is not None, f"no command {' '.join(arguments[:2])!r}"
    if "--help" in rest:
        return None
    context = command.make_context(arguments[0], list(rest))
    check_settings(context.params)
    return context


def check_settings(parameters: dict[str, Any]) -> None:
    from carl.methods import METHODS, find_method

    layer, own = parse_assignments_per_method(parameters.get("assignments") or ())
    assert "methods" in parameters or not own, "only carl compare takes METHOD:SECTION.KEY=VALUE"
    for name, values in own.items():
        resolve([{"data": {"source": "x"}}, values], find_method(name).Options)
    method = find_method(parameters.get("method") or layer.get("method", {}).get("name", "carl"))
    check_views(resolve([{"data": {"source": "x"}}, layer], method.Options).views)
    named = (parameters.get("methods") or "carl").split(",")
    assert set(named) <= set(METHODS)


def check_torchrun(arguments: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(arguments)
    assert given.module, "torchrun -m carl"
    assert given.training_script == "carl"
    context = check_carl(given.training_script_args)
    assert context is not None
    assert context.params["out"] is not None, "a run under torchrun needs --out"


def check_extras(requirements: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name in re.findall(r"carl-ssl\[(\w+)\]", " ".join(requirements)):
        assert name in extras, f"no extra {name!r}"


def test_a_wrong_flag_or_key_or_program_is_noticed():
    block = Block("a page", 1, "sh", "", None)
    for line in (
        "carl pretrain photos/ --epoch 3", "carl train photos/", "carl data show x", "carl eval RUN --protocol magic",
        "carl pretrain photos/ --set train.epoch=3", "carl pretrain photos/ --set views.bluur=0.3",
        "carl pretrain photos/ --set method.predictor_dim=3",
        "carl compare shapes --methods carl,simclear", "make dmo", "pip install 'carl-ssl[onxx]'", "curl address",
        "docker build --build-arg DEVISE=cuda .",
        "torchrun --nproc-per-node 2 -m carl pretrain photos/", "python -m benchmarks.nothing",
    ):  # fmt: skip
        words = next(documents.commands(Block("a page", 1, "sh", line, None)))
        with pytest.raises((click.ClickException, carl.UserError, AssertionError)):
            check_command(words, block)


# Commands run, on small data.


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, files of images, and runs by the names that the pages use."""
    from carl.data.sources.shapes import make_shapes

    root = tmp_path_factory.mktemp("world")
    images, labels = make_shapes(140, 0)
    write_photos(root / "photos", images[:24])
    write_parquet(root / "cifar10-train.parquet", images[:24], labels[:24])
    write_parquet(root / "cifar10-test.parquet", images[24:40], labels[24:40])
    np.savez(root / "loop.npz", images=images, labels=labels)
    for name in ("shapes", "cifar10", "cifar100"):
        train, test = make_shapes(48, len(name)), make_shapes(24, 1)
        np.savez(root / f"{name}.npz", x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])
    for source, run in ((root / "shapes.npz", root / "RUN"), (root / "photos", root / "runs" / "photos")):
        cli.main(["pretrain", str(source), *SMALLER, "--out", str(run)], standalone_mode=False)
    shutil.copytree(root / "runs" / "photos", root / "runs" / "photos-carl")
    shutil.copytree(root / "runs" / "photos", root / "runs" / "demo")
    (root / "RUN" / "encoders").mkdir()
    shutil.copy(root / "RUN" / "encoder.safetensors", root / "RUN" / "encoders" / "epoch-0100.safetensors")
    write_weights(root / "RUN" / "encoder.safetensors", root / "weights.pth")
    (root / "groups.names.json").write_text('{"groups": {"0": "owls"}}')
    return root


def write_photos(folder: Path, images: np.ndarray) -> None:
    from PIL import Image

    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / ("cat.jpg" if number == 0 else f"{number:02d}.png"))


def write_parquet(file: Path, images: np.ndarray, labels: np.ndarray) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    def encoded(image: np.ndarray) -> dict[str, Any]:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        return {"bytes": buffer.getvalue(), "path": None}

    pq.write_table(pa.table({"image": [encoded(image) for image in images], "label": labels}), file)


def write_weights(encoder: Path, file: Path) -> None:
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(encoder), file)


def shortened(arguments: list[str]) -> list[str] | None:
    """The command made small, or None for one that takes long even so, or needs what is not here."""
    match arguments:
        case ["compare", *_]:
            return None  # eight trainings in processes of their own: tests/reproduction
        case ["reproduce", *_]:
            return arguments if "--dry-run" in arguments else None
        case ["pretrain", *_]:
            return shortened_training(arguments)
        case ["eval", target, *rest]:
            return shortened_evaluation(target, rest)
        case ["embed" | "export" | "group", *_]:
            return [*named(arguments), "--force"]
        case ["doctor", *_]:
            return [word for word in arguments if word != "--check"] + ["--no-speed"]  # tests/devices checks
        case _:
            return named(arguments)


def shortened_evaluation(target: str, rest: list[str]) -> list[str]:
    trains = {"linear", "transfer", "finetune", "semi"} & set(rest)
    return [
        "eval",
        "RUN" if target == "runs/photos" else target,  # photos have no labels
        *named(["shapes" if word == "photos/" else word for word in rest]),
        *(["--epochs", "1"] if trains else []),
        *(["--fraction", "0.5"] if "semi" in rest else []),
        *(["--backbone", "test_resnet"] if target in ("random", "weights.pth") else []),
    ]


def shortened_training(arguments: list[str]) -> list[str] | None:
    longer = ["--epochs", "2"]  # than the run that is there
    if any("shards" in word or "://" in word for word in arguments):
        return None  # tests/data/test_stream.py makes shards
    if arguments[1] == "--resume":
        return [*arguments, *longer] if "--epochs" in arguments else arguments
    if "--resume" in arguments:
        return [*arguments, *SMALLER, *longer]
    smaller = [*SMALLER] if "--method" not in arguments else without(SMALLER, METHOD_ONLY)
    if "--init" in arguments:  # the weights bring their backbone
        smaller = without(smaller, ("--backbone",))
    quiet = [] if "--out" in arguments else ["--set", "log.report=false", "--set", "probe.every=0"]
    return named([*arguments, *smaller, *quiet])


def without(words: list[str], options: tuple[str, ...]) -> list[str]:
    """The words less these options and their values."""
    kept = list(words)
    for option in options:
        place = kept.index(option)
        del kept[place : place + 2]
    return kept


def named(arguments: list[str]) -> list[str]:
    """Data sets by name become small files of that name, and nothing is uploaded."""
    kept = [word.partition(":")[0] if word.startswith("hub:") else word for word in arguments]
    return [f"{word}.npz" if word in ("shapes", "cifar10", "cifar100") else word for word in kept]


@pytest.fixture
def here(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own copy of the world to work in; its photos are the same files, so that a run goes on with them."""
    for path in world.iterdir():
        if path.name == "photos":
            (tmp_path / "photos").symlink_to(path)
        elif path.is_dir():
            shutil.copytree(path, tmp_path / path.name)
        else:
            shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def seen() -> set[object]:
    """What has run on an earlier page and need not run again."""
    return set()


def is_new(what: object, seen: set[object]) -> bool:
    new = what not in seen
    seen.add(what)
    return new


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_a_page_run(name: str, here: Path, carl: Run, seen: set[object]):
    found = documents.blocks(page_named(name))
    for block in found:
        if block.language == "toml":
            (here / "my.toml").write_text(block.text)
    runnable = [b for b in found if b.language == "sh" and b.not_run is None]
    for block, words in [(b, words) for b in runnable for words in documents.commands(b)]:
        arguments = shortened(words[1:]) if words[0] == "carl" else None
        if arguments is None:
            continue
        makes_something = {"--out", "-o", "--resume"} & set(arguments)  # which the page's next command may need
        if not makes_something and not is_new(tuple(arguments), seen):
            continue
        if "--out" in arguments and "--resume" not in arguments:  # as if it were the first time
            shutil.rmtree(here / arguments[arguments.index("--out") + 1], ignore_errors=True)
        done = carl(*arguments)
        assert done.returncode == 0, f"{block.where}: {' '.join(words)}: {done.stderr}"


def test_every_command_of_the_readme_runs_above():
    """Those of make and pip aside: `make demo` runs below, and `make test` is what runs this."""
    shell = [b for b in documents.blocks(page_named("README.md")) if b.language == "sh"]
    commands = [words for block in shell for words in documents.commands(block)]
    assert {words[0] for words in commands} <= {"carl", "make", "pip", "."}
    assert [words for words in commands if words[0] == "carl" and shortened(words[1:]) is None] == []


def test_the_commands_of_make_demo_run(here: Path, carl: Run):
    shutil.rmtree(here / "runs" / "demo")
    commands = [words[1:] for words in documents.commands(documents.recipe("demo"))]
    assert [words[0] for words in commands] == ["report", "group", "pretrain", "eval", "report"]
    for arguments in commands:
        done = carl(*named(arguments), *(SMALLER if arguments[0] == "pretrain" else []))
        assert done.returncode == 0, done.stderr
    for page in ("pretrained/report.html", "pretrained/groups.html", "demo/report.html"):
        assert (here / "runs" / page).is_file()


# Python runs.


@pytest.mark.parametrize("name", [name for name in NAMES if "```python" in page_named(name).read_text("utf-8")])
def test_the_python_of_a_page_runs(name: str, here: Path, seen: set[object]):
    from carl.data import open as open_module

    known = dict(open_module.SOURCES)
    embed_photos(here)
    namespace: dict[str, Any] = {"__name__": name}
    try:
        for block in documents.blocks(page_named(name)):
            if block.language == "python" and block.not_run is None and is_new(block.text, seen):
                exec(compile(changed(block.text), block.where, "exec"), namespace)
    finally:
        for added in open_module.SOURCES.keys() - known.keys():
            del open_module.SOURCES[added]


def embed_photos(folder: Path) -> None:
    from carl.use.embed import embed_images
    from carl.use.requests import EmbedRequest

    list(
        embed_images(EmbedRequest(str(folder / "runs" / "photos"), "photos", folder / "embeddings.parquet", force=True))
    )


def changed(code: str) -> str:
    for old, new in CHANGES:
        code = code.replace(old, new)
    return code


def test_every_change_to_the_python_blocks_is_still_needed():
    code = "".join(block.text for block in documents.blocks_of("python"))
    assert [old for old, _ in CHANGES if old not in code] == []


def test_the_loop_of_the_api_is_the_example():
    example = (ROOT / "examples" / "plain_pytorch.py").read_text(encoding="utf-8")
    lines = [line for line in example.splitlines()[2:] if "print" not in line]
    code = [b.text for b in documents.blocks(page_named("api.md")) if b.language == "python" and "CARLLoss" in b.text]
    assert [block.splitlines() for block in code] == [lines]


# Tables are those of the program.


@pytest.mark.parametrize("name", all_commands())
def test_a_command_is_on_the_page_of_commands_with_all_its_options_and_an_example(name: str):
    command, text = all_commands()[name], documents.section(page_named("commands.md"), f"## {name}")
    assert documents.option_table(command) in text, STALE
    examples = [b for b in documents.blocks(page_named("commands.md")) if b.language == "sh"]
    assert any(" ".join(words).startswith(name) for block in examples for words in documents.commands(block)), name


def test_the_page_of_commands_has_no_other():
    headings = re.findall(r"^## (carl .+)$", documents.prose(page_named("commands.md")), re.MULTILINE)
    assert headings == list(all_commands())


def check_rows(text: str, rows: list[tuple[str, str]]) -> None:
    """Every field has its row, with the meaning that the program gives it; where it gives none, any."""
    for start, meaning in rows:
        wanted = f"{start}{meaning} |\n" if meaning else start
        assert wanted in text, f"missing: {wanted}; {STALE}"
        assert "SAY WHAT IT IS" not in text, start
    assert text.count("\n| `") == len(rows), f"a row of something that does not exist; {STALE}"


def test_the_pages_of_configuration_and_methods_have_every_value():
    for (page, heading), rows in documents.tables_of_values().items():
        check_rows(documents.section(page_named(page), heading), rows)


def test_the_page_of_quality_has_every_check_with_its_rule():
    assert documents.table_of_checks() in page_named("quality.md").read_text(encoding="utf-8"), STALE


def test_the_comparison_of_methods_is_the_one_that_is_kept():
    found = json.loads((ROOT / "results" / "compare-shapes.json").read_text(encoding="utf-8"))
    for page in documents.COMPARED:
        shown = documents.COMPARISON.search(page.read_text(encoding="utf-8"))
        assert shown is not None
        assert shown[0] == documents.comparison_of_methods(found), STALE


def test_the_page_of_methods_has_every_method():
    from carl.methods import METHODS

    headings = re.findall(r"^## (\w+)$", documents.prose(page_named("methods.md")), re.MULTILINE)
    assert headings == [name for name in METHODS if name in headings]
    missing = METHODS.keys() - set(headings)
    if missing:
        pytest.skip(f"docs/methods.md has no section for {', '.join(sorted(missing))} yet: write one")


def test_the_page_of_methods_names_the_presets_of_each():
    from carl.data.facts import DataFacts
    from carl.methods import METHODS

    page = page_named("methods.md")
    for name, method in METHODS.items():
        if f"\n## {name}\n" not in page.read_text(encoding="utf-8"):
            continue  # the test above says so
        text = documents.section(page, f"## {name}")
        presets = method.presets(DataFacts("photos", 1000, 3, 32, 10))
        assert [preset for preset in presets if f"`{preset}`" not in text] == [], name


def test_the_tables_of_the_robust_study_are_those_of_its_files():
    """No figure without its file: each table of results/robustness/ stands in the page as it was written."""
    text = page_named("robustness.md").read_text()
    written = [
        file.read_text().strip() for file in (ROOT / "results" / "robustness").glob("*.md") if file.stem != "trials"
    ]
    assert written
    for table in written:
        assert table in text, table.splitlines()[0]


def test_figures_of_the_reproduction_are_those_of_its_files():
    """No claim without its file: each line of a table, and each picture, stands in results/reproduction/ too."""
    results = ROOT / "results" / "reproduction" / "cpu"
    written = {line for file in results.glob("*.md") for line in file.read_text().splitlines()}
    page = page_named("reproduction.md")
    text = page.read_text()
    lines = [line for line in documents.section(page, "## What was measured").splitlines() if line.startswith("|")]
    assert len(lines) >= 10
    assert [line for line in lines if line not in written] == []
    pictures = re.findall(r"\(images/reproduction-([\w-]+)\.png\)", text)
    assert pictures
    for name in pictures:
        shown = ROOT / "docs" / "images" / f"reproduction-{name}.png"
        assert shown.read_bytes() == (results / f"{name}.png").read_bytes(), name


def test_the_page_of_the_api_has_every_public_name():
    shown = re.findall(r"^::: carl\.(\w+)$", documents.prose(page_named("api.md")), re.MULTILINE)
    assert sorted([*shown, "__version__"]) == sorted(carl.__all__)


def test_values_and_flags_that_the_text_names_exist():
    from carl.methods import METHODS

    keys = {f"{section}.{key}" for section, field in Config.model_fields.items() for key in field_names(field)}
    keys |= {f"method.{key}" for method in METHODS.values() for key in method.Options.model_fields}
    keys |= {f"views.{key}" for key in option_owners()}
    options = [option for command in all_commands().values() for option in command.params]
    flags = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    flags |= {"--help", "--version", "--max-restarts"}  # the last is torchrun's
    for page in PAGES:
        for span in documents.code_spans(page):
            key = re.match(rf"(?:--set )?((?:{'|'.join(Config.model_fields)})\.[a-z]\w*)(?:$|=)", span)
            assert key is None or key[1] in keys or key[1].endswith((".py", ".json")), f"{page.name}: {span}"
            named_flags = re.findall(r"(?<!\S)--[a-z][a-z-]*", span) if span.startswith(("--", "carl ")) else []
            assert set(named_flags) <= flags, f"{page.name}: {span}"


def field_names(field: Any) -> list[str]:
    return list(getattr(field.annotation, "model_fields", {}))


# Words are easy to read.


@pytest.mark.parametrize("name", NAMES)
def test_no_sentence_of_a_page_is_long(name: str):
    too_long = [s for s in documents.sentences(page_named(name)) if len(s.split()) > LONGEST_SENTENCE]
    assert too_long == [], f"over {LONGEST_SENTENCE} words: make two sentences of each"


def test_sentences_are_cut_at_stops_and_list_items_and_leave_out_what_is_not_prose(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading\n\nOne: two\nlines. Three?\n\n- four\n- five\n"
        "<!-- not\nthis -->\n| nor | this. |\n\n```sh\nnor this\n```\n"
    )
    assert documents.sentences(page) == ["One:", "two lines.", "Three?", "- four", "- five"]


def test_the_readme_is_short():
    assert len(page_named("README.md").read_text(encoding="utf-8").splitlines()) <= LONGEST_README


# Links lead somewhere.


@pytest.mark.parametrize("name", NAMES)
def test_links_and_paths_of_a_page_lead_somewhere(name: str):
    page = page_named(name)
    for target in documents.links(page):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        assert not path.startswith(("..", "/")), f"{target} leaves what the site is made of; name the file as code"
        other = page.parent / path if path else page
        assert other.exists(), target
        assert not anchor or anchor in documents.anchors(other), target
    for span in documents.code_spans(page):
        if re.fullmatch(r"(src|tests|docs|examples|results|benchmarks)/[a-z0-9_./-]+", span):
            assert (ROOT / span).exists(), span


def test_the_tests_that_the_promises_name_exist():
    """Every row of the last table of reliability.md names tests that are there."""
    rows = documents.section(page_named("reliability.md"), "## The tests").splitlines()
    named = 0
    for row in rows:
        file = None
        for span in re.findall(r"`([^`]+)`", row.rpartition(" | ")[2]):
            if span.endswith(".py"):
                file = ROOT / (span if "/" in span else f"tests/reliability/{span}")
                assert file.is_file(), span
            elif span.startswith("test_"):
                assert file is not None, row
                found = re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
                assert fnmatch.filter(found, span), f"{file.name} has no test {span}"
                named += 1
    assert named > 50


# The site builds, and needs no other.


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not re.search(r"^WARNING", done.stderr, re.MULTILINE), done.stderr
    return folder


class Loaded(HTMLParser):
    """Addresses that a browser loads by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag == "link" and "canonical" not in (given.get("rel") or ""):
            self.addresses.append(given.get("href") or "")
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.addresses.append(given.get("src") or "")


def test_pages_of_the_site_load_nothing_from_elsewhere(site: Path):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES) - 3
    for page in pages:
        parser = Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        assert [a for a in parser.addresses if a.startswith(("http:", "https:", "//"))] == [], page
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", text), style


def test_the_search_works_in_pages_opened_from_the_disk_and_asks_for_nothing_outside(site: Path):
    executable = find_browser()
    if executable is None:
        need = os.environ.get("CARL_BROWSER_TESTS") == "required"
        (pytest.fail if need else pytest.skip)("no Chromium here; install one or set CARL_BROWSER")
    with browser(executable) as running:
        page = running.page(1300)
        page.open(site / "index.html")
        page.run("document.querySelector('.md-search__input').focus()")
        page.run("document.querySelector('.md-search__input').value = 'near-duplicates'")
        page.run("document.querySelector('.md-search__input').dispatchEvent(new Event('keyup', {bubbles: true}))")
        page.wait("document.querySelector('.md-search-result__item') !== null")
        assert page.complaints() == []
        assert page.requests() == []


def test_equations_of_the_site_are_drawn_by_the_browser(site: Path):
    for name in ("concepts", "methods"):
        blocks = [b for b in documents.blocks(page_named(f"{name}.md")) if b.language == "math"]
        text = (site / f"{name}.html").read_text(encoding="utf-8")
        assert blocks
        assert text.count('display="block"') == len(blocks)
        assert "$`" not in text
        assert "\\frac" not in text


def test_docstrings_reach_the_site(site: Path):
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in set(carl.__all__) - {"__version__"}:
        assert f'id="carl.{name}"' in text, name
        summary = (getattr(carl, name).__doc__ or "").partition("\n")[0].partition("`")[0]
        assert summary[:40] in text, name
