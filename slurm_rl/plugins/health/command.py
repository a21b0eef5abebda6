"""`doctor`: check nodes before the first run, in the container and the environment of a run's processes."""

import argparse
import os
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slurm_rl.cli.common import ask_node, compose_run
from slurm_rl.cli.output import to_printable
from slurm_rl.cli.table import find_width
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.controller.agents import agent_environment, choose_telling, own_user
from slurm_rl.launch.controller.attempts import EXIT_FAILED
from slurm_rl.launch.controller.create import snapshot_code
from slurm_rl.launch.jobs import open_launcher
from slurm_rl.launch.slurm.granted import read_allocation
from slurm_rl.launch.slurm.srun import srun_argv
from slurm_rl.node.environment import find_accelerator
from slurm_rl.node.rank_discovery import expand_hosts
from slurm_rl.plan.accelerator import accelerator_env, ray_env
from slurm_rl.plan.container import Wrapped
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.plan.step import with_host_setup, wrap_checks
from slurm_rl.plan.versions import expected_for
from slurm_rl.plugins.health.fabric import judge_fabric
from slurm_rl.plugins.health.judge import Verdicts, judge_nodes
from slurm_rl.plugins.health.nodes_command import run_nodes
from slurm_rl.plugins.health.preflight import fabric_argv
from slurm_rl.plugins.health.report import is_healthy, render, render_json
from slurm_rl.plugins.health.script import FABRIC, build_script, parse_outputs
from slurm_rl.plugins.health.table import choose_checks
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict
from slurm_rl.run_dir.run_dir import RunDir, expect_writable, write_json, write_text


