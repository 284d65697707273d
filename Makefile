# `make demo` and `make test` each do all the set-up they need; both are quick the second time.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: demo test serve setup setup-test bench clean

demo: setup
	$(BIN)/jetspec demo

test: setup-test
	$(BIN)/python -m pytest

serve: setup
	$(BIN)/jetspec serve

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

clean:
	rm -rf .venv engines models .cache
