"""The preflight: the first srun of an attempt puts one question to all nodes at once; see gate/ for what it is."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_rl.launchers.slurm.components import split_hosts
from slurm_rl.launchers.slurm.srun import run_srun, srun_argv
from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.health.gate.fabric import FabricOutcome, choose_tested
from slurm_rl.plugins.health.gate.judge import Judged, Verdicts, apply_policy, judge_nodes
from slurm_rl.plugins.health.gate.script import build_script, parse_answers
from slurm_rl.plugins.health.gate.table import Check, choose_checks
from slurm_rl.plugins.health.gate.verdict import Wanted
from slurm_rl.plugins.health.measure_fabric import measure_fabric
from slurm_rl.plugins.health.measure_pairs import is_worth, measure_pairs
from slurm_rl.run_dir import AttemptDir, write_text

# Beyond what the checks are thought to cost: srun itself, a node that is busy.
_GRACE_S = 105.0


@dataclass(frozen=True)
class Preflight:
    """What came out."""

    judged: Judged = field(default_factory=Judged)
    silent: list[str] = field(default_factory=list)
    """Hosts that did not answer."""
    srun_said: str = ""
    """srun's own complaints, for when a host did not answer."""
    asked: list[Check] = field(default_factory=list)
    left_out: list[Check] = field(default_factory=list)
    """By the budget."""
    seconds: float = 0.0
    fabric: FabricOutcome = field(default_factory=FabricOutcome)

    def holds_s(self, check: str) -> float | None:
        """How long a node is remembered for what this check found."""
        return next((one.holds_s for one in self.asked if one.name == check), None)

    def to_event(self) -> dict[str, object]:
        """Fields of the event preflight/passed, without those that say nothing."""
        fields = {
            "warned": self.judged.warned,
            "unknown": self.judged.unknown,
            "not_checked": [check.name for check in self.left_out],
            "fabric": {"nodes": list(self.fabric.verdicts), "gb_s": self.fabric.gb_s} if self.fabric.verdicts else {},
        }
        return {"seconds": round(self.seconds, 2), **{name: value for name, value in fields.items() if value}}


def run_preflight(
    plan: JobPlan, attempt: AttemptDir, hosts: Sequence[str], env: Mapping[str, str], passed: Collection[str] = ()
) -> Preflight:
    """Check these nodes of the job, all at once.

    Args:
        passed: nodes that need no test of the fabric, but may be others' partners in it.
    """
    began = time.monotonic()
    checks, left_out = choose_checks(plan)
    if not checks or not hosts:
        return Preflight(left_out=left_out)
    canary, word = attempt.path / "canary", secrets.token_hex(8)
    write_text(canary, word)
    script = build_script(plan, str(canary), [check.source for check in checks if check.source])
    deadline_s = _GRACE_S + sum(check.cost_s for check in checks)
    asked_at = time.time()
    output, errors = run_srun(srun_argv(plan, hosts, ["/bin/sh", "-c", script]), env, deadline_s)
    wanted = Wanted(
        accelerator=plan.accelerator,
        gpus=0,
        num_nodes=plan.num_nodes,
        word=word,
        needs_python=plan.container["runtime"] == "none",
        asked=(asked_at, time.time()),
    )
    answers = parse_answers(output)
    verdicts: Verdicts = {}
    # Nodes are compared with their like, and have the GPUs of their kind.
    for part in split_hosts(plan, hosts, os.environ):
        gpus = plan.gpus_per_node if part.group is None else plan.kinds[part.group].gpus_per_node
        fitting = [check for check in checks if gpus or not check.vendor]
        verdicts |= judge_nodes(answers, fitting, replace(wanted, gpus=gpus), part.nodes)
    judged = apply_policy(verdicts, plan.preflight.policy)
    well = [host for host in verdicts if host not in judged.unfit]
    names = {check.name for check in checks}
    if "pairs" in names and is_worth(well) and not judged.common:
        for host, verdict in measure_pairs(plan, well, env).items():
            verdicts[host]["pairs"] = verdict
        judged = apply_policy(verdicts, plan.preflight.policy)
    tested = FabricOutcome()
    well = choose_tested([host for host in verdicts if host not in judged.unfit], passed)
    # Nodes of several kinds reduce in groups of their own.
    if "fabric" in names and len(well) > 1 and not judged.common and not plan.kinds:
        tested = measure_fabric(plan, attempt, well, env)
        for host, found in tested.verdicts.items():
            verdicts[host] |= found
        judged = apply_policy(verdicts, plan.preflight.policy)
    return Preflight(
        judged=judged,
        silent=[host for host in hosts if host not in verdicts],
        srun_said=errors,
        asked=checks,
        left_out=left_out,
        seconds=time.monotonic() - began,
        fabric=tested,
    )
