"""What a checkpoint of a GRPO run holds, and when it is written and read."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from slurm_rl.config.run import RunConfig
from slurm_rl.errors import CheckpointError
from slurm_rl.run_dir import RunDir, append_event
from slurm_rl.train.engine.checkpoint import CheckpointStore
from slurm_rl.train.grpo.policy_group import PolicyGroup


@dataclass
class RunState:
    """The part of a run's state that is not in the policy. Small and JSON.

    Sampling and data order follow from `step`, `prompts_used` and the seed (see seeds.py), so there is no
    random state to save.
    """

    step: int = 0
    """Optimizer stages done: warm-up steps, then GRPO steps."""
    stage: str = "warmup"
    """Which optimizer the policy holds: `warmup` or `grpo`."""
    prompts_used: int = 0
    """Prompts that finished GRPO steps sampled; dynamic sampling makes it more than a fixed number a step."""
    evaluated_step: int = -1
    """Step of the newest evaluation."""
    best_accuracy: float | None = None
    """Largest sampled accuracy of an evaluation, and the step it was first found at."""
    best_step: int = -1
    accuracy_before: dict[str, float] | None = None
    accuracy_after: dict[str, float] | None = None
    num_metric_rows: int = 0
    """Length of metrics.jsonl; rows after it belong to steps that a crash took."""


class RunSaver:
    """Saves and restores policy and state together."""

    def __init__(self, run: RunDir, config: RunConfig, policy: PolicyGroup) -> None:
        self.run_dir, self.config, self.policy = run, config, policy
        self.store = CheckpointStore(run.checkpoints)
        self.saved_step = -1

    def restore(self) -> RunState | None:
        """Load the newest checkpoint that verifies; None when the run starts from nothing."""
        newest = self.store.latest()
        for reason in self.store.skipped:
            append_event(self.run_dir, "checkpoint/skipped", reason=reason)
        if newest is None:
            return None
        state = _parse_state(newest.meta)
        if state.stage == "grpo" and self.config.warmup.num_steps:
            self.policy.use_optimizer(self.config.optim)
        self.policy.load(newest.path / "policy")
        self.saved_step = state.step
        append_event(self.run_dir, "trainer/resumed", step=state.step)
        return state

    def save(self, state: RunState) -> None:
        """Write a checkpoint of this step unless there is one; older ones go after it verifies."""
        if state.step == self.saved_step:
            return
        start = time.perf_counter()
        folder = self.store.begin(state.step)
        (folder / "policy").mkdir()
        self.policy.save(folder / "policy")
        self.store.commit(state.step, asdict(state))
        self.saved_step = state.step
        self.store.prune(
            self.config.checkpoint.keep, spare=state.best_step if self.config.checkpoint.keep_best else None
        )
        append_event(self.run_dir, "checkpoint/saved", step=state.step, seconds=round(time.perf_counter() - start, 3))


def _parse_state(meta: dict[str, Any]) -> RunState:
    try:
        return RunState(**meta)
    except TypeError as error:
        raise CheckpointError(
            f"a checkpoint must hold the state this version of slurm_rl writes ({error})",
            action="resume with the code snapshot of the run, or start a new run with model.init_from",
        ) from None
