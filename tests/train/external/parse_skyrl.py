"""Parse arguments with SkyRL's released `SkyRLTrainConfig.from_cli_overrides`, without training.

    python parse_skyrl.py <folder of the package> <arguments>

Heavy imports are replaced. Prints the config as JSON.
"""

import dataclasses
import json
import sys
import typing

import typing_extensions
from heavy import Replacer  # type: ignore[import-not-found]

HEAVY = ("ray", "torch", "vllm", "loguru", "transformers", "deepspeed", "peft", "skyrl_gym", "jaxtyping", "accelerate")


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    # It needs Python 3.12, whose TypedDict pydantic accepts.
    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]
    sys.meta_path.insert(0, Replacer(lambda name: name.startswith("skyrl.backends") or name.split(".")[0] in HEAVY))
    from skyrl.train.config import SkyRLTrainConfig  # type: ignore[import-not-found]

    print(json.dumps(dataclasses.asdict(SkyRLTrainConfig.from_cli_overrides(sys.argv[2:])), default=str))


if __name__ == "__main__":
    main()
