"""Any command in any container: `wrap`, over a table of runtimes.

>>> plan = ContainerPlan("apptainer", "/images/rl.sif", (), None, None, False, ())
>>> wrap(["python", "x.py"], {}, [], plan, accelerator="amd", name="job-1").argv
('apptainer', 'exec', '--no-home', '--rocm', '/images/rl.sif', 'python', 'x.py')
"""

from __future__ import annotations

import csv
import io
import re
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
    """A path of the host inside the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class ContainerPlan:
    """The container section of the config as plain data, as plan.json holds it."""

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
        """Whether a shell of the node's own can come before the container."""
        return RUNTIMES[self.runtime].on_the_host

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> ContainerPlan:
        lists = {name: tuple(tree[name]) for name in ("extra_args", "setup") if name in tree}
        return ContainerPlan(**{**tree, **lists, "mounts": tuple(Mount(**mount) for mount in tree["mounts"])})


@dataclass(frozen=True)
class Request:
    """All that a runtime needs to know; the checks are done."""

    argv: tuple[str, ...]
    env: dict[str, str]
    inherited: tuple[str, ...]
    """Variables whose values only the environment of the wrapped command holds, secrets among them."""
    mounts: tuple[Mount, ...]
    container: ContainerPlan
    image: str
    accelerator: AcceleratorKind
    name: str
    user: str | None
    rdma: bool


@dataclass(frozen=True)
class Wrapped:
    """A command in its container."""

    srun_args: tuple[str, ...]
    """To insert after `srun`; pyxis alone has any."""
    argv: tuple[str, ...]
    env: dict[str, str]
    """To add to the environment in which argv (or srun) starts; no value of it is in argv."""
    cleanup_argv: tuple[str, ...] = ()
    """Ends the container if it still runs, and only that one; empty where it ends with its processes."""


def merge_mounts(*groups: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """All mounts, each once; ConfigError when two want the same place."""
    by_target: dict[str, Mount] = {}
    for mount in (mount for group in groups for mount in group):
        other = by_target.setdefault(mount.target, mount)
        if other != mount:
            raise ConfigError(
                "a path in the container has one mount",
                seen=f"{other.source} and {mount.source} both on {mount.target}",
                action="change the target of yours in container.mounts",
            )
    return tuple(by_target.values())


def render_bind(mount: Mount, read_only_word: str) -> str:
    """`type=bind,source=...,target=...`: one line of CSV, so a comma or a quote in a path only needs quoting.

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
    """`source:target:flags,...`, which pyxis hands to enroot as lines of an fstab.

    Neither of them knows an escape (NVIDIA/pyxis#133), so a path with one of their separators cannot be said.
    """
    for path in (path for mount in mounts for path in (mount.source, mount.target)):
        if any(character in ":,\\" or character.isspace() for character in path):
            raise ConfigError(
                "pyxis mounts only paths without space, comma, colon and backslash",
                seen=repr(path),
                action="mount a symbolic link to it or a folder above it, or use container.runtime=apptainer",
            )
    return ",".join(f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}" for mount in mounts)


SETUP_RULE = "each line of cluster.setup and container.setup must succeed on every node; this one did not:"
SETUP_ACTION = "Next: correct it, or what it needs on that node"


def with_setup(setup: Sequence[str], argv: Sequence[str], shell: str = "/bin/bash") -> list[str]:
    """argv after the setup lines; without any, argv itself and no shell."""
    if not setup:
        return list(argv)
    return [shell, "-c", "\n".join([*map(_guard, setup), f"exec {shlex.join(argv)}"])]


def _guard(line: str) -> str:
    """The line, or what says that it failed: bash alone would go on, and fail later of something else."""
    words = shlex.quote(f"slurm_rl: {SETUP_RULE} {line}")
    return f"{{ {line}\n}} || {{ status=$?; echo {words} >&2; exit $status; }}"


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
        rdma: its GPUs talk to those of other nodes, by the node's RDMA devices where it has any.

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
        rdma=rdma and accelerator != "cpu",
    )
    render: Callable[[Request], Wrapped] = load_function(RUNTIMES[container.runtime].wrap)
    return render(request)
