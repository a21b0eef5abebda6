"""`doctor`: are the nodes fit for a run? Looked at where its processes will be; run it before the first one.

Inside an allocation by one srun on all its nodes; without one on as many as the preset has, for which Slurm is asked;
with another launcher, or --here, on this machine.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from slurm_rl.cli.ask import ask_node
from slurm_rl.cli.common import compose_run
from slurm_rl.cli.told import show_plainly
from slurm_rl.cli.words import read_words
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.job.agents import agent_environment, choose_telling
from slurm_rl.job.attempts import EXIT_FAILED
from slurm_rl.job.create import snapshot_code
from slurm_rl.launchers.jobs import open_launcher
from slurm_rl.launchers.slurm.commands import hostnames
from slurm_rl.launchers.slurm.granted import read_allocation
from slurm_rl.launchers.slurm.srun import srun_argv
from slurm_rl.plan.accelerator import accelerator_env, ray_env
from slurm_rl.plan.container import Wrapped
from slurm_rl.plan.expected import expected_for
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import with_host_setup, wrap_doctor
from slurm_rl.plugins.health.doctor.finding import Finding, Question, load_answer, save_question
from slurm_rl.plugins.health.doctor.gpus import find_accelerator
from slurm_rl.plugins.health.doctor.table import is_well, render
from slurm_rl.report.columns import find_width
from slurm_rl.run_dir import expect_writable


def run(words: list[str]) -> int:
    told = read_words("doctor", words)
    config, plan, directory = compose_run(told.rest, told.flags.config_dir, is_run=False)
    if plan.kinds:
        raise ConfigError(
            "doctor looks at nodes of one kind at a time",
            seen=f"cluster.nodes with {', '.join(kind.name for kind in plan.kinds)}",
            action="add '~cluster.nodes' and what this kind has, such as cluster.num_nodes=1 cluster.gpus_per_node=4 "
            "cluster.slurm.constraint=v100",
        )
    plan, hosts = choose_nodes(as_found(config, plan), is_here=told.flags.here)
    root = directory.path.parent
    with expect_writable(root, "or choose another cluster.run_root", what="cluster.run_root"):
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".doctor-", dir=root))
    try:
        snapshot_code(folder / "code")
        question = Question(folder, plan, config.cluster.gpu_mem_gb)
        save_question(question)
        found = ask(question, hosts, told.flags.timeout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    well = is_well(found)
    if told.flags.json:
        nodes = {host: [asdict(finding) for finding in findings] for host, findings in found.items()}
        print(json.dumps({"well": well, "nodes": nodes}, indent=2))
    else:
        print(show_plainly(render(found, find_width())))
    return 0 if well else EXIT_FAILED


def as_found(config: RunConfig, plan: JobPlan) -> JobPlan:
    """With the GPUs of this machine, where no preset says what there should be."""
    kind, count = find_accelerator()
    if plan.launcher != "local" or plan.accelerator != "cpu" or kind == "cpu":
        return plan
    print(f"doctor  {count} GPUs ({kind}) are here, and no preset says what they should be", file=sys.stderr)
    return replace(
        plan,
        accelerator=kind,
        gpus_per_node=count,
        env={item.name: item.value for item in [*accelerator_env(kind), *ray_env(1)]},
        expected=expected_for(config, kind),
    )


def choose_nodes(plan: JobPlan, *, is_here: bool) -> tuple[JobPlan, list[str] | None]:
    """The plan for the nodes that are asked, and the names of those of an allocation; None: the launcher finds them."""
    in_allocation = "SLURM_JOB_ID" in os.environ and "SLURM_JOB_NODELIST" in os.environ
    if is_here or (in_allocation and shutil.which("srun") is None):
        return replace(plan, num_nodes=1, launcher="local"), None
    if not in_allocation:
        return (plan, None) if plan.sbatch else (replace(plan, num_nodes=1), None)
    granted = read_allocation(os.environ)
    gpus = granted.gpus_per_node or plan.gpus_per_node  # none at all is for the masks to say
    plan = replace(
        plan,
        num_nodes=granted.num_nodes,
        gpus_per_node=0 if plan.accelerator == "cpu" else gpus,
        cpus_per_node=granted.cpus_per_node,
    )
    return plan, hostnames(os.environ["SLURM_JOB_NODELIST"])


def ask(question: Question, hosts: Sequence[str] | None, timeout_s: float) -> dict[str, list[Finding]]:
    """Host -> what it found; a node without an answer is named by its task."""
    plan = question.plan
    name = f"srl-doctor-{secrets.token_hex(4)}"
    wrapped = wrap_doctor(plan, str(question.folder), name, (os.getuid(), os.getgid()))
    argv = step_argv(plan, wrapped, hosts, timeout_s)
    print(f"doctor  looks at {plan.num_nodes} node{'s' * (plan.num_nodes > 1)}", file=sys.stderr, flush=True)
    done = ask_node(argv, agent_environment(plan, os.environ, wrapped), timeout_s)
    found: dict[str, list[Finding]] = {}
    for rank in range(plan.num_nodes):
        answer = load_answer(question, rank)
        if answer is not None:
            found[answer[0]] = answer[1]
    silent = [host for host in hosts or () if host not in found]
    if missing := plan.num_nodes - len(found):
        words = choose_telling(f"{done.stderr}\n{done.stdout}".splitlines())[-3:]
        seen = " | ".join(words)[-400:] or f"exit status {done.returncode}, no word"
        action = "does the node see cluster.run_root, and start the container? python -m slurm_rl image check"
        who = ", ".join(silent) or f"{missing} without a name"
        found[who] = [Finding("node", "wrong", seen, f"an answer within {timeout_s:g} s", action)]
    return found


def step_argv(plan: JobPlan, wrapped: Wrapped, hosts: Sequence[str] | None, timeout_s: float) -> list[str]:
    """What starts it on the nodes, once on each."""
    if hosts is None and plan.launcher == "local" and wrapped.srun_args:
        raise ConfigError(
            "this container is srun's to start",
            seen=f"container.runtime={plan.container['runtime']} on this machine alone",
            action="in an allocation, without --here; or container.runtime=none, for what is on the host",
        )
    if hosts is not None:
        return srun_argv(plan, hosts, [*wrapped.srun_args, *with_host_setup(plan, wrapped.argv)])
    argv = open_launcher(plan.launcher).build_probe(plan, wrapped, timeout_s, num_nodes=plan.num_nodes)
    # A task of srun's has one core, on which the ranks of eight GPUs would import torch.
    cores = plan.cpus_per_node or plan.gpus_per_node + 2
    return [argv[0], f"--cpus-per-task={cores}", *argv[1:]] if argv[0] == "srun" else argv
