"""The output of `plan` for every cluster preset, and for one preset per accelerator in every container runtime.

A wanted change: `python -m tests.unit.plan.test_golden` writes tests/golden again; review the diff.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.config.load import conf_dir, load_config
from slurm_rl.launch.runs.model_shape import find_shape
from slurm_rl.plan.job import SubmitFacts, build_plan
from slurm_rl.plan.render import render_plan

GOLDEN = Path(__file__).parents[2] / "golden"
CLUSTERS = sorted(path.stem for path in (conf_dir() / "cluster").glob("*.yaml"))
IMAGES = {
    "none": None,
    "pyxis": "/images/slurm_rl.sqsh",
    "apptainer": "/images/slurm_rl.sif",
    "podman": "registry.example/slurm_rl:1",
    "docker": "registry.example/slurm_rl:1",
}
# A fixed machine and moment, so that the text is the same everywhere.
FACTS = SubmitFacts(python="/venv/bin/python", num_cpus=8, version="VERSION")
# Under torchrun: one of each kind.
UNDER_TORCHRUN = [("local", "none", "sft"), ("slurm_cpu", "none", "sft"), ("nvidia_h100", "pyxis", "dpo")]
# Task to what is planned; the names stay those of the files.
EXPERIMENTS = {"grpo": "demo", "sft": "sft_tiny", "dpo": "dpo_tiny"}
IN_CONTAINERS = itertools.product(["amd_mi300", "nvidia_h100"], [name for name in IMAGES if name != "none"])
CASES = [
    *((cluster, "none", "grpo") for cluster in CLUSTERS),
    *((*case, "grpo") for case in IN_CONTAINERS),
    *UNDER_TORCHRUN,
]


def render(cluster: str, runtime: str, task: str) -> str:
    words = [
        f"+exp={EXPERIMENTS[task]}",
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
def test_the_plan_is_as_before(cluster: str, runtime: str, task: str) -> None:
    assert render(cluster, runtime, task) == golden_file(cluster, runtime, task).read_text()


def test_no_golden_file_is_without_its_preset() -> None:
    assert set(GOLDEN.glob("plan-*.txt")) == {golden_file(*case) for case in CASES}


if __name__ == "__main__":
    for old in GOLDEN.glob("plan-*.txt"):
        old.unlink()
    for case in CASES:
        golden_file(*case).write_text(render(*case))
