# Two commands do all the set-up: `make demo` and `make test`.
ifeq ($(OS),Windows_NT)  # with make and a shell from Git for Windows
PYTHON ?= python
FOLDER := Scripts
else
PYTHON ?= python3
FOLDER := bin
endif
VENV := .venv
BIN := $(VENV)/$(FOLDER)

.PHONY: install demo dist docs test test-slow test-gpu test-oldest soak check clean

install: $(VENV)/.installed

# A fresh environment takes minutes: torch is large. Done again only when pyproject.toml changes.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[weights]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

# The built-in drawings: first through pretrained weights, without any training; then an encoder is trained on them and
# judged beside random weights. The second time it only shows the results.
demo: install
	$(BIN)/carl report timm:tf_efficientnet_lite0 shapes --split test -o runs/pretrained/report.html
	$(BIN)/carl group timm:tf_efficientnet_lite0 shapes --split test --groups 10 -o runs/pretrained/groups.parquet
	$(BIN)/carl pretrain shapes --out runs/demo --resume auto
	$(BIN)/carl eval runs/demo --protocol knn
	$(BIN)/carl report runs/demo > /dev/null
	@echo
	@echo "Look at these pages in a browser:"
	@echo "  runs/pretrained/report.html  2,000 drawings through ImageNet weights, without any training"
	@echo "  runs/pretrained/groups.html  which of them belong together"
	@echo "  runs/demo/report.html        what an encoder learned from 10,000 of them"
	@echo "Your own photos, in the same order:"
	@echo "  $(BIN)/carl report timm:tf_efficientnet_lite0 FOLDER -o look.html"
	@echo "  $(BIN)/carl pretrain FOLDER"

$(VENV)/.installed-docs: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	touch $@

# The documentation site, in site/. A warning is an error.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "The documentation is in site/; open site/index.html in a browser."

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two workers of one thread each: twice as fast on two cores, and a file's tests share what they prepare.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

# The devices of this machine: their tests, then a summary to paste into an issue. Without a GPU it is the CPU's.
test-gpu: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/devices
	$(BIN)/carl doctor --check

# The wheel and the source archive for PyPI, in dist/.
dist: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m build
	@echo "pip install dist/*.whl installs it anywhere; a tag such as v0.2.0 publishes it (.github/workflows/publish.yml)."

# Kills, hostile circumstances and damaged files for so many minutes; the figures go to results/reliability.md. atheris is
# not for every system. Another seed makes other attacks.
MINUTES ?= 20
SEED ?= 0
soak: $(VENV)/.installed-dev
	-$(BIN)/python -m pip install --quiet 'atheris>=3.0'
	$(BIN)/python -m tests.reliability.soak --minutes $(MINUTES) --seed $(SEED)

# The oldest versions that pyproject.toml allows, in an environment of their own (gigabytes: torch again).
test-oldest:
	sh tests/oldest.sh $(PYTHON)

clean:
	rm -rf $(VENV) dist site .mypy_cache .pytest_cache .ruff_cache
