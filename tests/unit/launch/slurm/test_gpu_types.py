import dataclasses

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.launch.slurm.partitions import parse_partitions, spell_gpus
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan


def make_plan(gres: str) -> JobPlan:
    plan = build_plan(load_config(["+exp=demo", "+cluster=slurm_cpu"]), "/r", SubmitFacts("/python", 2, "test"))
    return dataclasses.replace(plan, sbatch={**plan.sbatch, "gres": gres})


@pytest.mark.parametrize(
    ("gres", "spelled"),
    [
        ("gpu:h100:8", "gpu:H100:8"),
        ("nvme:1,gpu:h100:2,gpu:v100:1", "nvme:1,gpu:H100:2,gpu:V100:1"),
        ("gpu:h100", "gpu:H100"),
        ("gpu:b200:8", "gpu:b200:8"),
        ("gpu:8", "gpu:8"),
    ],
)
def test_gres_uses_spelling_of_partition(gres: str, spelled: str) -> None:
    chosen = parse_partitions("main*|infinite|4|64|1000000|gpu:H100:8(S:0-1),gpu:V100:2\n")
    assert spell_gpus(make_plan(gres).sbatch, chosen)["gres"] == spelled
