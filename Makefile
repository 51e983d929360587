# Everything starts here: `make run`, `make test`, `make bench`. Nothing needs to be typed first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
export OMP_NUM_THREADS ?= 1

.PHONY: run test bench setup lint types clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.developer: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

run: setup
	@$(BIN)/polyfed run quickstart method=fedavg 'models.group=[tiny-cnn]' --out runs/quickstart/fedavg > /dev/null
	@$(BIN)/polyfed sweep quickstart method=local,lg-fedavg,feddistill,fedproto --out runs/quickstart > /dev/null
	@$(BIN)/polyfed compare runs/quickstart
	@echo "Run folders: runs/quickstart. Look into one with: $(BIN)/polyfed inspect runs/quickstart/fedavg"

lint: $(VENV)/.developer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.developer
	$(BIN)/mypy

test: lint types
	$(BIN)/python -m pytest -n 2 --dist loadgroup

bench: setup
	$(BIN)/polyfed bench

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/out
