"""Any command in any container: `wrap`, over a table of runtimes.

>>> plan = ContainerPlan("apptainer", "/images/rl.sif", (), None, None, False, ())
>>> wrap(["python", "x.py"], {}, [], plan, accelerator="amd", name="job-1").argv
('apptainer', 'exec', '--no-home', '--rocm', '/images/rl.sif', 'python', 'x.py')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from slurm_rl.config.runtimes import RUNTIMES
from slurm_rl.errors import ConfigError
from slurm_rl.functions.load import load_function
from slurm_rl.plan.accelerator import AcceleratorKind
from slurm_rl.plan.container.spec import ContainerPlan, Mount, Request, Wrapped, merge_mounts
from slurm_rl.plan.setup import with_setup

__all__ = ["ContainerPlan", "Mount", "Wrapped", "wrap"]


def wrap(
    argv: Sequence[str],
    env: Mapping[str, str],
    mounts: Sequence[Mount],
    container: ContainerPlan,
    *,
    accelerator: AcceleratorKind,
    name: str,
    inherited: Sequence[str] = (),
    user: tuple[int, int] | None = None,
) -> Wrapped:
    """The command inside the container, with the same mounts and environment in every runtime.

    Args:
        argv: the command; with runtime none it comes back as it is.
        env: variables it must have. Their values go into `Wrapped.env`, only their names into argv.
        mounts: in addition to those of the config: the run directory, the code.
        container: from the plan.
        accelerator: which devices the container gets.
        name: unique on the node; podman and docker name the container so, and `cleanup_argv` ends it by it.
        inherited: names of further variables, secrets among them, that the environment of the call holds.
        user: uid and gid of the caller, for docker, which otherwise runs as root; None is root.

    Raises:
        ConfigError: the runtime has no notation for a path, or two mounts want one place.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise ConfigError(
            "a container's name holds letters, digits, _ . and -", seen=repr(name), action="rename the run"
        )
    request = Request(
        argv=tuple(with_setup(container.setup, argv, shell="/bin/sh")),
        env=dict(env),
        inherited=tuple(inherited),
        mounts=merge_mounts(tuple(mounts), container.mounts),
        container=container,
        image=container.image or "",
        accelerator=accelerator,
        name=name,
        user=None if user is None or user[0] == 0 else f"{user[0]}:{user[1]}",
    )
    render: Callable[[Request], Wrapped] = load_function(RUNTIMES[container.runtime].wrap)
    return render(request)
