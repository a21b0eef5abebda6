"""Whether workers fit their GPUs in each phase, what is fastest of what does, and what would. Pure.

load     the model comes from its files
train    forward and backward passes, and the optimizer's step
sample   what training leaves on the GPU; colocated, beside its engine
sync     new weights on their way to the engines; colocated, beside the engine's own
save     a checkpoint is copied to host memory and written from there
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slurm_rl.config.tasks import TORCHRUN_TASKS
from slurm_rl.plan.memory import GB, EngineMemory, ModelShape, asleep_gb
from slurm_rl.plan.policy_memory import RESERVE_GB, PolicyMemory
from slurm_rl.plan.role_memory import (
    DEFAULT_MICRO_BATCH_TOKENS,
    bytes_per_value,
    critic_is_apart,
    critic_memory,
    engine_memory,
    longest_tokens,
    policy_memory,
    reference_memory,
)

if TYPE_CHECKING:  # the node agent imports this without pydantic
    from slurm_rl.config.run import RunConfig

PHASES = ("load", "train", "sample", "sync", "save")
_CHUNK_TOKENS = 2048
_SPARING = 0.9
_MOST_NODES = 64
"""Times the nodes, up to which more of them are tried."""


@dataclass(frozen=True)
class Setting:
    """A run on machines of this kind: what decides about memory."""

    config: RunConfig
    shape: ModelShape
    reference_shape: ModelShape
    """Of the policy as GRPO found it, or of a teacher."""
    num_workers: Mapping[str, int]
    """By role."""
    tensor_parallel_size: int
    capacities_gb: Mapping[str, float]
    """Memory of the smallest GPU that each role has."""

    @property
    def colocated(self) -> bool:
        return self.config.rollout.colocate and self.config.task not in TORCHRUN_TASKS

    @property
    def engine(self) -> EngineMemory:
        return engine_memory(self.config, self.shape, self.tensor_parallel_size)

    @property
    def engine_budget_gb(self) -> float:
        """What vLLM may take of a GPU."""
        return self.capacities_gb["rollout"] * self.config.rollout.gpu_memory_utilization

    def needs(self) -> dict[str, PolicyMemory]:
        """Of a worker of each role but the engines."""
        found = {"policy": policy_memory(self.config, self.shape, self.reference_shape, self.num_workers["policy"])}
        if critic_is_apart(self.config):
            found["critic"] = critic_memory(self.config, self.shape, self.num_workers["critic"])
        if self.num_workers.get("reference"):
            found["reference"] = reference_memory(self.config, self.reference_shape)
        return found

    def rooms(self, role: str) -> dict[str, float]:
        """GPU memory by phase, without what an engine on the same GPU has of it then."""
        if role != "policy" or not self.colocated:
            return dict.fromkeys(PHASES, self.capacities_gb[role])
        taken = {"sample": self.engine_budget_gb, "sync": self.engine.awake_gb}
        return {phase: self.capacities_gb[role] - taken.get(phase, asleep_gb()) for phase in PHASES}

    def within(self, share: float) -> Setting:
        """With GPUs of this share of their memory."""
        return replace(self, capacities_gb={role: share * size for role, size in self.capacities_gb.items()})

    def with_(self, **sections: Mapping[str, Any]) -> Setting:
        """With other values of keys, by section."""
        return replace(self, config=change(self.config, **sections))


@dataclass(frozen=True)
class Misfit:
    """The first phase that does not fit."""

    role: str
    phase: str
    memory: PolicyMemory
    room_gb: float


def find_misfit(setting: Setting) -> Misfit | None:
    for role, memory in setting.needs().items():
        rooms = setting.rooms(role)
        for phase, need in memory.phases_gb.items():
            if need > rooms[phase]:
                return Misfit(role, phase, memory, rooms[phase])
    return None


def list_choices(setting: Setting) -> list[Setting]:
    """What was left open filled in, the fastest first: a good many tokens, nothing computed twice."""
    policy, model = setting.config.policy, setting.config.model
    longest = longest_tokens(setting.config)
    checkpointing = (False, True) if model.gradient_checkpointing == "auto" else (model.gradient_checkpointing,)
    if len(checkpointing) > 1 and setting.shape.vision_parameters:
        checkpointing = (True,)  # the tower's own activations are not counted
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


def fill_in(config: RunConfig, *, sparing: bool) -> RunConfig:
    """What was left open, where nothing is known of a GPU's memory."""
    checkpointing, chunk = config.model.gradient_checkpointing, config.policy.logprob_chunk_tokens
    return change(
        config,
        model={"gradient_checkpointing": sparing if checkpointing == "auto" else checkpointing},
        policy={
            "logprob_chunk_tokens": (_CHUNK_TOKENS if sparing else None) if chunk == "auto" else chunk,
            "micro_batch_tokens": config.policy.micro_batch_tokens or DEFAULT_MICRO_BATCH_TOKENS,
        },
    )


