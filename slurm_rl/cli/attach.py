"""`attach`: a shell on a node of a running run, in its container and with its environment.

`--dashboard` prints the ssh forward to the run's Ray dashboard and TensorBoard.
"""

import argparse
import os
import shlex
import socket
import sys
from typing import Any, NoReturn

from slurm_rl.cli.find import find_run, load_head, load_live
from slurm_rl.errors import ConfigError
from slurm_rl.launch.controller.create import require_own_run
from slurm_rl.launch.controller.ends import read_record
from slurm_rl.node.ports import dashboard_port
from slurm_rl.plan.attach import build_attach, build_ssh_argv
from slurm_rl.plan.job import HOSTS_VARIABLE, NODE_VARIABLE, JobPlan
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, read_json
from slurm_rl.run_dir.run_secret import token_file


def run(args: argparse.Namespace) -> int:
    directory = require_own_run(find_run(args.rest))
    plan, attempt = load_live(directory)
    if not args.dashboard:
        _open_shell(directory, plan, attempt, args)
    print("\n".join([*describe_dashboard(directory, plan, attempt, args.port), *_board(directory, args)]))
    return 0


def _open_shell(directory: RunDir, plan: JobPlan, attempt: AttemptDir, args: argparse.Namespace) -> NoReturn:
    if plan.address:
        raise ConfigError(
            "attach works only on nodes that the run started",
            seen=f"a run on {plan.address}",
            action="use kubectl exec, or the provider's shell",
        )
    record = find_agent(plan, attempt, args.node)
    found = build_attach(
        plan,
        args.command or ["/bin/bash"],
        job_key=str(read_json(attempt.start)["job"]),
        attempt=attempt.number,
        host=find_host(plan, str(record["host"])),
        pid=int(record["pid"]),
        env=ray_environment(directory, attempt),
        user=(os.getuid(), os.getgid()),
        tty=sys.stdin.isatty(),
    )
    become(found.argv, found.env)


def find_agent(plan: JobPlan, attempt: AttemptDir, node: int) -> dict[str, Any]:
    """Return the record of the agent of this rank.

    Raises:
        ConfigError: the run has no such node, or the node is not up yet.
    """
    if not 0 <= node < plan.num_nodes:
        raise ConfigError("--node must be the rank of a node", seen=node, action=f"0 to {plan.num_nodes - 1}")
    record = read_record(attempt, node)
    if "pid" not in record:
        raise ConfigError(
            "the node must have started", seen=f"no record of node {node} in {attempt.path}", action="wait"
        )
    return record


def find_host(plan: JobPlan, host: str) -> str | None:
    """Return the node for srun; None for this machine.

    Raises:
        ConfigError: it is another machine, which srun cannot reach.
    """
    if not plan.launcher_entry.on_this_machine:
        return host
    if host not in (socket.gethostname(), os.environ.get(NODE_VARIABLE)):
        raise ConfigError(
            "attach reaches nodes of a Slurm job, or the machine on which it runs",
            seen=f"this is {socket.gethostname()}, the node is {host}",
            action=f"run the same command there: ssh {host}",
        )
    return None


def ray_environment(run: RunDir, attempt: AttemptDir) -> dict[str, str]:
    """Return the variables that `ray.init("auto")` needs, with the path of the token file; empty without Ray."""
    token = token_file(run, attempt.number)
    if not token.is_file() or not attempt.head.is_file():
        return {}
    return {"RAY_ADDRESS": load_head(attempt).address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def describe_dashboard(run: RunDir, plan: JobPlan, attempt: AttemptDir, port: int) -> list[str]:
    """Return the address of Ray's dashboard, the path of its token file, and the ssh commands that reach it."""
    if plan.address:
        return [f"dashboard    {plan.address} (its token: the cluster's)"]
    if plan.torchrun is not None:
        return [f"dashboard    none: task under torchrun, without Ray ({plan.name})"]
    if not plan.ray.dashboard:
        return ["dashboard    none: ray.dashboard=false"]
    head, here = load_head(attempt), socket.gethostname()
    remote = plan.ray.dashboard_port or dashboard_port(head.port)
    is_here = head.host == here
    return [
        f"dashboard    http://127.0.0.1:{remote if is_here else port}",
        f"  its token  {token_file(run, attempt.number)}",
        *([] if is_here else [f"  from here  {shlex.join(build_ssh_argv(head.host, port, remote))}"]),
        f"  from your own machine  {shlex.join(build_ssh_argv(head.host, port, remote, jump=here))}",
    ]


def _board(run: RunDir, args: argparse.Namespace) -> list[str]:
    """Return the command that starts TensorBoard here, and the ssh command that reaches it."""
    port = args.tensorboard_port
    start = [sys.executable, "-m", "tensorboard.main", f"--logdir={run.tensorboard}", "--host=127.0.0.1"]
    return [
        f"tensorboard  http://127.0.0.1:{port}",
        f"  start it here  {shlex.join([*start, f'--port={port}'])}",
        f"  from your own machine  {shlex.join(build_ssh_argv(socket.gethostname(), port, port))}",
    ]


def become(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Replace this process.

    Raises:
        ConfigError: there is no such program.
    """
    kept = {key: value for key, value in os.environ.items() if key != HOSTS_VARIABLE}
    try:
        os.execvpe(argv[0], argv, kept | env)
    except OSError as error:
        raise ConfigError(f"{argv[0]} must be on PATH", seen=str(error.strerror)) from None
