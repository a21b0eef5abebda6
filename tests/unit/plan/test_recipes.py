"""Compare our plans with the published recipes of other trainers, recipes.csv.

A recipe's class is its layout (engines on the policy's GPUs, or beside them), the GPUs of an engine within a factor of
2, and offloading: a plan that keeps everything on the GPUs where the recipe offloads is of the same class, one that
offloads where the recipe does not is not. Lengths are the recipe's; where it states only the longest sequence, a
quarter of it, at most 1,024 tokens, is the prompt. A synchronous recipe is planned with max_off_policy_steps=0, an
asynchronous one with 1. Rows with an even number were used to tune the constants of speed.py, odd ones are only
checked. Rows of the layout `none` do not fit by the recipe's own documentation.

`python -m tests.unit.plan.test_recipes` writes our verdicts to tests/golden/recipes.txt.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_rl.config.load import open_hydra
from slurm_rl.config.parse import parse_config
from slurm_rl.errors import ConfigError
from slurm_rl.launch.sweep.sweeper import Composer
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.known_models import find_known

RECIPES = Path(__file__).with_name("recipes.csv")
GOLDEN = Path(__file__).parents[2] / "golden/recipes.txt"
CLUSTERS = {
    "H100": ["nvidia_h100"],
    "80 GB": ["nvidia_h100"],
    "H800": ["nvidia_h100"],
    "H200": ["nvidia_h200"],
    "A100": ["nvidia_a100"],
    "H20": ["nvidia_h100", "cluster.gpu_type=h20", "cluster.gpu_mem_gb=96"],
    "B200": ["nvidia_h100", "cluster.gpu_type=b200", "cluster.gpu_mem_gb=180"],
}


@dataclass(frozen=True)
class Verdict:
    """Our plan for one recipe: `class`, `other`, `refused` or, for those that do not fit, `right` or `wrong`."""

    kind: str
    text: str


def read_recipes() -> list[dict[str, str]]:
    return list(csv.DictReader(RECIPES.read_text().splitlines()))


def plan_of(row: dict[str, str], composer: Composer) -> JobPlan:
    total = int(row["total"])
    prompt = int(row["prompt"] or min(1024, total // 4))
    cluster, *more = CLUSTERS[row["gpu"]]
    words = [f"cluster={cluster}", *more, "data=gsm8k", "reward=math", f"model.path={row['model']}"]
    words += [f"cluster.num_nodes={row['nodes']}", f"cluster.gpus_per_node={row['gpus_per_node']}"]
    words += [f"data.max_prompt_tokens={prompt}", f"rollout.max_tokens={total - prompt}"]
    words += [f"trainer.prompts_per_step={row['prompts']}", f"algorithm.group_size={row['group']}"]
    words += [f"rollout.max_off_policy_steps={int(row['layout'] == 'async')}"]
    words += ["lora=all_linear", f"model.lora.rank={row['lora']}"] if row["lora"] else []
    shape = find_known(row["model"])
    assert shape is not None, f"{row['model']} is not in known_models.csv"
    return build_plan(
        parse_config(composer.compose(words), is_run=True), "/runs/a", SubmitFacts("python", 8, "test", shape)
    )


def judge(row: dict[str, str], composer: Composer) -> Verdict:
    try:
        layout = plan_of(row, composer).layout
    except ConfigError as error:
        kind = "right" if row["layout"] == "none" else "refused"
        return Verdict(kind, f"{str(error.seen).partition(';')[0].partition(':')[0]}")
    shared = "colocated" if layout.colocate else "split"
    text = f"{shared}, engines of {layout.tensor_parallel_size}, offload {layout.offload}"
    if row["layout"] == "none":
        return Verdict("wrong", text)
    same = shared == row["layout"].replace("async", "split")
    same &= 1 / 2 <= layout.tensor_parallel_size / int(row["engine_tp"]) <= 2
    same &= layout.offload == "none" or row["offload"] == "1"
    return Verdict("class" if same else "other", text)


def judge_all() -> list[tuple[dict[str, str], Verdict]]:
    with open_hydra(None) as extra:
        composer = Composer(extra)
        return [(row, judge(row, composer)) for row in read_recipes()]


def render(verdicts: list[tuple[dict[str, str], Verdict]]) -> str:
    lines = []
    for at, (row, found) in enumerate(verdicts):
        half = "checked" if at % 2 else "tuned"
        theirs = f"{row['layout']}, {row['engine_tp']}, {row['training']}, offload {row['offload']}"
        size = f"{row['model'].partition('/')[2]} {row['nodes']}x{row['gpus_per_node']} {row['gpu']}, {row['total']}"
        where = f"{row['repository']} {row['commit']} {row['path']}"
        lines.append(f"{at:2} {half:8}{found.kind:8} {size} | {theirs} | {found.text} | {where}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def verdicts() -> list[tuple[dict[str, str], Verdict]]:
    return judge_all()


def test_verdicts_match_golden(verdicts: list[tuple[dict[str, str], Verdict]]) -> None:
    assert render(verdicts) == GOLDEN.read_text()


def test_both_halves_of_recipes_get_layouts_of_their_class(verdicts: list[tuple[dict[str, str], Verdict]]) -> None:
    halves = [[found.kind for _, found in verdicts[half::2]] for half in (0, 1)]
    assert all(kinds.count("class") >= 22 and kinds.count("refused") <= 1 for kinds in halves), halves
    assert not any("wrong" in kinds for kinds in halves), "a recipe fits that its documentation excludes"


if __name__ == "__main__":
    GOLDEN.write_text(render(judge_all()))
