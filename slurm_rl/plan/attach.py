"""Shells and tunnels to a run's nodes, as argv: in its container, with its environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from slurm_rl.config.runtimes import RUNTIMES
from slurm_rl.config.user_files.load import load_function
from slurm_rl.plan.container import ContainerPlan, wrap
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import own_mounts, with_host_setup


@dataclass(frozen=True)
class Attach:
    """What to run, and what to add to its environment; no value of it is in argv."""

    argv: list[str]
    env: dict[str, str]


def build_attach(
    plan: JobPlan,
    command: Sequence[str],
    *,
    job_key: str,
    attempt: int,
    host: str | None,
    pid: int,
    env: dict[str, str],
    user: tuple[int, int] | None = None,
    tty: bool = True,
) -> Attach:
    """The command on a node of a running attempt.

    Args:
        job_key: Slurm's id of the job, or the local controller's key.
        host: the node, under Slurm; None is this machine.
        pid: of the node's agent, as it knows itself.
        env: what the run's processes have beyond the plan's: where its Ray is, where the token lies.
        user: uid and gid of whoever runs the job; None is root.
        tty: this is a terminal.
    """
    container, env = ContainerPlan.from_json(plan.container), {**plan.env, "PYTHONPATH": f"{plan.run_dir}/code", **env}
    name = f"srl-{job_key}-{attempt}"
    enter = RUNTIMES[container.runtime].enter
    srun_args: Sequence[str] = ()
    argv: Sequence[str]
    if enter is not None:
        argv = [*load_function(enter)(name, pid, env, tty), *command]
    else:
        mounts = own_mounts(plan, plan.run_dir)
        wrapped = wrap(command, env, mounts, container, accelerator=plan.accelerator, name=f"{name}-shell", user=user)
        srun_args, argv, env = wrapped.srun_args, wrapped.argv, wrapped.env
    inner = with_host_setup(plan, argv)
    if host is None:
        return Attach(inner, env)
    # Beside the run's own step, out of the same share; the memory is that of the step.
    step = ["srun", f"--jobid={job_key}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}"]
    step += ["--mem=0", "--mpi=none", *(["--pty"] if tty else [])]
    return Attach([*step, *srun_args, *inner], env)


def enter_enroot(name: str, pid: int, env: Mapping[str, str], tty: bool) -> list[str]:
    """By the agent's process, which has the node's own numbers: pyxis finds a container by name only when it was
    unpacked. Of a value of several lines enroot would make several variables."""
    names = sorted(name for name, value in env.items() if "\n" not in value)
    return ["enroot", "exec", *(f"--env={name}" for name in names), str(pid)]


def _enter_by_name(program: str, name: str, pid: int, env: Mapping[str, str], tty: bool) -> list[str]:
    return [
        program,
        "exec",
        "--interactive",
        *(["--tty"] if tty else []),
        *(f"--env={key}" for key in sorted(env)),
        name,
    ]


enter_podman, enter_docker = partial(_enter_by_name, "podman"), partial(_enter_by_name, "docker")


@dataclass(frozen=True)
class Forward:
    """One port of the other side, brought here."""

    local_port: int
    remote_port: int


def build_ssh_argv(host: str, forwards: Sequence[Forward], jump: str | None = None) -> list[str]:
    """ssh that only forwards, on loopback at both ends, and fails when a port here is taken.

    >>> build_ssh_argv("n1", [Forward(8265, 26970)], jump="me@login")[-5:]
    ['-L', '127.0.0.1:8265:127.0.0.1:26970', '-J', 'me@login', 'n1']
    """
    argv = ["ssh", "-N", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=30"]
    for forward in forwards:
        argv += ["-L", f"127.0.0.1:{forward.local_port}:127.0.0.1:{forward.remote_port}"]
    return [*argv, *(["-J", jump] if jump else []), host]
