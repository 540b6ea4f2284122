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
COMPOSE_FILES = $(if $(GPU),-f docker-compose.yml -f docker-compose.gpu.yml)
BUILD ?= --build
TEST_JOBS ?= $(shell jobs=$$((2 * $$(nproc))); echo $$((jobs < 16 ? jobs : 16)))

# `make` alone lists the targets with a text behind ##.
.DEFAULT_GOAL := help
.PHONY: help install run-local run-direction run-showers demo-federation test test-engines test-fast test-compose lint locks format bench bench-physics docs-site screenshots up down clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# The environment, with every version pinned. It is built anew when a pin changes.
$(VENV)/.complete: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "icestream needs Python 3.11 or newer; name one: make PYTHON=python3.11 …" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# make install PYTHON=python3.12    the environment alone
install: $(VENV)/.complete  ## the environment alone, in .venv

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
run-local: $(VENV)/.complete $(filter $(DEMO),$(INPUT)) $(filter $(DEMO)-validation,$(VALIDATION))  ## demo data, a training, its report; INPUT='data/*.parquet' RUN=runs/mine: your files
	$(BIN)/icestream run -i '$(INPUT)' --run-dir '$(RUN)' --decoders $(DECODERS) $(if $(CONFIG),-c '$(CONFIG)')
	$(if $(filter runs/demo-likelihood,$(BESIDE)),$(BIN)/icestream run -i $(DEMO) --run-dir '$(BESIDE)' --decoders $(DECODERS) \
		-c configs/demo-likelihood.toml)
	$(if $(VALIDATION),$(BIN)/icestream evaluate '$(RUN)' -i '$(VALIDATION)' -o '$(RUN)/evaluation' \
		$(if $(SIMULATED),--simulated $(SIMULATED)) $(if $(BESIDE),--beside '$(BESIDE)'))

# Real showers, on two cores at most ten minutes: library of interactions, both models, and their report.
run-showers: $(VENV)/.complete showers-demo showers-demo-validation  ## the same for real showers, both models side by side
	$(BIN)/icestream run -i showers-demo --run-dir runs/showers-likelihood --decoders $(DECODERS) -c configs/demo-likelihood.toml
	$(BIN)/icestream run -i showers-demo --run-dir runs/showers-wgan --decoders $(DECODERS) -c configs/demo.toml
	$(BIN)/icestream evaluate runs/showers-likelihood -i showers-demo-validation --simulated sibyll --beside runs/showers-wgan

# What an interrupted `make` left is kept: the command goes on there.
showers-demo: | $(VENV)/.complete
	$(BIN)/icestream simulate $@.part --preset sibyll --events 400000 --files 40 --showers 4 --seed 1
	mv $@.part $@

showers-demo-validation: | $(VENV)/.complete
	$(BIN)/icestream simulate $@.part --preset sibyll --events 40000 --files 8 --showers 4 --seed 2
	mv $@.part $@

# The other workload: neutrino directions in a toy detector, six to seven minutes on two cores; ends with its report.
run-direction: $(VENV)/.complete direction-demo direction-demo-validation  ## the same for neutrino directions
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

# A local Pelican federation with demo files, and the lines to type; until Ctrl-C (docs/how-to/federation.md).
demo-federation: $(VENV)/.complete  ## a Pelican federation on this machine, to try it
	$(BIN)/python -m tests.federation $(FEDERATION)

# In two processes for each core, at most 16: the tests mostly wait. In the order of tests/conftest.py.
PYTEST := $(BIN)/pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder --durations 20
test: $(VENV)/.complete  ## the tests
	$(PYTEST) -m 'not engine'

# Slurm, Ray, XRootD, Lightning, notebooks, ONNX, the wheel, the commands and Python of the pages.
test-engines: $(VENV)/.complete  ## the tests that need an engine of somebody else
	$(PYTEST) -m engine

# What starts no process and is quick: before every commit.
test-fast: $(VENV)/.complete  ## tests that start no process
	$(BIN)/pytest -n $(TEST_JOBS) -m 'not process and not slow and not engine'

lint: $(VENV)/.complete  ## ruff, mypy, and what may not grow (benchmarks/size.py)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks examples
	$(BIN)/python -m benchmarks.size

# After a change of constraints.txt; uv from `pip install uv`. Torch is left out, and CUDA with it if PIP_FIND_LINKS has
# a CPU wheel: see Dockerfile.
LOCK := UV_FIND_LINKS=$(PIP_FIND_LINKS) uv pip compile --quiet --no-header --no-annotate --generate-hashes -c constraints.txt \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-emit-package torch
TRAINING := torch|tensorboard|nvidia-ml-py|scipy|matplotlib
locks: pyproject.toml constraints.txt  ## hashes of the images' packages
	echo setuptools | $(LOCK) -o configs/images/build.txt -
	python3 -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
		| grep -vE '^($(TRAINING))\b' | $(LOCK) -o configs/images/data.txt -
	$(LOCK) -o configs/images/training.txt pyproject.toml

format: $(VENV)/.complete  ## ruff's changes to the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Measured figures; results worth keeping go to benchmarks/results/.
bench: $(VENV)/.complete  ## every benchmark
	for script in benchmarks/bench_*.py; do $(BIN)/python -m "benchmarks.$$(basename "$$script" .py)" || exit 1; done

# The tables and figures of docs/explanation/physics.md, in a quarter of an hour on two cores. What is done is kept: interrupt it, start it again.
bench-physics: $(VENV)/.complete  ## tables and figures of the physics page
	$(BIN)/python -m benchmarks.physics $(if $(JOBS),--jobs $(JOBS))

# The pages of docs/ as a site, in site/, with those that the build makes itself (commands, settings, source tree, table of
# cr_muons' flags: docs/site_hooks.py). A broken link, a page outside of the menu, and wide code are errors.
docs-site: $(VENV)/.complete  ## site of docs/, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Pictures of the pages: a run in a terminal, its report and TensorBoard in Chromium (Debian: apt-get install chromium).
screenshots: $(VENV)/.complete  ## pictures of the pages
	$(BIN)/python docs/take_screenshots.py

# make up DATA=/data/muons DECODERS=3 GPU=1    in containers (docs/how-to/docker.md)
up:  ## services in containers; DATA=/data/muons DECODERS=3 GPU=1
	$(COMPOSE) $(COMPOSE_FILES) up --detach $(BUILD) --scale decoder=$(DECODERS)

down:  ## stop the containers
	$(COMPOSE) $(COMPOSE_FILES) down

# Whole runs in containers. With an engine that runs, or as root with Debian's docker.io, docker-compose, mmdebstrap, prometheus.
test-compose: $(VENV)/.complete  ## whole runs in containers
	COMPOSE='$(COMPOSE)' $(BIN)/python -m tests.compose

# What can be made again; runs/ is not.
clean:  ## remove what can be made again; runs/ stays
	rm -rf $(VENV) $(DEMO) $(DEMO).part $(DEMO)-validation $(DEMO)-validation.part direction-demo* showers-demo* .pytest_cache .mypy_cache .ruff_cache *.egg-info site