def run(args: argparse.Namespace) -> int:
    """Run the command; exit status 1 if a check is bad."""
    if args.nodes:
        return run_nodes(args)
    config, plan, directory = compose_run(args.rest, args.config_dir, is_run=False)
    if plan.node_groups:
        raise ConfigError(
            "doctor checks nodes of one type at a time",
            seen=f"cluster.nodes with {', '.join(kind.name for kind in plan.node_groups)}",
            action="add '~cluster.nodes' and the values of one kind, such as cluster.num_nodes=1 "
            "cluster.gpus_per_node=4 cluster.slurm.constraint=v100",
        )
    plan, hosts = choose_nodes(detect_gpus(config, plan), is_here=args.here)
    root = directory.path.parent
    with expect_writable(root, "or choose another cluster.run_root", what="cluster.run_root"):
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".doctor-", dir=root))
    try:
        snapshot_code(folder / "code")
        # In the container the nodes see this folder as a run directory, and the image's own Python.
        inside = replace(
            plan, run_dir=str(folder), host_python=plan.python, container={**plan.container, "image": None}
        )
        write_json(RunDir(folder).plan, inside.to_json())
        verdicts = check_nodes(config, plan, inside, folder, hosts, args.timeout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(render_json(verdicts) if args.json else to_printable(render(verdicts, find_width())))
    return 0 if is_healthy(verdicts) else EXIT_FAILED


def detect_gpus(config: RunConfig, plan: JobPlan) -> JobPlan:
    """Without a preset, return the plan for the GPUs of this machine, also if this Python cannot use them."""
    kind, count = find_accelerator()
    if config.cluster.detected:
        print(f"doctor  no preset is given; {config.cluster.detected}", file=sys.stderr)
    if plan.launcher != "local" or plan.accelerator != "cpu" or kind == "cpu":
        return plan
    print(f"doctor  this machine has {count} GPUs ({kind}) in /dev", file=sys.stderr)
    env = {item.name: item.value for item in [*accelerator_env(kind), *ray_env(1)]}
    return replace(plan, accelerator=kind, gpus_per_node=count, env=env, expected=expected_for(config, kind))


def choose_nodes(plan: JobPlan, *, is_here: bool) -> tuple[JobPlan, list[str] | None]:
    """Return the plan for the nodes to check, and their names in an allocation; None if the launcher chooses."""
    in_allocation = "SLURM_JOB_ID" in os.environ and "SLURM_JOB_NODELIST" in os.environ
    if is_here or (in_allocation and shutil.which("srun") is None):
        return replace(plan, num_nodes=1, launcher="local"), None
    if not in_allocation:
        return (plan, None) if plan.sbatch else (replace(plan, num_nodes=1), None)
    granted = read_allocation(os.environ)
    gpus = 0 if plan.accelerator == "cpu" else granted.gpus_per_node or plan.gpus_per_node
    plan = replace(plan, num_nodes=granted.num_nodes, gpus_per_node=gpus, cpus_per_node=granted.cpus_per_node)
    return plan, expand_hosts(os.environ["SLURM_JOB_NODELIST"])


def check_nodes(
    config: RunConfig, plan: JobPlan, inside: JobPlan, folder: Path, hosts: Sequence[str] | None, timeout_s: float
) -> Verdicts:
    """Run all checks on all nodes by one step and judge the answers; nodes without one get a verdict `node`."""
    canary, asked_at = secrets.token_hex(8), time.time()
    write_text(folder / "canary", canary)
    checks = choose_checks(plan, "doctor")
    script = build_script(inside, str(folder / "canary"), [check.source for check in checks if check.source])
    fabric = shlex.join(fabric_argv(plan, str(folder), str(folder), plan.num_nodes))
    name = f"srl-doctor-{secrets.token_hex(4)}"
    command = ["/bin/sh", "-c", f"{script}\nexec {fabric}"]
    wrapped = wrap_checks(plan, command, str(folder), name, own_user())
    argv = step_argv(plan, wrapped, hosts, timeout_s)
    print(f"doctor  checks {plan.num_nodes} node{'s' * (plan.num_nodes > 1)}", file=sys.stderr, flush=True)
    environ = {NODE_VARIABLE: socket.gethostname(), **agent_environment(plan, os.environ, wrapped)}
    done = ask_node(argv, environ, timeout_s)
    outputs = parse_outputs(done.stdout)
    shm_bytes = plan.ray.object_store_bytes if plan.torchrun is None else 0
    asked = (asked_at, time.time())
    memory = config.cluster.gpu_mem_gb
    spec = NodeSpec(
        plan.accelerator, plan.gpus_per_node, plan.num_nodes, canary, False, asked, memory, float(shm_bytes)
    )
    verdicts = judge_nodes(outputs, checks, spec, list(outputs))
    lines = {host: found[FABRIC].lines for host, found in outputs.items() if FABRIC in found}
    measured = judge_fabric(lines, list(outputs), on_gpus=plan.accelerator != "cpu")
    for host, found in measured.verdicts.items():
        verdicts[host] |= found
        if measured.gb_s and "fabric" in found and found["fabric"].state == "ok":
            verdicts[host]["fabric"] = Verdict("ok", f"{measured.gb_s:.3g} GB/s bus bandwidth over all nodes")
    if missing := plan.num_nodes - len(outputs):
        words = choose_telling(f"{done.stderr}\n{done.stdout}".splitlines())[-3:]
        seen = " | ".join(words)[-400:] or f"exit status {done.returncode}, no output"
        silent = ", ".join(host for host in hosts or () if host not in verdicts) or f"{missing} unnamed"
        verdicts[silent] = {"node": Verdict("bad", f"no answer within {timeout_s:g} s: {seen}")}
    return verdicts


def step_argv(plan: JobPlan, wrapped: Wrapped, hosts: Sequence[str] | None, timeout_s: float) -> list[str]:
    """Return the command that starts one task on each node."""
    if hosts is None and plan.launcher == "local" and wrapped.srun_args:
        raise ConfigError(
            "only srun can start this container",
            seen=f"container.runtime={plan.container['runtime']} on this machine",
            action="run it in an allocation without --here, or with container.runtime=none",
        )
    if hosts is not None:
        return srun_argv(plan, hosts, [*wrapped.srun_args, *with_host_setup(plan, wrapped.argv)])
    argv = open_launcher(plan.launcher).build_probe(plan, wrapped, timeout_s, num_nodes=plan.num_nodes)
    # A task of srun has one core by default, too few for the ranks of eight GPUs.
    cores = plan.cpus_per_node or plan.gpus_per_node + 2
    return [argv[0], f"--cpus-per-task={cores}", *argv[1:]] if argv[0] == "srun" else argv
