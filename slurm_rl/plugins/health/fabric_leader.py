"""The controller's side of the fabric measurement: one srun starts the run's container on all nodes."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.controller.agents import agent_environment, last_words, own_user
from slurm_rl.launch.slurm.srun import srun_argv
from slurm_rl.node.rendezvous import own_address
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.plan.step import with_host_setup, wrap_fabric
from slurm_rl.plugins.health.fabric import (
    ON_CPUS,
    ON_GPUS,
    Answer,
    FabricResult,
    best_answer,
    judge_compute,
    read_number,
)
from slurm_rl.plugins.health.leader import TOKEN_VARIABLE, Leader, running
from slurm_rl.plugins.health.pairs import RETRIES, Pair, judge_pairs, measure_rounds
from slurm_rl.plugins.health.verdict import Verdict
from slurm_rl.run_dir.run_dir import AttemptDir

CONNECT_S = 300.0
"""Time for a node to connect; it may have to unpack its image."""
_COMPUTE_S = 180.0
"""Includes the import of torch from a file system that may be cold."""
_OPEN_S = 120.0
_REDUCE_S = 60.0
_GRACE_S = 10.0


class Fabric:
    """Asks the connected nodes to compute and to reduce."""

    def __init__(self, leader: Leader, plan: JobPlan) -> None:
        self.leader = leader
        self.on_gpus = plan.accelerator != "cpu"
        self.num_ranks = plan.gpus_per_node if self.on_gpus else 1
        self.scale = ON_GPUS if self.on_gpus else ON_CPUS

    def ask(self, questions: Mapping[str, Mapping[str, Any]], within_s: float) -> dict[str, dict[str, Any] | None]:
        timed = {node: {**question, "within_s": within_s} for node, question in questions.items()}
        return self.leader.ask(timed, within_s + _GRACE_S)

    def compute(self, nodes: Sequence[str]) -> dict[str, Answer | None]:
        """Let all nodes compute; repeat on slow nodes, which may have been busy."""
        answers: dict[str, Answer | None] = {**self.ask({node: {"do": "compute"} for node in nodes}, _COMPUTE_S)}
        for _ in range(RETRIES):
            verdicts = judge_compute(answers, self.scale)
            slow = [node for node in nodes if verdicts[node].state == "bad" and answers[node] is not None]
            again = self.ask({node: {"do": "compute"} for node in slow}, _COMPUTE_S)
            answers |= {node: best_answer(answers[node], again[node]) for node in slow}
        return answers

    def reduce(self, groups: Sequence[Sequence[str]]) -> list[Answer]:
        """Run one all-reduce over each of these disjoint groups of nodes, all at once."""
        address = {group[0]: self.leader.nodes[group[0]][2] for group in groups}
        opened = self.ask({node: {"do": "open", "address": address[node]} for node in address}, _OPEN_S)
        questions: dict[str, dict[str, Any]] = {}
        for group in groups:
            port = (opened[group[0]] or {}).get("port")
            common = {"do": "reduce", "address": address[group[0]], "port": port, "world": len(group) * self.num_ranks}
            for index, node in enumerate(group if port else ()):
                questions[node] = {**common, "first": index * self.num_ranks}
        answers = self.ask(questions, _REDUCE_S)
        return [_merge_nodes([answers.get(node, opened[group[0]]) for node in group]) for group in groups]

    def measure(self, pairs: Iterable[Pair]) -> dict[Pair, float | None]:
        """Return GB/s of each pair; None if it hangs, fails, or has a wrong sum."""
        pairs = list(pairs)
        answers = zip(pairs, self.reduce(pairs), strict=True)
        return {pair: None if one.get("is_right") is False else read_number(one, "gb_s") for pair, one in answers}


def _merge_nodes(answers: Sequence[Answer | None]) -> Answer:
    """Return any error of a group, else the answer of its slowest node."""
    valid = []
    for answer in answers:
        if answer is None or read_number(answer, "gb_s") is None:
            return {"error": str((answer or {}).get("error") or "no answer in time")}
        valid.append(answer)
    return min(valid, key=lambda one: (one.get("is_right"), one["gb_s"]))


def measure_fabric(plan: JobPlan, attempt: AttemptDir, hosts: Sequence[str], env: Mapping[str, str]) -> FabricResult:
    """Measure these nodes; `unknown` on all of them if that is not possible."""
    leader = Leader()
    try:
        address = own_address(next(host for host in hosts if host != env.get(NODE_VARIABLE)))
        name = f"srl-fabric-{secrets.token_hex(4)}"
        wrapped = wrap_fabric(plan, [address, str(leader.port)], name, own_user(), [TOKEN_VARIABLE])
        argv = srun_argv(plan, hosts, [*wrapped.srun_args, *with_host_setup(plan, wrapped.argv)])
        step_env = {**agent_environment(plan, env, wrapped), TOKEN_VARIABLE: leader.token}
        log = attempt.log("fabric")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out, running(argv, step_env, out) as step:
            leader.accept(len(hosts), lambda: step.poll() is not None, CONNECT_S)
            if 2 * len(leader.nodes) > len(hosts):
                return lead_fabric(leader, hosts, plan)
        seen = f"{len(leader.nodes)} of {len(hosts)} nodes connected: {last_words(log) or 'no output'}"
    except (OSError, SlurmRLError) as error:
        seen = f"not measured: {error}"
    finally:
        leader.close()
    return FabricResult({host: dict.fromkeys(("matmul", "fabric"), Verdict("unknown", seen)) for host in hosts})


def lead_fabric(leader: Leader, hosts: Sequence[str], plan: JobPlan) -> FabricResult:
    """Measure the connected nodes and judge all of them."""
    fabric = Fabric(leader, plan)
    connected = [host for host in hosts if host in leader.nodes]
    answers = fabric.compute(connected)
    matmul = judge_compute(answers, fabric.scale)
    able = [node for node in connected if (answer := answers[node]) is not None and "error" not in answer]
    first, second = measure_rounds(fabric.measure, able, fabric.scale)
    verdicts = judge_pairs(able, first, second, fabric.scale)
    # A broken link between two healthy nodes would break the reduce over all.
    healthy = [node for node in able if verdicts[node].state != "bad" and matmul[node].state != "bad"]
    undisputed = [node for node in healthy if verdicts[node].state == "ok"]
    healthy = undisputed if len(undisputed) > 1 else healthy
    gb_s = None
    if len(healthy) > 1:
        [whole] = fabric.reduce([healthy])
        gb_s = read_number(whole, "gb_s")
        error = whole.get("error") or ("a wrong sum" if whole.get("is_right") is False else None)
        if error:
            seen = f"an all-reduce over {len(healthy)} nodes whose pairs are healthy: {error}"
            verdicts |= dict.fromkeys(healthy, Verdict("bad", seen))
        least = min((read_number(answers[node], "least_gb_s") or 0.0 for node in healthy), default=0.0)
        if not error and gb_s and gb_s < least:
            seen = f"an all-reduce over {len(healthy)} nodes at {gb_s:.3g} of at least {least:.3g} GB/s: by TCP?"
            verdicts |= {node: Verdict("warn", seen) for node in healthy if verdicts[node].state == "ok"}
    late = Verdict("bad", f"it did not connect to the fabric measurement within {CONNECT_S:g} s")
    verdicts |= dict.fromkeys((host for host in hosts if host not in connected), late)
    found = {host: {"matmul": matmul[host]} for host in connected}
    for host, verdict in verdicts.items():
        found.setdefault(host, {})["fabric"] = verdict
    return FabricResult(found, gb_s)
