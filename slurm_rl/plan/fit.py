"""Search for the fastest settings that fit the GPUs in each phase, and for changes that would fit.

load     read the model's files
train    forward and backward passes, and the optimizer's update
sample   resident training state while engines sample; with colocate, together with an engine
sync     send new weights to engines; with colocate, together with an engine's weights
save     copy a checkpoint to host memory
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slurm_rl.plan.memory import ASLEEP_GB, GB, EngineMemory, ModelShape
from slurm_rl.plan.policy_memory import RESERVE_GB, PolicyMemory
from slurm_rl.plan.role_memory import (
    DEFAULT_MICRO_BATCH_TOKENS,
    bytes_per_value,
    critic_memory,
    engine_memory,
    policy_memory,
    reference_memory,
)

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig

PHASES = ("load", "train", "sample", "sync", "save")
_CHUNK_TOKENS = 2048
_SPARING = 0.9
ENGINE_SHARE, _BLIND_SHARE = 0.85, 0.6
"""Largest share of a GPU for vLLM; with a policy on the same GPU whose memory is unknown."""
_MOST_NODES = 64
"""Largest factor by which more nodes are tried."""


@dataclass(frozen=True)
class Setting:
    """A config with its placement and GPU sizes, which determine memory."""

    config: RunConfig
    shape: ModelShape
    reference_shape: ModelShape
    """Shape of reference.path, or of the policy."""
    num_workers: Mapping[str, int]
    """Processes by role."""
    tensor_parallel_size: int
    capacities_gb: Mapping[str, float]
    """Memory of the smallest GPU of each role."""

    @property
    def colocated(self) -> bool:
        return bool(self.config.rollout.colocate) and self.config.has_engines

    @property
    def engine(self) -> EngineMemory:
        return engine_memory(self.config, self.shape, self.tensor_parallel_size)

    @property
    def engine_budget_gb(self) -> float:
        """Memory of a GPU that vLLM may use."""
        return self.capacities_gb["rollout"] * (self.config.rollout.gpu_memory_utilization or ENGINE_SHARE)

    def needs(self) -> dict[str, PolicyMemory]:
        """Return the memory of a worker of each role except the engines."""
        needs = {"policy": policy_memory(self.config, self.shape, self.reference_shape, self.num_workers["policy"])}
        if self.config.has_critic and self.config.critic.is_dedicated:
            needs["critic"] = critic_memory(self.config, self.shape, self.num_workers["critic"])
        if self.num_workers.get("reference"):
            needs["reference"] = reference_memory(self.config, self.reference_shape)
        return needs

    def rooms(self, role: str) -> dict[str, float]:
        """Return the available GPU memory by phase, without that of a colocated engine."""
        if role != "policy" or not self.colocated:
            return dict.fromkeys(PHASES, self.capacities_gb[role])
        taken = {"sample": self.engine_budget_gb, "sync": self.engine.awake_gb}
        return {phase: self.capacities_gb[role] - taken.get(phase, ASLEEP_GB) for phase in PHASES}

    def within(self, share: float) -> Setting:
        """Return the setting with a share of each GPU's memory."""
        return replace(self, capacities_gb={role: share * size for role, size in self.capacities_gb.items()})

    def with_(self, **sections: Mapping[str, Any]) -> Setting:
        """Return the setting with other values of keys, by section."""
        return replace(self, config=self.config.with_values(**sections))


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
    """Return the settings for open values, fastest first: large micro-batches, no recomputation."""
    setting = setting.with_(rollout={"gpu_memory_utilization": choose_engine_share(setting)})
    policy, model = setting.config.policy, setting.config.model
    longest = setting.config.max_sequence_tokens
    checkpointing = (False, True) if model.gradient_checkpointing == "auto" else (model.gradient_checkpointing,)
    if len(checkpointing) > 1 and setting.shape.vision_parameters:
        checkpointing = (True,)  # activations of the vision tower are not estimated
    chunks = (None, _CHUNK_TOKENS) if policy.logprob_chunk_tokens == "auto" else (policy.chunk_tokens,)
    tokens = [policy.micro_batch_tokens] if policy.micro_batch_tokens else _micro_batches(longest)
    enough = max(longest, DEFAULT_MICRO_BATCH_TOKENS)
    choices = sorted(
        itertools.product(checkpointing, chunks, tokens),
        key=lambda choice: (choice[2] < enough, choice[0], choice[1] is not None, -choice[2]),
    )
    return [
        setting.with_(
            model={"gradient_checkpointing": again},
            policy={"logprob_chunk_tokens": chunk, "micro_batch_tokens": size},
        )
        for again, chunk, size in choices
    ]


def choose_engine_share(setting: Setting) -> float | None:
    """Return the configured share of a GPU for vLLM, or what the state of a colocated policy leaves, in percent.

    It is at least what the engine needs, so that `find_misfit` names the phase if both do not fit.
    """
    if setting.config.rollout.gpu_memory_utilization is not None or not setting.config.has_engines:
        return setting.config.rollout.gpu_memory_utilization
    size = setting.capacities_gb["rollout"]
    if not setting.colocated or size == math.inf:
        return ENGINE_SHARE
    free = 1 - setting.needs()["policy"].phases_gb["sample"] / (_SPARING * size)
    least = math.ceil(100 * setting.engine.least_gb / size) / 100
    return max(least, min(ENGINE_SHARE, math.floor(100 * free) / 100))


