# Every target sets up what it needs; what is there already is left alone. `make help` lists them.

VENV    := .venv
BIN     := $(VENV)/bin
SOURCES  = $(wildcard aiorecover pyspark_aiorecover tests benchmarks examples)
# An installation is made anew when these change: the module in C is built by it, beside its source.
BUILT    = pyproject.toml setup.py aiorecover/_speedups.c

# Handed on to pytest, the demo, the benchmarks or the prover: make test ARGS="-k ring -x"
ARGS    ?=
# Processes that share the tests: one for each core of a small machine, and one that takes what these leave of the cores
# (tests/support/sharing.py). WORKERS=0: all here.
WORKERS ?= 3
# Where the benchmarks leave their figures and pictures.
MEASURED ?= build/benchmarks
# For prove: which proof (`make prove WHAT=` lists them), the seed that an earlier run printed to repeat it, how many.
WHAT    ?= cycles
SEED    ?=
COUNT   ?=

# The interpreter: python3, or the newest that has the version and everything that a virtual environment needs.
FITS     = import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))
PYTHON  ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
               "$$name" -c '$(FITS)' 2>/dev/null && command -v "$$name" && break; done)

# Else each process would compile anew what it imports: 0.2 s of a core for the package, 15 s for all tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-quick check docs bench figures prove clean python

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/demo.stamp  ## see it survive: no Java, no Docker, no Kafka needed
	@$(BIN)/aiorecover demo $(ARGS)

test: $(VENV)/dev.stamp  ## all tests, against a real Kafka (Java 17 or newer, or Docker)
	@$(BIN)/python -m tests.support.broker
	@$(BIN)/python -m tests.spark.archive
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope $(ARGS)

test-quick: $(VENV)/dev.stamp  ## what needs neither Java nor Docker: a minute
	@$(BIN)/python -m pytest --quick --numprocesses $(WORKERS) --dist loadscope $(ARGS)

check: $(VENV)/dev.stamp  ## style, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(SOURCES)
	@$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/dev.stamp  ## the site, into build/docs
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --builder html docs build/docs

bench: $(VENV)/dev.stamp  ## measure, side by side with the alternatives: tables, pictures, 10 minutes
	@$(BIN)/python -m tests.support.broker
	@$(BIN)/python -m benchmarks --json $(MEASURED)/figures.json --plots $(MEASURED) $(ARGS)

figures: $(VENV)/dev.stamp  ## draw what `make bench` has measured for the site, into docs/figures
	@$(BIN)/python -m benchmarks.plots $(MEASURED)/figures.json --plots docs/figures

prove: $(VENV)/dev.stamp  ## the long proofs: WHAT=cycles (default); WHAT= lists all of them; SEED=... COUNT=...
	@$(BIN)/python -m tests.prove $(WHAT) $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) $(ARGS)

clean:  ## remove everything that was made here
	rm -rf $(VENV) .cache build dist aiorecover.egg-info aiorecover/_speedups*.so
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

python:  ## say which interpreter will be used
	@path="$(PYTHON)"; test -n "$$path" && echo "$$path" || { \
	    echo "no python of 3.11 to 3.14 with venv was found: install python3 and python3-venv" >&2; exit 1; }

$(VENV)/venv.stamp:
	@$(MAKE) --no-print-directory --silent python >/dev/null
	"$(PYTHON)" -m venv --clear $(VENV)
	@touch $@

# For the demo: little enough that it starts in seconds.
$(VENV)/demo.stamp: $(BUILT) | $(VENV)/venv.stamp
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

# For everything else. Dependency groups need pip 25.1.
$(VENV)/dev.stamp: $(BUILT) | $(VENV)/venv.stamp
	@echo "setting up $(VENV) with the tools of development: this takes a minute or two, once"
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group dev
	@touch $@
