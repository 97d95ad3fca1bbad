# make demo   install into .venv and train two small models side by side, in a few minutes
# make test   install into .venv with the development tools and run the tests
# make lint   ruff and mypy --strict
# make bench  print the speed of the core, the sampler, prepare, the engine, sweeps and laws as JSON
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# reports are tested in a browser, from the system's packages; where it cannot be installed those tests are skipped
BROWSER := command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null || \
  (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium > /dev/null) || \
  echo "no Chromium: tests of reports in a browser are skipped; install it from your system's packages"
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal
INPUTS := pyproject.toml constraints.txt

.PHONY: demo test test-slow lint format bench results docs clean

demo: .venv/.installed
	$(BIN)/aioli demo

test: .venv/.dev
	@$(BROWSER)
	$(PYTEST) -m "not slow"

test-slow: .venv/.dev
	@$(BROWSER)
	$(PYTEST)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.installed
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/loader.py
	$(BIN)/python benchmarks/prepare.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/sweep.py
	$(BIN)/python benchmarks/laws.py

# make results DATA=corpus INSTRUCTIONS=tasks   every experiment of the small profile, and the page of their tables
results: .venv/.dev
	$(BIN)/aioli reproduce all --data $(DATA) $(if $(INSTRUCTIONS),--instructions $(INSTRUCTIONS)) -o results/mini
	$(BIN)/aioli reproduce --show results/mini -o docs/results.md

docs: .venv/.installed
	$(BIN)/python docs/generate.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/python $(INPUTS)
	$(PIP) -e ".[train]"
	@touch $@

.venv/.dev: .venv/bin/python $(INPUTS)
	$(PIP) -e ".[dev]"
	@touch $@ .venv/.installed

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
