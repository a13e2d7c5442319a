#!/bin/sh
# Installs the oldest versions that pyproject.toml allows into .venv-oldest and runs there the tests of every dependency.
# `sh tests/oldest.sh python3.11 --resolve` only asks whether they go together.
set -eu
cd "$(dirname "$0")/.."
python=${1:-python3}
oldest=$("$python" - <<'PYTHON'
import re
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
wanted = [*project["dependencies"], *(one for one in project["optional-dependencies"]["test"] if "pytest>" in one or "hypothesis" in one)]
print(" ".join(re.sub(r">=\s*", "==", one.split(";")[0].split(",")[0]).strip() for one in wanted))
PYTHON
)
test -x .venv-oldest/bin/python || "$python" -m venv .venv-oldest
if [ "${2:-}" = --resolve ]; then
    # shellcheck disable=SC2086
    exec .venv-oldest/bin/python -m pip install --dry-run --quiet --ignore-installed $oldest
fi
# shellcheck disable=SC2086
.venv-oldest/bin/python -m pip install --quiet $oldest
.venv-oldest/bin/python -m pip install --quiet --no-deps -e .
# Old versions warn of their own future; TensorBoard is not among what is installed.
.venv-oldest/bin/python -m pytest -W default -k "not tensorboard" tests/test_config.py tests/test_optim.py \
    tests/data/test_pickles.py tests/data/test_parquet.py tests/data/test_decode.py tests/data/test_arrays.py \
    tests/training/test_run.py tests/use/test_embed.py tests/reliability/test_versions.py \
    tests/evaluation/test_clusters.py tests/evaluation/test_neighbours.py tests/evaluation/test_logistic.py \
    tests/reporting/test_curves.py tests/reporting/test_report.py tests/reproduction/test_tables.py \
    tests/reliability/test_hostile_weights.py tests/test_files.py
