"""The command line: help is quick, and bad input is one line that names the value, the rule and the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from carl.cli import cli
from carl.config import parse_assignments
from tests.conftest import SMALL, Run
from tests.data.test_stream import write_tar


def test_help_of_every_command_imports_neither_torch_nor_numpy():
    """So that it answers at once: these imports are what takes seconds."""
    code = (
        "import sys; from carl.cli import cli\n"
        "for command in [[], *[[name] for name in cli.commands]]:\n"
        "    cli([*command, '--help'], standalone_mode=False)\n"
        "assert not {'torch', 'timm', 'numpy', 'pydantic'} & set(sys.modules), 'heavy import'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.count("Usage: ") == 1 + len(cli.commands)


def test_help_lists_commands_in_the_order_of_use_and_each_summary_fits_its_line():
    def listed(*command: str) -> list[str]:
        width = 78  # what click uses of a terminal with 80 columns
        shown = CliRunner().invoke(cli, [*command, "--help"], terminal_width=width).output
        return shown.partition("Commands:\n")[2].splitlines()

    shown, inner = listed(), listed("data")
    assert [line.split()[0] for line in shown] == list(cli.commands)
    in_order = ["doctor", "data", "report", "group", "embed", "pretrain", "eval", "export", "compare", "reproduce"]
    assert [name for name in cli.commands if name in in_order] == in_order  # a look at the images comes before training
    assert [line.split()[0] for line in inner] == ["list", "info", "prepare"]
    assert [line for line in [*shown, *inner] if line.endswith("...")] == []


def test_help_fits_a_terminal_of_80_columns():
    commands = {(): cli, **{(name,): command for name, command in cli.commands.items()}}
    for name, command in cli.commands.items():
        if isinstance(command, click.Group):
            commands |= {(name, inner): one for inner, one in command.commands.items()}
    for words in commands:
        shown = CliRunner().invoke(cli, [*words, "--help"], terminal_width=78).output
        assert "Usage: " in shown
        assert [line for line in shown.splitlines() if len(line) > 80] == [], words


def test_every_option_tells_its_default_or_what_it_is_for():
    for command in cli.commands.values():
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert parameter.help, (command.name, parameter.name)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pretrain", "DATA", "--epoch", "3"], ["--epoch", "--epochs"]),
        (["pretrian", "DATA"], ["pretrian", "pretrain"]),
        (["pretrain"], ["no DATA given", "carl pretrain shapes"]),
        (["pretrain", "shpaes"], ["shpaes", "did you mean 'shapes'"]),
        (["pretrain", "no/such/folder"], ["no/such/folder", "does not exist"]),
        (["pretrain", "empty"], ["empty", "no image"]),
        (["pretrain", "DATA", "--batch-size", "200"], ["batch size 200", "96 images", "--batch-size"]),
        (["pretrain", "DATA", "--batch-size", "1"], ["train.batch_size=1", "greater than or equal to 2"]),
        (["pretrain", "DATA", "--prototypes", "1"], ["method.prototypes=1", "greater than or equal to 2"]),
        (["pretrain", "DATA", "--epochs", "5", "--prior-epochs", "9"], ["--prior-epochs 9", "5 epochs", "at most 5"]),
        (["pretrain", "DATA", "--prior-start", "-1"], ["method.prior_start=-1.0", "greater than or equal to 0"]),
        (["pretrain", "DATA", "--epochs", "many"], ["many", "integer"]),
        (["pretrain", "DATA", "--set", "train.epoch=3"], ["train.epoch", "did you mean 'epochs'"]),
        (["pretrain", "DATA", "--set", "tran.epochs=3"], ["tran", "did you mean 'train'"]),
        (["pretrain", "DATA", "--set", "epochs=3"], ["epochs=3", "section.key=value"]),
        (["pretrain", "DATA", "--method", "crl"], ["crl", "carl"]),
        (["pretrain", "DATA", "--preset", "papr"], ["papr", "paper"]),
        (["pretrain", "DATA", "--backbone", "resnet81", "--batch-size", "8"], ["resnet81", "did you mean"]),
        (["pretrain", "DATA", "--stem", "tiny"], ["tiny", "small"]),
        (["pretrain", "DATA", "--init", "none.pth", "--batch-size", "8"], ["none.pth does not exist", "weights file"]),
        (["pretrain", "DATA", "--config", "none.toml"], ["none.toml", "cannot read"]),
        (["pretrain", "DATA", "--set", "views.pipeline=simcrl"], ["simcrl", "did you mean 'simclr'"]),
        (["pretrain", "DATA", "--set", "views.bluur=1"], ["unknown key views.bluur", "did you mean 'blur'"]),
        (["eval", "random", "--data", "DATA", "--set", "views.bluur=1"], ["views.bluur", "did you mean 'blur'"]),
        (["pretrain", "DATA", "--set", "train.device=tpu", "--batch-size", "8"], ["tpu", "use auto"]),
        (["pretrain", "DATA", "--image-size", "2"], ["data.image_size=2", "greater than or equal to 8"]),
        (["pretrain", "DATA", "--resume", "auto"], ["--resume auto", "--out"]),
        (["pretrain", "DATA", "--resume", "empty", "--out", "run"], ["--resume empty", "--out run"]),
        (["pretrain", "DATA", "--batch-size", "8", "--set", "views.pipeline=eval"], ["'eval'", "1 large", "simclr"]),
        (["pretrain", "DATA", "--batch-size", "8", "--set", "views.blur_sigma=[2,1]"], ["blur_sigma", "smaller first"]),
        (["pretrain", "DATA", "--batch-size", "8", "--backbone", "densenet121", "--image-size", "16"], ["16 px"]),
        (["pretrain", "DATA", "--seed", "99999999999999999999999"], ["train.seed", "less than or equal"]),
        (["pretrain", "DATA", "--prototypes", str(2**63 - 1)], ["method.prototypes=9223372036854775807", "beyond"]),
        (["pretrain", "DATA", "--prototypes", str(10**30)], ["method.prototypes=1000", "use a smaller one"]),
        (["pretrain", "DATA", "--set", f"model.hidden_dim={2**62}"], ["model.hidden_dim=", "beyond 2147483647"]),
        (["pretrain", "DATA", "--method", "moco", "--set", f"method.queue={2**64}"], ["method.queue=", "beyond"]),
        (["pretrain", "DATA", "--method", "pcl", "--set", f"method.clusters=[{2**64}]"], ["method.clusters="]),
        (["pretrain", "DATA", "--set", f"train.keep_epochs=[{2**64}]"], ["train.keep_epochs=", "beyond"]),
        (["pretrain", "DATA", "--epochs", str(10**30)], ["train.epochs=", "beyond"]),
        (["pretrain", "DATA", "--seed", str(2**63)], ["train.seed", "less than or equal"]),
        (["pretrain", "--set", "data.source=3"], ["data.source=3", "string"]),
        (["pretrain", "x" * 5000], ["File name too long"]),
        (["pretrain", "--resume", "nowhere"], ["nowhere", "does not exist"]),
        (["pretrain", "--resume", "empty"], ["empty", "config.toml"]),
        (["eval", "nowhere"], ["nowhere", "does not exist"]),
        (["eval", "empty", "--protocol", "magic"], ["magic", "knn"]),
        (["report", "nowhere"], ["nowhere does not exist", "run directory"]),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2_and_writes_nothing(
    carl: Run, tmp_path: Path, small_data: Path, arguments: list[str], words: list[str]
):
    (tmp_path / "empty").mkdir()
    done = carl(*[str(small_data) if word == "DATA" else word for word in arguments])
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("carl: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr
    assert [p.name for p in tmp_path.rglob("*")] == ["empty"]


@pytest.mark.parametrize("value", ["2024-05-01", "07:32:00", "2024-05-01T07:32:00Z", "[[2024-05-01]]"])
@pytest.mark.parametrize("place", ["[probe]\nevery", "[method]\nname", "[views]\nhue", "[data]\nx.y", "a"])
def test_a_date_in_a_file_of_settings_is_one_line(carl: Run, tmp_path: Path, small_data: Path, place: str, value: str):
    (tmp_path / "config.toml").write_text(f"{place} = {value}\n")
    for arguments in (["pretrain", small_data, "--config", "config.toml"], ["report", "."], ["eval", "."]):
        done = carl(*arguments)
        assert done.returncode == 2, done.stdout
        assert done.stderr.startswith("carl: ")
        assert done.stderr.count("\n") == 1, done.stderr
        assert "is a date" in done.stderr


def test_a_date_on_the_command_line_is_text():
    assert parse_assignments(["data.source=2024-05-01"]) == {"data": {"source": "2024-05-01"}}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"WORLD_SIZE": "2"}, ["WORLD_SIZE=2", "RANK is not set", "torchrun"]),
        ({"WORLD_SIZE": "2", "RANK": "0"}, ["WORLD_SIZE=2", "MASTER_ADDR is not set"]),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost"}, ["MASTER_PORT is not set"]),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, ["RANK=2", "below"]),
        ({"WORLD_SIZE": "2", "RANK": "x", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, ["RANK='x'"]),
        ({"WORLD_SIZE": "two"}, ["WORLD_SIZE='two'", "not a number"]),
        ({"WORLD_SIZE": "0"}, ["WORLD_SIZE='0'"]),
    ],
)
def test_what_a_launcher_left_half_set_is_one_line(
    carl: Run, small_data: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: list[str]
):
    monkeypatch.setattr("carl.distributed.fails_first", lambda: True)  # there is no store to ask
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = carl("pretrain", small_data, *SMALL)
    assert done.returncode == 2, done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_bare_commands_show_their_help(carl: Run):
    for command in ([], ["data"]):
        done = carl(*command)
        assert done.returncode == 0
        assert "Commands:" in done.stdout


def test_a_folder_that_only_begins_like_a_known_name_gets_no_values_of_it():
    from carl.data.open import recognised_name

    assert recognised_name("shapes-of-leaves") == "shapes-of-leaves"
    assert recognised_name("/data/cifar100-train-10k.parquet") == "cifar100"
    assert recognised_name("cifar10-train.parquet") == "cifar10"
    assert recognised_name("photos") == "photos"


def test_a_run_directory_that_exists_is_refused_and_left_alone(carl: Run, tmp_path: Path, small_data: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious.txt").write_text("mine")
    done = carl("pretrain", small_data, *SMALL, "--out", "run")
    assert done.returncode == 2
    assert "run directory run exists" in done.stderr
    assert "--resume run" in done.stderr
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["precious.txt"]


def test_a_folder_of_texts_is_refused_and_a_folder_with_images_is_not(carl: Run, tmp_path: Path):
    from PIL import Image

    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "notes.txt").write_text("no image")
    refused = carl("pretrain", "photos", *SMALL)
    assert refused.returncode == 2
    assert "no image" in refused.stderr
    generator = np.random.default_rng(0)
    for number in range(20):
        Image.fromarray(generator.integers(0, 256, (40, 30, 3), np.uint8)).save(folder / f"a photo {number}.png")
    done = carl("pretrain", "photos", *SMALL, "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "photos-carl" / "encoder.safetensors").exists()
    again = carl("pretrain", "photos", *SMALL, "--epochs", "1", "--set", "log.report=false")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "runs" / "photos-carl-2").is_dir()


def test_values_from_a_file_are_overruled_by_the_command_line(carl: Run, tmp_path: Path, small_data: Path):
    (tmp_path / "my.toml").write_text("[train]\nepochs = 7\nseed = 4\n[log]\nreport = false\n")
    done = carl("pretrain", small_data, *SMALL, "--epochs", "1", "--config", "my.toml", "--out", "run")
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "run" / "config.toml").read_text()
    assert "epochs = 1" in written
    assert "seed = 4" in written


def test_commands_are_completed_in_the_shell():
    script = subprocess.run([sys.executable, "-m", "carl", "completion", "zsh"], capture_output=True, text=True)
    assert "_CARL_COMPLETE=zsh_complete" in script.stdout, script.stderr
    words = {"COMP_WORDS": "carl ex", "COMP_CWORD": "1", "_CARL_COMPLETE": "bash_complete"}
    done = subprocess.run([sys.executable, "-m", "carl"], capture_output=True, text=True, env={**os.environ, **words})
    assert done.stdout.split() == ["plain,export"]


def test_the_version_is_that_of_the_package(carl: Run):
    from importlib.metadata import version

    assert carl("--version").stdout.split()[-1] == version("carl-ssl")


@pytest.mark.parametrize(("restarts", "words"), [("0", "nowhere"), ("3", "add --out RUN")])
def test_torchrun_needs_a_named_run_only_if_it_may_start_it_again(
    carl: Run, monkeypatch: pytest.MonkeyPatch, restarts: str, words: str
):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
    ended = carl("pretrain", "nowhere")
    assert ended.returncode == 2
    assert words in ended.stderr
    assert ("--out" in ended.stderr) == (restarts != "0")


def test_shards_are_counted_and_shown_too(carl: Run, tmp_path: Path):
    write_tar(tmp_path / "0.tar", range(5))
    done = carl("data", "info", "0.tar")
    assert done.returncode == 0, done.stderr
    assert "reads 5 images from 1 shards" in done.stdout
    assert (tmp_path / "0-sheet.png").exists()


def test_the_help_of_pretrain_names_shards(carl: Run):
    assert "shards" in carl("pretrain", "--help").stdout


@pytest.mark.skipif(os.name != "posix", reason="pipes that break are of POSIX")
def test_a_reader_that_goes_away_ends_a_command_as_a_broken_pipe_does():
    """`carl data list | head -0`"""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", "from carl.cli import main; main()", "data", "list"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")
