"""Print the plan's layouts and estimates for popular models on 1 to 128 H100, as Markdown.

    python -m tests.layout_table            layouts, memory and estimated speed
    python -m tests.layout_table published  estimates beside numbers that other trainers have published
    python -m tests.layout_table write      both, into docs/reference/layouts.md

4,096 tokens a sequence, 64 prompts x 32 completions a step, synchronous.
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.known_models import find_known
from tests.lock import ROOT

MODELS = (
    *("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen3-4B", "Qwen/Qwen2.5-7B", "Qwen/Qwen3-8B", "Qwen/Qwen3-32B"),
    *("meta-llama/Llama-3.1-70B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-235B-A22B", "openai/gpt-oss-120b"),
)
SIZES = {1: (1, 1), 8: (1, 8), 16: (2, 8), 32: (4, 8), 128: (16, 8)}
BATCH = ("data.max_prompt_tokens=512", "rollout.max_tokens=3584", "trainer.prompts_per_step=64")
PAGE = ROOT / "docs/reference/layouts.md"
NEMO = "NeMo-RL 0.6, docs/about/performance-summary.md"
VERL = "verl, docs/advance/fully_async.md"
WIDE = ("trainer.prompts_per_step=512", "algorithm.group_size=16", "trainer.num_minibatches=4")
H20 = ("cluster.gpu_type=h20", "cluster.gpu_mem_gb=96")
PUBLISHED: tuple[tuple[str, str, int, Sequence[str], float, float], ...] = (
    # Source, model, nodes of 8 H100, overrides, published tokens/s of a GPU, seconds a step.
    (NEMO, "Qwen/Qwen3-30B-A3B", 4, (), 1102, 192),
    (NEMO, "Qwen/Qwen3-30B-A3B", 4, ("rollout.max_off_policy_steps=1",), 1414, 152),
    (NEMO, "Qwen/Qwen3-30B-A3B", 24, ("rollout.max_off_policy_steps=8",), 1025, 34.5),
    (NEMO, "Qwen/Qwen3-235B-A22B", 32, ("rollout.max_tokens=7680", "trainer.prompts_per_step=16"), 37.4, 312),
    (VERL, "Qwen/Qwen3-30B-A3B-Base", 16, (*H20, "rollout.max_tokens=8192", *WIDE), 0, 498),
)


def plan_of(model: str, nodes: int, gpus: int, *words: str) -> JobPlan:
    cluster = ["+cluster=nvidia_h100", f"cluster.num_nodes={nodes}", f"cluster.gpus_per_node={gpus}"]
    config = load_config(
        [*cluster, "+data=gsm8k", "+reward=math", f"model.path={model}", "algorithm.group_size=32", *BATCH, *words]
    )
    return build_plan(config, "/runs/a", SubmitFacts("python", 8, "test", find_known(model)))


def describe(plan: JobPlan) -> str:
    """Return the columns layout, memory and speed."""
    layout, counts = plan.layout, Counter(actor.role for actor in plan.actors)
    step, engine, policy = layout.step, layout.engine, layout.policy
    assert engine is not None and policy is not None and layout.engine_budget_gb is not None
    parts = f"{counts['rollout']} x {layout.tensor_parallel_size}"
    where = f"{counts['policy']} shared" if layout.colocate else f"{counts['policy']} + {counts['rollout']} engines"
    longest = engine.num_sequences(layout.engine_budget_gb)
    memory = f"{policy.phases_gb['train']:.0f} / {policy.phases_gb['sample']:.0f}"
    sizes = f"{where}, engines {parts}" + (", offload" if layout.offload != "none" else "")
    if step is None:
        return f"{sizes} | {memory} | {longest} longest | "
    room = f"{step.num_concurrent} of {step.num_asked}"
    return f"{sizes} | {memory} | {room} | {step.tokens_per_s:,.0f}, {step.tokens_per_s / step.num_gpus:,.0f}"


def list_layouts() -> str:
    lines = ["| model | GPUs | policy GPUs, engines | GB in train / sample | sequences at once | tokens/s, a GPU |"]
    lines.append("|---|---|---|---|---|---|")
    for model in MODELS:
        for count, (nodes, gpus) in SIZES.items():
            try:
                found = describe(plan_of(model, nodes, gpus))
            except ConfigError as error:
                found = f"refused: {str(error.seen).partition(';')[0]} | | | "
            lines.append(f"| {model.partition('/')[2]} | {count} | {found} |")
    return "\n".join(lines) + "\n"


def list_published() -> str:
    lines = ["| source | model | GPUs | published: tokens/s a GPU, s a step | estimated |", "|---|---|---|---|---|"]
    for source, model, nodes, words, rate, seconds in PUBLISHED:
        step = plan_of(model, nodes, 8, *words).layout.step
        assert step is not None
        ours = f"{step.tokens_per_s / step.num_gpus:,.0f}, {step.total_s:.0f}"
        lines.append(f"| {source} | {model.partition('/')[2]} | {8 * nodes} | {rate or '-'}, {seconds} | {ours} |")
    return "\n".join(lines) + "\n"


def render_page() -> str:
    """Return the page with both tables replaced."""
    text = PAGE.read_text()
    for table in (list_layouts(), list_published()):
        text = re.sub(re.escape(table.partition("\n")[0]) + r"\n(\|.*\n)*", lambda _, new=table: new, text)
    return text


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        PAGE.write_text(render_page())
    else:
        print(list_published() if sys.argv[1:] == ["published"] else list_layouts(), end="")
