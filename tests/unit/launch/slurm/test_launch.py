import pytest

from slurm_rl.config.load import load_config
from slurm_rl.launch.controller.agents import agent_environment
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import wrap_agent


def plan_of(*words: str) -> JobPlan:
    return build_plan(
        load_config(["+exp=demo", "+cluster=slurm_cpu", *words]), "/runs/a", SubmitFacts("/usr/bin/python3", 2, "test")
    )


def path_for(plan: JobPlan, given: dict[str, str]) -> str | None:
    return agent_environment(plan, given, wrap_agent(plan, 1, "7", (0, 0))).get("PYTHONPATH")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "/runs/a/code"),
        ({"PYTHONPATH": ""}, "/runs/a/code"),
        ({"PYTHONPATH": "/site/modules"}, "/runs/a/code:/site/modules"),
        ({"PYTHONPATH": "/runs/a/code:/site/modules"}, "/runs/a/code:/site/modules"),
    ],
)
def test_without_container_sites_python_path_stays_behind_ours(given: dict[str, str], expected: str) -> None:
    assert path_for(plan_of(), given) == expected


def test_python_path_of_site_stays_outside_container() -> None:
    plan = plan_of("container.image=/images/rl.sif", "container.runtime=apptainer")
    assert "/site/modules" not in str(agent_environment(plan, {}, wrap_agent(plan, 1, "7", (0, 0))))
    assert path_for(plan, {"PYTHONPATH": "/site/modules"}) != "/runs/a/code:/site/modules"
