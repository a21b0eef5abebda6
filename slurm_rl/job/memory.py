"""What follows when a run was out of memory: once, smaller micro-batches; then words that name phase and key.

A step's gradient is the sum over its micro-batches, whatever their sizes, so that smaller ones change no loss but by
rounding. What else takes memory (weights, the optimizer, an engine's cache) they do not make smaller.
"""

from __future__ import annotations

from dataclasses import replace

from slurm_rl.job.attempts import EXIT_BAD_INPUT, AttemptEnd
from slurm_rl.node.memory import RanOut, find_out_of_memory
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir, append_event, read_json, write_json

_ENGINES = "rollout"
_ENGINES_KEYS = (
    "rollout.gpu_memory_utilization, rollout.max_num_seqs or rollout.max_tokens (without GPUs rollout.cpu_kv_cache_gb)"
)
_POLICYS_KEYS = "policy.micro_batch_tokens, or shard and offload more (policy.zero_stage, policy.offload, model.lora)"


def remedy_memory(run: RunDir, plan: JobPlan, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
    """The end with a remedy, written down for the next attempt; or with a cause that says why there is none."""
    found = find_out_of_memory(attempt)
    if not found or end.outcome not in ("failed", "lost") or end.exit_code == EXIT_BAD_INPUT:
        return end
    first = found[0]
    before = read_json(run.remedy)["micro_batch_tokens"] if run.remedy.is_file() else None
    smaller = plan.layout.micro_batch_tokens // 2
    if before is None and smaller >= 1 and _is_trained(first) and plan.external is None:
        said = f"policy.micro_batch_tokens={smaller}, half of {plan.layout.micro_batch_tokens}"
        remedy = {"micro_batch_tokens": smaller, "attempt": attempt.number, "where": first.where, "seen": first.seen}
        write_json(run.remedy, remedy)
        append_event(run, "run/out_of_memory", attempt=attempt.number, where=first.where, remedy=said)
        return replace(end, outcome="failed", cause=f"out of memory: {first.where}; from here on {said}", remedy=said)
    append_event(run, "run/out_of_memory", attempt=attempt.number, where=first.where, remedy="")
    return replace(end, outcome="failed", cause=_explain(first, before))


def _is_trained(found: RanOut) -> bool:
    """Whether micro-batches may be what was too large; of a node that the kernel ended something on, nobody knows."""
    return not found.who.startswith(f"{_ENGINES}-")


def _explain(found: RanOut, before: int | None) -> str:
    keys = _POLICYS_KEYS if _is_trained(found) else _ENGINES_KEYS
    again = f", with policy.micro_batch_tokens={before} already" if before is not None and _is_trained(found) else ""
    return f"out of memory: {found.where}{again}: {found.seen[:300]}. Next: resume with a smaller {keys}"
