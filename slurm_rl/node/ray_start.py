"""`ray start` with a longer timeout: Ray gives its raylet 30 s, without an option.

    python -m slurm_rl.node.ray_start 300 start --block ...

Thirty seconds are too short where many nodes read Ray from one file system, or other jobs use the cores. Other failures
are still reported at once. Three more changes to `ray start`:

* The raylet gives its agent, which is Python, 15 s to report its port, and dies otherwise: it gets the port as a flag.
* The server of Ray Client is not started. It has a timeout of 30 s as well, and takes the head down with it.
* Imports of other commands (pandas, FastAPI), two thirds of its start time, are skipped; `ray start` tolerates that.
"""

import contextlib
import mmap
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

_POLL_S = 0.2
_PORT_FLAG = "dashboard_agent_listen_port"
_PORT_OPTION = "--dashboard-agent-listen-port="
OTHER_COMMANDS: Final = ("ray.util.state.state_cli", "ray.dashboard.modules.job.cli", "ray.serve.scripts")
"""Modules of `ray list`, `ray job` and `ray serve`."""


def with_timeout(
    get_node: Callable[..., Any], find_end: Callable[[], int | None], timeout_s: float
) -> Callable[..., Any]:
    """Return `get_node` with retries until the deadline; exit if `find_end` returns a status of the raylet."""
    deadline = time.monotonic() + timeout_s

    def get(*args: Any) -> Any:
        while True:
            try:
                return get_node(*args)
            except RuntimeError:
                if (status := find_end()) is not None:
                    sys.exit(f"raylet died, exit code {status}")
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)

    return get


def with_agent_port(start_process: Callable[..., Any], words: Sequence[str]) -> Callable[..., Any]:
    """Return Ray's `start_process`, which passes the agent's port of `ray start` to the raylet."""
    ports = [word.removeprefix(_PORT_OPTION) for word in words if word.startswith(_PORT_OPTION)]

    def start(command: list[str], process_type: str, **fields: Any) -> Any:
        if process_type == "raylet" and ports and has_port_flag(Path(command[0])):
            command = [*command, f"--{_PORT_FLAG}={ports[0]}"]
        return start_process(command, process_type, **fields)

    return start


def has_port_flag(raylet: Path) -> bool:
    """Return whether this version of the raylet has the flag; it would exit on an unknown one."""
    with raylet.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as binary:
        return binary.find(b"FLAGS_no" + _PORT_FLAG.encode()) >= 0


@contextlib.contextmanager
def without_modules(names: Sequence[str]) -> Iterator[None]:
    """Make imports of these modules fail in the block."""
    hidden = dict.fromkeys(name for name in names if name not in sys.modules)
    sys.modules.update(hidden)  # type: ignore[arg-type]  # None: the import fails
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


def main() -> None:
    from ray._private import services

    with without_modules(OTHER_COMMANDS):
        from ray.scripts import scripts

    start_raylet, raylets = services.start_raylet, []

    def start_and_keep(*args: Any, **fields: Any) -> Any:
        info = start_raylet(*args, **fields)
        raylets.append(info.process)
        return info

    def find_end() -> int | None:
        return next((status for raylet in raylets if (status := raylet.poll()) is not None), None)

    services.start_raylet = start_and_keep
    services.get_node = with_timeout(services.get_node, find_end, float(sys.argv.pop(1)))
    services.start_ray_process = with_agent_port(services.start_ray_process, sys.argv)
    scripts.get_ray_client_dependency_error = lambda: "not wanted"
    scripts.main()


if __name__ == "__main__":
    main()
