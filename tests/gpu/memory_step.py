"""Run one step with a full micro-batch, as planned for the overrides: `python -m tests.gpu.memory_step <JSON>`."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.trainer_throughput import Shape, build_sequences, free_port
from tests.lock import ROOT


def measure(words: Sequence[str]) -> dict[str, float]:
    """Run it in a subprocess, which frees all memory."""
    argv = [sys.executable, "-m", "tests.gpu.memory_step", json.dumps(words)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(text: str) -> None:
    import torch

    from slurm_rl.algorithms.policy_loss import build_policy_loss
    from slurm_rl.config.load import load_config
    from slurm_rl.launch.runs.start import plan_in
    from slurm_rl.models.distributed import init_process_group, leave_process_group
    from slurm_rl.models.policy import PolicyEngine
    from slurm_rl.run_dir.run_dir import RunDir

    config = load_config(json.loads(text))
    plan = plan_in(config, RunDir("/planned/alone"))
    folder = Path(str(config.model.path))
    sizes = json.loads((folder / "config.json").read_text())
    shape = Shape(**{name: sizes[name] for name in Shape.__dataclass_fields__})
    init_process_group(0, 1, "127.0.0.1", free_port(), timeout_s=60)
    policy = config.policy.model_copy(update={"num_workers": 1})
    engine = PolicyEngine(folder, config.model, policy, config.optim, temperature=1.0)
    batch = [build_sequences(shape, plan.layout.micro_batch_tokens, sizes["max_position_embeddings"])]
    for _ in range(2):  # the first step allocates the moments
        engine.train(batch, build_policy_loss(config.algorithm, config.correction_kind), config.optim.lr)
    leave_process_group()
    planned = plan.layout.policy.total_gb if plan.layout.policy else 0.0
    measured = torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0
    found = {"measured_gb": measured, "planned_gb": planned, "tokens": plan.layout.micro_batch_tokens}
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
