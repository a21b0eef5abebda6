"""Command lines of shells and tunnels to the nodes of a run."""

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
    """A command, and variables for its environment, which argv must not show."""

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
    """Build the command that runs in the container of a running attempt.

    Args:
        job_key: Slurm's job id, or the local controller's key.
        host: node of a Slurm job; None: this machine.
        pid: process id of the node's agent, in its own namespace.
        env: variables beyond the plan's, such as the Ray address and the token file.
        user: uid and gid of the job's user; None: root.
        tty: stdin is a terminal.
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
    # Overlap with the run's step and its memory.
    step = ["srun", f"--jobid={job_key}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}"]
    step += ["--mem=0", "--mpi=none", *(["--pty"] if tty else [])]
    return Attach([*step, *srun_args, *inner], env)


def enter_enroot(name: str, pid: int, env: Mapping[str, str], tty: bool) -> list[str]:
    """Enter by the agent's pid, since pyxis knows only unpacked containers by name. enroot splits multi-line values."""
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


def build_ssh_argv(host: str, local_port: int, remote_port: int, jump: str | None = None) -> list[str]:
    """Return argv of an ssh that forwards a loopback port and fails if the local port is taken.

    >>> build_ssh_argv("n1", 8265, 26970, jump="me@login")[-5:]
    ['-L', '127.0.0.1:8265:127.0.0.1:26970', '-J', 'me@login', 'n1']
    """
    argv = ["ssh", "-N", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=30"]
    argv += ["-L", f"127.0.0.1:{local_port}:127.0.0.1:{remote_port}"]
    return [*argv, *(["-J", jump] if jump else []), host]
