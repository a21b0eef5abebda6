"""One attempt of a supervised run on one rank: builds all components, runs the loop, and closes them."""

from contextlib import closing, nullcontext
from dataclasses import asdict, replace

from slurm_rl.config.run import RunConfig
from slurm_rl.config.tasks import TASKS, TORCHRUN_TASKS
from slurm_rl.config.user_files.load import load_function
from slurm_rl.data.load_data import check_same_rows, require_one_batch
from slurm_rl.errors import ConfigError
from slurm_rl.models import distributed
from slurm_rl.models.load_model import load_tokenizer
from slurm_rl.models.model_folder import load_context, prepare_model, report_adapters, tell_rows
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.models.reward_model import describe_scores
from slurm_rl.models.vision import load_image_reader
from slurm_rl.node.heartbeat import start_heartbeat
from slurm_rl.node.stop import StopFlag
from slurm_rl.plan.fit import fill_in
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event
from slurm_rl.trainers.common.metrics_log import MetricsLogger
from slurm_rl.trainers.common.remedy import load_plan
from slurm_rl.trainers.supervised.loop import SupervisedLoop
from slurm_rl.trainers.supervised.objective import AddReference, Objective, add_cached_logprobs, load_live_reference
from slurm_rl.trainers.supervised.rank_info import RankInfo
from slurm_rl.trainers.supervised.rm import measure_scores
from slurm_rl.trainers.supervised.state import PolicySaver


def run_training(run: RunDir, config: RunConfig, rank_info: RankInfo, attempt: AttemptDir | None = None) -> None:
    """Run the loop to its end, or to the stop signal.

    Raises:
        StopRequested: at a stop signal; the state is saved.
        SlurmRLError: bad input, or a failure with its cause.
    """
    start_heartbeat(f"rank-{rank_info.rank}")
    stop = StopFlag()
    stop.install()
    rank_info.join(timeout_s=config.trainer.step_timeout_s)
    try:
        train(run, config, rank_info, stop, attempt)
    finally:
        distributed.leave_process_group()


def train(
    run: RunDir, config: RunConfig, rank_info: RankInfo, stop: StopFlag, attempt: AttemptDir | None = None
) -> None:
    """Train in the process group."""
    model_path = distributed.call_on_rank_0(lambda: prepare_model(run, config))
    config = as_planned(run, config)
    objective = build_objective(config, model_path)
    distributed.call_on_rank_0(lambda: check_same_examples(run, objective))
    engine = build_engine(config, model_path, objective, rank_info)
    budget = config.policy.micro_batch_tokens
    assert budget is not None
    objective, add_reference = prepare_reference(run, config, model_path, objective, engine, budget)
    saver = PolicySaver(run, config.checkpoint, engine)
    is_first = rank_info.rank == 0
    metrics = (
        MetricsLogger(run, config.logging, config.name, config.model_dump(mode="json"), attempt) if is_first else None
    )
    with closing(metrics) if metrics else nullcontext():
        loop = SupervisedLoop(config, run, objective, engine, saver, metrics, stop, budget, add_reference)
        loop.event("data/loaded", **asdict(objective.counts))
        if is_first:
            tell_rows(run, "policy", engine.rows)
            report_adapters(run, engine.adapted)
        loop.event("trainer/started", warmup_steps=0, num_steps=loop.num_steps)
        state = loop.run()
    if state.best_step not in (-1, state.step):
        saver.load_step(state.best_step)
    if objective.is_reward_model:
        measured = measure_scores(engine, objective, loop.share_of)
        chats, variables = objective.is_chat, config.data.chat_template_kwargs
        describe_scores(engine.module.config, measured, chats=chats, variables=variables)
    run.require_ours()
    engine.export(run.export, adapters_apart=True)
    if is_first:
        exported = state.step if state.best_step == -1 else state.best_step
        append_event(run, "trainer/finished", step=state.step, exported_step=exported)


def build_objective(config: RunConfig, model_path: str) -> Objective:
    """Load, check and tokenize all rows."""
    name = TASKS[config.task].objective
    if name is None:
        action = f"one of {', '.join(TORCHRUN_TASKS)}"
        raise ConfigError("task must be one of this trainer's", seen=config.task, action=action)
    trust = config.model.trust_remote_code
    longest, context = config.supervised.max_tokens, load_context(model_path, config.model)
    if longest > context:
        raise ConfigError(
            "supervised.max_tokens must be <= the model's context",
            seen=f"{longest} > {context}",
            action=f"set supervised.max_tokens={context}, or extend the context with model.rope_scaling",
        )
    tokenizer, images = load_tokenizer(model_path, trust_remote_code=trust), load_image_reader(model_path, config.model)
    objective: Objective = load_function(name)(config, tokenizer, images)
    require_one_batch(len(objective.train), config.supervised.batch_size)
    return objective


def check_same_examples(run: RunDir, objective: Objective) -> None:
    """Raise DataError if the run began with other rows."""
    contents = (example.content for example in (*objective.train, *objective.held_out))
    check_same_rows(run, len(objective.train), len(objective.held_out), contents)


def prepare_reference(
    run: RunDir, config: RunConfig, model_path: str, objective: Objective, engine: PolicyEngine, budget: int
) -> tuple[Objective, AddReference | None]:
    """Return the objective with cached reference logprobs, or a function that computes them in each step.

    The engine must not have trained or loaded a checkpoint, because it is the reference.
    """
    if not objective.needs_reference:
        return objective, None
    if config.dpo.reference == "live":
        return objective, load_live_reference(config, model_path, engine)
    both = add_cached_logprobs([*objective.train, *objective.held_out], engine, budget, run.reference)
    count = len(objective.train)
    return replace(objective, train=both[:count], held_out=both[count:]), None


def build_engine(config: RunConfig, model_path: str, objective: Objective, rank_info: RankInfo) -> PolicyEngine:
    """Return the engine of any task."""
    # The ranks of this machine share its cores.
    policy = config.policy.model_copy(update={"num_workers": rank_info.local_world_size})
    return PolicyEngine(
        model_path,
        config.model,
        policy,
        config.optim,
        temperature=1.0,
        seed=config.seed,
        score_seed=config.seed if objective.is_reward_model else None,
        noise_alpha=config.sft.neftune_alpha if config.task == "sft" else 0.0,
    )


def as_planned(run: RunDir, config: RunConfig) -> RunConfig:
    """Return the config with the sizes of the plan; without a plan, with sizes for CPU."""
    if run.plan.is_file():
        return load_plan(run).layout.fill_in(config)
    return fill_in(config, sparing=False)
