# Everything starts here: `make run`, `make test`, `make bench`. Nothing needs to be typed first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE  # containers set it; every process that a test starts would compile all modules again

.PHONY: run run-dffke show-demo test static-checks all-tests test-fast test-all test-random test-method test-room test-sites test-ray \
  test-browser test-kills test-processes test-battery coverage bench setup lint types audit browser docs clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing polyfed into $(VENV): 1.3 GB, most of it PyTorch, in a few minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.developer: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e '.[dev,docs,all]'
	@touch $@

# The demonstration: three groups of models, each with its own local training, three seeds, one table.
DEMO := $(BIN)/polyfed sweep demo --seeds 0-2 --no-table
FEDVTC := {name: fedvtc, vtc: regular, samples_per_class: 50, finetune_lr: 0.001, recompute: false}
DFFKE := {name: dffke, width: 64, decoder_channels: 32, decoder_epochs: 5, exchange_epochs: 1, least_steps: 40, batch: 64}

run: setup
	@echo "1/3 One common architecture: local training and FedAvg"
	@$(DEMO) method=local,fedavg 'models.group=[tiny-cnn]' --out runs/demo/one-architecture
	@echo "2/3 Three sizes of one ResNet: local training, FedAvg on sub-models, without and with InCo"
	@$(DEMO) method=local models.group=tiny-resnets3 --out runs/demo/three-sizes
	@$(DEMO) method=fedavg models.group=tiny-resnets3 splitting=stage server_filter=none,inco --out runs/demo/three-sizes
	@echo "3/3 Four different architectures: local training, FedProto, FedVTC, FedLatent"
	@$(DEMO) 'method=local,fedproto,$(FEDVTC),fedlatent' --out runs/demo/four-architectures
	@$(MAKE) --no-print-directory show-demo
	@echo "Next: make run-dffke adds DFFKE to the table (about a minute);"
	@echo "      $(BIN)/polyfed ui runs/demo shows the runs in a browser (after $(BIN)/pip install -c constraints.txt -e '.[ui]');"
	@echo "      $(BIN)/polyfed inspect runs/demo/four-architectures/fedproto-s0 shows what each client uploaded;"
	@echo "      $(BIN)/polyfed run demo method=feddistill runs another method."

run-dffke: setup
	@$(DEMO) 'method=$(DFFKE)' --out runs/demo/four-architectures
	@$(MAKE) --no-print-directory show-demo

show-demo:
	@$(BIN)/polyfed compare runs/demo --baseline local
	@$(BIN)/polyfed report runs/demo -o runs/demo/report.html > /dev/null
	@echo "Each of the five clients has few of the ten digits. tiny-cnn: all clients have one architecture, which FedAvg needs."
	@echo "tiny-resnets3: clients train sub-models of one ResNet. tiny4: four different architectures."
	@echo "FedProto predicts by prototype; its heads know only the digits of their client, so they stay near local training."
	@echo "Report: runs/demo/report.html"

lint: $(VENV)/.developer build/.bandit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# bandit takes seconds: it runs again only if the source has changed.
build/.bandit: $(VENV)/.developer scripts/audit.py $(shell find src -name '*.py')
	$(BIN)/python scripts/audit.py
	@mkdir -p build
	@touch $@

# Security: bandit, an SBOM of the environment, and known vulnerabilities of its packages.
audit: $(VENV)-audit/.installed setup
	@mkdir -p build
	@$(VENV)-audit/bin/python scripts/audit.py $(BIN)/python build/sbom.json

$(VENV)-audit/.installed: scripts/audit-requirements.txt
	@$(PYTHON) -m venv $(VENV)-audit
	@$(VENV)-audit/bin/pip --disable-pip-version-check -q install -r scripts/audit-requirements.txt
	@touch $@

types: $(VENV)/.developer
	$(BIN)/mypy

# The live page is tested in a real Chromium. Where it is missing and we may, it is installed; else those tests fail.
browser:
	@command -v chromium > /dev/null || test -n "$$CHROMIUM" || test "$$(id -u)" != 0 \
	  || ! command -v apt-get > /dev/null \
	  || { apt-get update -qq && apt-get install -y -qq chromium > /dev/null; }

# Files of tests are kept in memory where there is enough of it: runs flush their files to the disk all the time.
SHARED_MEMORY := $(shell df --output=avail -k /dev/shm 2> /dev/null | tail -n 1)
FILES := $(if $(shell test "$(SHARED_MEMORY)" -gt 4000000 2> /dev/null && echo yes),TMPDIR=/dev/shm)

# Some tests wait for sites, Ray and a browser: three processes keep two cores busy.
PROCESSES ?= 3
PYTEST = $(FILES) $(BIN)/python -m pytest -n $(PROCESSES) --dist loadgroup

# Lint and types are checked while the first tests wait for sites and Ray.
test: browser $(VENV)/.developer
	@$(MAKE) --no-print-directory -j 2 static-checks all-tests

static-checks: lint types

all-tests: $(VENV)/.developer
	$(PYTEST) $(SELECT)

# At every change: the tests that stay in one process and take no seconds.
test-fast: $(VENV)/.developer
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "$(FAST)"

FAST = not sites and not ray and not browser and not kills and not processes and not battery and not slow

# Everything, with the checks of engines on every method.
test-all: browser $(VENV)/.developer
	@$(MAKE) --no-print-directory -j 2 static-checks all-tests SELECT=--all-methods

# Everything in random order. The printed command names the seed; repeat it with SEED=...
test-random: browser $(VENV)/.developer
	$(PYTEST) -p randomly --randomly-dont-reset-seed --randomly-seed=$(or $(SEED),$(shell date +%s))

# One slow tier: `make test-sites`, `test-ray`, `test-browser`, `test-kills`, `test-processes` or `test-battery`.
test-sites test-ray test-browser test-kills test-processes test-battery: test-%: browser $(VENV)/.developer
	$(PYTEST) -m $*

# The tests of one method: `make test-method M=fedproto`.
test-method: $(VENV)/.developer
	@test -n "$(M)" || { echo "Name a method: make test-method M=fedproto"; exit 2; }
	$(BIN)/python -m pytest -n 2 --all-methods tests/methods tests/filters -k "$(subst -,_,$(M)) or $(M)"

# The tests of one room: `make test-room R=report`.
test-room: $(VENV)/.developer
	@test -d "tests/$(R)" || { echo "Name a folder of tests/: make test-room R=report"; exit 2; }
	$(BIN)/python -m pytest -n 2 --dist loadgroup "tests/$(R)"

# Branch coverage by room. All tests run in interpreters that trace every line, which takes about twice as long.
coverage: browser $(VENV)/.developer
	@rm -rf build/coverage
	$(BIN)/python -m coverage run -m pytest -n $(PROCESSES) --dist loadgroup
	@$(BIN)/python -m coverage combine -q
	@$(BIN)/python scripts/coverage_rooms.py

# The documentation site. It builds offline, and a warning is an error.
docs: $(VENV)/.developer
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Site: build/site/index.html (search needs a server: $(BIN)/python -m http.server --directory build/site)"

bench: setup
	$(BIN)/polyfed bench

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/out
