"""Convert new classes in four threads at once: `python -m tests.unit.rollout.endpoint.convert_in_threads`."""

import sys
import threading

import msgspec

from slurm_rl.rollout.endpoint.tools import convert

PART = "class Part(msgspec.Struct):\n    text: str\n"
WHOLE = "class Whole(msgspec.Struct):\n    part: list[Part]\n    other: Part | None = None\n"


def convert_new_class() -> None:
    """Convert to a class without a cached msgspec schema."""
    names = {"msgspec": msgspec, "__name__": __name__}
    exec(f"from __future__ import annotations\n{PART}{WHOLE}", names)
    globals().update(Part=names["Part"])
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait(timeout=60)
        convert({"part": [{"text": "a"}]}, names["Whole"])

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    sys.setswitchinterval(1e-6)
    for _ in range(300):
        convert_new_class()
