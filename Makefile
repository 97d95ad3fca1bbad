# make demo   install into .venv and train two small models side by side, in a few minutes
# make test   install into .venv with the development tools and run the tests
# make lint   ruff and mypy --strict
# make example-pytorch_loop   install and run one of examples/: training_loop, huggingface_trainer, trl_sft, lightning_trainer
# make site   build the documentation into site/: open site/index.html, or serve it to search it
# make bench  print the speed of the core, the sampler, prepare, the engine, sweeps and laws, and that of peers, as JSON
# make soak   kill, starve and damage the commands, check that nothing is lost, and renew docs/reliability.md (20 minutes)
# make audit  ask a service on the network about known weaknesses of the pinned versions
# make load   measure many groups, long journals, many runs and many writers, into results/load.json
# make peers  measure aioli beside what one would pick instead, and renew docs/peers.md
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
BENCH_PIP := .venv-bench/bin/python -m pip install --quiet --disable-pip-version-check
# reports are tested in a browser, from the system's packages; where it cannot be installed those tests are skipped
BROWSER := command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null || \
  (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium > /dev/null) || \
  echo "no Chromium: tests of reports in a browser are skipped; install it from your system's packages"
# one more than there are cores, as many tests wait for processes of their own
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal \
  --numprocesses $$($(BIN)/python -c "import os; print(min(4, os.cpu_count() + 1))")
INPUTS := pyproject.toml constraints.txt

.PHONY: demo test test-slow lint audit load format bench soak peers results docs site clean

demo: .venv/.installed
	$(BIN)/aioli demo

test: .venv/.dev
	@$(BROWSER)
	$(PYTEST) -m "not slow"

test-slow: .venv/.dev
	@$(BROWSER)
	$(PYTEST)

# an example needs its framework only; models this small are fastest on one thread
EXTRA_trl_sft := trl
EXTRA_lightning_trainer := lightning
WITH = $(BIN)/python -c "import $1" 2> /dev/null || $(PIP) -e ".[train,$1]"
example-%: examples/%.py .venv/.installed
	$(if $(EXTRA_$*),$(call WITH,$(EXTRA_$*)))
	OMP_NUM_THREADS=1 $(BIN)/python $<

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# needs the network
audit: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/pip-audit --strict -r constraints.txt

load: .venv/.dev
	$(BIN)/python benchmarks/load.py -o results/load.json

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.installed .venv-bench/.installed
	$(PIP) -e ".[train,hub]"
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/loader.py
	$(BIN)/python benchmarks/prepare.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/sweep.py
	$(BIN)/python benchmarks/laws.py
	$(BIN)/python benchmarks/peers.py

# faults on purpose; SEED=1 tries other moments
soak: .venv/.dev
	$(BIN)/python benchmarks/soak.py --seed $(or $(SEED),0) -o results/soak.json
	$(BIN)/python benchmarks/soak.py --show results/soak.json -o docs/reliability.md

# beside what one would pick instead; some of these need transformers 4, and so an environment of their own
peers: .venv/.installed .venv-bench/.installed
	$(PIP) -e ".[train,hub]"
	$(BIN)/python benchmarks/peers.py -o results/peers.json
	$(BIN)/python benchmarks/peers.py --show results/peers.json -o docs/peers.md

# make results DATA=corpus INSTRUCTIONS=tasks   every experiment of the small profile, and the page of their tables
results: .venv/.dev
	$(BIN)/aioli reproduce all --data $(DATA) $(if $(INSTRUCTIONS),--instructions $(INSTRUCTIONS)) -o results/mini
	$(BIN)/aioli reproduce --show results/mini -o docs/results.md

docs: .venv/.dev
	$(BIN)/python docs/generate.py

# the variable silences an announcement of mkdocs-material that is no warning about these pages
site: .venv/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html; to search as well: $(BIN)/python -m http.server -d site"

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/python $(INPUTS)
	$(PIP) -e ".[train]"
	@touch $@

.venv/.dev: .venv/bin/python $(INPUTS)
	$(PIP) -e ".[dev]"
	@touch $@ .venv/.installed

.venv-bench/bin/python:
	$(PYTHON) -m venv .venv-bench

.venv-bench/.installed: .venv-bench/bin/python pyproject.toml benchmarks/constraints.txt
	$(BENCH_PIP) -c benchmarks/constraints.txt -e ".[bench]"
	$(BENCH_PIP) -c benchmarks/constraints.txt --no-deps fms-acceleration-odm || \
	  echo "fms-acceleration-odm cannot be installed here; benchmarks/peers.py will say so"
	@touch $@

clean:
	rm -rf .venv .venv-bench .mypy_cache .ruff_cache .pytest_cache .hypothesis dist site
