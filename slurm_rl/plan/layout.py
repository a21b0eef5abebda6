"""Choose open sizes from the GPUs and the model's shape, and refuse layouts that cannot fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from slurm_rl.config.parallel import build_parallel_dims, require_divisible_heads
from slurm_rl.config.tasks import TORCHRUN_TASKS
from slurm_rl.errors import ConfigError
from slurm_rl.plan.candidates import VARLEN, Candidate, can_exchange, list_candidates, list_contexts
from slurm_rl.plan.fit import Fitting, fill_in, host_memory, list_choices, overflow_gb, search_fitting
from slurm_rl.plan.gpus import Gpu, find_gpu
from slurm_rl.plan.job import ActorPlan, LayoutPlan
from slurm_rl.plan.memory import ModelShape
from slurm_rl.plan.next_best import Option, explain_fitting, explain_split, list_losses, pick
from slurm_rl.plan.node_groups import list_nodes
from slurm_rl.plan.placement import check_idle, place_actors
from slurm_rl.plan.refusal import describe_phases, refuse
from slurm_rl.plan.role_memory import DEFAULT_MICRO_BATCH_TOKENS
from slurm_rl.plan.setting import Setting, build_setting, find_capacities
from slurm_rl.plan.slots import Demand
from slurm_rl.plan.speed import build_workload, estimate_step, sampling_s
from slurm_rl.plan.transfer import choose_transfer

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes of vLLM's attention on CPU; tests/train/test_gloo_transfer.py compares with the installed vLLM."""


def check_context(config: RunConfig, shape: ModelShape | None) -> None:
    """Raise ConfigError if the longest sequence exceeds the model's context."""
    limit = None if shape is None else shape.context_length
    if limit is None or config.max_sequence_tokens <= limit:
        return
    keys, seen = "data.max_prompt_tokens + rollout.max_tokens", ""
    if config.task in TORCHRUN_TASKS:
        keys, seen = "supervised.max_tokens", f"{config.supervised.max_tokens} > {limit}"
    raise ConfigError(
        f"{keys} must be <= the model's max_position_embeddings",
        seen=seen or f"{config.data.max_prompt_tokens} + {config.rollout.max_tokens} > {limit}",
        action="lower them, or extend the context with model.rope_scaling, or use a model with a longer one",
    )


def check_heads(config: RunConfig, shape: ModelShape | None) -> None:
    """Raise ConfigError if vLLM's attention on CPU has no kernel for the model's head size or number format.

    Also if the ranks of a context group cannot share the heads.
    """
    if config.policy.context > 1 and config.model.attention not in VARLEN:
        raise ConfigError(
            "policy.context_parallel needs model.attention=varlen, which auto selects",
            seen=f"model.attention={config.model.attention}",
            action="set model.attention=auto, or policy.context_parallel=1",
        )
    if shape is not None and config.policy.context > 1 and not can_exchange(shape):
        raise ConfigError(
            "policy.context_parallel needs a text model with attention in every layer, without caps or sinks",
            seen=shape.architecture or config.model.source,
            action="set policy.context_parallel=1",
        )
    if shape is not None:
        most = config.cluster.gpus_per_node or shape.num_heads
        require_divisible_heads(config.policy.context, shape.num_heads, shape.num_kv_heads, most)
    size = shape.head_dim if shape and not shape.kv_lora_rank else None  # latent attention has its own kernel
    is_on_cpu = config.has_engines and config.cluster.accelerator == "cpu"
    if is_on_cpu and shape is not None and shape.num_linear_layers and config.model.dtype != "bfloat16":
        raise ConfigError(
            "without a GPU vLLM computes linear attention (Qwen3-Next, Qwen3.5) in bfloat16 only",
            seen=f"model.dtype={config.model.dtype}",
            action="set model.dtype=bfloat16, or use a GPU",
        )
    if is_on_cpu and size is not None and size not in CPU_HEAD_SIZES:
        raise ConfigError(
            "without a GPU a rollout engine's attention heads must be of a size that vLLM has a kernel for: "
            + ", ".join(map(str, CPU_HEAD_SIZES)),
            seen=f"heads of {size}",
            action="choose another model, or use a GPU",
        )


