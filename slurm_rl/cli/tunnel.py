"""`attach --dashboard`: the ssh forward to a run's Ray dashboard and TensorBoard, printed or opened."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import shlex
import socket
import subprocess
import sys

from slurm_rl.cli.find import find_run, load_head, load_live
from slurm_rl.errors import ConfigError
from slurm_rl.launch.controller.create import require_own_run
from slurm_rl.node.ports import dashboard_port
from slurm_rl.plan.attach import Forward, build_ssh_argv
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir
from slurm_rl.run_dir.run_secret import token_file

_END_S = 5.0


def run_dashboard(args: argparse.Namespace) -> int:
    directory = require_own_run(find_run(args.rest))
    plan, attempt = load_live(directory)
    board = [sys.executable, "-m", "tensorboard.main", f"--logdir={directory.tensorboard}"]
    board += ["--host=127.0.0.1", f"--port={args.tensorboard_port}"]
    ssh = [] if plan.address else find_ssh(plan, attempt, args.port)
    print(render(directory, plan, attempt, ssh, args.port))
    print(f"tensorboard  http://127.0.0.1:{args.tensorboard_port}\n  start it here  {shlex.join(board)}")
    far = build_ssh_argv(socket.gethostname(), [Forward(args.tensorboard_port, args.tensorboard_port)])
    print(f"  from your own machine  {shlex.join(far)}", flush=True)
    return open_all([ssh, board]) if args.open else 0


def find_ssh(plan: JobPlan, attempt: AttemptDir, port: int) -> list[str]:
    """Return the ssh command from this machine to the run's head; empty on the head, or without a dashboard."""
    if plan.torchrun is not None or not plan.ray.dashboard:
        return []
    head = load_head(attempt)
    if head.host == socket.gethostname():
        return []
    return build_ssh_argv(head.host, [Forward(port, plan.ray.dashboard_port or dashboard_port(head.port))])


def render(directory: RunDir, plan: JobPlan, attempt: AttemptDir, ssh: list[str], port: int) -> str:
    """Return the address of the dashboard, the path of its token file, and the commands."""
    if plan.address:
        return f"dashboard    {plan.address} (its token: the cluster's)"
    if plan.torchrun is not None:
        return f"dashboard    none: task under torchrun, without Ray ({plan.name})"
    if not plan.ray.dashboard:
        return "dashboard    none: ray.dashboard=false"
    head = load_head(attempt)
    remote = plan.ray.dashboard_port or dashboard_port(head.port)
    far = build_ssh_argv(head.host, [Forward(port, remote)], jump=socket.gethostname())
    lines = [
        f"dashboard    http://127.0.0.1:{port if ssh else remote}",
        f"  its token  {token_file(directory, attempt.number)}",
        *([f"  from here  {shlex.join(ssh)}"] if ssh else []),
        f"  from your own machine  {shlex.join(far)}",
    ]
    return "\n".join(lines)


def open_all(commands: list[list[str]]) -> int:
    """Run the commands concurrently until one ends or Ctrl-C.

    Raises:
        ConfigError: one of them cannot be started.
    """
    wanted = [argv for argv in commands if argv]
    if importlib.util.find_spec("tensorboard") is None:
        print("slurm_rl: TensorBoard is not installed here (pip install tensorboard)", file=sys.stderr)
        wanted = [argv for argv in wanted if argv[0] == "ssh"]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for argv in wanted:
            try:
                running.append(subprocess.Popen(argv))
            except OSError as error:
                raise ConfigError(f"{argv[0]} must be on PATH", seen=str(error.strerror)) from None
        # The first that ends also ends the others; ssh prints its own errors.
        while running and all(process.poll() is None for process in running):
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[0].wait(0.2)
        return max((process.poll() or 0 for process in running), default=0)
    except KeyboardInterrupt:
        return 0
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
