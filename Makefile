# Everything here needs Python >= 3.11 and nothing else: each target makes .venv from the lock first (2 minutes, once),
# and those that need more install it by apt-get, as root or by sudo, or say what to type. Times are of 2 cores.
#   make demo     a live demo with an embedded Kafka, until Ctrl-C (ARGS="--seconds 30" and so on are passed on)
#   make test     every test, on a real Kafka: 12 minutes (ARGS="tests/kafka -x --pdb" and so on are passed on)
#   make quick    the tests that need neither a broker nor a browser nor many seconds: 1 minute
#   make near     of those, the tests of changed rooms and of what imports a changed module: at most 1 minute
#   make check    ruff, strict mypy, tests: 13 minutes
#   make bench    the benchmarks: 45 minutes (ARGS="--only core" and so on are passed on)
#   make plots    redraws the pictures in docs/plots
#   make lock     compiles the locks from pyproject.toml: 1 minute
#   make release  builds what is published, into dist/: 1 minute (MINISIGN_KEY=FILE signs it)
#   make clean    removes what these made

PYTHON ?= python3
ARGS ?=
UV := uv==0.13.8
CYCLONEDX := cyclonedx-bom==7.5.0
MINISIGN_KEY ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --no-compile
COMPILE := .venv-lock/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--custom-compile-command "make lock" pyproject.toml

# At most eight processes run the tests; with --pdb in ARGS, one. Keep a bytecode cache: without it every
# started program recompiles its imports, and starting a worker takes twice as long.
PYTEST := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/$(VENV)/pycache \
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadscope --max-worker-restart 3

.DEFAULT_GOAL := help
.PHONY: help demo test quick near check bench plots lock release clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.demo
	@$(BIN)/quietcount demo $(ARGS)

test: $(VENV)/.all
	@$(PYTEST) --install $(ARGS)

quick: $(VENV)/.all
	@$(PYTEST) -m "not slow" $(ARGS)

near: $(VENV)/.all
	@near=$$($(BIN)/python -m tests.near) || exit 1; \
	[ -n "$$near" ] || { echo "No test is near the change."; exit 0; }; \
	$(PYTEST) -m "not slow" $(ARGS) $$near

check: $(VENV)/.all
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) --install $(ARGS)

bench: $(VENV)/.all
	@$(BIN)/python -m bench $(ARGS)

plots: $(VENV)/.all
	@$(BIN)/python -m bench.plots $(ARGS)

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is not Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m tests.system venv $(VENV)
	@touch $@

# What `make demo` needs is part of what the others need, in the same versions: where those are, it installs nothing.
$(VENV)/.demo: requirements-demo.lock pyproject.toml $(VENV)/.venv
	@if [ ! $(VENV)/.all -nt requirements.lock ]; then \
		echo "Installing what the demo needs into $(VENV) (once) ..."; \
		$(PIP) --require-hashes -r requirements-demo.lock && $(PIP) --no-deps --no-build-isolation --no-index -e . && \
		$(BIN)/python -m workers.commands.compiling; \
	fi
	@touch $@

$(VENV)/.all: requirements.lock pyproject.toml $(VENV)/.venv
	@echo "Installing into $(VENV) (once) ..."
	@$(PIP) --require-hashes -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation --no-index -e .
	@$(BIN)/python -m workers.commands.compiling
	@touch $@

lock:
	$(PYTHON) -m tests.system venv .venv-lock
	.venv-lock/bin/python -m pip --disable-pip-version-check --quiet install $(UV)
	$(COMPILE) --upgrade --all-extras --output-file requirements.lock
	$(COMPILE) --upgrade --extra demo --extra build --constraint requirements.lock --no-annotate --output-file requirements-demo.lock
	$(COMPILE) --upgrade --extra build --constraint requirements.lock --no-annotate --output-file deploy/requirements.lock
	rm -rf .venv-lock

# One commit gives the same bytes everywhere. The list of parts is of the image: the newest of what a wheel
# asks for is not known.
release: $(VENV)/.all
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build
	$(PYTHON) -m tests.system venv .venv-release
	.venv-release/bin/python -m pip --disable-pip-version-check --quiet install $(CYCLONEDX)
	.venv-release/bin/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml \
		--output-file dist/quietcount.cdx.json deploy/requirements.lock 2> /dev/null
	rm -rf .venv-release
	cd dist && sha256sum * > SHA256SUMS && cat SHA256SUMS
	@[ -z "$(MINISIGN_KEY)" ] || minisign -S -s "$(MINISIGN_KEY)" -m dist/SHA256SUMS

clean:
	rm -rf $(VENV) .venv-lock .venv-release .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
