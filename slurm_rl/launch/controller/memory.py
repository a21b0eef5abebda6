"""What follows when a run was out of memory: once, smaller micro-batches; then words that name phase and key.

A step's gradient is the sum over its micro-batches, whatever their sizes, so that smaller ones change no loss but by
rounding. What else takes memory (weights, the optimizer, an engine's cache) they do not make smaller.
"""

from __future__ import annotations

from dataclasses import replace

from slurm_rl.launch.controller.attempts import EXIT_BAD_INPUT, AttemptEnd
from slurm_rl.node.oom import RanOut, find_out_of_memory
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json, write_json

_ENGINES = "rollout-"
_ENGINES_KEYS = (
    "a smaller rollout.gpu_memory_utilization, rollout.max_num_seqs or rollout.max_tokens "
    "(without GPUs rollout.cpu_kv_cache_gb)"
)
_POLICYS_KEYS = (
    "a smaller policy.micro_batch_tokens, or shard and offload more (policy.zero_stage, policy.offload, model.lora)"
)
_HOSTS_KEYS = "more memory (cluster.mem_gb_per_node), or less of it in use (policy.offload, ray.object_store_gb)"
_EXTERNALS_KEYS = (
    "more memory (cluster.mem_gb_per_node), or smaller batches in the program's own arguments (external.args)"
)


def remedy_memory(run: RunDir, plan: JobPlan, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
    """The end with a remedy, written down for the next attempt; or with a cause that says why there is none."""
    found = find_out_of_memory(attempt)
    if not found or end.outcome not in ("failed", "lost") or end.exit_code == EXIT_BAD_INPUT:
        return end
    first = found[0]
    before = read_json(run.remedy)["micro_batch_tokens"] if run.remedy.is_file() else None
    smaller = plan.layout.micro_batch_tokens // 2
    if before is None and smaller >= 1 and _may_be_batches(first, plan):
        said = f"policy.micro_batch_tokens={smaller}, half of {plan.layout.micro_batch_tokens}"
        remedy = {"micro_batch_tokens": smaller, "attempt": attempt.number, "where": first.where, "seen": first.seen}
        write_json(run.remedy, remedy)
        append_event(run, "run/out_of_memory", attempt=attempt.number, where=first.where, remedy=said)
        return replace(end, outcome="failed", cause=f"out of memory: {first.where}; from here on {said}", remedy=said)
    append_event(run, "run/out_of_memory", attempt=attempt.number, where=first.where, remedy="")
    return replace(end, outcome="failed", cause=_explain(first, plan, before))


def _may_be_batches(found: RanOut, plan: JobPlan) -> bool:
    """Return whether smaller micro-batches of ours may help: not an engine, and not host memory of nodes with GPUs."""
    if plan.external is not None or found.name.startswith(_ENGINES):
        return False
    return found.phase != "" or plan.accelerator == "cpu"


def _explain(found: RanOut, plan: JobPlan, before: int | None) -> str:
    if plan.external is not None:
        keys = _EXTERNALS_KEYS
    elif found.name.startswith(_ENGINES):
        keys = _ENGINES_KEYS
    else:
        keys = _POLICYS_KEYS if _may_be_batches(found, plan) else _HOSTS_KEYS
    again = f", with policy.micro_batch_tokens={before} already" if before is not None and keys == _POLICYS_KEYS else ""
    return f"out of memory: {found.where}{again}: {found.seen[:300]}. Next: resume with {keys}"
