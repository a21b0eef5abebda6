"""Parse arguments with torchtitan's released `ConfigManager`, without training.

    python parse_torchtitan.py <folders of torchtitan and its dependencies, with colons> <arguments>

Only its Triton kernels are replaced. Prints the parsed sections that the test reads as JSON.
"""

import json
import sys

from heavy import Replacer  # type: ignore[import-not-found]


def main() -> None:
    sys.path[:0] = sys.argv[1].split(":")
    sys.meta_path.insert(0, Replacer(lambda name: name.startswith("torchtitan.distributed.minimal_async_ep")))
    from torchtitan.config import ConfigManager  # type: ignore[import-not-found]

    config = ConfigManager().parse_args(sys.argv[2:])
    checkpoint = {name: getattr(config.checkpoint, name) for name in ("enable", "interval", "folder", "load_step")}
    print(json.dumps({"dump_folder": config.dump_folder, "steps": config.training.steps, **checkpoint}))


if __name__ == "__main__":
    main()