def choose_layout(
    config: RunConfig, shape: ModelShape | None, reference: ModelShape | None, cpus: int | None
) -> tuple[tuple[ActorPlan, ...], LayoutPlan]:
    """Place the processes in the fastest open layout that fits in every phase.

    Args:
        reference: shape of reference.path; None: the policy's.
        cpus: cores of a node.

    Raises:
        ConfigError: a phase does not fit a GPU or a node; the message has both numbers and a change that fits.
    """
    placed: list[tuple[Candidate, tuple[ActorPlan, ...]]] = []
    errors = []
    for _, group in groupby(list_candidates(config, shape), key=attrgetter("placement")):
        same = list(group)
        try:
            actors = _place(config, same[0], cpus)
        except ConfigError as error:
            errors.append(error)
        else:
            placed += [(candidate, actors) for candidate in same]
    if not placed:
        raise errors[0]
    first, actors = placed[0]
    if config.eval.only:
        return _choose_for_evaluation(placed, shape)
    capacities, on_cpu = find_capacities(config, actors), not config.cluster.gpus_per_node
    if shape is None or None in capacities.values():
        # Unknown memory: choose the settings that need the least.
        settled = fill_in(first.config, sparing=not on_cpu and config.model.path is not None)
        return actors, _describe(first, settled, unknown=_explain_unknown(config, shape))
    settings = [
        (candidate, actors, build_setting(candidate.config, shape, reference, actors, candidate.tensor_parallel_size))
        for candidate, actors in placed
    ]
    if on_cpu:
        setting = replace(settings[0][2], config=fill_in(first.config, sparing=False))
        check_host(setting, actors)
        return actors, _finish(Option(first, actors, setting, Fitting(setting, 1.0)), [])
    gpus = {role: find_gpu(config, role) for role in ("policy", "rollout")}
    options = [_try(*one, gpus) for one in settings]
    for context in list_contexts(config, shape):
        if not any(option.fitting for option in options):
            options = [_try(*one, gpus) for one in _share_rows(settings, context)] or options
    fitting = [option for option in options if option.fitting]
    if not fitting:
        raise refuse(min((option.setting for option in options), key=overflow_gb))
    chosen = pick(fitting)
    others = [option for option in options if not option.fitting]
    return chosen.actors, _finish(chosen, [*sorted(fitting, key=lambda option: option.rank), *others])


def _place(config: RunConfig, candidate: Candidate, cpus: int | None) -> tuple[ActorPlan, ...]:
    actors = place_actors(candidate.config, cpus, candidate.tensor_parallel_size)
    if not config.external and not config.eval.only:
        _check_ranks(candidate.config, actors)
        check_idle(Demand(config, list_nodes(config, cpus), candidate.tensor_parallel_size), actors)
    return actors


def _check_ranks(config: RunConfig, actors: Sequence[ActorPlan]) -> None:
    """Raise ConfigError if the ranks of a model cannot be divided as configured, or a context group spans nodes."""
    for role in ("policy", "critic"):
        nodes = [actor.node for actor in actors if actor.role == role]
        dims = build_parallel_dims(config.policy, len(nodes))
        groups = (nodes[start : start + dims.context] for start in range(0, len(nodes), dims.context))
        if any(len(set(group)) > 1 for group in groups):
            raise ConfigError(
                f"the {role} workers of a context group must be on one node, since they exchange all activations",
                seen=f"policy.context_parallel={dims.context}, {max(Counter(nodes).values())} workers on a node",
                action="choose a divisor of them",
            )


def _share_rows(
    settings: Sequence[tuple[Candidate, tuple[ActorPlan, ...], Setting]], context: int
) -> Iterator[tuple[Candidate, tuple[ActorPlan, ...], Setting]]:
    """Yield the layouts with context groups of this size, where their ranks allow it."""
    values = {"context_parallel": context}
    for candidate, actors, setting in settings:
        config = candidate.config.with_values(policy=values)
        with suppress(ConfigError):
            _check_ranks(config, actors)
            yield replace(candidate, config=config), actors, setting.with_(policy=values)


