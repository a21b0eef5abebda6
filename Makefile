# make demo: train the demo.  make test: run the tests of CI.  make gpu: run the tests that need GPUs.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
# The first Python on PATH that slurm_rl supports and that can make environments.
SUPPORTED := import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
	$$name -c '$(SUPPORTED)' 2> /dev/null && echo $$name && break; done)
NO_PYTHON := slurm_rl needs Python 3.11, 3.12 or 3.13 with venv; none is on PATH, or PYTHON names another one. Next, one of: \
	`apt-get install python3-venv`; `uv python install 3.12 && make demo PYTHON=$$(uv python find 3.12)`; \
	`conda create -n slurm_rl python=3.12 && conda activate slurm_rl && make demo`
VENV ?= .venv
# Ray passes the path of its Python to a shell without quotes.
ifneq ($(shell realpath -m '$(VENV)' | grep '[[:space:]]'),)
$(error the path of the virtual environment must have no spaces; got $(VENV) in $(CURDIR). Next: make $(MAKECMDGOALS) VENV=/a/path/without/them)
endif
BIN := $(VENV)/bin
LOCKS := constraints.txt constraints-dev.txt
# Used for the CPU build of torch if pip's configuration has no index with it.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# --no-compile saves a minute: the first import compiles the modules that are used. PYTHONDONTWRITEBYTECODE would make every
# process compile torch and vLLM again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --no-compile
CLUSTERS := tests/slurm tests/machines
# Slurm of Debian stable; the machine's own may be years older.
CURRENT_SLURM := trixie
# The newest Slurm, in test-all only: the packages of this suite change daily.
NEWEST_SLURM := sid
on_slurm_of = $(BIN)/python -m tests.slurm.cluster on $(1) $(BIN)/python -m pytest
# Tests that start Ray run last, when the machine is less busy: a raylet waits at most 15 s for its agent. The longest file
# starts first, so that no core is idle at the end.
REST := $(filter-out $(CLUSTERS) tests/train tests/examples %.py %__pycache__,$(wildcard tests/*)) tests/train/test_run.py tests/examples tests/train

.PHONY: demo test test-clusters test-rest check unit test-all gpu test-gpu fake-gpu build-fake-gpu test-fake-gpu lock check-locks clean

demo: $(VENV)/.cpu
	$(BIN)/python -m slurm_rl

# The Slurm tests mostly wait and have deadlines; the other tests compute. Therefore both run at once, the others with lower
# priority and two at a time. sed keeps the lines of parallel outputs intact.
test: $(VENV)/.dev
	$(MAKE) --no-print-directory --keep-going --jobs=3 check test-clusters test-rest

test-clusters: $(VENV)/.dev
	$(BIN)/python -m tests.slurm.cluster install
	$(BIN)/python -m pytest -m "not slow" --durations=15 $(CLUSTERS) | sed -u ''; first=$$?; \
	$(call on_slurm_of,$(CURRENT_SLURM)) -m "versions and not slow" --durations=5 tests/slurm | sed -u '' && exit $$first

test-rest: $(VENV)/.dev
	nice -n 10 $(BIN)/python -m pytest -m "not slow" --durations=15 --numprocesses 2 --dist loadfile --no-loadscope-reorder $(REST) | sed -u ''

test-all: $(VENV)/.dev check
	$(BIN)/python -m tests.slurm.cluster install
	$(BIN)/python -m pytest tests
	$(call on_slurm_of,$(CURRENT_SLURM)) tests/slurm
	$(call on_slurm_of,$(NEWEST_SLURM)) tests/slurm

unit: $(VENV)/.dev
	$(BIN)/python -m pytest tests/unit

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The locks (tests/lock.py) list every requirement of .[cpu,dev] with the hashes of its files, so pip resolves nothing and
# installs nothing else. Two pips that share the list take 70 s instead of 118. Source packages are built last, with the
# installed packages: their builds download nothing.
INSTALL_TORCH := $(PIP) --no-deps --requirement /dev/stdin
INSTALL := $(INSTALL_TORCH) --require-hashes
# make gpu WITH_FLASH_ATTN=1 builds flash-attn: it takes half an hour and needs the nvcc of torch's CUDA.
WITH_FLASH_ATTN ?=
LEFT_OUT := $(if $(WITH_FLASH_ATTN),^$$,^flash-attn==)
# The lock has the hash of torch's CPU build for Python 3.11 only.
OTHER_TORCH := import sys; print("/+cpu/s/ --hash.*//" if sys.version_info[:2] != (3, 11) else "")
torch = cat $(1) | grep ^torch== | sed "$$($(BIN)/python -c '$(OTHER_TORCH)')"
define install
	@$(or $(PYTHON),false) -c '$(SUPPORTED)' 2> /dev/null || { echo '$(NO_PYTHON)' >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(call torch,$(1)) | $(INSTALL_TORCH) 2> /dev/null || $(call torch,$(1)) | $(INSTALL_TORCH) --index-url $(TORCH_INDEX)
	printf '%s\n' 1 2 | xargs -P 2 -I% sh -c "cat $(1) | grep -v -e ^torch== -e source$$ | sed -n '%~2p' | $(INSTALL)"
	cat $(1) | grep source$$ | grep -v '$(LEFT_OUT)' | $(INSTALL) --no-build-isolation
	$(PIP) --no-deps --no-build-isolation --editable .
endef

$(VENV)/.cpu: pyproject.toml constraints.txt
	$(call install,constraints.txt)
	touch $@

$(VENV)/.dev: pyproject.toml $(LOCKS)
	$(call install,$(LOCKS))
	touch $(VENV)/.cpu $@

# Run doctor and the GPU tests on a machine with NVIDIA GPUs and driver, in a separate environment. The last lines are the table
# for the docs. AMD: run `python -m slurm_rl doctor; python -m pytest tests/gpu` in its image.
GPU_VENV ?= .venv-gpu
GPU_LOCKS := containers/cuda/constraints.txt constraints-dev.txt

gpu:
	$(MAKE) --no-print-directory VENV=$(GPU_VENV) test-gpu

test-gpu: $(VENV)/.gpu
	$(BIN)/python -m slurm_rl doctor; fit=$$?; $(BIN)/python -m pytest tests/gpu && exit $$fit

$(VENV)/.gpu: pyproject.toml $(GPU_LOCKS)
	$(call install,$(GPU_LOCKS))
	touch $@

# Build a CUDA machine without GPUs in the environment of make gpu (tests/fake_gpu). Example, which takes the whole way of a
# user with two GPUs: .venv-gpu/bin/python -m tests.fake_gpu run --gpus 2 make gpu
fake-gpu:
	$(MAKE) --no-print-directory VENV=$(GPU_VENV) build-fake-gpu

build-fake-gpu: $(VENV)/.gpu
	$(BIN)/python -m tests.fake_gpu.build

# The lane of CI for GPU code: it runs if the CUDA lock or the code changed since it last passed in $(GPU_VENV), which may be
# anywhere and outlive a clone. It skips without such an environment.
GPU_CODE := containers/cuda Makefile tests/fake_gpu tests/gpu $(addprefix slurm_rl/,models node plan rollout trainers workers)
PASSED := $(GPU_VENV)/fake_gpu/passed

test-fake-gpu: $(VENV)/.dev
	@if [ ! -d $(GPU_VENV)/fake_gpu ]; then echo 'fake GPUs: skipped, $(GPU_VENV) has none. Next: make fake-gpu'; exit; fi; \
	code=$$(git ls-files -s $(GPU_CODE) | sha256sum); \
	if [ "$$code" = "$$(cat $(PASSED) 2> /dev/null)" ]; then echo 'fake GPUs: unchanged since the last pass'; exit; fi; \
	PYTHONPATH=. $(GPU_VENV)/bin/python -m tests.fake_gpu.build && GPU_VENV=$(realpath $(GPU_VENV)) \
	$(BIN)/python -m pytest -m slow tests/fake_gpu -k 'device or SFT or (GRPO and colocated)' && echo "$$code" > $(PASSED)

# Write the locks; for CPU from the installed packages. Run it after a change of pyproject.toml.
lock: $(VENV)/.dev
	$(BIN)/python -m tests.lock

# Compare the locks with today's PyPI; part of make test-all.
check-locks: $(VENV)/.dev
	$(BIN)/python -m tests.lock check

clean:
	rm -rf $(VENV) $(GPU_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
