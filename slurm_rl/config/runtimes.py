"""Container runtimes: a row holds all that others must know of one. The standard library alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class RuntimeRow:
    """What starts a command in its image."""

    wrap: str
    """`module:function`, a `Request` to `Wrapped`; see plan/container/runtimes.py."""
    gpu_hook: str
    """What brings the node's GPUs into the container, for who finds none there."""
    image_suffix: str | None = None
    """Of the file that it starts; None where images lie in a store or a registry."""
    maker: str | None = None
    """`module:function` that makes such a file of a root file system; see image/formats.py."""
    enter: str | None = None
    """`module:function` that says what goes before a command in the running container; see plan/attach.py. None: the
    image is opened again."""
    own_shm: bool = False
    """It can have a /dev/shm of its own, container.shm_size_gb."""
    on_the_host: bool = True
    """A shell of the node's own can come before it: srun starts pyxis' container without one."""


_WRAP, _ENTER, _FORMATS = "slurm_rl.plan.container.runtimes", "slurm_rl.plan.attach", "slurm_rl.plugins.image.formats"

RUNTIMES: Final[dict[str, RuntimeRow]] = {
    "none": RuntimeRow(f"{_WRAP}:none", "the node's driver"),
    "pyxis": RuntimeRow(
        f"{_WRAP}:pyxis",
        "enroot's hook 98-nvidia.sh and NVIDIA_VISIBLE_DEVICES",
        image_suffix=".sqsh",
        maker=f"{_FORMATS}:make_sqsh",
        enter=f"{_ENTER}:enter_enroot",
        on_the_host=False,
    ),
    "apptainer": RuntimeRow(
        f"{_WRAP}:apptainer",
        "the --nv of apptainer, which the plan passes",
        image_suffix=".sif",
        maker=f"{_FORMATS}:make_sif",
    ),
    "podman": RuntimeRow(
        f"{_WRAP}:podman",
        "nvidia-container-toolkit's CDI file (nvidia-ctk cdi generate)",
        enter=f"{_ENTER}:enter_podman",
        own_shm=True,
    ),
    "docker": RuntimeRow(f"{_WRAP}:docker", "nvidia-container-toolkit", enter=f"{_ENTER}:enter_docker", own_shm=True),
}
