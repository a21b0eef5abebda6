"""Training runs on GPUs, as command lines that change only sizes of the shipped presets.

tests/unit/plan/test_gpu_cases.py plans all of them on CPU, so that none fails on a GPU machine because of a removed
key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PRESETS = {"nvidia": "nvidia_h100", "amd": "amd_mi300"}
DEMO: tuple[str, ...] = (
    "+exp=demo",
    "model=hf",
    "model.path={model}",
    "rollout.max_tokens=32",
    "rollout.max_num_seqs=64",
)
DEMO += ("warmup.num_steps=0", "trainer.num_steps=3", "trainer.prompts_per_step=8", "algorithm.group_size=4")
DEMO += ("data.num_eval=8", "checkpoint.interval=2", "data.max_prompt_tokens=16")
# A random model never gives the right sum, and without a reward signal there is no gradient.
DEMO += ("reward.verifiers.arithmetic=null", f"reward.function={Path(__file__).parent / 'reward.py'}:score")
SHORT: tuple[str, ...] = ("model.path={model}", "data.train={rows}", "data.num_eval=4", "supervised.batch_size=8")
SHORT += ("supervised.max_tokens=256",)
COLOCATED = ("rollout.colocate=true",)
# As the planner requests if both do not fit in GPU memory together.
OFFLOADED = (*COLOCATED, "policy.offload=optimizer")


@dataclass(frozen=True)
class Case:
    """A complete run."""

    words: tuple[str, ...]
    """Config overrides; a test fills in {model}, {rows} and {folder}."""
    num_gpus: int = 1
    model: str | None = "0.5b"
    """Key of MODELS in models.py."""
    stage: str = "grpo"
    """Stage of its training rows."""


CASES: Final[dict[str, Case]] = {
    "grpo, colocated": Case((*DEMO, *COLOCATED)),
    "grpo, colocated, a tensor above 1 GiB by handle": Case(
        (*DEMO, *OFFLOADED, "rollout.weight_transfer=ipc"), model="wide"
    ),
    "grpo, colocated, 1.5b": Case((*DEMO, *OFFLOADED), model="1.5b"),
    "grpo, colocated, through Ray's store": Case((*DEMO, *COLOCATED, "rollout.weight_transfer=ray")),
    "grpo, colocated, adapters": Case((*DEMO, *COLOCATED, "+lora=all_linear")),
    "grpo, colocated, offloaded": Case((*DEMO, *COLOCATED, "policy.offload=all")),
    "grpo, colocated, a reference": Case((*DEMO, *COLOCATED, "algorithm.kl.coef=0.001")),
    "grpo, colocated, eager": Case((*DEMO, *COLOCATED, "rollout.enforce_eager=true")),
    "ppo, colocated": Case((*DEMO, *OFFLOADED, "+algorithm=ppo")),
    "grpo, apart": Case(DEMO, num_gpus=2),
    "grpo, apart, sampling ahead": Case((*DEMO, "rollout.max_off_policy_steps=1"), num_gpus=2),
    "grpo, apart, continuous": Case(
        (*DEMO, "rollout.max_off_policy_steps=1", "rollout.inflight_weight_updates=true"), num_gpus=2
    ),
    "grpo, two workers, fsdp2": Case((*DEMO, *COLOCATED), num_gpus=2),
    "grpo, two workers, zero-3": Case(
        (*DEMO, *COLOCATED, "policy.backend=deepspeed", "policy.zero_stage=3"), num_gpus=2
    ),
    "grpo, two workers, context": Case((*DEMO, *COLOCATED, "policy.context_parallel=2"), num_gpus=2),
    "grpo, four workers, replicas": Case((*DEMO, *COLOCATED, "policy.num_replicas=2"), num_gpus=4),
    "grpo, tensor parallel": Case((*DEMO, "policy.num_workers=1", "rollout.tensor_parallel_size=2"), num_gpus=3),
    "sft, torchrun": Case(("+exp=sft_llama3_8b", *SHORT), model="llama", stage="sft"),
    "sft, torchrun, two": Case(("+exp=sft_llama3_8b", *SHORT), num_gpus=2, model="llama", stage="sft"),
    "dpo, torchrun": Case(("+exp=dpo_llama3_8b", *SHORT), model="llama", stage="dpo"),
    "rm, torchrun": Case(("+exp=rm_llama3_8b", *SHORT), model="llama", stage="rm"),
    "grpo on images, Qwen2.5-VL": Case(
        (
            *("+exp=grpo_mathv60k", "model=tiny_qwen2_5_vl", "model.max_pixels=12544", "data.root={folder}"),
            *("data.num_eval=4", "data.max_prompt_tokens=400", "rollout.max_tokens=16", "trainer.num_steps=3"),
            *("trainer.prompts_per_step=8", "reward.num_workers=1"),
        ),
        model=None,
    ),
}


def device_overrides(vendor: str, num_gpus: int, gpu_mem_gb: float) -> tuple[str, ...]:
    """Return the vendor's preset for this number and size of GPUs."""
    return (
        f"+cluster={PRESETS[vendor]}",
        "cluster.launcher=local",
        f"cluster.gpus_per_node={num_gpus}",
        f"cluster.gpu_mem_gb={gpu_mem_gb:g}",
        # Of host memory, which may be small.
        "ray.object_store_gb=4",
        "logging.wandb.mode=disabled",
    )


def fill(words: Sequence[str], *, model: Path | None, rows: Path, folder: Path) -> list[str]:
    return [word.format(model=model, rows=rows, folder=folder) for word in words]
