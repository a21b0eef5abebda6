"""`ray start` that waits longer than 30 s for its own node: `python -m slurm_rl.node.ray_start <words of ray start>`.

Ray gives up when its raylet has not registered within 30 s, a number that no setting reaches
(`raylet_start_wait_time_s` in ray/_private/node.py). The raylet registers after its agents have imported their
modules, which on a busy node, or when a thousand nodes read one file system, takes longer. So the one call that asks
for the node answers when the node is there, or when there is no use in waiting.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# As long as Ray's own limits that plan/accelerator.py sets.
PATIENCE_S = 120.0
_POLL_S = 0.2


def patient(
    ask: Callable[..., Any], is_hopeless: Callable[[], bool], patience_s: float = PATIENCE_S
) -> Callable[..., Any]:
    """`ask`, called until it raises no RuntimeError; its last one after `patience_s`, or as soon as it is hopeless."""

    def ask_on(*args: Any, **kwargs: Any) -> Any:
        give_up = time.monotonic() + patience_s
        while True:
            try:
                return ask(*args, **kwargs)
            except RuntimeError:
                if is_hopeless() or time.monotonic() > give_up:
                    raise
            time.sleep(_POLL_S)

    return ask_on


def raylet_is_dead() -> bool:
    """Whether no child of this process is a living raylet."""
    return not any(name == "raylet" and state != "Z" for name, state in _children())


def _children() -> Iterator[tuple[str, str]]:
    """Name and state of each child."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                head, _, tail = (entry / "stat").read_text().rpartition(")")
            except OSError:  # it has ended
                continue
            state, parent = tail.split()[:2]
            if int(parent) == os.getpid():
                yield head.partition("(")[2], state


def main() -> None:
    from ray._private import services
    from ray.scripts import scripts

    services.get_node = patient(services.get_node, raylet_is_dead)
    sys.argv[0] = "ray"
    scripts.main()


if __name__ == "__main__":
    main()
