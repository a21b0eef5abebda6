"""Wrap a command in a container of any runtime.

>>> plan = ContainerPlan("apptainer", "/images/rl.sif", (), None, None, False, ())
>>> wrap(["python", "x.py"], {}, [], plan, accelerator="amd", name="job-1").argv
('apptainer', 'exec', '--no-home', '--rocm', '/images/rl.sif', 'python', 'x.py')
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_rl.config.runtimes import RUNTIMES
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import ConfigError
from slurm_rl.plan.accelerator import AcceleratorKind


@dataclass(frozen=True)
class Mount:
    """A bind mount."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class ContainerPlan:
    """The container section as plain data of plan.json."""

    runtime: str
    image: str | None
    mounts: tuple[Mount, ...]
    workdir: str | None
    shm_size_gb: int | None
    writable: bool
    extra_args: tuple[str, ...]
    setup: tuple[str, ...] = ()

    @property
    def starts_on_the_host(self) -> bool:
        """Whether a host shell can run before the container."""
        return RUNTIMES[self.runtime].on_the_host

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> ContainerPlan:
        lists = {name: tuple(tree[name]) for name in ("extra_args", "setup") if name in tree}
        return ContainerPlan(**{**tree, **lists, "mounts": tuple(Mount(**mount) for mount in tree["mounts"])})


@dataclass(frozen=True)
class Request:
    """Validated input of a runtime."""

    argv: tuple[str, ...]
    env: dict[str, str]
    inherited: tuple[str, ...]
    """Variables, including secrets, whose values come from the environment of the wrapped command."""
    mounts: tuple[Mount, ...]
    container: ContainerPlan
    image: str
    accelerator: AcceleratorKind
    name: str
    user: str | None
    rdma: bool


@dataclass(frozen=True)
class Wrapped:
    """A command that runs in a container."""

    srun_args: tuple[str, ...]
    """Arguments to insert after `srun`; only for pyxis."""
    argv: tuple[str, ...]
    env: dict[str, str]
    """Variables to add to the environment of argv (or srun); their values are not in argv."""
    cleanup_argv: tuple[str, ...] = ()
    """Command that ends this container; empty if it ends with its processes."""


def merge_mounts(*groups: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """Return all mounts without duplicates; raise ConfigError if two have one target."""
    by_target: dict[str, Mount] = {}
    for mount in (mount for group in groups for mount in group):
        other = by_target.setdefault(mount.target, mount)
        if other != mount:
            raise ConfigError(
                "a path in the container can have only one mount",
                seen=f"{other.source} and {mount.source} both on {mount.target}",
                action="change your target in container.mounts",
            )
    return tuple(by_target.values())


def render_bind(mount: Mount, read_only_word: str) -> str:
    """Return `type=bind,source=...,target=...` with CSV quoting.

    >>> render_bind(Mount("/data/a,b", "/data", read_only=True), "readonly")
    'type=bind,"source=/data/a,b",target=/data,readonly'
    """
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    if mount.read_only:
        fields.append(read_only_word)
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def render_pyxis(mounts: Sequence[Mount]) -> str:
    """Return `source:target:flags,...` for pyxis and enroot, which have no escapes (NVIDIA/pyxis#133)."""
    for path in (path for mount in mounts for path in (mount.source, mount.target)):
        if any(character in ":,\\" or character.isspace() for character in path):
            raise ConfigError(
                "pyxis mounts only paths without space, comma, colon and backslash",
                seen=repr(path),
                action="mount a symbolic link to it or a folder above it, or use container.runtime=apptainer",
            )
    return ",".join(f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}" for mount in mounts)


SETUP_RULE = "each line of cluster.setup and container.setup must succeed on every node; this one did not:"
SETUP_ACTION = "Next: correct it, or install its requirements on that node"


def with_setup(setup: Sequence[str], argv: Sequence[str], shell: str = "/bin/bash") -> list[str]:
    """Return argv behind the setup lines, or argv itself without any."""
    if not setup:
        return list(argv)
    return [shell, "-c", "\n".join([*map(_guard, setup), f"exec {shlex.join(argv)}"])]


def _guard(line: str) -> str:
    """Return the line with an error message and exit if it fails, since bash would continue."""
    message = shlex.quote(f"slurm_rl: {SETUP_RULE} {line}")
    return f"{{ {line}\n}} || {{ status=$?; echo {message} >&2; exit $status; }}"


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
    rdma: bool = False,
) -> Wrapped:
    """Return the command inside the container, with the same mounts and environment in every runtime.

    Args:
        argv: the command; unchanged with runtime none.
        env: variables to set; values go into `Wrapped.env`, only names into argv.
        mounts: mounts in addition to the config's, such as the run directory.
        container: from the plan.
        accelerator: devices to expose.
        name: container name, unique on the node, which `cleanup_argv` uses.
        inherited: names of further variables, including secrets, in the caller's environment.
        user: uid and gid for docker, which otherwise runs as root; None: root.
        rdma: expose the node's RDMA devices, if it has any.

    Raises:
        ConfigError: the runtime cannot express a path, or two mounts have one target.
    """
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
        rdma=rdma and accelerator != "cpu",
    )
    render: Callable[[Request], Wrapped] = load_function(RUNTIMES[container.runtime].wrap)
    return render(request)
