"""Command lines of every external experiment, first and later attempts.

To update: `python -m tests.unit.plugins.external.test_external_golden` writes the golden files.
"""

from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.preset_folders import conf_dir
from slurm_rl.plan.build_plan import SubmitFacts, build_plan

GOLDEN = Path(__file__).parents[3] / "golden"
NAMES = sorted(path.stem for path in (conf_dir() / "exp").glob("*.yaml") if "\nexternal:" in path.read_text())
CLUSTERS = {"verl_ppo_qwen2_7b_amd": "amd_mi300", "command": "slurm_cpu"}

# Number of nodes in the original scripts.
NODES = {
    **{name: ["cluster.num_nodes=2"] for name in NAMES if name.startswith(("verl_", "openrlhf_ppo_"))},
    **{name: ["cluster.num_nodes=16", "cluster.gpus_per_node=4"] for name in NAMES if name.startswith("maxtext_")},
    "maxtext_convert_llama3_70b": ["cluster.num_nodes=1"],
    "openrlhf_grpo_mathv60k": ["cluster.num_nodes=2", "cluster.gpus_per_node=2"],
}


def render(name: str) -> str:
    config = load_config([f"+cluster={CLUSTERS.get(name, 'nvidia_a100')}", f"+exp={name}", *NODES.get(name, [])])
    plan = build_plan(config, "/shared/runs/golden", SubmitFacts(python="python", num_cpus=8, version="VERSION"))
    assert plan.external is not None
    lines = [f"{plan.num_nodes} nodes of {plan.gpus_per_node} {plan.accelerator} GPUs", "", *plan.external.first]
    added = [word for word in plan.external.later if word not in plan.external.first]
    limit = ["", "with a time limit", *plan.external.before_limit] if plan.external.before_limit else []
    return "\n".join([*lines, "", "later attempts have", *added, *limit]) + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_command_line_matches_golden(name: str) -> None:
    assert render(name) == (GOLDEN / f"external-{name}.txt").read_text()


def test_golden_command_lines_have_experiments() -> None:
    assert {path.stem for path in GOLDEN.glob("external-*.txt")} == {f"external-{name}" for name in NAMES}


if __name__ == "__main__":
    for old in GOLDEN.glob("external-*.txt"):
        old.unlink()
    for name in NAMES:
        (GOLDEN / f"external-{name}.txt").write_text(render(name))
