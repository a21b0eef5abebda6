"""Determine how attempts ended, from their files in the run directory, and react to out-of-memory.

After out-of-memory the next attempt has smaller micro-batches, once. A step's gradient is the sum over its
micro-batches, so smaller ones change the loss only by rounding.
"""

import re
from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Any

from slurm_rl.launch.controller.attempts import EXIT_BAD_INPUT, EXIT_FAILED, AttemptEnd
from slurm_rl.node.oom import RanOut, find_out_of_memory
from slurm_rl.plan.checkpoint_layouts import newest_step_by_name
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json, write_json

KILLED = "its controller was killed: by a requeue, a preemption without warning, or the loss of its node"
_MAX_CAUSES = 5
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


def read_end(attempt: AttemptDir, status: int, *, asked: bool) -> AttemptEnd:
    """Return the trainer's outcome; without one, the outcome from the nodes and srun.

    Args:
        status: exit status of srun, or of the only node agent.
        asked: True if a stop of the attempt was requested.
    """
    found = read_json(attempt.outcome) if attempt.outcome.is_file() else None
    at_limit = bool(found and found.get("at_limit"))
    # A trainer that saved without a request was stopped by the end of a node, which is the cause.
    if found and (found["outcome"] == "finished" or (found["outcome"] == "checkpointed" and (asked or at_limit))):
        return AttemptEnd(found["outcome"], found.get("cause", ""), found["exit_code"], at_limit=at_limit)
    if attempt.hang.is_file():
        return AttemptEnd("lost", read_json(attempt.hang)["cause"])
    if asked and "running" not in read_record(attempt, 0).get("phases", {}):
        return AttemptEnd("lost", "stopped before the trainer had started")
    causes = find_causes(attempt)
    is_input = any(record.get("exit_code") == EXIT_BAD_INPUT for record in _read_records(attempt))
    if found and found["outcome"] == "failed":
        # When a node died the trainer may only know that an actor of its own did.
        code = EXIT_BAD_INPUT if is_input else found["exit_code"]
        return AttemptEnd("failed", "; ".join([*causes, found.get("cause", "")]), code)
    cause = "; ".join(causes) or f"the trainer died without a message (exit status {status})"
    cause = f"{cause}; see {attempt.logs}"
    if asked:
        return AttemptEnd("lost", f"not all was saved in time: {cause}")
    return AttemptEnd("failed", cause, EXIT_BAD_INPUT if is_input else EXIT_FAILED)


def find_causes(attempt: AttemptDir) -> list[str]:
    """Return the causes that ended the nodes' step, in order of time and without duplicates."""
    hosts_of: dict[str, list[str]] = {}
    for record in _read_records(attempt):
        if "error" in record:
            hosts_of.setdefault(record["error"], []).append(record["host"])
    errors = [f"{', '.join(hosts)}: {error}" for error, hosts in hosts_of.items()]
    return (find_dead_tasks(attempt) + errors)[:_MAX_CAUSES]


def _read_records(attempt: AttemptDir) -> list[dict[str, Any]]:
    return [read_json(path) for path in sorted(attempt.path.glob("node-*.json"))]


def find_dead_tasks(attempt: AttemptDir) -> list[str]:
    """Return tasks without a reason for their end, and lost nodes, in srun's words: `n2: task 1: Killed`."""
    # An agent that exits has written why into its record.
    lines = find_task_errors(attempt)
    return [line for line in lines if not re.search(r": tasks? [\d,-]+: Exited with exit code", line)][:_MAX_CAUSES]


def find_task_errors(attempt: AttemptDir) -> list[str]:
    """Return the ends of tasks that srun reported before it ended the others."""
    path = attempt.log("srun")
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    # After this line srun lists tasks that it ended itself.
    return re.findall(r"^srun: error: (.*)$", text.partition("Terminating StepId")[0], re.MULTILINE)


def find_lost_nodes(attempt: AttemptDir) -> list[str]:
    """Return nodes that Slurm lost while the attempt ran."""
    found = [re.fullmatch(r"Node failure on (\S+)", line) for line in find_dead_tasks(attempt)]
    return [match.group(1) for match in found if match]


def read_record(attempt: AttemptDir, rank: int) -> dict[str, Any]:
    """Return the record of a node agent; empty without one."""
    path = attempt.node(rank)
    record: dict[str, Any] = read_json(path) if path.is_file() else {}
    return record


def newest_step(run: RunDir) -> int:
    """Return the newest step by checkpoint names, -1 for none; the trainer verifies them."""
    try:
        return newest_step_by_name(run.checkpoints)
    except OSError:  # a file system that does not even let itself be read
        return -1


def load_ends(run: RunDir, job_keys: Collection[str]) -> list[AttemptEnd]:
    """Return the ends of these jobs' attempts, also before a requeue, oldest first."""
    paths = [run.attempt(number).end for number in run.attempt_numbers()]
    ends = [AttemptEnd(**read_json(path)) for path in paths if path.is_file()]
    return [end for end in ends if end.job_key in job_keys]


def settle_killed_attempts(run: RunDir, job_keys: Collection[str]) -> list[int]:
    """Record an end for attempts of killed controllers; return their numbers."""
    attempts = [run.attempt(number) for number in run.attempt_numbers()]
    open_ones = [attempt for attempt in attempts if attempt.start.is_file() and not attempt.end.is_file()]
    killed = [(attempt, key) for attempt in open_ones if (key := read_json(attempt.start)["job"]) in job_keys]
    for attempt, job_key in killed:
        end = AttemptEnd("lost", KILLED, saved_step=newest_step(run), job_key=job_key)
        write_json(attempt.end, asdict(end))
    return [attempt.number for attempt, _ in killed]


def remedy_memory(run: RunDir, plan: JobPlan, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
    """Return the end with a remedy, which is recorded for the next attempt, or with the cause and config keys."""
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
