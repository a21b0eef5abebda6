"""For `submit`: which image the run will use, whether it is there, and how to make it when it is not."""

from __future__ import annotations

from slurm_rl.errors import ConfigError
from slurm_rl.image.files import check_image_file, image_path
from slurm_rl.plan.job import JobPlan


def describe_image(plan: JobPlan) -> str | None:
    """One line; None without a container."""
    runtime, image = plan.container["runtime"], plan.container["image"]
    if image is None:
        return None
    path = image_path(runtime, image)
    if path is None:
        return f"image   {image}, from {runtime}'s store on each node or its registry"
    if path.is_file():
        return f"image   {image} ({path.stat().st_size / 1e6:,.0f} MB)"
    return f"image   {image}, which this machine does not see (python -m slurm_rl image check asks a node)"


def check_image_is_there(plan: JobPlan) -> None:
    """Refuse, before anything is written or queued, an image file that could not start.

    A folder that this machine does not see may be one that the nodes do.

    Raises:
        ConfigError: there is no such file, or a damaged one; how to make it. Or its path is relative, which means
            another file on each node.
    """
    path = image_path(plan.container["runtime"], plan.container["image"])
    if path is None:
        return
    if not path.is_absolute():
        raise ConfigError("container.image must be an absolute path, or a reference", seen=str(path))
    if path.parent.is_dir():
        check_image_file(path)
