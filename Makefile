PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python

.PHONY: demo test lint types slow bench format clean

demo: $(VENV)/.installed
	$(PY) -m rtlang run examples/demo.py

test: $(VENV)/.installed-dev lint types
	$(PY) -m pytest -m "not gpu and not slow"

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.installed-dev
	$(VENV)/bin/mypy
	$(VENV)/bin/pyright

slow: $(VENV)/.installed-dev
	$(PY) -m pytest -m "slow and not gpu"

bench: $(VENV)/.installed
	$(PY) benchmarks/scheduler_overhead.py
	$(PY) benchmarks/cpu_vs_transformers.py

format: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(PY):
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(PY)
	$(PY) -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(PY)
	$(PY) -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(VENV)/.installed $@
