"""The plan sends only adapters where vLLM can swap them, and says why where it cannot."""

import re
from dataclasses import replace

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.known_models import find_known
from slurm_rl.plan.rationale import list_reasons

SHAPE, MIXTURE = find_known("Qwen/Qwen3-0.6B"), find_known("Qwen/Qwen3-30B-A3B")
assert SHAPE is not None
QWEN = SubmitFacts("/env/bin/python", 2, "1", model_shape=SHAPE)
UNSEEN = replace(QWEN, model_shape=replace(SHAPE, architecture=""))
GPUS = ["+exp=demo", "+cluster=nvidia_h100", "cluster.num_nodes=1"]
AHEAD = ["rollout.max_off_policy_steps=1"]
LORA = "+lora=all_linear"


@pytest.mark.parametrize(
    ("words", "facts", "way", "why"),
    [
        ([*GPUS, LORA], QWEN, "adapters", "the base stays"),
        (["+exp=demo", *AHEAD, LORA], QWEN, "adapters", "the base stays"),
        (
            [*GPUS, LORA, "rollout.weight_transfer=ray"],
            QWEN,
            "ray",
            "merged, since rollout.weight_transfer sends whole",
        ),
        ([*GPUS, LORA, "model.dtype=float32"], QWEN, "ipc", "merged, since vLLM's kernels .* no float32"),
        ([*GPUS, *AHEAD, LORA, "+model.lora.rank_pattern.q_proj=513"], QWEN, "nccl", "up to 512, .* is 513"),
        ([*GPUS, LORA, "+rollout.engine_args.quantization=fp8"], QWEN, "ipc", "has quantization"),
        ([*GPUS, LORA], replace(QWEN, model_shape=find_known("Qwen/Qwen2.5-VL-3B-Instruct")), "ipc", "vision towers"),
        ([*GPUS, LORA], replace(QWEN, model_shape=MIXTURE), "ipc", "Qwen3MoeForCausalLM are not tested"),
        (
            [*GPUS, LORA, "model.lora.target_parameters=[experts.down_proj]"],
            QWEN,
            "ipc",
            "joined experts .* only merged",
        ),
        ([*GPUS, LORA], UNSEEN, "ipc", "does not see the model's config.json"),
        ([*GPUS, LORA, "rollout.weight_transfer=adapters"], UNSEEN, "adapters", "the base stays"),
    ],
)
def test_plan_sends_adapters_where_vllm_swaps_them(words: list[str], facts: SubmitFacts, way: str, why: str) -> None:
    config = load_config(words)
    plan = build_plan(config, "/runs/one", facts)
    assert plan.weight_transfer == way
    reasons = dict(list_reasons(config, plan, facts.model_shape))
    assert re.search(why, reasons[f"weight transfer by {way}"])


@pytest.mark.parametrize(
    ("words", "facts", "seen"),
    [
        ([LORA, "model.lora.rank=513"], QWEN, "vLLM takes ranks up to 512, and the largest is 513"),
        ([LORA], replace(QWEN, model_shape=replace(SHAPE, architecture="MyModel")), "MyModel are not"),
        ([], QWEN, "model.lora=null"),
    ],
)
def test_plan_refuses_adapters_that_vllm_cannot_swap(words: list[str], facts: SubmitFacts, seen: str) -> None:
    with pytest.raises(ConfigError, match=rf"can swap.*{seen}.*Next: rollout.weight_transfer=auto") as caught:
        build_plan(load_config([*GPUS, *words, "rollout.weight_transfer=adapters"]), "/runs/one", facts)
    assert caught.value.exit_code == 2
