# Two commands: `make demo` runs the main job, `make test` passes the tests. Both set everything up.
# PIP_ARGS passes options to pip, for example a CPU build of torch:
#   make demo PIP_ARGS="--index-url https://download.pytorch.org/whl/cpu --extra-index-url https://pypi.org/simple"

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
BIN := $(VENV)/bin
SOURCES := $(shell find kerneltui -type f -not -name '*.pyc') pyproject.toml constraints.txt README.md

.PHONY: demo test check bench system clean

demo: $(VENV)/.app
	@if [ -t 0 ] && [ -t 1 ]; then \
	  $(BIN)/kerneltui open workloads/gemm_allgather; \
	else \
	  $(BIN)/kerneltui tune workloads/gemm_allgather --target cpu --candidates 6 --seed 1 --accept auto --new; \
	fi

# Times of ranks and keys of terminals would be disturbed by another test: what has them runs alone.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m "not alone"
	$(BIN)/python -m pytest -m alone --ignore tests/unit --ignore tests/tui

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/journal.py
	$(BIN)/python benchmarks/terminal.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/noise.py --session sessions/gemm_allgather-cpu.bundle --shapes all

system:
	@scripts/system

$(VENV)/.python: constraints.txt
	@scripts/system
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "kerneltui needs Python 3.11 or newer; set PYTHON=python3.11"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.app: $(VENV)/.python $(SOURCES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt .
	@touch $@

$(VENV)/.dev: $(VENV)/.python $(SOURCES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt '.[dev]'
	@touch $@ $(VENV)/.app

clean:
	rm -rf $(VENV) build dist *.egg-info
