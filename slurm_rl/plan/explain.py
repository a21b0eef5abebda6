"""Render a run on one screen: task, machines, choices with reasons, memory, files, and how it ends."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from slurm_rl.config.tasks import TASKS
from slurm_rl.plan.explain_ends import list_ends, list_files
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.memory import ModelShape
from slurm_rl.plan.placement import count_workers_by_node, find_idle
from slurm_rl.plan.preflight import describe_preflight
from slurm_rl.plan.rationale import count, list_reasons, list_speed
from slurm_rl.plan.refusal import describe_memory
from slurm_rl.plan.setting import PHASES

if TYPE_CHECKING:
    from slurm_rl.config.environment import EnvironmentConfig
    from slurm_rl.config.judge import JudgeConfig
    from slurm_rl.config.reward import RewardConfig, RewardServiceConfig
    from slurm_rl.config.rows import RowsConfig, SamplingConfig
    from slurm_rl.config.run import RunConfig

WIDTH = 80
_INDENT = 14


def render_explanation(config: RunConfig, plan: JobPlan, shape: ModelShape | None, prompts: str = "") -> str:
    """Return about 30 lines of 80 columns.

    Args:
        prompts: how prompts become text; see `describe_prompts`.
    """
    found = list_reasons(config, plan, shape)
    reasons = [line for why in found for line in _wrap(": ".join(why) + ".", "  ", "    ")]
    lines = [
        *_section("run", _run(config, shape, prompts)),
        *_section("machines", _machines(config, plan)),
        *(["choices", *reasons] if reasons else []),
        *(_memory(plan) if plan.external is None else ()),
        *(_section("speed, estimated", speed) if (speed := list_speed(plan)) else ()),
        *_section("files", list_files(config, plan, shape)),
        *_section("end of the run", list_ends(config, plan)),
    ]
    return "\n".join(lines)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    return [title, *(line for name, text in rows for line in _wrap(text, f"  {name:<{_INDENT - 2}}", " " * _INDENT))]


def _wrap(text: str, first: str, later: str) -> list[str]:
    # Do not break paths and URLs.
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )


def _run(config: RunConfig, shape: ModelShape | None, prompts: str) -> Iterator[tuple[str, str]]:
    if config.external is not None:
        yield "program", f"{shlex.join(config.external.argv)} ({TASKS[config.task].title}); `plan` shows its arguments"
        yield "model", config.external.model or "set by the program, like data, reward and steps"
        return
    if config.eval.only:
        yield "task", "evaluation only"
    else:
        rule = _algorithm(config) if config.task == "grpo" else ""
        yield "task", f"{config.task} ({TASKS[config.task].title}){rule}"
    yield "model", _model(config, shape)
    for name, one in config.eval.sets.items():
        rows = "all rows" if one.num_rows is None else f"{one.num_rows} rows"
        yield (
            "evaluation",
            f"{name}: {one.data}, {rows}, {count(one.num_samples, 'sample')} each{_sampling(config, one)}",
        )
    if config.eval.only:
        return
    yield from _data(config)
    if prompts:
        yield "prompts", prompts
    yield "steps", _steps(config)


def _data(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Rows, environment and reward of the run, or of each source."""
    sources = config.data.sources
    total = sum(source.weight for source in sources.values())
    for name, source in sources.items():
        yield (
            "source",
            f"{name}, {source.weight / total:.1%} of the prompts: {_rows(source)}{_sampling(config, source)}",
        )
        reward, env = source.reward or config.reward, source.env or config.env
        yield "", _environment(env, config.cluster.num_nodes) if env.is_on else f"reward {_reward(reward)}"
    if not sources:
        yield "data", f"{_rows(config.data)}; up to {config.max_sequence_tokens} tokens a sequence"
        if config.task == "grpo" and config.env.is_on:
            yield "episodes", _environment(config.env, config.cluster.num_nodes)
        if config.task == "grpo":
            yield "reward", _reward(config.reward)


def _sampling(config: RunConfig, part: SamplingConfig) -> str:
    """Return sampling settings that differ from the run's."""
    own = {name: value for name, value in part.sampling().items() if value != getattr(config.rollout, name)}
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}
    return "".join(f"; {name} {value}" for name, value in lists.items())


