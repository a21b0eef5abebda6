"""One function per runtime, Request -> Wrapped; each has a row in config/runtimes.py.

Privileges (--privileged, capabilities, seccomp off) come only from `container.extra_args`, and values of variables are
never in argv, which `ps` shows to all users.
"""

from slurm_rl.plan.accelerator import AcceleratorKind
from slurm_rl.plan.container import Request, Wrapped, render_bind, render_pyxis

# Variables of a Slurm task; podman and docker pass on only named variables.
SLURM_NAMES = (
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_END_TIME",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_START_TIME",
    "SLURM_LOCALID",
    "SLURM_MEM_PER_NODE",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
    "SLURM_STEP_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NUM_TASKS",
    "SLURMD_NODENAME",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
)


def none(request: Request) -> Wrapped:
    return Wrapped((), request.argv, request.env)


def pyxis(request: Request) -> Wrapped:
    """Use srun's plugin. Without --container-name the container ends with its step and is private to the job."""
    container = request.container
    args = [f"--container-image={request.image}", "--no-container-mount-home", "--no-container-entrypoint"]
    args.append("--container-writable" if container.writable else "--container-readonly")
    if request.mounts:
        args.append(f"--container-mounts={render_pyxis(request.mounts)}")
    if container.workdir is not None:
        args.append(f"--container-workdir={container.workdir}")
    # Named variables override the image's. pyxis would split multi-line values into variables.
    names = sorted({*(name for name, value in request.env.items() if "\n" not in value), *request.inherited})
    if names:
        args.append(f"--container-env={','.join(names)}")
    return Wrapped((*args, *container.extra_args), request.argv, request.env)


_APPTAINER_DEVICES: dict[AcceleratorKind, tuple[str, ...]] = {"nvidia": ("--nv",), "amd": ("--rocm",), "cpu": ()}


def apptainer(request: Request) -> Wrapped:
    """The environment is inherited; the prefix APPTAINERENV_ overrides the image's variables."""
    container = request.container
    # Python packages in ~/.local would override those of the image.
    args = ["apptainer", "exec", "--no-home", *_APPTAINER_DEVICES[request.accelerator]]
    if container.writable:
        args.append("--writable-tmpfs")
    args += [f"--mount={render_bind(mount, 'ro')}" for mount in request.mounts]
    if container.workdir is not None:
        args += ["--pwd", container.workdir]
    env = request.env | {f"APPTAINERENV_{name}": value for name, value in request.env.items()}
    return Wrapped((), (*args, *container.extra_args, request.image, *request.argv), env)


# Private home for caches, executable for compiled code; /tmp may be the host's and shared between users.
_HOME = ("--tmpfs=/home/slurm_rl:exec,mode=1777", "--env=HOME=/home/slurm_rl")

# keep-groups: in a rootless container the user's groups permit opening the devices.
# ulimit: RDMA locks memory, and a user cannot raise the host's limits.
_PODMAN_DEVICES: dict[AcceleratorKind, tuple[str, ...]] = {
    "nvidia": ("--device=nvidia.com/gpu=all", "--ulimit=host"),
    "amd": ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups", "--ulimit=host"),
    "cpu": (),
}


def podman(request: Request) -> Wrapped:
    # Root in a rootless container is the caller; other users cannot open the run directory.
    options = [*_PODMAN_DEVICES[request.accelerator], "--user=0:0"]
    if not request.container.writable:
        options += ["--read-only", *_HOME]
    cleanup = ("podman", "rm", "--force", "--ignore", "--time=10", request.name)
    return _run_command("podman", options, request, cleanup)


_DOCKER_DEVICES: dict[AcceleratorKind, tuple[str, ...]] = {
    "nvidia": ("--gpus=all", "--ulimit=memlock=-1"),
    "amd": ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=video", "--ulimit=memlock=-1"),
    "cpu": (),
}


def docker(request: Request) -> Wrapped:
    # Files in the run directory must belong to the caller.
    options = [*_DOCKER_DEVICES[request.accelerator], f"--user={request.user or '0:0'}"]
    if request.user is not None:
        # The user has no home in the image.
        options += [*_HOME, "--env=USER=slurm_rl"]
    if not request.container.writable:
        options.append("--read-only")
        if not any(mount.target == "/tmp" for mount in request.mounts):
            options.append("--tmpfs=/tmp")
    return _run_command("docker", options, request, ("docker", "rm", "--force", request.name))


# The shell checks on the node, since both programs refuse missing devices. Without RDMA devices NCCL and RCCL use TCP.
# apptainer and enroot expose the node's /dev and limits anyway.
_WITH_RDMA = 'ls /dev/infiniband/uverbs* >/dev/null 2>&1 && rdma=--device=/dev/infiniband; exec "$0" run ${rdma-} "$@"'


def _run_command(program: str, options: list[str], request: Request, cleanup: tuple[str, ...]) -> Wrapped:
    """Build the `run` command of podman or docker."""
    container = request.container
    shm = ["--ipc=host"] if container.shm_size_gb is None else [f"--shm-size={container.shm_size_gb}g"]
    # A log driver would store a second copy of all output.
    start = ["/bin/sh", "-c", _WITH_RDMA, program] if request.rdma else [program, "run"]
    args = [*start, "--rm", f"--name={request.name}", "--network=host", *shm, "--log-driver=none", *options]
    args += [f"--mount={render_bind(mount, 'readonly')}" for mount in request.mounts]
    args += [f"--env={name}" for name in sorted({*request.env, *request.inherited, *SLURM_NAMES})]
    if container.workdir is not None:
        args.append(f"--workdir={container.workdir}")
    # Override the entrypoint of serving images.
    args += ["--entrypoint=", *container.extra_args, request.image]
    return Wrapped((), (*args, *request.argv), request.env, cleanup)
