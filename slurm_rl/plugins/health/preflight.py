"""The preflight: one srun runs the script of all checks on all nodes, before an attempt."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_rl.launch.slurm.granted import split_hosts
from slurm_rl.launch.slurm.srun import run_srun, srun_argv
from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.health.fabric import FabricResult, choose_tested
from slurm_rl.plugins.health.fabric_leader import measure_fabric
from slurm_rl.plugins.health.judge import Decision, Verdicts, apply_policy, judge_nodes
from slurm_rl.plugins.health.leader import measure_pairs
from slurm_rl.plugins.health.script import build_script, parse_outputs
from slurm_rl.plugins.health.table import Check, choose_checks
from slurm_rl.plugins.health.verdict import NodeSpec
from slurm_rl.run_dir.run_dir import AttemptDir, write_text

_GRACE_S = 105.0
"""Added to the estimated cost of the checks, for srun itself and busy nodes."""
_MIN_PAIRS_NODES = 3
"""A measurement of two nodes does not show which one is slow."""


@dataclass(frozen=True)
class Preflight:
    """Result of the preflight."""

    decision: Decision = field(default_factory=Decision)
    silent: list[str] = field(default_factory=list)
    """Hosts that did not answer."""
    srun_error: str = ""
    checks: list[Check] = field(default_factory=list)
    skipped: list[Check] = field(default_factory=list)
    """Checks that exceed preflight.budget_s."""
    seconds: float = 0.0
    fabric: FabricResult = field(default_factory=FabricResult)

    def holds_s(self, check: str) -> float | None:
        """Return for how long evidence of this check holds."""
        return next((one.holds_s for one in self.checks if one.name == check), None)

    def to_event(self) -> dict[str, object]:
        """Return the fields of the event preflight/passed, without empty ones."""
        fields = {
            "warned": self.decision.warned,
            "unknown": self.decision.unknown,
            "not_checked": [check.name for check in self.skipped],
            "fabric": {"nodes": list(self.fabric.verdicts), "gb_s": self.fabric.gb_s} if self.fabric.verdicts else {},
        }
        return {"seconds": round(self.seconds, 2), **{name: value for name, value in fields.items() if value}}


def run_preflight(
    plan: JobPlan, attempt: AttemptDir, hosts: Sequence[str], env: Mapping[str, str], passed: Collection[str] = ()
) -> Preflight:
    """Check these nodes of the job.

    Args:
        passed: nodes that need no fabric measurement, but may be partners of others.
    """
    began = time.monotonic()
    checks, skipped = choose_checks(plan)
    if not checks or not hosts:
        return Preflight(skipped=skipped)
    canary, content = attempt.path / "canary", secrets.token_hex(8)
    write_text(canary, content)
    script = build_script(plan, str(canary), [check.source for check in checks if check.source])
    asked_at = time.time()
    deadline_s = _GRACE_S + sum(check.cost_s for check in checks)
    output, srun_error = run_srun(srun_argv(plan, hosts, ["/bin/sh", "-c", script]), env, deadline_s)
    needs_python = plan.container["runtime"] == "none"
    spec = NodeSpec(plan.accelerator, 0, plan.num_nodes, content, needs_python, (asked_at, time.time()))
    outputs = parse_outputs(output)
    verdicts: Verdicts = {}
    # Nodes are compared with nodes of the same kind.
    for part in split_hosts(plan, hosts, os.environ):
        gpus = plan.gpus_per_node if part.group is None else plan.node_groups[part.group].gpus_per_node
        applicable = [check for check in checks if gpus or not check.vendor]
        verdicts |= judge_nodes(outputs, applicable, replace(spec, gpus=gpus), part.nodes)
    fabric = _measure(plan, attempt, verdicts, {check.name for check in checks}, env, passed)
    return Preflight(
        decision=apply_policy(verdicts, plan.preflight.on_failure),
        silent=[host for host in hosts if host not in verdicts],
        srun_error=srun_error,
        checks=checks,
        skipped=skipped,
        seconds=time.monotonic() - began,
        fabric=fabric,
    )


def _measure(
    plan: JobPlan,
    attempt: AttemptDir,
    verdicts: Verdicts,
    names: Collection[str],
    env: Mapping[str, str],
    passed: Collection[str],
) -> FabricResult:
    """Run the measurements between nodes that are healthy so far, and add their verdicts."""
    decision = apply_policy(verdicts, plan.preflight.on_failure)
    healthy = [host for host in verdicts if host not in decision.unfit]
    if "pairs" in names and len(healthy) >= _MIN_PAIRS_NODES and not decision.common:
        for host, verdict in measure_pairs(plan, healthy, env).items():
            verdicts[host]["pairs"] = verdict
        decision = apply_policy(verdicts, plan.preflight.on_failure)
    tested = choose_tested([host for host in verdicts if host not in decision.unfit], passed)
    # Nodes of several kinds do not reduce together.
    if "fabric" not in names or len(tested) < 2 or decision.common or plan.node_groups:
        return FabricResult()
    fabric = measure_fabric(plan, attempt, tested, env)
    for host, found in fabric.verdicts.items():
        verdicts[host] |= found
    return fabric
