# `make gate` judges impl_torch; `make test` checks the repository itself. Both set up .venv first.
PYTHON ?= python3
IMPLEMENTATION ?= impl_torch.adapter:Float32
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
PEERS := .venv-peers

# Without it, each of the processes that tests and the gate start compiles the suite anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help gate test suite lint types imports proofs matrix kills alarms mutation peers wheel clean

help:
	@echo "make gate    judge $(IMPLEMENTATION); another with IMPLEMENTATION=package.module:Name"
	@echo "make test    lint, types, import table and the test suite"
	@echo "make proofs  prove the optimality theorem shape by shape with an SMT solver, for minutes"
	@echo "make matrix  judge the implementations of this repository, property by property"
	@echo "make kills   judge the wrong implementations by every property of their topic, for an hour"
	@echo "make alarms  measure the rate of false alarms, for hours; ARGS=--help says how"
	@echo "make mutation  mutate this repository's own code; ARGS=reference_numpy, lp_oracle or rounding"
	@echo "make peers   judge public implementations in an environment of their own"
	@echo "make wheel   build the wheel into dist/"
	@echo "make clean   remove the environments and build products"

gate: $(INSTALLED)
	$(BIN)/latentmoe-gate run $(IMPLEMENTATION) $(ARGS)

test: lint imports
	@$(MAKE) --no-print-directory -j 2 types suite

suite: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

imports: $(INSTALLED)
	$(BIN)/lint-imports

proofs: $(INSTALLED)
	$(BIN)/python -m tests.proofs.report $(ARGS)

matrix: $(INSTALLED)
	$(BIN)/python tests/peers/matrix.py --ours $(ARGS)

kills: $(INSTALLED)
	$(BIN)/python -m tests.kills.run $(ARGS)

alarms: $(INSTALLED)
	$(BIN)/python -m tests.alarms.run $(ARGS)

mutation: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group mutation
	$(BIN)/python -m tests.mutation.run $(ARGS)

peers: $(PEERS)/installed
	$(PEERS)/bin/python tests/peers/matrix.py $(ARGS)

wheel: $(INSTALLED)
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) $(PEERS) build dist

# pip 25.1 is the first that knows dependency groups. Most of what torch brings is never imported, so
# that compiling all of it would take longer than installing it.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --group dev --editable '.[torch]'
	touch $@

$(PEERS)/installed: pyproject.toml constraints.txt $(wildcard tests/peers/requirements*.txt)
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt --requirement tests/peers/requirements.txt --editable .
	$(PEERS)/bin/python -m pip install --quiet --no-deps --requirement tests/peers/requirements-nodeps.txt
	touch $@
