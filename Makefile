# Everything a person types. `make run-local` and `make test` set up what they need on first use.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
DEMO := demo
INPUT ?= $(DEMO)
RUN ?= runs/$(if $(filter $(DEMO),$(INPUT)),demo,local)
DECODERS ?= 2
CONFIG ?= $(if $(filter $(DEMO),$(INPUT)),configs/demo.toml)
VALIDATION ?= $(if $(filter $(DEMO),$(INPUT)),$(DEMO)-validation)
BESIDE ?= $(if $(filter $(DEMO),$(INPUT)),runs/demo-likelihood)
SIMULATED ?= $(if $(filter $(DEMO)-validation,$(VALIDATION)),bench)
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
COMPOSE_FILES = -f docker-compose.yml $(if $(CPU),-f docker-compose.cpu.yml)
BUILD ?= --build
TEST_JOBS ?= 2

.PHONY: run-local run-direction demo-federation test test-fast lint format bench bench-physics docs up down clean

# The environment, with every version pinned. It is built anew when a pin changes.
$(VENV)/.complete: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "icestream needs Python 3.11 or newer; name one: make PYTHON=python3.11 …" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# Demo data: toy muon bundles with known truth.
$(DEMO): | $(VENV)/.complete
	rm -rf $(DEMO).part
	$(BIN)/icestream simulate $(DEMO).part --preset bench --events 400000 --files 20 --seed 1
	mv $(DEMO).part $(DEMO)

# Events of the same kind that no training sees.
$(DEMO)-validation: | $(VENV)/.complete
	rm -rf $(DEMO)-validation.part
	$(BIN)/icestream simulate $(DEMO)-validation.part --preset bench --events 40000 --files 4 --seed 2
	mv $(DEMO)-validation.part $(DEMO)-validation

# make run-local INPUT='data/*.parquet' DECODERS=4 CONFIG=my.toml RUN=runs/mine    on your own files
# With VALIDATION='held-out/*.parquet', too, it ends with the report that the demo ends with; BESIDE=runs/other shows a second
# run in it. The demo trains the likelihood model for that, in seconds (BESIDE= leaves it out).
run-local: $(VENV)/.complete $(filter $(DEMO),$(INPUT)) $(filter $(DEMO)-validation,$(VALIDATION))
	$(BIN)/icestream run -i '$(INPUT)' --run-dir '$(RUN)' --decoders $(DECODERS) $(if $(CONFIG),-c '$(CONFIG)')
	$(if $(filter runs/demo-likelihood,$(BESIDE)),$(BIN)/icestream run -i $(DEMO) --run-dir '$(BESIDE)' --decoders $(DECODERS) \
		-c configs/demo-likelihood.toml)
	$(if $(VALIDATION),$(BIN)/icestream evaluate '$(RUN)' -i '$(VALIDATION)' -o '$(RUN)/evaluation' \
		$(if $(SIMULATED),--simulated $(SIMULATED)) $(if $(BESIDE),--beside '$(BESIDE)'))

# The other workload: neutrino directions in a toy detector, on both cores at most six minutes; ends with its report.
run-direction: $(VENV)/.complete direction-demo direction-demo-validation
	$(BIN)/icestream run -i direction-demo --run-dir runs/direction-demo -c configs/direction-demo.toml
	$(BIN)/icestream evaluate runs/direction-demo -i direction-demo-validation --simulated

# Toy events, with the classical fits that the model starts from.
direction-demo: | $(VENV)/.complete
	rm -rf $@.part $@.raw
	$(BIN)/icestream simulate $@.raw --workload direction --events 12000 --cascades 4000 --files 8 --seed 1
	$(BIN)/icestream seeds $@.raw -o $@.part
	mv $@.part $@ && rm -r $@.raw

direction-demo-validation: | $(VENV)/.complete
	rm -rf $@.part $@.raw
	$(BIN)/icestream simulate $@.raw --workload direction --events 2000 --files 2 --seed 2
	$(BIN)/icestream seeds $@.raw -o $@.part
	mv $@.part $@ && rm -r $@.raw

# A local Pelican federation with demo files, and the lines to type; until Ctrl-C (docs/federation.md).
demo-federation: $(VENV)/.complete
	$(BIN)/python -m tests.federation $(FEDERATION)

# Everything, in two processes: the tests mostly wait. make test TEST_JOBS=8 on a larger machine
test: $(VENV)/.complete
	$(BIN)/pytest -n $(TEST_JOBS) --dist loadfile --durations 20

# What starts no process and is quick: before every commit.
test-fast: $(VENV)/.complete
	$(BIN)/pytest -n $(TEST_JOBS) -m 'not process and not slow'

lint: $(VENV)/.complete
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.complete
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Measured figures; results worth keeping go to benchmarks/results/.
bench: $(VENV)/.complete
	for script in benchmarks/bench_*.py; do $(BIN)/python -m "benchmarks.$$(basename "$$script" .py)" || exit 1; done

# The tables and figures of docs/physics.md, in a quarter of an hour on two cores. What is done is kept: interrupt it, start it again.
bench-physics: $(VENV)/.complete
	$(BIN)/python -m benchmarks.physics $(if $(JOBS),--jobs $(JOBS))

# The configuration reference is written from the configuration tree, the README's file tree from docstrings.
docs: $(VENV)/.complete
	$(BIN)/python docs/write_configuration.py
	$(BIN)/python docs/write_tree.py

# make up CPU=1 DECODERS=3    in containers; without CPU=1 the trainer takes the GPU
up:
	$(COMPOSE) $(COMPOSE_FILES) up --detach $(BUILD) --scale decoder=$(DECODERS)

down:
	$(COMPOSE) $(COMPOSE_FILES) down

# What can be made again; runs/ is not.
clean:
	rm -rf $(VENV) $(DEMO) $(DEMO).part $(DEMO)-validation $(DEMO)-validation.part direction-demo* .pytest_cache .mypy_cache .ruff_cache *.egg-info
