"""The output of `plan`, one golden file per launcher, accelerator, runtime and way to start ranks.

To update: `python -m tests.unit.plan.test_golden` writes tests/golden.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.launch.runs.model_shape import find_shape
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.render import render_plan

GOLDEN = Path(__file__).parents[2] / "golden"
IMAGES = {
    "none": None,
    "pyxis": "/images/slurm_rl.sqsh",
    "apptainer": "/images/slurm_rl.sif",
    "podman": "registry.example/slurm_rl:1",
    "docker": "registry.example/slurm_rl:1",
}
FACTS = SubmitFacts(python="/venv/bin/python", num_cpus=8, version="VERSION")
EXPERIMENTS = {
    "grpo": ["+exp=demo"],
    "sft": ["+exp=sft_tiny"],
    "ppo": ["+exp=ppo_llama3_8b", "cluster.num_nodes=2", "reward.model.path=/models/llama3-8b-rm"],
}
CASES = [
    *((cluster, "none", "grpo") for cluster in ("local", "slurm_cpu", "nvidia_h100", "amd_mi300", "ray", "runpod")),
    *(("nvidia_h100", runtime, "grpo") for runtime in IMAGES if runtime != "none"),
    *(("slurm_cpu", "none", "sft"), ("nvidia_h100", "none", "ppo")),
]


def render(cluster: str, runtime: str, task: str) -> str:
    words = [
        *EXPERIMENTS[task],
        f"+cluster={cluster}",
        "name=golden",
        "run_dir=/shared/runs/golden",
        "container.mounts=[/data:/data:ro]",
    ]
    words += ["cluster.address=http://ray.example:8265"] if cluster == "ray" else []
    if runtime != "none":
        words += [f"container.runtime={runtime}", f"container.image={IMAGES[runtime]}"]
    config = load_config(words)
    facts = replace(FACTS, model_shape=find_shape(config.model))
    return render_plan(build_plan(config, "/shared/runs/golden", facts)) + "\n"


def golden_file(cluster: str, runtime: str, task: str) -> Path:
    return GOLDEN / f"plan-{cluster}-{runtime}{'' if task == 'grpo' else f'-{task}'}.txt"


@pytest.mark.parametrize(("cluster", "runtime", "task"), CASES)
def test_plan_equals_its_golden_file(cluster: str, runtime: str, task: str) -> None:
    assert render(cluster, runtime, task) == golden_file(cluster, runtime, task).read_text()


def test_golden_files_have_cases() -> None:
    assert set(GOLDEN.glob("plan-*.txt")) == {golden_file(*case) for case in CASES}


if __name__ == "__main__":
    for old in GOLDEN.glob("plan-*.txt"):
        old.unlink()
    for case in CASES:
        golden_file(*case).write_text(render(*case))
