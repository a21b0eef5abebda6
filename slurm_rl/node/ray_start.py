"""`ray start` with as much time as the plan gives. Ray gives its raylet 30 s, and no option says otherwise.

    python -m slurm_rl.node.ray_start 300 start --block ...

Thirty seconds are soon over where many nodes read Ray from one file system, or where others compute. What ends for
another reason is still told at once. A raylet itself gives its agent, which is Python, 15 s to write down the port that
it listens on, and dies: so it is told the port. Nor does this start the server of Ray's client, which nobody here asks
and no option omits: that has 30 s, too, and takes the head with it.

`ray start` also imports what its other commands need, pandas and FastAPI among it: two thirds of its own time, on each
node, and thousands of files. It goes on where they cannot be imported, so they are not.
"""

from __future__ import annotations

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


def wait_patiently(
    get_node: Callable[..., Any], find_end: Callable[[], int | None], timeout_s: float
) -> Callable[..., Any]:
    """`get_node`, asked until the node is there; SystemExit when its raylet has ended, RuntimeError after the deadline.

    Args:
        find_end: the exit status of the raylet, or None while it lives.
    """
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


def tell_port(start_process: Callable[..., Any], words: Sequence[str]) -> Callable[..., Any]:
    """`start_process` of Ray, that tells its raylet the port of the agent that the words of `ray start` have."""
    ports = [word.removeprefix(_PORT_OPTION) for word in words if word.startswith(_PORT_OPTION)]

    def start(command: list[str], process_type: str, **fields: Any) -> Any:
        if process_type == "raylet" and ports and knows_port(Path(command[0])):
            command = [*command, f"--{_PORT_FLAG}={ports[0]}"]
        return start_process(command, process_type, **fields)

    return start


def knows_port(raylet: Path) -> bool:
    """Whether this raylet takes the port; of another version of Ray it may not, and would die of an unknown flag."""
    with raylet.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as binary:
        return binary.find(b"FLAGS_no" + _PORT_FLAG.encode()) >= 0


@contextlib.contextmanager
def without_modules(names: Sequence[str]) -> Iterator[None]:
    """Within it these cannot be imported."""
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

    def start_and_remember(*args: Any, **fields: Any) -> Any:
        info = start_raylet(*args, **fields)
        raylets.append(info.process)
        return info

    def find_end() -> int | None:
        return next((status for raylet in raylets if (status := raylet.poll()) is not None), None)

    services.start_raylet = start_and_remember
    services.get_node = wait_patiently(services.get_node, find_end, float(sys.argv.pop(1)))
    services.start_ray_process = tell_port(services.start_ray_process, sys.argv)
    scripts.get_ray_client_dependency_error = lambda: "not wanted"
    scripts.main()


if __name__ == "__main__":
    main()
