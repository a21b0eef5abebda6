"""The preflight: one srun runs the script of all checks on all nodes, before an attempt."""

import os
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_rl.launch.controller.agents import agent_environment, last_words, own_user
from slurm_rl.launch.slurm.granted import split_hosts
from slurm_rl.launch.slurm.srun import run_srun, srun_argv
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import with_host_setup, wrap_checks
from slurm_rl.plugins.health.fabric import FabricResult, judge_fabric
from slurm_rl.plugins.health.judge import Decision, Verdicts, apply_policy, judge_nodes
from slurm_rl.plugins.health.script import FABRIC, build_script, parse_outputs
from slurm_rl.plugins.health.table import Check, choose_checks
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict
from slurm_rl.run_dir.run_dir import AttemptDir, write_text

_DEADLINE_S = 120.0
"""For the quick checks, which take seconds, srun itself and busy nodes."""


FABRIC_S = 1200.0
"""Longest time of the fabric measurement, with nodes that unpack their image and pairs that hang."""


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

    def to_event(self) -> dict[str, object]:
        """Return the fields of the event preflight/passed, without empty ones."""
        fields = {
            "warned": self.decision.warned,
            "unknown": self.decision.unknown,
            "fabric": {"nodes": list(self.fabric.verdicts), "gb_s": self.fabric.gb_s} if self.fabric.verdicts else {},
        }
        return {"seconds": round(self.seconds, 2), **{name: value for name, value in fields.items() if value}}


def run_preflight(plan: JobPlan, attempt: AttemptDir, hosts: Sequence[str], env: Mapping[str, str]) -> Preflight:
    """Check these nodes of the job."""
    began = time.monotonic()
    checks = choose_checks(plan, plan.preflight.level)
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
    fabric = FabricResult()
    decision = apply_policy(verdicts, plan.preflight.on_failure)
    healthy = [host for host in verdicts if host not in decision.unfit]
    # Nodes of several kinds do not reduce together.
    if plan.preflight.level == "full" and len(healthy) > 1 and not decision.common and not plan.node_groups:
        fabric = measure_fabric(plan, attempt, healthy, env)
        for host, found in fabric.verdicts.items():
            verdicts[host] |= found
        decision = apply_policy(verdicts, plan.preflight.on_failure)
    return Preflight(
        decision=decision,
        silent=[host for host in hosts if host not in verdicts],
        srun_error=srun_error,
        checks=checks,
        seconds=time.monotonic() - began,
        fabric=fabric,
    )


def measure_fabric(plan: JobPlan, attempt: AttemptDir, hosts: Sequence[str], env: Mapping[str, str]) -> FabricResult:
    """Measure these nodes in the run's image; `unknown` on all of them if most do not start."""
    folder, log = attempt.path / "fabric", attempt.log("fabric")
    for path in (folder, log.parent):
        path.mkdir(parents=True, exist_ok=True)
    argv = fabric_argv(plan, plan.run_dir, str(folder), len(hosts))
    wrapped = wrap_checks(plan, argv, plan.run_dir, f"srl-fabric-{secrets.token_hex(4)}", own_user())
    step = srun_argv(plan, hosts, [*wrapped.srun_args, *with_host_setup(plan, wrapped.argv)])
    # SIGTERM first: srun ends its tasks at SIGTERM, and leaves them at SIGKILL.
    bounded = ["timeout", "--kill-after=10", f"{FABRIC_S:g}", *step]
    with log.open("ab") as out:
        environ = agent_environment(plan, env, wrapped)
        done = subprocess.run(bounded, env=environ, stdout=subprocess.PIPE, stderr=out, text=True, errors="replace")
    lines = {host: found[FABRIC].lines for host, found in parse_outputs(done.stdout).items()}
    if 2 * len(lines) > len(hosts):
        return judge_fabric(lines, hosts, on_gpus=plan.accelerator != "cpu")
    seen = f"{len(lines)} of {len(hosts)} nodes answered: {last_words(log) or 'no output'}"
    return FabricResult({host: dict.fromkeys(("matmul", "fabric"), Verdict("unknown", seen)) for host in hosts})


def fabric_argv(plan: JobPlan, run_dir: str, folder: str, num_nodes: int) -> list[str]:
    """Return the fabric measurement on one node."""
    return [plan.python, "-m", "slurm_rl.plugins.health.fabric_node", run_dir, folder, str(num_nodes)]
