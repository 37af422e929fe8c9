# Everything happens in .venv, which tools/setup.sh makes and keeps up to date.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help lab quick test build nbval bench soak cuda clean

# Set for another Python, it breaks the one in .venv.
unexport PYTHONHOME
# Tests start many Pythons; with it, each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

RESULTS ?= scratch/cuda
BIN := .venv/bin
LINT := $(BIN)/ruff check -q && $(BIN)/ruff format -q --check && $(BIN)/mypy
# What takes minutes: whole notebooks, a browser, a GPU, many repetitions.
SLOW := --ignore=tests/notebooks --ignore=tests/browser --ignore=tests/cuda --ignore=tests/soak

# Two workers, kernels and browsers share the cores: a thread that waits must sleep, not spin.
quick test: export OMP_WAIT_POLICY ?= passive

help: ## list these targets
	@awk -F ': ## ' '/^[a-z]+: ## / {printf "make %-6s  %s\n", $$1, $$2}' Makefile

lab: ## open the course in JupyterLab (LAB_ARGS='--no-browser'; PYTHON=/path/to/python3; PIP_ARGS='--proxy ...')
	@sh tools/setup.sh lab
	@$(BIN)/amp-lab lab $(LAB_ARGS)

quick: ## style, types and most tests that need no kernel, browser or GPU: about 4 minutes
	@sh tools/setup.sh test
	@$(LINT)
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(SLOW) -m "not (long or kernel or notebooks or browser or cuda or soak)"

test: ## everything a change must pass: under 25 minutes
	@sh tools/setup.sh test
	@$(LINT)
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not soak"

build: ## make the notebooks and course.svg; runs what changed in solutions/*.py (FORCE=1: everything)
	@sh tools/setup.sh test
	@$(BIN)/python tools/build.py
	@$(BIN)/python tools/picture.py

nbval: ## run every notebook and compare its outputs with the stored ones
	@sh tools/setup.sh test
	@$(BIN)/python -m pytest tests/notebooks

bench: ## what the code costs beside its peers: one table, dated JSON, the table in README.md (NAMES='scaler_step')
	@sh tools/setup.sh test
	@$(BIN)/python -m benchmarks $(NAMES); met=$$?; $(BIN)/python -m benchmarks --table --into README.md && exit $$met

soak: ## the long trials, some minutes: dated JSON in benchmarks/results, the table in README.md
	@sh tools/setup.sh test
	@$(BIN)/python -m pytest -m soak tests/soak
	@$(BIN)/python -m benchmarks --table --into README.md

cuda: ## what only a CUDA machine can show; no .venv, no network (PYTHON=python3 RESULTS=dir)
	@"$(or $(PYTHON),python3)" tools/cuda.py --results "$(RESULTS)"

clean: ## remove .venv and caches, never work/ or scratch/
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
	@find . \( -name work -o -name scratch -o -name .git \) -prune -o -type d -name __pycache__ -exec rm -rf {} +
