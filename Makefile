# make demo   the main job from end to end on an invented GPT-2, in an environment without torch
# make test   everything: lint, types, all tests, in an environment with torch and transformers
# make lint   ruff and mypy alone
# make bench  conversions against cp and against what people use today (minutes, 25 GB of disk)
# make fuzz   hostile files, a minute of each kind (FUZZ='--seconds 600 --seed 7 maps'; --help has more)
# make mutants  small changes of the code, which the tests must notice (MUTANTS='--sample 2000 --seed 7 ops/ names'; --help has more)
# make peers  the cases of tests/peers again, from other projects' own code (PEERS=litgpt: of some; downloads each of them)
# make bench-peers  an environment with mergekit for the row of the benchmarks that meets it (downloads it)
# make clean  remove the environment and what the tools left
#
# A fresh machine needs git, make and Python 3.11. Both environments are the folder .venv, and its stamp files say
# what is in it, so that nothing is installed twice unless pyproject.toml (or this file) changed.

PYTHON ?= python3
# Before the package and by itself, so that pip takes the build that this machine's index prefers (mostly the one for CPUs).
TORCH ?= torch==2.13.0

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint bench bench-peers fuzz mutants peers clean
.NOTPARALLEL:

demo: $(VENV)/.core
	@$(RUN) examples/demo.py

test: lint
	$(RUN) -m pytest

bench: $(VENV)/.dev
	$(RUN) benchmarks/bench.py --write

fuzz: $(VENV)/.fuzz
	cd tests && ../$(RUN) -m fuzz $(FUZZ)

mutants: $(VENV)/.mutants
	cd tests && ../$(RUN) -m mutation $(MUTANTS)

peers:
	$(PYTHON) tests/peers/make.py $(PEERS)

# transformers is in .venv; what else is timed has requirements of its own. A peer that is not there is left out with a note.
bench-peers: benchmarks/.peers/mergekit/bin/mergekit-yaml

benchmarks/.peers/mergekit/bin/mergekit-yaml:
	$(PYTHON) -m venv benchmarks/.peers/mergekit
	benchmarks/.peers/mergekit/bin/pip install --quiet '$(TORCH)'
	benchmarks/.peers/mergekit/bin/pip install --quiet mergekit

lint: $(VENV)/.dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

# pip comes last into a new environment: where it is, the environment is whole.
$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml Makefile | $(VENV)/bin/pip
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml Makefile | $(VENV)/bin/pip
	$(PIP) '$(TORCH)'
	$(PIP) --editable '.[dev]'
	@touch $(VENV)/.core $@

# Without a build of it for this system the inputs are invented and mutated all the same, and not guided.
$(VENV)/.fuzz: $(VENV)/.dev
	$(PIP) 'atheris>=3,<4' || true
	@touch $@

$(VENV)/.mutants: $(VENV)/.dev
	$(PIP) 'coverage>=7.6,<8'
	@touch $@

clean:
	rm -rf $(VENV) tests/peers/.env build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
