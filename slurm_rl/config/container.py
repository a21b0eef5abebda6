"""Config of the container that every process of the run, except the controller, runs in."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator

from slurm_rl.config.runtimes import RUNTIMES
from slurm_rl.config.section import PositiveInt, Section, one_of


def _parse_mount(value: Any) -> Any:
    """Parse `source:target[:ro]` or `source`; return the long form unchanged."""
    if not isinstance(value, str):
        return value
    source, *rest = value.split(":")
    target, mode = [*rest, "", ""][:2]
    if len(rest) > 2 or mode not in ("", "ro", "rw"):
        raise ValueError(
            f"a mount is source, source:target or source:target:ro; got {value!r}. "
            "Next: write {source: ..., target: ..., read_only: true} for paths with a colon"
        )
    return {"source": source, "target": target or source, "read_only": mode == "ro"}


class MountConfig(Section):
    """A bind mount of a host folder or file."""

    source: str
    """Absolute path on the host; it must exist on every node."""
    target: str
    """Absolute path in the container."""
    read_only: bool = False
    """Mount read-only."""

    def problems(self) -> Iterator[str]:
        for name, path in (("source", self.source), ("target", self.target)):
            if not path.startswith("/"):
                yield f"the {name} of a mount is an absolute path; got {path!r}"
            if not path.isprintable():
                yield f"the {name} of a mount has no line break or control character; got {path!r}"


class ContainerConfig(Section):
    """Container image and runtime; mounts and environment are the same in each runtime."""

    runtime: Annotated[str, one_of(RUNTIMES)] = "none"
    """Container runtime. On nodes shared with other jobs use pyxis or apptainer: podman and docker expose all GPUs of a
    node, not only those of the job."""
    image: str | None = None
    """Path of a .sqsh (pyxis) or .sif (apptainer) that every node sees, or an image reference of the runtime."""
    mounts: tuple[
        Annotated[MountConfig, BeforeValidator(_parse_mount, json_schema_input_type=str | MountConfig)], ...
    ] = ()
    """Bind mounts: `source:target[:ro]`, `source` for the same path, or source, target and read_only. The run
    directory, the code and cluster.tmp_root are always mounted; the home directory is not."""
    workdir: str | None = None
    """Working directory of processes; null: the image's."""
    shm_size_gb: PositiveInt | None = None
    """Size of a private /dev/shm with podman and docker, in GiB; null: share the host's."""
    writable: bool = True
    """Allow writes to the image's files; they are lost when the container ends."""
    setup: tuple[str, ...] = ()
    """Shell lines run by the container's /bin/sh before each process; a failing line ends the attempt. cluster.setup is
    for the host."""
    extra_args: tuple[str, ...] = ()
    """Additional arguments of the runtime (pyxis: of srun), such as --device=/dev/infiniband."""

    def problems(self) -> Iterator[str]:
        if (self.runtime == "none") != (not self.image):
            yield (
                f"container.image and container.runtime go together; got image {self.image!r} and runtime "
                f"{self.runtime!r}. Next: set both, or neither"
            )
        if self.image is not None and self.image.startswith("-"):
            yield f"container.image is a path or a reference; got {self.image!r}, which reads as an option"
        if self.shm_size_gb is not None and not RUNTIMES[self.runtime].own_shm:
            able = " and ".join(name for name, row in RUNTIMES.items() if row.own_shm)
            yield (
                f"container.shm_size_gb is for {able}; got runtime {self.runtime!r}, where /dev/shm is "
                "the host's. Next: container.shm_size_gb=null"
            )
        if self.setup and self.runtime == "none":
            yield (
                f"container.setup needs a container; got {list(self.setup)} with container.runtime=none. "
                "Next: use cluster.setup"
            )
        if self.workdir is not None and not self.workdir.startswith("/"):
            yield f"container.workdir is an absolute path in the container; got {self.workdir!r}"
