"""Start runs from the command line and measure GPU memory while they run."""

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.plan.accelerator import AcceleratorKind
from slurm_rl.plugins.health.gpus import TOOLS, Gpu, parse_gpus
from slurm_rl.run_dir.run_dir import RunDir, read_json
from tests.gpu.cases import CASES, Case, device_overrides, fill
from tests.gpu.models import MODELS
from tests.image_kit import write_rows
from tests.tiny_llama import write_conversations
from tests.whole_run import exact_rows, finish, start_run

ROOT = Path(__file__).parents[2]
_EVERY_S = 0.3


def vendor() -> AcceleratorKind:
    import torch

    return "amd" if torch.version.hip else "nvidia"


def smallest_gpu_gb() -> float:
    import torch

    sizes = [torch.cuda.get_device_properties(place).total_memory for place in range(torch.cuda.device_count())]
    return float(min(sizes)) / 1e9


def need(count: int, num_gpus: int) -> None:
    if num_gpus < count:
        pytest.skip(f"needs {count} GPUs, torch sees {num_gpus}")


def case_overrides(case: Case, folder: Path) -> list[str]:
    """Return the overrides of a case with its model and data created in `folder`."""
    rows = folder / "rows.jsonl"
    model = None
    if case.model is not None:
        model = MODELS[case.model](folder / "model")
        write_conversations(rows, 36)
    else:
        write_rows(folder / "mathv60k", num_rows=32)
    words = fill(case.words, model=model, rows=rows, folder=folder)
    return [*device_overrides(vendor(), case.num_gpus, smallest_gpu_gb()), *words]


def train(run: Path, words: Sequence[str]) -> list[dict[str, Any]]:
    """Run to the end; return the metrics rows without times."""
    finish(start_run(run, base=words), timeout_s=1800)
    assert read_json(RunDir(run).end)["state"] == "finished"
    return exact_rows(run)


def train_case(name: str, folder: Path) -> list[dict[str, Any]]:
    """Return the training rows of a case."""
    case = CASES[name]
    return [row for row in train(folder / "run", case_overrides(case, folder)) if row["stage"] == case.stage]


def read_gpus() -> list[Gpu]:
    """Return all GPUs of the machine, as the vendor's tool reports them."""
    kind = vendor()
    output = subprocess.run(TOOLS[kind], capture_output=True, text=True, errors="replace").stdout
    return parse_gpus(kind, output)


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """Sample the peak memory in use on each GPU, in bytes, by all processes, within the context."""
    most = [gpu.used_bytes or 0.0 for gpu in read_gpus()]
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_EVERY_S):
            for place, gpu in enumerate(read_gpus()):
                most[place] = max(most[place], gpu.used_bytes or 0.0)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        is_over.set()
        thread.join()
