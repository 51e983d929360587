# Everything starts here: `make run`, `make test`, `make bench`. Nothing needs to be typed first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
export OMP_NUM_THREADS ?= 1

.PHONY: run test test-method test-room bench setup lint types browser docs clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.developer: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e '.[dev,docs,all]'
	@touch $@

run: setup
	@$(BIN)/polyfed sweep demo method=local,fedproto,fedlatent --seeds 0,1,2 --out runs/demo/four-architectures > /dev/null
	@$(BIN)/polyfed sweep demo method=fedavg 'models.group=[tiny-cnn]' --seeds 0,1,2 --out runs/demo/one-common-architecture > /dev/null
	@$(BIN)/polyfed compare runs/demo --baseline local
	@$(BIN)/polyfed report runs/demo -o runs/demo/report.html > /dev/null
	@echo "fedavg needs one common architecture (here tiny-cnn for all clients); the other methods train four different ones."
	@echo "Report: runs/demo/report.html"
	@echo "Next: $(BIN)/polyfed ui runs/demo, or $(BIN)/polyfed inspect on a run folder to see what its clients uploaded."

lint: $(VENV)/.developer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.developer
	$(BIN)/mypy

# The live page is tested in a real Chromium. Where it is missing and we may, it is installed; else those tests fail.
browser:
	@command -v chromium > /dev/null || test -n "$$CHROMIUM" || test "$$(id -u)" != 0 \
	  || ! command -v apt-get > /dev/null \
	  || { apt-get update -qq && apt-get install -y -qq chromium > /dev/null; }

test: browser lint types
	$(BIN)/python -m pytest -n 2 --dist loadgroup

# The tests of one method: `make test-method M=fedproto`.
test-method: $(VENV)/.developer
	@test -n "$(M)" || { echo "Name a method: make test-method M=fedproto"; exit 2; }
	$(BIN)/python -m pytest -n 2 tests/methods tests/filters -k "$(subst -,_,$(M)) or $(M)"

# The tests of one room: `make test-room R=report`.
test-room: $(VENV)/.developer
	@test -d "tests/$(R)" || { echo "Name a folder of tests/: make test-room R=report"; exit 2; }
	$(BIN)/python -m pytest -n 2 --dist loadgroup "tests/$(R)"

# The documentation site. It builds offline, and a warning is an error.
docs: $(VENV)/.developer
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Site: build/site/index.html (search needs a server: $(BIN)/python -m http.server --directory build/site)"

bench: setup
	$(BIN)/polyfed bench

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/out
