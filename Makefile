# make demo   see it work            make serve   run it with the environment's settings
# make test   everything CI runs     make bench   the benchmarks
.PHONY: demo serve test bench check unit e2e browser docs clients clean

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PORT ?= 8100

# The stamps hold what was installed: a second run installs nothing.
$(VENV)/.runtime: requirements.txt pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.runtime
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

demo: $(VENV)/.runtime
	@$(PY) -m asr_server demo --port $(PORT) $(if $(ONCE),--once)

serve: $(VENV)/.runtime
	@$(PY) -m asr_server serve --port $(PORT)

test: check unit e2e

check: $(VENV)/.dev
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

unit: $(VENV)/.dev
	$(PY) -m pytest src

e2e: $(VENV)/.dev browser
	$(PY) -m pytest E2Etest

# The page is tested in Debian's Chromium. Installed here only as root, as on a fresh container or a CI machine.
browser:
	@command -v chromium >/dev/null || test "$$(id -u)" != 0 || { apt-get update -qq && apt-get install -yqq chromium; }
	@command -v chromium >/dev/null || { echo "The browser tests need Chromium: sudo apt-get install chromium"; exit 1; }

bench: $(VENV)/.dev
	$(PY) -m E2Etest.bench

docs: $(VENV)/.dev
	$(PY) -m E2Etest.docs_tables

# OpenAI's clients against the server, and the page of what they saw. Needs Node 20 or later.
clients: $(VENV)/.dev
	$(PY) -m E2Etest.openai

clean:
	rm -rf $(VENV) build dist
