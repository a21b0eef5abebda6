"""The test of the fabric: one srun starts the run's container on all nodes, where GPUs multiply and reduce, within
the node, in pairs of nodes, and all together. NCCL comes after the sockets, since one pair that hangs stops all."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_rl.errors import SlurmRLError
from slurm_rl.job.agents import agent_environment, last_words, own_user
from slurm_rl.launchers.slurm.srun import srun_argv
from slurm_rl.node.rendezvous import own_address
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.plan.step import with_host_setup, wrap_fabric
from slurm_rl.plugins.health.gate.fabric import (
    ON_CPUS,
    ON_GPUS,
    Answer,
    FabricOutcome,
    better,
    find_slow,
    judge_compute,
    read_number,
)
from slurm_rl.plugins.health.gate.fabric_node import WORD
from slurm_rl.plugins.health.gate.pairs import Pair, judge_pairs
from slurm_rl.plugins.health.gate.verdict import Verdict
from slurm_rl.plugins.health.measure_pairs import MORE_TRIES, Leader, measure_rounds, started
from slurm_rl.run_dir import AttemptDir

# A node may have to unpack its image.
_MEETING_S = 300.0
# The first question includes the import of torch, from a file system that may be cold.
_COMPUTE_S = 180.0
# Or new ranks do, in place of some that hung.
_OPEN_S = 120.0
_REDUCE_S = 60.0
# A node ends ranks that hang, and answers.
_GRACE_S = 10.0


class Fabric:
    """Nodes that have come, and what they are asked."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader

    def ask(self, asked: Mapping[str, Mapping[str, Any]], within_s: float) -> dict[str, dict[str, Any] | None]:
        timed = {node: {**question, "within_s": within_s} for node, question in asked.items()}
        return self.leader.ask(timed, within_s + _GRACE_S)

    def compute(self, nodes: Sequence[str]) -> dict[str, dict[str, Any] | None]:
        return self.ask({node: {"do": "compute"} for node in nodes}, _COMPUTE_S)

    def reduce(self, groups: Sequence[Sequence[str]], num_ranks: int) -> list[Answer]:
        """One all-reduce over each of these disjoint groups of nodes, all at once."""
        address = {node: self.leader.here[node][2] for group in groups for node in group}
        opened = self.ask({group[0]: {"do": "open", "address": address[group[0]]} for group in groups}, _OPEN_S)
        asked: dict[str, dict[str, Any]] = {}
        for group in groups:
            port = (opened[group[0]] or {}).get("port")
            for place, node in enumerate(group if port else ()):
                where = {"address": address[group[0]], "port": port}
                asked[node] = {"do": "reduce", **where, "first": place * num_ranks, "world": len(group) * num_ranks}
        said = self.ask(asked, _REDUCE_S)
        return [_merge([said.get(node, opened[group[0]]) for node in group]) for group in groups]

    def measure(self, pairs: Iterable[Pair], num_ranks: int) -> dict[Pair, float | None]:
        """GB/s of each pair; None where it hangs, fails, or makes another sum."""
        pairs = [pair for pair in pairs if all(node in self.leader.here for node in pair)]
        found = zip(pairs, self.reduce(pairs, num_ranks), strict=True)
        return {
            pair: None if answer.get("is_right") is False else read_number(answer, "gb_s") for pair, answer in found
        }


def _merge(said: Sequence[Answer | None]) -> Answer:
    """Of a group: any error, else the slowest node's."""
    for answer in said:
        if answer is None or read_number(answer, "gb_s") is None:
            return {"error": str((answer or {}).get("error") or "no answer in time")}
    return min((answer for answer in said if answer is not None), key=lambda one: (one.get("is_right"), one["gb_s"]))


def measure_fabric(plan: JobPlan, attempt: AttemptDir, hosts: Sequence[str], env: Mapping[str, str]) -> FabricOutcome:
    """Verdicts on these nodes; `unknown` on all where the test cannot be made."""
    word = secrets.token_hex(16)
    leader = Leader(word)
    try:
        address = own_address(next(host for host in hosts if host != env.get(NODE_VARIABLE)))
        name = f"srl-fabric-{secrets.token_hex(4)}"
        wrapped = wrap_fabric(plan, [address, str(leader.port)], name, own_user(), [WORD])
        argv = srun_argv(plan, hosts, [*wrapped.srun_args, *with_host_setup(plan, wrapped.argv)])
        log = attempt.log("fabric")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as said, started(argv, {**agent_environment(plan, env, wrapped), WORD: word}, said) as step:
            found = lead(leader, hosts, step, plan)
        missing = [host for host in hosts if host not in leader.here]
        if 2 * len(missing) < len(hosts):
            return found
        words = f"{len(hosts) - len(missing)} of {len(hosts)} nodes came to the test: {last_words(log) or 'no word'}"
    except (OSError, SlurmRLError) as error:
        words = f"it was not tested: {error}"
    finally:
        leader.close()
    untested = Verdict("unknown", words)
    return FabricOutcome({host: {"matmul": untested, "fabric": untested} for host in hosts})


def lead(leader: Leader, hosts: Sequence[str], step: subprocess.Popen[str], plan: JobPlan) -> FabricOutcome:
    """All that is measured, of nodes that come."""
    scale = ON_CPUS if plan.accelerator == "cpu" else ON_GPUS
    num_ranks = plan.gpus_per_node if plan.accelerator != "cpu" else 1
    missing = leader.meet(hosts, step, _MEETING_S)
    here = [host for host in hosts if host not in missing]
    if 2 * len(missing) >= len(hosts):
        return FabricOutcome()
    fabric = Fabric(leader)
    said = fabric.compute(here)
    for _ in range(MORE_TRIES):
        if slow := [node for node in find_slow(said, scale) if said[node] is not None]:
            again = fabric.compute(slow)
            said |= {node: better(said[node], again[node]) for node in slow}  # type: ignore[misc]
    matmul = judge_compute(said, scale)
    able = [node for node in here if said[node] is not None and "error" not in (said[node] or {})]
    first, second = measure_rounds(lambda pairs: fabric.measure(pairs, num_ranks), able, scale)
    verdicts = judge_pairs(able, first, second, scale=scale)
    well = [node for node in able if verdicts[node].state != "bad" and matmul[node].state != "bad"]
    gb_s = None
    if len(well) > 1:
        [whole] = fabric.reduce([well], num_ranks)
        gb_s = read_number(whole, "gb_s")
        trouble = whole.get("error") or ("another sum" if whole.get("is_right") is False else None)
        if trouble:
            words = f"one all-reduce over {len(well)} nodes, each of whose pairs is well: {trouble}"
            verdicts |= dict.fromkeys(well, Verdict("bad", words))
    words = f"it did not come to the test of the fabric within {_MEETING_S:g} s"
    verdicts |= dict.fromkeys(missing, Verdict("bad", words))
    found = {host: {"matmul": matmul[host]} for host in here}
    for host, verdict in verdicts.items():
        found.setdefault(host, {})["fabric"] = verdict
    return FabricOutcome(found, gb_s)
