import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_rl.config.load import load_config, section_defaults
from slurm_rl.config.parse import parse_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.sbatch import sbatch_argv

FACTS = SubmitFacts(python="/venv/bin/python", num_cpus=4, version="0")
printable = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1, max_size=40)


def plan_with(run_dir: str = "/runs/a", **cluster: object) -> JobPlan:
    tree = section_defaults(RunConfig)
    tree["model"]["path"], tree["data"]["train"], tree["reward"]["verifiers"] = (
        "hub/model",
        "addition",
        {"arithmetic": 1},
    )
    tree["cluster"] |= {"launcher": "slurm", **cluster}
    return build_plan(parse_config(tree), run_dir, FACTS)


@given(printable)
def test_sbatch_argv_keeps_option_one_argument(value: str) -> None:
    plan = plan_with(slurm={"partition": value, "account": value, "comment": value, "extra": {"licenses": value}})
    argv = sbatch_argv(plan.sbatch)
    for name in ("partition", "account", "comment", "licenses"):
        assert argv.count(f"--{name}={value}") == 1
    assert all(word.startswith("--") for word in argv)


@settings(max_examples=20, deadline=None)
@given(run=printable.filter(lambda text: not set(text) & set("%\\")), python=printable)  # a plan refuses these two
def test_batch_script_runs_only_controller(run: str, python: str) -> None:
    """bash parses the script; `exec` is replaced by printf to capture its words."""
    from slurm_rl.plan.sbatch import controller_command, render_batch_script

    plan = plan_with(f"/runs/{run}")
    script = render_batch_script(plan, controller_command(plan, f"/venv/{python}"))
    shown = script.replace("\nexec ", "\nprintf '%s\\0' ", 1).replace("  exit 2\n", "")
    out = subprocess.run(["/bin/bash", "-c", shown], capture_output=True, text=True, env={"PATH": ""}).stdout
    words = ["-u", "-m", "submitit.core._submit", f"/runs/{run}/submitit"]
    assert out.split("\0")[:-1] == [f"/venv/{python}", *words]


@pytest.mark.parametrize("value", ["a\nb", "a\tb", "a\x1bb", "a\x00b", "a\x7fb"])
def test_options_with_control_characters_are_refused(value: str) -> None:
    for options in ({"comment": value}, {"partition": value}, {"extra": {"licenses": value}}):
        with pytest.raises(ConfigError, match="one line without control characters"):
            plan_with(slurm=options)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("wrap", "leave it out"),
        ("test_only", "plan"),
        ("array", "-m"),
        ("time", "job.time_limit"),
        ("mail-user", "cluster.slurm.mail_user"),
        ("--foo", "without leading dashes"),
        ("a b", "without leading dashes"),
    ],
)
def test_reserved_options_name_their_key(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        plan_with(slurm={"extra": {name: "x"}})


GPUS = ["+exp=demo", "+cluster=nvidia_a100", "cluster.gpus_per_node=8"]
CPU = ["+exp=demo", "+cluster=slurm_cpu"]
SHARED = ["+exp=demo", "+cluster=nvidia_a100", "cluster.slurm.exclusive=false", "cluster.cpus_per_node=8"]


@pytest.mark.parametrize(
    ("words", "has", "lacks"),
    [
        (GPUS, ["--mem=0", "--gres=gpu:a100:8"], []),
        ([*GPUS, "cluster.slurm.gres='gpu:a100:8,nvme:1'"], ["--gres=gpu:a100:8,nvme:1"], []),
        ([*GPUS, "+cluster.slurm.extra.gpus=16", "cluster.num_nodes=2"], ["--gpus=16"], ["--gres"]),
        ([*GPUS, "+cluster.slurm.extra.gpus_per_node='a100:8'"], ["--gpus-per-node=a100:8"], ["--gres"]),
        ([*GPUS, "cluster.mem_gb_per_node=null"], [], ["--mem"]),
        (
            [*CPU, "cluster.mem_gb_per_node=null", "+cluster.slurm.extra.mem_per_cpu=1G"],
            ["--mem-per-cpu=1G"],
            ["--mem="],
        ),
        ([*SHARED, "cluster.mem_gb_per_node=null"], ["--cpus-per-task=8"], ["--mem", "--exclusive"]),
        ([*CPU, "cluster.slurm.gres='gpu:1'"], ["--gres=gpu:1"], []),
        (
            [*CPU, "cluster.slurm.mail_type=FAIL", "+cluster.slurm.extra={overcommit: true, hold: false}"],
            ["--mail-type=FAIL", "--overcommit"],
            ["--hold"],
        ),
    ],
)
def test_sbatch_argv_has_each_option_once(words: list[str], has: list[str], lacks: list[str]) -> None:
    argv = sbatch_argv(build_plan(load_config(words), "/runs/a", FACTS).sbatch)
    assert set(has) <= set(argv)
    assert not [word for word in argv if word.startswith(tuple(lacks))]
