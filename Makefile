# make demo: which memory forecasts a real drifting stream best?   make test: the tests.   make lint: style and types.
# make test MARK= runs the slow tests too.
# Each sets up .venv when it is missing or out of date; all are safe to repeat.
PYTHON ?= python3
BIN := .venv/bin
MARK ?= not slow
READY := .venv/.ready

.PHONY: demo test lint bench docs wheel clean

demo: $(READY)
	$(BIN)/innerloop compare --report innerloop-report

test: $(READY)
	$(BIN)/python -m pytest -n 2 -m '$(MARK)'

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/pyright

bench: $(READY)
	$(BIN)/pip install -q -c constraints.txt -e ".[bench]"
	$(BIN)/innerloop bench

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

wheel: $(READY)
	$(BIN)/python -m build --wheel

clean:
	rm -rf .venv dist build .pytest_cache .ruff_cache innerloop-report

# the pinned torch goes in first: a range would take the build for graphics cards, several gigabytes
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "innerloop needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	touch $(READY)
