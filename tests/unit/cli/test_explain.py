"""Compare `explain` with golden files and with the plan's own decisions.

To update: `python -m tests.unit.cli.test_explain` writes tests/golden/explain-*.txt.
"""

import re
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.launch.runs.model_shape import find_shape
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.explain import render_explanation

GOLDEN = Path(__file__).parents[2] / "golden"
H100 = ("+cluster=nvidia_h100",)
QWEN = ("model.path=Qwen/Qwen3-8B", "+data=gsm8k", "+reward=math", *H100)
CASES = {
    "demo": ("+exp=demo",),
    "qwen3_8b": (*QWEN, "cluster.num_nodes=2", "job.num_spare_nodes=1"),
    "unknown_model": ("model.path=/only/on/nodes", "+data=gsm8k", "+reward=math", *H100),
    "ppo": ("+exp=ppo_llama3_8b", *H100, "cluster.num_nodes=2", "reward.model.path=/models/rm"),
    "lora": ("+exp=grpo_mathv60k", "+cluster=amd_mi300", "+lora=all_linear", "checkpoint.upload_url=gs://bucket/runs"),
    "sft": ("+exp=sft_tiny", *H100, "container.runtime=pyxis", "container.image=/shared/rl.sqsh"),
    "machines": ("+exp=demo", "+cluster=runpod", "rollout.max_off_policy_steps=1"),
    "ray": ("+exp=demo", "+cluster=ray", "cluster.address=http://head.example:8265"),
    "verl": ("+exp=verl_ppo_gsm8k", "+cluster=nvidia_a100"),
}


def explain(*words: str) -> str:
    config = load_config([*words, "run_dir=/shared/runs/golden"])
    shape = None if config.external else find_shape(config.model)
    # A fixed machine gives the same text everywhere.
    plan = build_plan(config, "/shared/runs/golden", SubmitFacts("/venv/bin/python", 8, "VERSION", shape))
    return render_explanation(config, plan, shape) + "\n"


@pytest.mark.parametrize("case", CASES)
def test_explanation_matches_golden(case: str) -> None:
    assert explain(*CASES[case]) == (GOLDEN / f"explain-{case}.txt").read_text()


def test_golden_files_have_cases() -> None:
    assert {path.name for path in GOLDEN.glob("explain-*")} == {f"explain-{case}.txt" for case in CASES}


def test_rejected_choice_is_refused_with_stated_numbers() -> None:
    model = ("model.path=Qwen/Qwen3-32B", *QWEN[1:], "cluster.num_nodes=4")
    told = " ".join(explain(*model).split())
    found = re.search(
        r"the next, micro-batches of (\d+), (with|without) gradient checkpointing, (logits of 2048|all logits) at once"
        r", takes ([\d.]+) of",
        told,
    )
    assert found is not None, told
    tokens, again, chunk, need = found.groups()
    words = [f"policy.micro_batch_tokens={tokens}", f"model.gradient_checkpointing={str(again == 'with').lower()}"]
    words += [f"policy.logprob_chunk_tokens={2048 if '2048' in chunk else 'null'}", "policy.offload=none"]
    with pytest.raises(Exception, match=rf"got {re.escape(need)} GB > 78\.0 GB in phase train"):
        explain(*model, *words, "rollout.colocate=true")


CHECKPOINTED = ["model.gradient_checkpointing=true", "policy.micro_batch_tokens=4096"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollout.max_off_policy_steps=1"], "weight transfer by nccl: from GPU to GPU"),
        (["rollout.colocate=true"], "weight transfer by ipc: engines share the policy's GPUs"),
        (["rollout.weight_transfer=ray"], "weight transfer by ray: as set"),
        (["rollout.top_p=0.9"], "differently in the engine, top_p, top_k, min_p or repetition_penalty"),
        (
            ["policy.num_workers=2", "rollout.num_engines=2", "rollout.tensor_parallel_size=1"],
            "idle 4 GPUs have no work",
        ),
        (["rollout.tensor_parallel_size=2"], "4 engines of 2 GPUs: rollout.tensor_parallel_size"),
        (["algorithm.kl.coef=0.1", "reference.num_workers=2"], "reference on 2 dedicated GPUs"),
        (CHECKPOINTED, "fastest choice fits"),
        ([*CHECKPOINTED, "policy.logprob_chunk_tokens=null"], "the one choice left open fits"),
        (["cluster.slurm.partition=gpu", "job.time_limit=90"], "partition gpu: 1 node of 8 nvidia GPUs"),
        (["job.time_limit=90", "job.max_failures=0"], "failure ends it"),
    ],
)
def test_reasons_follow_their_causes(words: list[str], said: str) -> None:
    assert said in " ".join(explain("model.path=Qwen/Qwen3-1.7B", *QWEN[1:], *words).split())


if __name__ == "__main__":
    for case, words in CASES.items():
        (GOLDEN / f"explain-{case}.txt").write_text(explain(*words))
