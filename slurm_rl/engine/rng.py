"""The state of a process's random numbers, in a checkpoint: torch's on CPU and GPU, numpy's and Python's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slurm_rl.engine.shards import save_tensors


def save_rng(path: Path) -> None:
    """Write the state of this process; some kilobytes."""
    drawn: dict[str, Any] = np.random.get_state(legacy=False)
    version, words, next_gauss = random.getstate()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": {
            **drawn,
            "state": {**drawn["state"], "key": torch.from_numpy(drawn["state"]["key"].astype(np.int64))},
        },
        "python": [version, list(words), next_gauss],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    save_tensors(state, path)


def load_rng(path: Path) -> None:
    """Take it back; a checkpoint of fewer ranks, or an older one, has none for this process and changes nothing."""
    if not path.is_file():
        return
    state = torch.load(path, weights_only=True)
    torch.set_rng_state(state["torch"])
    drawn = state["numpy"]
    drawn["state"]["key"] = drawn["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state(drawn)
    version, words, next_gauss = state["python"]
    random.setstate((version, tuple(words), next_gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
