"""From an override to sbatch's arguments, whatever is in it."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_rl.config.load import load_config, parse_config, section_defaults
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import JobPlan, SubmitFacts, build_plan
from slurm_rl.plan.sbatch import sbatch_argv
from slurm_rl.plugins.export.dstack import quote_for_hydra

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


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(printable.filter(lambda text: "${" not in text))
def test_an_override_arrives_as_one_argument(comment: str) -> None:
    config = load_config(["+exp=demo", "+cluster=slurm_cpu", f"cluster.slurm.comment={quote_for_hydra(comment)}"])
    argv = sbatch_argv(build_plan(config, "/runs/a", FACTS).sbatch)
    assert argv.count(f"--comment={comment}") == 1


@given(printable)
def test_every_option_stays_one_argument(value: str) -> None:
    plan = plan_with(slurm={"partition": value, "account": value, "comment": value, "extra": {"licenses": value}})
    argv = sbatch_argv(plan.sbatch)
    for name in ("partition", "account", "comment", "licenses"):
        assert argv.count(f"--{name}={value}") == 1
    assert all(word.startswith("--") for word in argv)


@settings(max_examples=20, deadline=None)
@given(run=printable.filter(lambda text: not set(text) & set("%\\")), python=printable)  # a plan refuses these two
def test_the_script_runs_nothing_but_the_controller(run: str, python: str) -> None:
    """bash itself reads the script; `exec` shows the words it would become, though no check before it passes here."""
    from slurm_rl.plan.sbatch import controller_command, render_batch_script

    plan = plan_with(f"/runs/{run}")
    script = render_batch_script(plan, controller_command(plan, f"/venv/{python}"))
    shown = script.replace("\nexec ", "\nprintf '%s\\0' ", 1).replace("  exit 2\n", "")
    out = subprocess.run(["/bin/bash", "-c", shown], capture_output=True, text=True, env={"PATH": ""}).stdout
    words = ["-u", "-m", "submitit.core._submit", f"/runs/{run}/submitit"]
    assert out.split("\0")[:-1] == [f"/venv/{python}", *words]


@pytest.mark.parametrize("value", ["a\nb", "a\tb", "a\x1bb", "a\x00b", "a\x7fb"])
def test_control_characters_are_refused(value: str) -> None:
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
def test_options_that_belong_elsewhere_say_where(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        plan_with(slurm={"extra": {name: "x"}})


def test_gpus_are_asked_for_once() -> None:
    gpus = {"accelerator": "nvidia", "gpus_per_node": 4, "gpu_type": "a100"}
    assert "--gres=gpu:a100:4" in sbatch_argv(plan_with(**gpus).sbatch)
    argv = sbatch_argv(plan_with(**gpus, slurm={"extra": {"gpus_per_node": "a100:4"}}).sbatch)
    assert "--gpus-per-node=a100:4" in argv
    assert not any(word.startswith("--gres") for word in argv)


def test_mail_at_a_failure_and_overcommit_are_sbatchs_own_words() -> None:
    argv = sbatch_argv(plan_with(slurm={"mail_type": "FAIL", "extra": {"overcommit": True}}).sbatch)
    assert {"--mail-type=FAIL", "--overcommit"} <= set(argv)


def test_a_flag_has_no_value_and_false_is_left_out() -> None:
    slurm = {"exclusive": False, "extra": {"spread_job": True, "hold": False}}
    argv = sbatch_argv(plan_with(slurm=slurm, cpus_per_node=2, mem_gb_per_node=8).sbatch)
    assert "--spread-job" in argv
    assert not any("hold" in word or "exclusive" in word for word in argv)
