# make demo   trains the demo         make test   runs everything CI runs         make gpu   what needs GPUs
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3.11
VENV ?= .venv
# Ray hands its Python to a shell without quotes.
ifneq ($(shell realpath -m '$(VENV)' | grep '[[:space:]]'),)
$(error the path of the virtual environment must have no spaces; got $(VENV) in $(CURDIR). Next: make $(MAKECMDGOALS) VENV=/a/path/without/them)
endif
BIN := $(VENV)/bin
LOCKS := constraints.txt constraints-dev.txt
# Where pip's own configuration does not know torch's build for CPU: PyTorch's index of it.
TORCH_INDEX ?=
# Without --no-compile a minute goes into modules that nobody imports. The others are compiled once, by the first process
# that imports them; where Python is told not to keep that, every process pays for torch's and vLLM's again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --no-compile
CLUSTERS := tests/slurm tests/machines
# Debian's stable, whose Slurm sites of today have; the machine's own may be years older.
CURRENT_SLURM := trixie
# The newest there is; for test-all alone, since what a suite that still moves has is not the same twice.
NEWEST_SLURM := sid
on_slurm_of = $(BIN)/python -m tests.slurm.cluster on $(1) $(BIN)/python -m pytest
# What brings up a Ray of its own comes last, beside no more than the later Slurm tests: a raylet gives its agent 15 s
# and no more. Of that the longest file first, so that at the end no core is idle.
REST := $(filter-out $(CLUSTERS) tests/train tests/examples %.py %__pycache__,$(wildcard tests/*)) tests/train/test_run.py tests/examples tests/train

.PHONY: demo test test-clusters test-rest check unit test-all gpu test-gpu lock check-locks clean

demo: $(VENV)/.cpu
	$(BIN)/python -m slurm_rl

# The tests on Slurm wait for half of their time (timers, signals) and have deadlines; the others compute. So the others
# run beside them at a lower priority, two at a time, most in one process each. sed passes on whole lines alone.
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

# The locks (tests/lock.py) name all that .[cpu,dev] needs, each with the hashes of its files, so nothing has to be resolved
# and nothing else can come in. pip installs one package after the other: two of them, with every other line each, take
# 70 s instead of 118. What comes as source is built after that, with what is there: nothing is fetched for it.
INSTALL := $(PIP) --no-deps --require-hashes --requirement /dev/stdin
# Half an hour, and the nvcc of torch's CUDA: make gpu WITH_FLASH_ATTN=1. Without it attention is torch's own.
WITH_FLASH_ATTN ?=
LEFT_OUT := $(if $(WITH_FLASH_ATTN),^$$,^flash-attn==)
define install
	$(PYTHON) -m venv $(VENV)
	cat $(1) | grep ^torch== | $(INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
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

# On a machine with NVIDIA GPUs and their driver, in an environment of its own: is the machine fit, and do runs work on it?
# The last lines are the table for the docs. AMD: in its image, python -m slurm_rl doctor; python -m pytest tests/gpu
GPU_VENV ?= .venv-gpu
GPU_LOCKS := containers/cuda/constraints.txt constraints-dev.txt

gpu:
	$(MAKE) --no-print-directory VENV=$(GPU_VENV) test-gpu

test-gpu: $(VENV)/.gpu
	$(BIN)/python -m slurm_rl doctor; fit=$$?; $(BIN)/python -m pytest tests/gpu && exit $$fit

$(VENV)/.gpu: pyproject.toml $(GPU_LOCKS)
	$(call install,$(GPU_LOCKS))
	touch $@

# Writes the locks anew, for CPU from what is installed now; run it after a change of pyproject.toml.
lock: $(VENV)/.dev
	$(BIN)/python -m tests.lock

# Holds them against PyPI as it is now; make test-all does it too.
check-locks: $(VENV)/.dev
	$(BIN)/python -m tests.lock check

clean:
	rm -rf $(VENV) $(GPU_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
