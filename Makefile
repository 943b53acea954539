# make compare   the same work under PyTorch's allocator and under dymem, in one table
# make test      build, and run every test that this machine can run
# make readme    remake the table in README.md
# make help      this text        make clean   remove what the others made
#
# They set up an environment of their own in .venv, from python3 (with venv) and g++ alone. Variables:
#   DYMEM_ENV=here   use the python3 on PATH as it is: nothing is installed, nothing fetched, dymem is built in place
#   TORCH=VERSION    make test: also install that torch, so that the adapter is tested
#   ARGS="…"         handed on to `dymem compare` or to pytest
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check
SOURCES := $(shell find allocator python setup.py pyproject.toml -name '*.[ch]pp' -o -name '*.py' -o -name '*.toml')
TORCH ?=
ARGS ?=

ifeq ($(DYMEM_ENV),here)
PYTHON := PYTHONPATH="$(CURDIR)/python$${PYTHONPATH:+:$$PYTHONPATH}" python3
BUILT := build/in-place.stamp
TESTABLE := $(BUILT)
else ifeq ($(DYMEM_ENV),)
PYTHON := .venv/bin/python
BUILT := .venv/dymem.stamp
TESTABLE := $(BUILT) .venv/test$(TORCH).stamp
else
$(error DYMEM_ENV is '$(DYMEM_ENV)'; it can be 'here', or left out)
endif

.PHONY: compare test build readme help clean
.DEFAULT_GOAL := help

compare: $(BUILT)
	@$(PYTHON) -m dymem compare $(ARGS)

test: $(TESTABLE)
	$(PYTHON) -m pytest $(if $(shell $(PYTHON) -c 'import xdist' 2>&1),,-n auto --dist loadfile) $(ARGS)

build: $(BUILT)

SHOWN := vgg16_b128 resnet50_b128 inception_v4_b64 bert_varlen llama_varlen resnet50_prefetch llama_fsdp2_ckpt \
  resnet152_offload_ckpt
readme: $(BUILT)
	mkdir -p build
	$(PYTHON) -m dymem compare --recordings --markdown $(SHOWN:%=--only %) | grep '^|' > build/table.md
	sed -i -e '/^<!-- table/,/^<!-- end/{//!d}' -e '/^<!-- table/r build/table.md' README.md

.venv/bin/python:
	@command -v g++ >/dev/null || [ -n "$${CXX:-}" ] || { echo "dymem: no C++ compiler; install g++ 11 or newer." >&2; exit 1; }
	@python3 -m venv .venv || { echo "dymem: python3 has no venv; install python3-venv, or use DYMEM_ENV=here." >&2; exit 1; }

# Editable, so that a change in Python needs no make; the objects in build/ make a second run quick.
.venv/dymem.stamp: $(SOURCES) | .venv/bin/python
	@[ -e .venv/tools.stamp ] || { echo "dymem: installing the build tools into .venv" && \
	  $(PIP) "setuptools>=70.1" "pybind11>=2.12" "typer>=0.12" "rich>=13" && touch .venv/tools.stamp; }
	@echo "dymem: building, about a minute on two cores the first time"
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

.venv/test$(TORCH).stamp: pyproject.toml | .venv/dymem.stamp
	@echo "dymem: installing what the tests need into .venv"
	@$(PIP) pytest pytest-timeout pytest-xdist hypothesis numpy matplotlib
	@$(if $(TORCH),$(PIP) "torch==$(TORCH)" nvidia-cuda-crt)
	@touch $@

build/in-place.stamp: $(SOURCES)
	@python3 setup.py --quiet build_ext --inplace
	@mkdir -p build && touch $@

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

clean:
	rm -rf .venv build dist python/dymem.egg-info .pytest_cache .hypothesis
	find python -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