def fill_in(config: RunConfig, *, sparing: bool) -> RunConfig:
    """Return the config with open values filled in without a memory estimate."""
    checkpointing, chunk = config.model.gradient_checkpointing, config.policy.logprob_chunk_tokens
    share = _BLIND_SHARE if config.rollout.colocate and not config.eval.only else ENGINE_SHARE
    return config.with_values(
        rollout={"gpu_memory_utilization": config.rollout.gpu_memory_utilization or share},
        model={"gradient_checkpointing": sparing if checkpointing == "auto" else checkpointing},
        policy={
            "logprob_chunk_tokens": (_CHUNK_TOKENS if sparing else None) if chunk == "auto" else chunk,
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


def describe_nearest(setting: Setting) -> str:
    """Return the cheapest single change that fits, and its memory."""
    for words, changed in _list_changes(setting):
        found = find_fitting(changed)
        if found is not None and (not found.colocated or found.engine.least_gb <= found.engine_budget_gb):
            need = found.needs()["policy"]
            phase = max(need.phases_gb, key=lambda phase: need.phases_gb[phase])
            return f"{words}, which takes {need.phases_gb[phase]:.1f} GB in phase {phase}"
    return "no single change is enough: take more nodes, shorter sequences, policy.offload=all or a smaller model"


def _list_changes(setting: Setting) -> Iterator[tuple[str, Setting]]:
    """Yield single changes that save memory, cheapest first, each with its override."""
    policy, model = setting.config.policy, setting.config.model
    for tokens in _micro_batches(setting.config.max_sequence_tokens):
        if policy.micro_batch_tokens and tokens < policy.micro_batch_tokens:
            yield f"policy.micro_batch_tokens={tokens}", setting.with_(policy={"micro_batch_tokens": tokens})
    if policy.logprob_chunk_tokens is None:
        words = f"policy.logprob_chunk_tokens={_CHUNK_TOKENS}"
        yield words, setting.with_(policy={"logprob_chunk_tokens": _CHUNK_TOKENS})
    if model.gradient_checkpointing is False:
        yield "model.gradient_checkpointing=true", setting.with_(model={"gradient_checkpointing": True})
    used = setting.config.rollout.gpu_memory_utilization
    for percent in range(round(100 * used) - 1, 9, -1) if used is not None else ():
        if setting.colocated:
            share = percent / 100
            yield f"rollout.gpu_memory_utilization={share}", setting.with_(rollout={"gpu_memory_utilization": share})
    is_zero, stages = policy.backend == "deepspeed", {"optimizer": 1, "all": 3}
    if is_zero and policy.zero_stage < 3:
        yield "policy.zero_stage=3", setting.with_(policy={"zero_stage": 3})
    for kind, least in stages.items():
        if kind != policy.offload and policy.offload != "all" and (not is_zero or policy.zero_stage >= least):
            yield f"policy.offload={kind}", setting.with_(policy={"offload": kind})
    times = 2
    while times <= _MOST_NODES:
        words = f"cluster.num_nodes={times * setting.config.cluster.num_nodes}"
        yield words, replace(setting, num_workers={role: times * n for role, n in setting.num_workers.items()})
        times *= 2
    if model.lora is None and setting.config.task == "grpo":
        from slurm_rl.config.model import LoraConfig

        yield "+lora=all_linear", setting.with_(model={"lora": LoraConfig()})


def host_memory(setting: Setting, roles: Mapping[str, int], *, is_head: bool, direct: bool) -> dict[str, float]:
    """Return the host memory of a node by phase, in GB, without the programs' own few GB per process.

    It holds offloaded states and copies, and without GPUs all memory.

    Args:
        roles: processes of each role on the node.
        direct: weights are transferred without Ray's object store.
    """
    phases_gb, on_cpu = dict.fromkeys(PHASES, 0.0), not setting.config.cluster.gpus_per_node
    for role, memory in setting.needs().items():
        for phase in PHASES:
            host = memory.host_gb.get(phase, memory.host_gb["train"])
            phases_gb[phase] += roles.get(role, 0) * (host + on_cpu * (memory.phases_gb[phase] - RESERVE_GB))
    engines = roles.get("rollout", 0)
    if engines and on_cpu:
        phases_gb = {phase: value + engines * setting.engine.weights_gb for phase, value in phases_gb.items()}
    if engines and not direct and setting.config.model.lora is None:
        # The head holds the records and their copy in Ray's object store.
        phases_gb["sync"] += setting.shape.num_parameters * bytes_per_value(setting.config) / GB * (2 if is_head else 1)
    return phases_gb


def _micro_batches(longest: int) -> list[int]:
    """Return token budgets to try, largest first; the smallest holds one longest sequence."""
    return [size for size in (32768, 16384, 8192, 4096, 2048, 1024) if size > longest] + [longest]