def change(config: RunConfig, **sections: Mapping[str, Any]) -> RunConfig:
    """With other values of keys, by section."""
    new = {name: getattr(config, name).model_copy(update=dict(values)) for name, values in sections.items()}
    return config.model_copy(update=new)


@dataclass(frozen=True)
class Fitting:
    """A choice that fits, and why it is not a faster one."""

    setting: Setting
    share: float
    """Of a GPU's memory, within which it fits."""
    faster: tuple[Setting, Misfit] | None = None
    """The choice before it, which does not."""


def search_fitting(setting: Setting) -> Fitting | None:
    """The first choice that fits in every phase, with a tenth to spare if there is one."""
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
    """The choice alone."""
    found = search_fitting(setting)
    return None if found is None else found.setting


def describe_nearest(setting: Setting) -> str:
    """The one change that makes it fit, and how much it takes then."""
    for words, changed in _list_changes(setting):
        found = find_fitting(changed)
        if found is not None and (not found.colocated or found.engine.least_gb <= found.engine_budget_gb):
            need = found.needs()["policy"]
            phase = max(need.phases_gb, key=lambda phase: need.phases_gb[phase])
            return f"{words}, which takes {need.phases_gb[phase]:.1f} GB in phase {phase}"
    return "no single change is enough: take more nodes, shorter sequences, policy.offload=all or a smaller model"


def _list_changes(setting: Setting) -> Iterator[tuple[str, Setting]]:
    """Single changes that take less memory, the cheapest first, with the words that make them."""
    policy, model = setting.config.policy, setting.config.model
    for tokens in _micro_batches(longest_tokens(setting.config)):
        if policy.micro_batch_tokens and tokens < policy.micro_batch_tokens:
            yield f"policy.micro_batch_tokens={tokens}", setting.with_(policy={"micro_batch_tokens": tokens})
    if policy.logprob_chunk_tokens is None:
        words = f"policy.logprob_chunk_tokens={_CHUNK_TOKENS}"
        yield words, setting.with_(policy={"logprob_chunk_tokens": _CHUNK_TOKENS})
    if model.gradient_checkpointing is False:
        yield "model.gradient_checkpointing=true", setting.with_(model={"gradient_checkpointing": True})
    for percent in range(round(100 * setting.config.rollout.gpu_memory_utilization) - 1, 9, -1):
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
    """Host memory of one node by phase, in GB: states that wait there, copies, and without GPUs all else, too.

    The programs' own, some GB of each process, is not in it.

    Args:
        roles: how many workers and engines of each role are on the node.
        direct: new weights go from GPU to GPU, not through Ray's store.
    """
    found, on_cpu = dict.fromkeys(PHASES, 0.0), not setting.config.cluster.gpus_per_node
    for role, memory in setting.needs().items():
        for phase in PHASES:
            beside = memory.host_gb.get(phase, memory.host_gb["train"])
            found[phase] += roles.get(role, 0) * (beside + on_cpu * (memory.phases_gb[phase] - RESERVE_GB))
    engines = roles.get("rollout", 0)
    if engines and on_cpu:
        found = {phase: value + engines * setting.engine.weights_gb for phase, value in found.items()}
    if engines and not direct and setting.config.model.lora is None:
        # The head has records and what Ray's store keeps of them.
        found["sync"] += setting.shape.num_parameters * bytes_per_value(setting.config) / GB * (2 if is_head else 1)
    return found


def _micro_batches(longest: int) -> list[int]:
    """Budgets to try, the largest first; the smallest still holds one longest sequence."""
    return [size for size in (32768, 16384, 8192, 4096, 2048, 1024) if size > longest] + [longest]
