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
from slurm_rl.plugins.health.script import build_script, parse_outputs
from slurm_rl.plugins.health.table import Check, choose_checks
from slurm_rl.plugins.health.verdict import NodeSpec
from slurm_rl.run_dir.run_dir import AttemptDir, write_text

_DEADLINE_S = 120.0
"""For the quick checks, which take seconds, srun itself and busy nodes."""


@dataclass(frozen=True)
class Preflight:
    """Result of the preflight."""

    decision: Decision = field(default_factory=Decision)
    silent: list[str] = field(default_factory=list)
    """Hosts that did not answer."""
    srun_error: str = ""
    checks: list[Check] = field(default_factory=list)
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
    checks = choose_checks(plan)
    if not checks or not hosts:
        return Preflight()
    canary, content = attempt.path / "canary", secrets.token_hex(8)
    write_text(canary, content)
    script = build_script(plan, str(canary), [check.source for check in checks if check.source])
    asked_at = time.time()
    output, srun_error = run_srun(srun_argv(plan, hosts, ["/bin/sh", "-c", script]), env, _DEADLINE_S)
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
    tested = choose_tested([host for host in verdicts if host not in decision.unfit], passed)
    # Nodes of several kinds do not reduce together.
    if "fabric" not in names or len(tested) < 2 or decision.common or plan.node_groups:
        return FabricResult()
    fabric = measure_fabric(plan, attempt, tested, env)
    for host, found in fabric.verdicts.items():
        verdicts[host] |= found
    return fabric
