"""Before the first GRPO step: supervised warm-up, reference and critic."""

from collections.abc import Callable

from slurm_rl.algorithms.schedule import derive_seed, schedule_lr
from slurm_rl.algorithms.train_sequences import build_answer_sequences
from slurm_rl.config.paths import expand_user
from slurm_rl.config.run import RunConfig
from slurm_rl.data.groups import Prompts
from slurm_rl.data.split import PromptOrder
from slurm_rl.models.model_folder import model_folder, require_same_tokens, tell_rows
from slurm_rl.node.stop import Timer
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.grpo.learner import Learner
from slurm_rl.trainers.grpo.step_metrics import training_metrics
from slurm_rl.trainers.grpo.trainer_state import RunSaver, TrainerState
from slurm_rl.workers.train_workers import WorkerGroup


def warm_up(
    config: RunConfig,
    prompts: Prompts,
    policy: WorkerGroup,
    state: TrainerState,
    write_row: Callable[[str, dict[str, float]], None],
) -> None:
    """Take the remaining supervised steps on reference answers, then start a fresh optimizer."""
    warmup = config.warmup
    size = warmup.batch_size
    order = PromptOrder(len(prompts.train), derive_seed(config.seed, "warmup"))
    while state.step < warmup.num_steps:
        policy.cluster.stop.check()
        timer = Timer()
        with timer.phase("step"), timer.phase("train"):
            rows = order.take(state.step * size, size)
            sequences = build_answer_sequences(
                [prompts.train[row] for row in rows], [prompts.answers[row] for row in rows]
            )
            lr = schedule_lr(warmup.optim, state.step, warmup.num_steps)
            totals = policy.train("train_answers", sequences, lr)
        state.step += 1
        num_tokens = sum(sequence.num_trained for sequence in sequences)
        write_row("warmup", {**training_metrics([totals], num_tokens, num_tokens), "policy/lr": lr, **timer.seconds})
    if warmup.num_steps and state.stage == "warmup":
        policy.call("use_optimizer", config.optim)
        state.stage = "grpo"


def prepare_models(config: RunConfig, run: RunDir, learner: Learner, saver: RunSaver) -> None:
    """Load the reference and build the critic, if the algorithm has them.

    They start as the policy after the warm-up, except for the reference of reference.path. Without a warm-up, adapters
    need no copy of the reference: it is the policy without them.
    """
    policy, reference, critic = learner.policy, learner.reference, learner.critic
    warmed_up = config.warmup.num_steps > 0
    other = None if config.reference.path is None else str(expand_user(config.reference.path))
    is_base = config.model.lora is not None and not warmed_up and reference.workers is policy.workers
    has_reference = config.algorithm.kl.coef > 0 and (other is not None or not is_base)
    if not has_reference and critic is None:
        return
    begun_as = model_folder(run, config)
    if warmed_up and (other is None or critic is not None):
        begun_as = str(run.reference)
        if not run.reference.is_dir():
            policy.call("export_model", run.reference)
    if has_reference:
        if other is not None:
            require_same_tokens("reference.path", other, model_folder(run, config), config.model.trust_remote_code)
        tell_rows(run, "reference", reference.note_rows(reference.call("load_reference", other or begun_as)))
    if critic is not None:
        weights = None if warmed_up else config.model.init_from
        tell_rows(run, "critic", critic.build(begun_as, config.critic.init_from or weights))
        saver.restore_critic()
