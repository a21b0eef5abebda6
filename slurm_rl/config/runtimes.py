"""Registry of container runtimes. Standard library only."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class RuntimeEntry:
    """Functions and capabilities of a runtime."""

    wrap: str
    """`module:function`, Request -> Wrapped; see plan/container/runtimes.py."""
    gpu_hook: str
    """Mechanism that exposes the node's GPUs, named in the error if the container sees none."""
    image_suffix: str | None = None
    """Suffix of image files; None: images come from a registry or a local store."""
    maker: str | None = None
    """`module:function` that packs a root file system into such a file; see image/formats.py."""
    enter: str | None = None
    """`module:function` that builds the argv prefix to enter a running container; see plan/attach.py. None: open the
    image again."""
    own_shm: bool = False
    """Supports container.shm_size_gb."""
    on_the_host: bool = True
    """A host shell can run before the container; False for pyxis, which srun starts directly."""


_WRAP, _ENTER, _FORMATS = "slurm_rl.plan.container.runtimes", "slurm_rl.plan.attach", "slurm_rl.plugins.image.formats"

RUNTIMES: Final[dict[str, RuntimeEntry]] = {
    "none": RuntimeEntry(f"{_WRAP}:none", "the node's driver"),
    "pyxis": RuntimeEntry(
        f"{_WRAP}:pyxis",
        "enroot's hook 98-nvidia.sh and NVIDIA_VISIBLE_DEVICES",
        image_suffix=".sqsh",
        maker=f"{_FORMATS}:make_sqsh",
        enter=f"{_ENTER}:enter_enroot",
        on_the_host=False,
    ),
    "apptainer": RuntimeEntry(
        f"{_WRAP}:apptainer",
        "the --nv of apptainer, which the plan passes",
        image_suffix=".sif",
        maker=f"{_FORMATS}:make_sif",
    ),
    "podman": RuntimeEntry(
        f"{_WRAP}:podman",
        "nvidia-container-toolkit's CDI file (nvidia-ctk cdi generate)",
        enter=f"{_ENTER}:enter_podman",
        own_shm=True,
    ),
    "docker": RuntimeEntry(f"{_WRAP}:docker", "nvidia-container-toolkit", enter=f"{_ENTER}:enter_docker", own_shm=True),
}
