"""Checkpoints of supervised runs; every rank writes its own part."""

from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_rl.config.train import CheckpointConfig
from slurm_rl.errors import CheckpointError
from slurm_rl.models import distributed
from slurm_rl.models.checkpoint.step_saver import StepSaver, parse_state
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.run_dir.run_dir import RunDir, append_event


@dataclass
class LoopState:
    """State of a run outside of the model, as JSON. Data order and noise follow from `step` and the seed."""

    step: int = 0
    """Optimizer steps done."""
    evaluated_step: int = -1
    """Step of the newest evaluation."""
    best_step: int = -1
    """Step of the lowest evaluation loss so far; -1 before an evaluation, and always without eval.interval."""
    best_loss: float | None = None
    num_worse: int = 0
    """Evaluations in a row without a lower loss."""
    num_metric_rows: int = 0
    """Length of metrics.jsonl; later rows belong to lost steps."""


class PolicySaver:
    """Saves and restores engine and state together; every method is called on all ranks."""

    def __init__(self, run: RunDir, saving: CheckpointConfig, engine: PolicyEngine) -> None:
        self.run_dir, self.engine = run, engine
        self.saver = StepSaver(run, saving.keep_last, url=saving.upload_url, verify=saving.verify)
        self.saved_step = -1

    def restore(self) -> LoopState | None:
        """Load the newest valid checkpoint; None without one."""
        newest = distributed.call_on_rank_0(self.saver.newest)
        if newest is None:
            return None
        state = parse_state(LoopState, newest.meta)
        self.engine.load(newest.path / "policy")
        self.saved_step = state.step
        if distributed.get_rank() == 0:
            append_event(self.run_dir, "trainer/resumed", step=state.step)
        return state

    def save(self, state: LoopState) -> None:
        """Write a checkpoint of this step unless it exists; older ones are removed after it verifies."""
        if state.step == self.saved_step:
            return
        folder = distributed.call_on_rank_0(lambda: self._begin(state.step))
        error: Exception | None = None
        try:
            self.engine.save(folder)
        except CheckpointError as caught:
            error = caught
        distributed.raise_anywhere(error)
        distributed.call_on_rank_0(lambda: self.saver.finish(state.step, asdict(state), spare={state.best_step}))
        self.saved_step = state.step

    def _begin(self, step: int) -> Path:
        folder = self.saver.begin(step) / "policy"
        folder.mkdir()
        return folder

    def load_step(self, step: int) -> None:
        """Load the policy of an older checkpoint, for the export.

        Raises:
            CheckpointError: it is missing or damaged.
        """

        def find() -> Path:
            found = self.saver.store.at(step)
            if found is None:
                raise CheckpointError(
                    "the best checkpoint must verify", seen="; ".join(self.saver.store.skipped), action="run it again"
                )
            return found.path

        self.engine.load(distributed.call_on_rank_0(find) / "policy")
