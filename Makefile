# make demo   trains the demo         make test   runs everything CI runs
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt

.PHONY: demo test test-slurm test-here check unit test-all lock clean

demo: $(VENV)/.cpu
	$(BIN)/python -m slurm_rl

# Side by side: what runs on the test Slurm mostly waits for Slurm's clocks.
test: $(VENV)/.dev check
	$(MAKE) --jobs=2 --keep-going --output-sync=target test-slurm test-here

test-slurm:
	$(BIN)/python -m pytest -m "not slow" --durations=15 tests/slurm

test-here:
	$(BIN)/python -m pytest -m "not slow" --durations=15 tests/unit tests/train

test-all: $(VENV)/.dev check
	$(BIN)/python -m pytest tests

unit: $(VENV)/.dev
	$(BIN)/python -m pytest tests/unit

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# torchvision, torchaudio and torchcodec come with vLLM as CUDA builds; beside a CPU torch they cannot be
# imported, and then neither can transformers' models. Text needs none of them.
$(VENV)/.cpu: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable .[cpu]
	$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

$(VENV)/.dev: $(VENV)/.cpu
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable .[cpu,dev]
	$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# Pins everything that is installed now; run it after a change of pyproject.toml.
lock: $(VENV)/.dev
	$(BIN)/python -m pip freeze --exclude-editable | grep -v -E '^(torchvision|torchaudio|torchcodec)' | sed 's/+cpu//' > $(CONSTRAINTS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
