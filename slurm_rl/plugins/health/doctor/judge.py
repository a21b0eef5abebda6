"""What the ranks of a node said, held against what their GPUs can do. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_rl.plugins.health.doctor.finding import Finding, Question, no_gpu
from slurm_rl.plugins.health.doctor.gpus import SAME_MEMORY, TOOLS, choose_mine
from slurm_rl.plugins.health.doctor.peaks import find_peak, least_link_gb_s, least_rdma_gb_s
from slurm_rl.plugins.health.doctor.rank import BETWEEN, MATMUL, TORCH, WITHIN
from slurm_rl.plugins.health.doctor.smi import Gpu, parse_nvidia_smi, parse_rocm_smi
from slurm_rl.plugins.health.doctor.system import read_ports

CLOCKS = "clocks"
NAMES = (TORCH, MATMUL, CLOCKS, WITHIN, BETWEEN)
# Under load. What is only a little slower shows in its matmul.
_SLOW_CLOCK = 0.5

_ACTIONS = {
    TORCH: "see driver, devices and masks above; torch must be built for this GPU: python -m slurm_rl image check",
    MATMUL: "dmesg on the node (Xid, amdgpu); have the node drained",
    WITHIN: "again with cluster.env.NCCL_DEBUG=INFO; nvidia-smi topo -m and nvlink --status, the fabric manager; "
    "/dev/shm of the container",
    BETWEEN: "again with cluster.env.NCCL_DEBUG=INFO; rdma and memlock above; cluster.network_interface; firewalls "
    "between nodes",
}


@dataclass(frozen=True)
class Outcome:
    """Of one rank."""

    done: dict[str, dict[str, Any]]
    """Step -> what it found."""
    failed: dict[str, str] = field(default_factory=dict)
    """Step -> why."""
    late: str | None = None
    """The step in which it hangs."""

    @property
    def stopped_in(self) -> str | None:
        return self.late or next(iter(self.failed), None)


def judge_ranks(question: Question, ranks: Sequence[Outcome], load: str) -> list[Finding]:
    """All lines of `NAMES`.

    Args:
        ranks: in the order of their GPUs.
        load: of the vendor's tool, while all of them multiplied.
    """
    judges = {TORCH: judge_torch, MATMUL: judge_matmul, WITHIN: judge_within, BETWEEN: judge_between}
    gpu = str(ranks[0].done.get(TORCH, {}).get("name", "CPU"))
    found = []
    for name in NAMES:
        if name == CLOCKS:
            found.append(judge_clocks(question, ranks, load))
        elif (name == WITHIN and len(ranks) < 2) or (name == BETWEEN and question.plan.num_nodes < 2):
            found.append(Finding(name, "unseen", "there is one GPU" if name == WITHIN else "there is one node"))
        else:
            found.append(_find_trouble(name, ranks) or judges[name](question, gpu, [rank.done[name] for rank in ranks]))
    return found


def _find_trouble(step: str, ranks: Sequence[Outcome]) -> Finding | None:
    """Of a step that not all ranks came through."""
    said = {place: rank.failed[step] for place, rank in enumerate(ranks) if step in rank.failed}
    said |= {place: "it hangs" for place, rank in enumerate(ranks) if rank.late == step}
    if said:
        first = min(said)
        seen = f"{len(said)} of {len(ranks)} ranks; {first}: {said[first]}"
        return Finding(step, "wrong", seen, "it works", _ACTIONS[step])
    if all(step in rank.done for rank in ranks):
        return None
    place, stopped = next(((place, rank.stopped_in) for place, rank in enumerate(ranks) if rank.stopped_in), (0, None))
    return Finding(step, "unseen", f"not reached: rank {place} stopped in {stopped or 'an earlier step'}")


def judge_torch(question: Question, gpu: str, said: Sequence[dict[str, Any]]) -> Finding:
    first = said[0]
    if not question.on_gpus:
        return Finding(TORCH, "ok", f"torch {first['version']}", "imports")
    seen = f"torch {first['version']}, built for {first['build']}, sees {first['count']} x {gpu}"
    least = (question.gpu_mem_gb or 0) * 1e9 * SAME_MEMORY
    should = f"{question.plan.gpus_per_node} GPUs with bfloat16" + (f" and {question.gpu_mem_gb:g} GB" if least else "")
    is_well = all(one["bfloat16"] and one["total"] >= least for one in said) and first["count"] >= len(said)
    seen += f" of {min(one['total'] for one in said) / 1e9:.0f} GB"
    return Finding(TORCH, "ok" if is_well else "wrong", seen, should, "" if is_well else _ACTIONS[TORCH])


def judge_matmul(question: Question, gpu: str, said: Sequence[dict[str, Any]]) -> Finding:
    speeds = [float(one["tflops"]) for one in said]
    slowest = min(range(len(speeds)), key=speeds.__getitem__)
    seen = f"{_show_flops(speeds[slowest])} to {_show_flops(max(speeds))} in bfloat16"
    changed = [place for place, one in enumerate(said) if not one["is_same"]]
    if changed:
        seen = f"GPU {changed[0]}: the same product is another, or not finite, the second time"
        return Finding(MATMUL, "wrong", seen, "the same in every bit", _ACTIONS[MATMUL])
    peak = find_peak(gpu) if question.on_gpus else None
    if peak is None:
        should = "the same product twice" + ("; the peak of this GPU is not known" if question.on_gpus else "")
        return Finding(MATMUL, "ok", seen, should, value=speeds[slowest])
    least = peak.well * peak.tflops
    should = f">= {least:.0f}, {peak.well:.0%} of {peak.tflops:.0f}"
    if speeds[slowest] >= least:
        return Finding(MATMUL, "ok", seen, should, value=speeds[slowest])
    action = (
        f"GPU {slowest}: its clocks (below) and its temperature; is anybody else at work on it? Else drain the node"
    )
    return Finding(MATMUL, "wrong", seen, should, action, value=speeds[slowest])


def _show_flops(tflops: float) -> str:
    """With the unit that leaves three digits.

    >>> _show_flops(652.4), _show_flops(0.0123)
    ('652 TFLOP/s', '12.3 GFLOP/s')
    """
    return f"{tflops:.3g} TFLOP/s" if tflops >= 1 else f"{tflops * 1000:.3g} GFLOP/s"


def judge_clocks(question: Question, ranks: Sequence[Outcome], load: str) -> Finding:
    """Under load: one reading of an idle GPU proves nothing, whatever it says of heat."""
    plan = question.plan
    if not question.on_gpus:
        return no_gpu(CLOCKS)
    gpus = parse_nvidia_smi(load) if plan.accelerator == "nvidia" else parse_rocm_smi(load)
    mine = _of_ranks(question, gpus, ranks)
    known = [gpu for gpu in mine if gpu.clock_mhz and gpu.max_clock_mhz]
    if not known:
        return Finding(
            CLOCKS, "unseen", f"{TOOLS[plan.accelerator][0]} said nothing of them while the GPUs were at work"
        )
    shares = [(gpu.clock_mhz or 0) / (gpu.max_clock_mhz or 1) for gpu in known]
    slowest = known[shares.index(min(shares))]
    seen = f"{slowest.clock_mhz:.0f} of {slowest.max_clock_mhz:.0f} MHz at work"
    slowed = sorted({reason for gpu in known for reason in gpu.slowdowns})
    seen += f" ({', '.join(slowed)})" if slowed else ""
    should = f">= {_SLOW_CLOCK:.0%}"
    if min(shares) >= _SLOW_CLOCK:
        return Finding(CLOCKS, "ok", seen, should, value=min(shares))
    place = gpus.index(slowest)
    action = (
        f"GPU {place}: power brake and heat are the machine's (see its supplies and fans); nvidia-smi -q -i {place}"
    )
    return Finding(CLOCKS, "wrong", seen, should, action, value=min(shares))


def _of_ranks(question: Question, gpus: list[Gpu], ranks: Sequence[Outcome]) -> list[Gpu]:
    """By the names that torch has for them, else by the mask."""
    uuids = [str(rank.done.get(TORCH, {}).get("uuid", "")) for rank in ranks]
    named = [gpu for gpu in gpus if any(uuid and uuid in gpu.uuid for uuid in uuids)]
    plan = question.plan
    return named or choose_mine(gpus, plan.accelerator, plan.gpus_per_node, os.environ)


def judge_within(question: Question, gpu: str, said: Sequence[dict[str, Any]]) -> Finding:
    least = least_link_gb_s(gpu, len(said)) if question.on_gpus else None
    return _judge_speed(WITHIN, said, least)


def judge_between(question: Question, gpu: str, said: Sequence[dict[str, Any]]) -> Finding:
    rates = [rate for is_up, rate in read_ports().values() if is_up]
    least = least_rdma_gb_s(rates, len(said)) if question.on_gpus else None
    return _judge_speed(BETWEEN, said, least)


def _judge_speed(name: str, said: Sequence[dict[str, Any]], least: float | None) -> Finding:
    speed = min(float(one["gb_s"]) for one in said)
    by = f" by {said[0]['interface']}" if said[0].get("interface") else ""
    # Size over time, times 2 (n - 1) / n.
    seen = f"{speed:.3g} GB/s bus bandwidth, {said[0]['world']} ranks{by}"
    if not all(one["is_right"] for one in said):
        return Finding(name, "wrong", "a sum that is not the sum", "the sum of all ranks", _ACTIONS[name])
    should = "the right sum" if least is None else f">= {least:.3g}"
    is_well = least is None or speed >= least
    return Finding(name, "ok" if is_well else "wrong", seen, should, "" if is_well else _ACTIONS[name], value=speed)