def _try(candidate: Candidate, actors: tuple[ActorPlan, ...], setting: Setting, gpus: dict[str, Gpu]) -> Option:
    found = search_fitting(setting)
    if found is None or not setting.config.has_engines:
        return Option(candidate, actors, setting, found)
    return Option(candidate, actors, setting, found, estimate_step(found.setting, gpus))


def check_host(setting: Setting, actors: Sequence[ActorPlan]) -> dict[str, float]:
    """Return the host memory of the node that needs the most, by phase; raise ConfigError if a node has less."""
    hosts, nodes = _host_memory_by_node(setting, actors), list_nodes(setting.config)
    for node, phases in hosts.items():
        limit = nodes[node].mem_gb_per_node
        if isinstance(limit, int) and max(phases.values()) > limit:
            raise ConfigError(
                "host memory of a node must fit cluster.mem_gb_per_node",
                seen=f"{max(phases.values()):.1f} GB > {limit} GB: {describe_phases(phases)}",
                action="use nodes with more memory, more nodes, or a smaller model",
            )
    return max(hosts.values(), key=lambda phases: max(phases.values()))


def _choose_for_evaluation(
    placed: Sequence[tuple[Candidate, tuple[ActorPlan, ...]]], shape: ModelShape | None
) -> tuple[tuple[ActorPlan, ...], LayoutPlan]:
    """Return the engines that sample fastest; there is nothing else, and their memory was checked."""

    def seconds(one: tuple[Candidate, tuple[ActorPlan, ...]]) -> float:
        candidate, actors = one
        if shape is None or len(placed) == 1:
            return 0.0
        config = fill_in(candidate.config, sparing=False)
        setting = build_setting(config, shape, None, actors, candidate.tensor_parallel_size)
        return sampling_s(setting, find_gpu(config, "rollout"), build_workload(config))

    candidate, actors = min(placed, key=seconds)
    return actors, _describe(candidate, fill_in(candidate.config, sparing=False))


def _describe(candidate: Candidate, settled: RunConfig, **more: Any) -> LayoutPlan:
    policy = settled.policy
    return LayoutPlan(
        candidate.tensor_parallel_size,
        policy.micro_batch_tokens or DEFAULT_MICRO_BATCH_TOKENS,
        settled.model.gradient_checkpointing is True,
        policy.chunk_tokens,
        settled.rollout.gpu_memory_utilization,
        colocate=bool(settled.rollout.colocate),
        offload=policy.offloaded,
        context_parallel=policy.context,
        **more,
    )


def _finish(chosen: Option, others: Sequence[Option]) -> LayoutPlan:
    assert chosen.fitting is not None
    found, config = chosen.fitting.setting, chosen.fitting.setting.config
    needs, engines, on_cpu = found.needs(), config.has_engines, not config.cluster.gpus_per_node
    return _describe(
        chosen.candidate,
        config,
        gpu_mem_gb=None if on_cpu else found.capacities_gb["policy"],
        engine_budget_gb=found.engine_budget_gb if engines and not on_cpu else None,
        policy=needs["policy"],
        engine=found.engine if engines else None,
        critic=needs.get("critic"),
        reference=needs.get("reference"),
        capacities_gb={} if on_cpu else dict(found.capacities_gb),
        host_gb=check_host(found, chosen.actors),
        step=chosen.step,
        sizes_why="" if on_cpu else explain_fitting(chosen.fitting, is_only=len(list_choices(chosen.setting)) == 1),
        next_best=tuple(list_losses(chosen, others)),
        split_why=explain_split(chosen, others),
    )


def _host_memory_by_node(found: Setting, actors: Sequence[ActorPlan]) -> dict[int, dict[str, float]]:
    """Return host memory by rank of the node, then by phase."""
    nodes: dict[int, Counter[str]] = {}
    for actor in actors:
        nodes.setdefault(actor.node, Counter())[actor.role] += 1
    transfer = choose_transfer(found.config, actors, found.shape)[0]
    return {node: host_memory(found, roles, is_head=node == 0, transfer=transfer) for node, roles in nodes.items()}


def _explain_unknown(config: RunConfig, shape: ModelShape | None) -> str:
    if shape is not None:
        return "how much memory a GPU has: cluster.gpu_mem_gb=80"
    name = config.model.path
    return f"the shape of {name}: this machine does not see its config.json, or knows none of its sizes"