def _environment(env: EnvironmentConfig, num_nodes: int) -> str:
    if env.agent_command is not None:
        return f"program {' '.join(env.agent_command)}"
    counts = count_workers_by_node(env.num_workers, num_nodes)
    nodes = f" on {count(len(counts), 'node')}" if num_nodes > 1 else ""
    workers = "1 process" if env.num_workers == 1 else f"{env.num_workers} processes"
    return f"environment {env.name or env.tools} in {workers}{nodes}"


def _rows(data: RowsConfig) -> str:
    held_out = f"held out: {data.eval or f'{data.num_eval} rows of it'}" if data.num_eval else "no rows held out"
    return f"{data.train}; {held_out}"


def _algorithm(config: RunConfig) -> str:
    parts, kl = config.algorithm, config.algorithm.kl
    distance = f"KL {kl.coef:g} in the {kl.apply_to}" if kl.coef else "no KL"
    return f": advantage {parts.advantage}, loss {parts.loss}, {parts.aggregation}, {distance}"


def _model(config: RunConfig, shape: ModelShape | None) -> str:
    model = config.model
    name = model.path or f"{model.from_config} with random weights"
    size = "" if shape is None else f", {_count(shape.num_parameters)} parameters"
    trained = "all trained" if model.lora is None else f"adapters of rank {model.lora.max_rank} trained"
    if model.lora is not None and shape is not None and shape.num_experts > 1:
        trained += f", {'also' if model.lora.target_parameters else 'none'} on its {shape.num_experts} experts"
    return f"{name}{size}, {model.dtype}, {trained}"


def _reward(reward: RewardConfig) -> str:
    verifiers = ", ".join(f"{name} x {weight:g}" for name, weight in reward.verifiers.items())
    if reward.judge.is_on:
        weight = "" if reward.judge.weight is None else f"{verifiers}, judge x {reward.judge.weight:g}: "
        votes = count(reward.judge.votes, "vote")
        return f"{weight}the judge {reward.judge.model_name} {_server(reward.judge)}, {votes}"
    whole = reward.function or (f"the model {reward.model.path}" if reward.model.path else None) or reward.url
    where = _service(reward.service) if reward.service.enabled else ""
    return f"{whole or verifiers}, {count(reward.num_workers, 'worker')}{where}"


def _server(judge: JudgeConfig) -> str:
    server = judge.server
    if server.model is None:
        return f"at {judge.url}"
    gpus = f", {server.tensor_parallel_size} GPUs each" if server.tensor_parallel_size > 1 else ""
    group = f" on nodes of {server.node_group}" if server.node_group else ""
    return f"in {count(server.num_replicas, 'vLLM server')} of the run{group}{gpus}"


def _service(service: RewardServiceConfig) -> str:
    if service.num_replicas == 1 and service.node_group is None:
        return ", in a service of the run"
    where = f" on nodes of {service.node_group}" if service.node_group else ""
    return f" in each of {count(service.num_replicas, 'service')} of the run{where}"


def _steps(config: RunConfig) -> str:
    if config.task != "grpo":
        rows = config.supervised
        end = f"{rows.max_steps} steps at most, " if rows.max_steps else ""
        return f"{end}{count(rows.num_epochs, 'epoch')} of the rows, {rows.batch_size} a step; {_rate(config)}"
    trainer, size = config.trainer, config.algorithm.group_size
    batch = trainer.prompts_per_step * size
    steps = f"{trainer.num_steps} steps of {trainer.prompts_per_step} prompts x {size} completions = {batch}"
    if config.warmup.num_steps:
        steps = f"{config.warmup.num_steps} supervised steps of {config.warmup.batch_size} rows, then {steps}"
    updates = count(trainer.num_updates, "update")
    return f"{steps}, up to {config.rollout.max_tokens} tokens each; {updates} a step; {_rate(config)}"


def _rate(config: RunConfig) -> str:
    return f"AdamW, rate {config.optim.lr:g}, {config.optim.schedule}"


