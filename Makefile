# `make demo` and `make test` each do all the set-up they need; both are quick the second time.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: demo test serve setup setup-test bench trt-check gpu-check clean

demo: setup
	$(BIN)/jetspec demo

test: setup-test
	$(BIN)/python -m pytest

serve: setup
	$(BIN)/jetspec serve

# the GPU graphs compile; needs no GPU, about 15 GB of memory and 5 GB of disk
trt-check: .venv/trt-check.stamp
	@$(BIN)/jetspec setup
	$(BIN)/python -m jetspec_build.tensorrt_check

# what needs a GPU; without one the report lists every test as unproven
gpu-check: setup-test
	$(BIN)/python -m pytest tests/gpu --gpu-report benchmarks/results/gpu_check.json

setup: .venv/serve.stamp
	@$(BIN)/jetspec setup

setup-test: .venv/test.stamp
	@$(BIN)/jetspec setup

.venv/bin/python:
	@$(PYTHON) build/check_platform.py
	$(PYTHON) -m venv .venv

.venv/serve.stamp: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing what serving needs (about 0.5 GB) ..."
	$(PIP) --editable '.[serve]'
	@touch $@

.venv/test.stamp: .venv/serve.stamp
	@echo "installing what the tests need (torch among it) ..."
	$(PIP) --editable '.[test]'
	@touch $@

.venv/trt-check.stamp: .venv/serve.stamp
	@echo "installing TensorRT-RTX (90 MB) and what it compiles with ..."
	$(PIP) --editable '.[trt-check]'
	@touch $@

clean:
	rm -rf .venv engines models .cache
