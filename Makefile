# `make` alone lists the targets. Needs Python 3.11 to 3.13 and make; .venv sets itself up (decision 0001).

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

export TF_CPP_MIN_LOG_LEVEL := 2
# Bytecode is kept whatever the environment says: TensorFlow takes 4 s to import with it, 10 s without.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo papers test test-kernels test-oldest test-pythons check lint soak bench size format docs dist constraints clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## the main job: train, look inside, compare
	@$(BIN)/fedcore demo

papers: $(READY) ## the figures of papers in docs/gallery, from runs in build/papers; finished ones stay
	@$(BIN)/python examples/papers/reproduce.py

test: lint ## linters, types, layers, the whole test suite
	@$(BIN)/python -m pytest -n auto --dist worksteal

# The tests that tell most a second: those of the language, the plans and the runtime.
QUICK := tests/types tests/ir tests/intrinsics tests/golden tests/templates tests/runtime tests/data

check: lint ## linters, types, layers, quick tests
	@$(BIN)/python -m pytest -m "not slow and not soak" $(QUICK)

# The oldest versions that pyproject.toml allows; they bring an older numpy and protobuf.
OLDEST := .venv-oldest/bin

test-oldest: ## quick tests with the oldest supported TensorFlow and Keras
	@test -x $(OLDEST)/python || $(PYTHON) -m venv .venv-oldest
	@$(OLDEST)/python -m pip install -qq --disable-pip-version-check -e '.[test,data]' 'tensorflow==2.18.*' 'keras==3.8.*'
	@$(OLDEST)/python -m pytest -n auto -m "not slow and not soak" $(QUICK)

# What depends on the version of Python: types, annotations, sources and code of functions, signals, threads, pickles.
# TensorFlow's kernels are the same for all.
VERSIONED := tests/types tests/ir tests/intrinsics tests/golden tests/templates tests/computation tests/context \
	tests/program tests/errors tests/lru_cache tests/whole_files tests/graphs/test_autograph.py \
	tests/graphs/test_refused_bodies.py tests/runtime/test_arguments.py tests/runtime/test_local.py \
	tests/runtime/test_stopping.py tests/runtime/test_hangs.py

# An interpreter of pyenv that is not switched on answers to its name and does not run, so each is tried.
test-pythons: ## tests of what depends on Python, with 3.12 and 3.13 where they are installed
	@set -e; for version in 3.12 3.13; do \
	for python in python$$version $$(ls "$$(pyenv root 2>/dev/null)"/versions/$$version.*/bin/python 2>/dev/null) ""; do \
	"$$python" -c '' 2>/dev/null && break; done || { echo "Python $$version is not installed: left out"; continue; }; \
	echo "Python $$version"; venv=.venv-$$version; \
	test -x $$venv/bin/python || "$$python" -m venv $$venv; \
	$$venv/bin/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt -e '.[check]' || \
	{ echo "Python $$version: the packages cannot be installed: left out"; continue; }; \
	$$venv/bin/python -m pytest -n auto --dist worksteal -q -m "not slow and not soak" $(VERSIONED); \
	done

# What depends on TensorFlow's kernels: those without oneDNN, which a processor without AVX-512 has, refuse, compute and crash
# differently.
KERNELS := tests/graphs/test_batching_rules_by_themselves.py tests/graphs/test_batching_models.py \
	tests/graphs/test_batching_rules_of_images.py tests/graphs/test_convolutions_in_loops.py \
	tests/graphs/test_guards_in_a_child.py tests/graphs/test_joined_products.py tests/graphs/test_loop_products.py \
	tests/graphs/test_low_rank_carry.py tests/graphs/test_onednn_kernels.py tests/graphs/test_operand_guards.py \
	tests/graphs/test_own_rows.py tests/runtime/test_low_rank.py tests/testing/test_trial_process.py \
	tests/fuzz/test_operations.py

test-kernels: $(READY) ## tests of what depends on TensorFlow's kernels, with oneDNN off
	@TF_ENABLE_ONEDNN_OPTS=0 $(BIN)/python -m pytest -n auto --dist worksteal -q $(KERNELS)

lint: $(READY) ## linters, types and layers only
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo "not formatted: run make format"; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

soak: $(READY) ## long runs: large cohorts, kills, thousands of generated programs
	@FEDCORE_SOAK=1 $(BIN)/python -m pytest -m soak --timeout 0 -o faulthandler_timeout=0

bench: $(READY) ## ratios against hand-written floors, measured in the same run
	@$(BIN)/python -m benchmarks

size: $(READY) ## the ten longest files and functions
	@$(BIN)/python scripts/size.py

format: $(READY) ## rewrite the source in the one format
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format --quiet

docs: $(READY) ## the site with the API reference, in build/site/html; warnings are errors
	@$(BIN)/python -c 'import sphinx, myst_parser, furo' 2>/dev/null || \
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@$(BIN)/python -m scripts.site

dist: $(READY) ## wheel and source archive, in dist/
	@rm -rf dist && $(BIN)/python -m build --no-isolation --outdir dist

constraints: ## pin what fedcore[test,data] needs, from a fresh environment
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && set -e && \
	$(PYTHON) -m venv $$tmp/venv && \
	$$tmp/venv/bin/pip install -qq --disable-pip-version-check -e '.[test,data]' && \
	{ echo "# What fedcore[test,data] was tested with; regenerate with: make constraints"; \
	  $$tmp/venv/bin/pip freeze --disable-pip-version-check --exclude-editable --exclude fedcore; } > $$tmp/pins && \
	cp $$tmp/pins constraints.txt

clean: ## remove the environment, caches and outputs
	rm -rf .venv .venv-oldest .venv-3.12 .venv-3.13 .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist demo-out bench-out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Without an interpreter, be it missing or dangling, .venv is made again from nothing.
ifneq ($(shell test -x $(BIN)/python && echo there),there)
.PHONY: $(READY)
endif

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { \
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else \
	"fedcore needs Python 3.11, 3.12 or 3.13; $(PYTHON) is %d.%d. Try: make PYTHON=python3.13" % v)' && \
	echo "Setting up .venv (once; a few minutes)" && \
	$(PYTHON) -m venv --clear .venv; }
	@$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt -e '.[test,data]'
	@touch $@
