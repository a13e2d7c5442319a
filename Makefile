# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test test-slow check clean

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

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
