"""Trainer of the bring-up benchmark: join Ray, wait for all nodes, record the time.

python bringup_driver.py NUM_NODES FILE, with RAY_ADDRESS in the environment.
"""

import os
import sys
import time
from pathlib import Path

import ray


def main() -> None:
    print(f"ray imported {time.time():.1f}", flush=True)
    num_nodes, file = int(sys.argv[1]), Path(sys.argv[2])
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="WARNING")
    print(f"ray.init done {time.time():.1f}", flush=True)
    while sum(node["Alive"] for node in ray.nodes()) < num_nodes:
        time.sleep(0.05)
    file.write_text(str(time.time()))


if __name__ == "__main__":
    main()
