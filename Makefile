# The two commands of the README are `make demo` and `make test`; both work in a fresh clone.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types gpu slow bench docs format clean

demo: $(VENV)/.installed
	$(PY) -m rtlang run examples/demo.py

# pytest last: its summary is the last line.
test: lint types
	$(PY) -m pytest -n 2 --dist worksteal -m "not gpu and not slow"

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.installed-dev
	$(VENV)/bin/mypy
	$(VENV)/bin/pyright

# On a machine with an NVIDIA GPU, with torch, triton and flashinfer-python for it.
gpu:
	$(PYTHON) -m pytest -m gpu
	$(PYTHON) benchmarks/gpu.py all --json gpu.json

slow: $(VENV)/.installed-dev
	$(PY) -m pytest -m "slow and not gpu"

bench: $(VENV)/.installed
	$(PY) benchmarks/scheduler_overhead.py
	$(PY) benchmarks/cpu_vs_transformers.py

docs: $(VENV)/.installed
	$(PY) docs/write_configuration.py

format: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Files that say what is done: an interrupted step leaves none and is done again.
$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/.created
	@echo "Installing into $(VENV); the first time takes minutes."
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/.created
	@echo "Installing into $(VENV), with what the tests need; the first time takes minutes."
	$(INSTALL) -e '.[dev]'
	$(PY) tests/install_browser.py $(VENV)/browser || echo "No browser: tests of the page skip."
	touch $(VENV)/.installed $@
