"""Search for the fastest settings of the trainer that fit the GPUs in each phase.

load     read the model's files
train    forward and backward passes, and the optimizer's update
sample   resident training state while engines sample; with colocate, together with an engine
sync     send new weights to engines; with colocate, together with an engine's weights
save     copy a checkpoint to host memory
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_rl.plan.gpus import find_gpu
from slurm_rl.plan.memory import GB
from slurm_rl.plan.policy_memory import RESERVE_GB, PolicyMemory
from slurm_rl.plan.role_memory import DEFAULT_MICRO_BATCH_TOKENS, bytes_per_value
from slurm_rl.plan.setting import ENGINE_SHARE, PHASES, Setting
from slurm_rl.plan.speed import build_workload, training_s

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig

CHUNK_TOKENS = 2048
_SPARING = 0.9
_BLIND_SHARE = 0.6
"""Share of a GPU for vLLM with a policy on the same GPU whose memory is unknown."""


@dataclass(frozen=True)
class Misfit:
    """A role and phase that do not fit."""

    role: str
    phase: str
    memory: PolicyMemory
    room_gb: float


def find_misfit(setting: Setting) -> Misfit | None:
    """Return the first phase that does not fit."""
    for role, memory in setting.needs().items():
        rooms = setting.rooms(role)
        for phase, need in memory.phases_gb.items():
            if need > rooms[phase]:
                return Misfit(role, phase, memory, rooms[phase])
    return None


def list_choices(setting: Setting) -> list[Setting]:
    """Return the settings for open values of the trainer, shortest estimated training first."""
    setting = setting.with_(rollout={"gpu_memory_utilization": choose_engine_share(setting)})
    policy, model = setting.config.policy, setting.config.model
    longest = setting.config.max_sequence_tokens
    checkpointing = (False, True) if model.gradient_checkpointing == "auto" else (model.gradient_checkpointing,)
    if len(checkpointing) > 1 and setting.shape.vision_parameters:
        checkpointing = (True,)  # activations of the vision tower are not estimated
    chunks = (None, CHUNK_TOKENS) if policy.logprob_chunk_tokens == "auto" else (policy.chunk_tokens,)
    tokens = [policy.micro_batch_tokens] if policy.micro_batch_tokens else list_micro_batches(longest)
    choices = [
        setting.with_(
            model={"gradient_checkpointing": again},
            policy={"logprob_chunk_tokens": chunk, "micro_batch_tokens": size},
        )
        for again, chunk, size in itertools.product(checkpointing, chunks, tokens)
    ]
    gpu, work = find_gpu(setting.config, "policy"), build_workload(setting.config)
    return sorted(choices, key=lambda choice: training_s(choice, gpu, work))


def choose_engine_share(setting: Setting) -> float | None:
    """Return the configured share of a GPU for vLLM, or the share that a colocated policy leaves free.

    It is at least the share that the engine needs, so that `find_misfit` names the phase if both do not fit.
    """
    if setting.config.rollout.gpu_memory_utilization is not None or not setting.config.has_engines:
        return setting.config.rollout.gpu_memory_utilization
    size = setting.capacities_gb["rollout"]
    if not setting.colocated or size == math.inf:
        return ENGINE_SHARE
    free = 1 - setting.needs()["policy"].phases_gb["sample"] / (_SPARING * size)
    least = math.ceil(100 * setting.engine.least_gb / size) / 100
    return max(least, min(ENGINE_SHARE, math.floor(100 * free) / 100))


def overflow_gb(setting: Setting) -> float:
    """Return the GB that the most sparing choice of a setting exceeds its GPU by."""
    misfit = find_misfit(list_choices(setting)[-1])
    return 0.0 if misfit is None else misfit.memory.phases_gb[misfit.phase] - misfit.room_gb


def fill_in(config: RunConfig, *, sparing: bool) -> RunConfig:
    """Return the config with open values filled in without a memory estimate."""
    checkpointing, chunk = config.model.gradient_checkpointing, config.policy.logprob_chunk_tokens
    share = _BLIND_SHARE if config.rollout.colocate and not config.eval.only else ENGINE_SHARE
    return config.with_values(
        rollout={"gpu_memory_utilization": config.rollout.gpu_memory_utilization or share},
        model={"gradient_checkpointing": sparing if checkpointing == "auto" else checkpointing},
        policy={
            "logprob_chunk_tokens": (CHUNK_TOKENS if sparing else None) if chunk == "auto" else chunk,
            "micro_batch_tokens": config.policy.micro_batch_tokens or DEFAULT_MICRO_BATCH_TOKENS,
        },
    )


@dataclass(frozen=True)
class Fitting:
    """A setting that fits, and the next faster one that does not."""

    setting: Setting
    share: float
    """Share of a GPU's memory that it fits into."""
    faster: tuple[Setting, Misfit] | None = None
    """The next faster setting and its misfit."""


def search_fitting(setting: Setting) -> Fitting | None:
    """Return the fastest setting that fits in every phase, with a tenth to spare if possible."""
    choices = list_choices(setting)
    for share in (_SPARING, 1.0):
        faster = None
        for choice in choices:
            misfit = find_misfit(choice.within(share))
            if misfit is None:
                return Fitting(choice, share, faster)
            faster = choice, misfit
    return None


def find_fitting(setting: Setting) -> Setting | None:
    """Return only the setting of `search_fitting`."""
    found = search_fitting(setting)
    return None if found is None else found.setting


def host_memory(setting: Setting, roles: Mapping[str, int], *, is_head: bool, transfer: str) -> dict[str, float]:
    """Return the host memory of a node by phase, in GB, without the programs' own few GB per process.

    It holds offloaded states and copies, and without GPUs all memory.

    Args:
        roles: processes of each role on the node.
        transfer: transport of new weights.
    """
    phases_gb, on_cpu = dict.fromkeys(PHASES, 0.0), not setting.config.cluster.gpus_per_node
    for role, memory in setting.needs().items():
        for phase in PHASES:
            host = memory.host_gb.get(phase, memory.host_gb["train"])
            phases_gb[phase] += roles.get(role, 0) * (host + on_cpu * (memory.phases_gb[phase] - RESERVE_GB))
    engines = roles.get("rollout", 0)
    # Engines that keep their base weights sleep with a copy in host memory.
    if engines and (on_cpu or (transfer == "adapters" and setting.colocated)):
        weights_gb = engines * setting.tensor_parallel_size * setting.engine.weights_gb
        phases_gb = {phase: value + weights_gb for phase, value in phases_gb.items()}
    if engines and transfer == "ray":
        # The head holds the records and their copy in Ray's object store.
        phases_gb["sync"] += setting.shape.num_parameters * bytes_per_value(setting.config) / GB * (2 if is_head else 1)
    return phases_gb


def list_micro_batches(longest: int) -> list[int]:
    """Return token budgets to try, largest first; the smallest holds one longest sequence."""
    return [size for size in (32768, 16384, 8192, 4096, 2048, 1024) if size > longest] + [longest]
