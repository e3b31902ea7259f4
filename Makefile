# make demo, make test, make test-all, make test-page, make test-ray, make dev, make lint, make bench, make docs, make docs-site. PYTHON and VENV
# choose another interpreter and folder, TESTS some tests.
PYTHON ?= python3
VENV ?= .venv
TESTS ?=
BIN := $(VENV)/bin
# or else every process of pytest would compile all that it imports before it reads tests/conftest.py
export PYTHONDONTWRITEBYTECODE :=
# setuptools warns on every strict install that build/ must stay, which the rules below see to. Most modules are never imported:
# to compile them all takes as long as the rest of the installation.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-compile
# Half of the tests to each of two processes, and the rest to whoever is ready: what a module has made serves its next tests.
PYTEST := $(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist worksteal

# A machine with a GPU may have no network: what it lacks comes with the checkout, made by gpu-kit where there is one.
KIT := .gpu
KIT_PYTHON ?= 3.11
KIT_CAPABILITIES ?= 8.0 9.0 10.0
GPU_PYTHON = $(if $(wildcard $(KIT).tar.gz),PYTHONPATH=$(KIT)/site XDG_CACHE_HOME=$(CURDIR)/$(KIT)/cache $(PYTHON),$(BIN)/python)

.PHONY: demo test test-all test-page test-ray dev install lint bench docs docs-site clean gpu-kit test-gpu bench-gpu

demo: install
	$(BIN)/augury pull smollm2
	@echo "--- the prompt"
	@cat docs/demo.txt
	@echo "--- its continuation, written plainly"
	$(BIN)/augury run -m smollm2 -f docs/demo.txt --temp 0 -n 128 --spec-type none
	@echo "--- the same, written with drafts, as by default: drafted tokens are in colour"
	$(BIN)/augury run -m smollm2 -f docs/demo.txt --temp 0 -n 128 --stats
	@echo "--- both in turns, timed"
	$(BIN)/augury bench drafters -m smollm2 -f docs/demo.txt --temp 0 -n 128

# Doctests run from the installed package: its folders have other names in the source tree. What kernels for GPUs are written in
# is chosen when they are imported, which tests do in a simulator.
test: dev
	$(PYTEST) $(or $(TESTS),--doctest-modules --ignore-glob='*/augury/*numba_cuda*' --ignore-glob='*/augury/plugins/ray/*' --pyargs augury tests)

# The rest of large matrices, kernels compiled for GPUs, and minutes of random engines, failing plugins and damaged files; see
# docs/testing.md.
test-all: test
	$(PIP) --group cuda
	$(PYTEST) --rest $(TESTS)
	$(BIN)/python tests/torture --minutes 1

# The server's page in a real browser, which is not fetched: Debian's is one.
test-page: dev
	@command -v chromium >/dev/null || { echo "make test-page needs chromium on PATH; on Debian: apt-get install chromium" >&2; exit 1; }
	$(PIP) --group page
	$(BIN)/python -m pytest -q -m browser $(or $(TESTS),tests/plugins/server/page)

# One cluster of two nodes on this machine. KILLS=20 kills each kind of process so often in mid-work.
test-ray: dev
	$(PIP) --group ray
	$(BIN)/python -m pytest -q -m ray $(or $(TESTS),tests/plugins/ray)

# Strict editable installs break when build/ is gone, and miss files that are new: both are made anew each time.
install: $(BIN)/python
	rm -rf build
	$(PIP:--quiet=) --editable . --config-settings editable_mode=strict

dev: $(BIN)/python
	rm -rf build
	$(PIP) --group dev --no-build-isolation --editable . --config-settings editable_mode=strict

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "augury needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=25.1' 'setuptools>=77'

lint: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p augury

docs: dev
	$(BIN)/python docs/options.py
	$(BIN)/python docs/models.py
	$(BIN)/python docs/notebook.py

# A warning is an error: links and anchors that lead nowhere are warnings. Nothing is fetched.
docs-site: dev
	$(PIP) --group docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --conf-dir docs . site

bench: dev
	$(BIN)/python -m pytest -m bench

# For Python $(KIT_PYTHON) all but numba and numpy, and kernels compiled ahead: one file, since as files it is four times as large.
gpu-kit: dev
	rm -rf $(KIT) $(KIT).tar.gz
	$(PIP) --group cuda
	$(PIP) --target $(KIT)/site --no-deps --no-build-isolation .
	rm -rf *.egg-info build/lib build/bdist.*  # entry points of this day, which would be read before the installed ones
	$(PIP) --target $(KIT)/site --no-deps --upgrade --python-version $(KIT_PYTHON) --only-binary=:all: \
	  attrs cuda-bindings cuda-core cuda-pathfinder gguf jinja2 markupsafe numba-cuda packaging platformdirs pluggy pyyaml structlog \
	  tqdm xxhash
	rm -rf $(KIT)/site/cuda/core/cu12
	XDG_CACHE_HOME=$(CURDIR)/$(KIT)/cache $(BIN)/python -m augury.backends.numba_cuda.aot $(KIT_CAPABILITIES)
	tar czf $(KIT).tar.gz $(KIT)
	rm -rf $(KIT)

# Unpacked where it is new.
$(KIT)/site: $(wildcard $(KIT).tar.gz)
	$(if $<,rm -rf $(KIT) && tar xzf $< && touch $@)

test-gpu: $(KIT)/site
	$(GPU_PYTHON) tests/gpu test test-gpu.json

bench-gpu: $(KIT)/site
	$(GPU_PYTHON) tests/gpu bench bench-gpu.json

clean:
	rm -rf build dist site *.egg-info $(VENV) $(KIT) $(KIT).tar.gz
