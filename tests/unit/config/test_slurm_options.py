"""Options of sbatch that disagree with a key of ours are refused with both keys; memory can be left to Slurm."""

from __future__ import annotations

import re

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import SubmitFacts, build_plan
from slurm_rl.plan.sbatch import sbatch_argv

GPUS = ["+exp=demo", "+cluster=nvidia_a100", "cluster.gpus_per_node=8"]
CPU = ["+exp=demo", "+cluster=slurm_cpu"]
SHARED = ["+exp=demo", "+cluster=nvidia_a100", "cluster.slurm.exclusive=false"]


def argv_of(words: list[str]) -> list[str]:
    return sbatch_argv(build_plan(load_config(words), "/runs/a", SubmitFacts("/venv/bin/python", 4, "0")).sbatch)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*GPUS, "cluster.slurm.gres='gpu:a100:4'"], "cluster.gpus_per_node and cluster.slurm.gres.* 8 and 4 on each"),
        ([*GPUS, "cluster.slurm.gres='nvme:1'"], "cluster.slurm.gres.*8 and 0 on each"),
        ([*GPUS, "+cluster.slurm.extra.gpus_per_node='a100:4'"], "extra.gpus_per_node.*8 and 4.*gpus_per_node=4"),
        ([*GPUS, "+cluster.slurm.extra.gpus-per-node=4"], "extra.gpus_per_node.*8 and 4"),
        ([*GPUS, "+cluster.slurm.extra.gpus=8", "cluster.num_nodes=2"], "extra.gpus must.*8 and 4"),
        ([*GPUS, "+cluster.slurm.extra.gpus_per_task=2"], "extra.gpus_per_task.*8 and 2"),
        (
            [*CPU, "+cluster.slurm.extra.mem_per_cpu=1G"],
            "cluster.mem_gb_per_node=8 and cluster.slurm.extra.mem_per_cpu=1G",
        ),
        (
            [*GPUS, "+cluster.slurm.extra.mem-per-gpu=9G"],
            "cluster.mem_gb_per_node=all and cluster.slurm.extra.mem_per_gpu",
        ),
        (
            [*CPU, "+cluster.slurm.extra.cpus_per_gpu=4"],
            "cluster.cpus_per_node=2 and cluster.slurm.extra.cpus_per_gpu=4",
        ),
        ([*SHARED, "cluster.mem_gb_per_node=64"], "exclusive=false.*cluster.cpus_per_node=null"),
        ([*SHARED, "cluster.cpus_per_node=8"], "exclusive=false.*cluster.mem_gb_per_node=all"),
    ],
)
def test_plan_refuses_options_that_disagree(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    said = capsys.readouterr().err
    assert re.search(says, said), said


@pytest.mark.parametrize(
    ("words", "has", "lacks"),
    [
        ([*GPUS], ["--mem=0", "--gres=gpu:a100:8"], []),
        ([*GPUS, "cluster.slurm.gres='gpu:a100:8,nvme:1'"], ["--gres=gpu:a100:8,nvme:1"], []),
        ([*GPUS, "+cluster.slurm.extra.gpus=16", "cluster.num_nodes=2"], ["--gpus=16"], ["--gres"]),
        ([*GPUS, "cluster.mem_gb_per_node=null"], [], ["--mem"]),
        (
            [*CPU, "cluster.mem_gb_per_node=null", "+cluster.slurm.extra.mem_per_cpu=1G"],
            ["--mem-per-cpu=1G"],
            ["--mem="],
        ),
        ([*SHARED, "cluster.cpus_per_node=8", "cluster.mem_gb_per_node=null"], ["--cpus-per-task=8"], ["--mem"]),
        ([*CPU, "cluster.slurm.gres='gpu:1'"], ["--gres=gpu:1"], []),
    ],
)
def test_sbatch_gets_memory_and_gpus_once(words: list[str], has: list[str], lacks: list[str]) -> None:
    argv = argv_of(words)
    assert set(has) <= set(argv)
    assert not [word for word in argv if word.startswith(tuple(lacks))]


def test_rules_of_slurm_hold_for_slurm_only() -> None:
    config = load_config(["+exp=demo", "cluster.slurm.exclusive=false"])
    assert config.cluster.launcher == "local"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("cluster.slurm.time=3", "set job.time_limit"),
        ("cluster.slurm.mem=3", "set cluster.mem_gb_per_node"),
        ("cluster.slurm.partiton=x", "did you mean cluster.slurm.partition"),
        ("cluster.slurm.begin=x", r"\+cluster.slurm.extra.begin=<value>"),
        ("cluster=nvidia_h10", "cluster has no preset of this name; got nvidia_h10.*did you mean nvidia_h100"),
    ],
)
def test_load_config_names_the_key_of_an_option_of_sbatch(word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load_config(["+exp=demo", word])
    assert "Config search path" not in str(caught.value)