def _machines(config: RunConfig, plan: JobPlan) -> Iterator[tuple[str, str]]:
    gpus = count(plan.gpus_per_node, f"{plan.accelerator} GPU") if plan.gpus_per_node else "CPUs only"
    spare = f" and {plan.num_spare_nodes} spare" if plan.num_spare_nodes else ""
    nodes = f"{count(plan.num_nodes, 'node')} of {gpus}{spare}"
    if plan.node_groups:
        sizes = [(count(one.count, "node"), count(one.gpus_per_node, "GPU"), one.name) for one in plan.node_groups]
        nodes = " + ".join(f"{number} of {gpus} ({name})" for number, gpus, name in sizes)
    place = {"local": "this machine", "slurm": "a Slurm job", "ray": f"the Ray cluster at {plan.address}"}
    queue = f", partition {config.cluster.slurm.partition}" if config.cluster.slurm.partition else ""
    inside = plan.container.get("image")
    runtime = f"in {plan.container['runtime']}, {inside}" if inside else "no container"
    yield "launcher", f"{place.get(plan.launcher, 'machines that each run `join`')}{queue}: {nodes}; {runtime}"
    yield from [("detected", config.cluster.detected)] if config.cluster.detected else []
    if plan.actors:
        yield "processes", "; ".join(_place(plan, role) for role in dict.fromkeys(actor.role for actor in plan.actors))
    if plan.sbatch:
        yield "preflight", describe_preflight(plan.launcher, plan.preflight)
    idle = [] if plan.external else find_idle(plan.gpus_by_node, plan.actors)
    if idle:
        yield "idle", f"{len(idle)} GPUs have no work"


def _place(plan: JobPlan, role: str) -> str:
    """Return `engines 4 on each of nodes 0 to 1`."""
    counts = Counter(actor.node for actor in plan.actors if actor.role == role)
    first, last, least, most = min(counts), max(counts), min(counts.values()), max(counts.values())
    where = f"node {first}" if first == last else f"each of nodes {first} to {last}"
    return f"{'engines' if role == 'rollout' else role} {least if least == most else f'{least} to {most}'} on {where}"


def _memory(plan: JobPlan) -> Iterator[str]:
    layout = plan.layout
    if layout.policy is None:
        if layout.unknown is None:  # only engines, which fit
            return
        yield "memory"
        yield from _wrap(f"not estimated; unknown: {layout.unknown or 'cluster.gpu_mem_gb'}", "  ", "  ")
        return
    phases = [phase for phase in PHASES if plan.torchrun is None or phase not in ("sample", "sync")]
    yield f"{'memory, estimated in GB':<36}" + "".join(f"{phase:>8}" for phase in phases)
    roles = {"policy": layout.policy, "critic": layout.critic, "reference": layout.reference}
    for role, memory in roles.items():
        if memory is not None and role in layout.capacities_gb:
            yield _numbers(f"{role} GPU, of {layout.capacities_gb[role]:g}", memory.phases_gb, phases)
            yield from _wrap(f"in train: {describe_memory(role, memory)}", "    ", "      ")
    if layout.service is not None:
        yield from _wrap(
            f"reward GPU, of {layout.service.gpu_gb:g}: {layout.service.total_gb:.1f} ({layout.service})",
            "  ",
            "    ",
        )
    engines = {"engine": (layout.engine, layout.engine_budget_gb), "judge": (layout.judge, layout.judge_budget_gb)}
    for name, (engine, budget) in engines.items():
        if engine is not None and budget is not None:
            room = engine.num_sequences(budget)
            yield from _wrap(
                f"{name} GPU, of {budget:.0f}: weights {engine.weights_gb:.1f}, then room for {room} longest "
                "sequences at once",
                "  ",
                "    ",
            )
    yield _numbers("host of a node, without programs", layout.host_gb, phases)


def _numbers(name: str, values: Mapping[str, float], phases: list[str]) -> str:
    return f"  {name:<34}" + "".join(f"{values[phase]:>8.1f}" for phase in phases)


def _count(number: int) -> str:
    """Return a rounded count.

    >>> _count(8_190_735_360), _count(593_152)
    ('8.2 billion', '0.6 million')
    """
    return f"{number / 1e9:.1f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"
