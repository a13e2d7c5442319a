# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo docs test test-slow test-oldest soak check clean

install: $(VENV)/.installed

# A fresh environment takes minutes: torch is large. Done again only when pyproject.toml changes.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

# Pretrain on the built-in data, evaluate beside random weights. The second time it only shows the results.
demo: install
	$(BIN)/carl pretrain shapes --out runs/demo --resume auto
	$(BIN)/carl eval runs/demo --protocol knn
	$(BIN)/carl report runs/demo > /dev/null
	@echo
	@echo "The run is in runs/demo. Look at runs/demo/report.html in a browser;"
	@echo "the encoder is runs/demo/encoder.safetensors. Your own images: $(BIN)/carl pretrain FOLDER"

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

# Over an hour of kills and damaged files; the figures go to results/reliability.md. atheris is not for every system.
soak: $(VENV)/.installed-dev
	-$(BIN)/python -m pip install --quiet 'atheris>=3.0'
	$(BIN)/python -m tests.reliability.soak

# The oldest versions that pyproject.toml allows, in an environment of their own (gigabytes: torch again).
test-oldest:
	sh tests/oldest.sh $(PYTHON)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
