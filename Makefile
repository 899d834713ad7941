# make demo   see it work            make serve   run it with the environment's settings
# make test   everything CI runs     make bench   the benchmarks
# make soak   20 minutes of load and faults     make guarantees   docs/guarantees.md, measured again
# make fuzz   random input, longer   make lock, make sbom, make audit   the packages that an image is built from
.PHONY: demo serve test bench check unit e2e browser docs clients guarantees soak fuzz lock sbom audit clean

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
TOOLS := $(VENV)/tools/bin
PORT ?= 8100
FUZZ_S ?= 600

# The stamps hold what was installed: a second run installs nothing. Without pip the venv is half made, as where Debian's
# python3-venv was missing the first time.
$(VENV)/.runtime: requirements.txt pyproject.toml
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { \
		echo "asr-server needs Python 3.11 or later, and $(PYTHON) is not: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.runtime
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

$(VENV)/.tools: requirements-tools.txt
	test -x $(TOOLS)/python || $(PYTHON) -m venv $(VENV)/tools
	$(TOOLS)/python -m pip install --quiet --disable-pip-version-check -r requirements-tools.txt
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

# Measures all guarantees and writes docs/guarantees.md, or some of them: make guarantees GUARANTEES="drain crash"
guarantees: $(VENV)/.dev
	$(PY) -m E2Etest.guarantees $(GUARANTEES)

soak: $(VENV)/.dev
	$(PY) -m pytest E2Etest/chaos -m soak --timeout 0

fuzz: $(VENV)/.dev
	FUZZ_S=$(FUZZ_S) $(PY) -m pytest E2Etest/fuzz --timeout 0

# Without torch and what only torch needs: their builds differ by index, and an image takes them from the one it is given.
lock: $(VENV)/.tools
	echo "torch; python_version < '3'" | $(TOOLS)/uv pip compile requirements.txt --override /dev/stdin --quiet \
		--generate-hashes --python-version 3.11 --python-platform linux --no-annotate \
		--custom-compile-command "make lock" --output-file requirements.lock

sbom: $(VENV)/.tools $(VENV)/.runtime
	mkdir -p build
	$(TOOLS)/cyclonedx-py environment --pyproject pyproject.toml --output-file build/sbom.json $(PY)

# Asks the package index for known vulnerabilities: needs the network, and fails where a package cannot be looked up.
audit: $(VENV)/.tools
	$(TOOLS)/pip-audit --strict --disable-pip --require-hashes -r requirements.lock
	grep '^torch==' requirements.txt | $(TOOLS)/pip-audit --strict --disable-pip --no-deps -r /dev/stdin

clean:
	rm -rf $(VENV) build dist
