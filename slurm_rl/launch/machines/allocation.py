"""Allocation and launcher of machines without Slurm, which connect to the head."""

import os
from dataclasses import replace
from typing import Any

import yaml

from slurm_rl.errors import BringUpError, ConfigError
from slurm_rl.launch.controller.agents import clean_here
from slurm_rl.launch.controller.allocation import IsStopped, Nodes
from slurm_rl.launch.controller.attempts import AttemptEnd
from slurm_rl.launch.here import HereAllocation, HereLauncher
from slurm_rl.launch.machines.hub import Hub
from slurm_rl.launch.machines.nodes import MachineNodes
from slurm_rl.launch.machines.place import derive_ray_token, head_secret, read_place
from slurm_rl.plan.job import ActorPlan, JobPlan
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json
from slurm_rl.run_dir.run_secret import create_token


class MachineAllocation(HereAllocation):
    """All nodes of a run, including this one; see `Allocation`."""

    def __init__(self, run: RunDir, plan: JobPlan) -> None:
        super().__init__(run, plan)
        self.num_agents = plan.num_nodes
        self._all_came = True
        self._secret = head_secret(run, os.environ)
        config = yaml.safe_load(run.config.read_text(encoding="utf-8"))
        self._hub = Hub(run, plan.num_nodes, read_place(run), self._secret, self.job_key, config)
        self._nodes: MachineNodes | None = None

    @property
    def notice(self) -> str | None:
        return self._hub.notice

    @property
    def has_nodes(self) -> bool:
        return self._all_came

    def prepare(self, attempt: AttemptDir) -> dict[str, Any]:
        if self.plan.torchrun is None:
            token = derive_ray_token(self._secret, self.job_key, attempt.number)
            create_token(self.run_dir, attempt.number, token)
        return {}

    def start(self, attempt: AttemptDir, is_stopped: IsStopped) -> Nodes | None:
        self._wait_for_all(is_stopped)
        if is_stopped():
            return None
        self._nodes = nodes = MachineNodes(self._hub, self.run_dir, self.plan, attempt, os.environ)
        shared = all(member.shares_run_dir for member in self._hub.members.values())
        append_event(self.run_dir, "machines/complete", attempt=attempt.number, hosts=nodes.hosts, one_run_dir=shared)
        return nodes

    def _wait_for_all(self, is_stopped: IsStopped) -> None:
        """Wait until every machine is ready.

        Raises:
            BringUpError: some are missing at the deadline.
            ConfigError: the plan needs one shared run directory, and some machines have their own.
        """
        self._hub.open()
        try:
            self._hub.wait_for_all(self.plan.limits.start_timeout_s, is_stopped)
        except BringUpError:
            self._all_came = False
            raise
        builds_model = self._hub.config["model"]["path"] is None
        reason = why_run_dir_must_be_shared(self.plan, builds_model=builds_model)
        apart = [f"node {rank} ({m.host})" for rank, m in sorted(self._hub.members.items()) if not m.shares_run_dir]
        if reason and apart:
            raise ConfigError(
                f"run_dir must be one folder on all machines: {reason}",
                seen=f"{', '.join(apart)} cannot see the head's {self.run_dir.path}",
                action="put cluster.run_root on a volume that all of them mount at the same path (RunPod: a network "
                "volume, GCP: Filestore), or keep the policy on the head: policy.num_workers, rollout.num_engines",
            )

    def judge(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
        clean_here(self.run_dir, self.plan, attempt, self.job_key)
        lost = self._nodes.lost if self._nodes else []
        self._nodes = None
        if end.outcome == "failed" and lost:
            append_event(self.run_dir, "nodes/lost", attempt=attempt.number, hosts=lost)
            return replace(end, outcome="lost", cause=f"lost {', '.join(lost)}; {end.cause}")
        if end.outcome == "failed" and attempt.abort.is_file():
            return replace(end, cause=f"{read_json(attempt.abort)['cause']}; {end.cause}")
        if self.notice and end.outcome == "checkpointed":
            return replace(end, cause="; ".join(filter(None, [self.notice, end.cause])))
        return end

    def close(self, end: dict[str, Any]) -> None:
        self._hub.say_goodbye(**{name: end[name] for name in ("state", "exit_code", "cause")})


def why_run_dir_must_be_shared(plan: JobPlan, *, builds_model: bool) -> str | None:
    """Return which process outside the head needs the run directory (`builds_model`: it has the model)."""
    elsewhere = [actor for actor in plan.actors if actor.node > 0]
    trained = [actor for actor in elsewhere if actor.role != "rollout"]
    if trained:
        return f"{_describe(trained[0])} writes its part of the checkpoints there"
    if elsewhere and builds_model:
        return f"{_describe(elsewhere[0])} loads the model from there"
    return None


def _describe(actor: ActorPlan) -> str:
    return f"{actor.role}-{actor.index} on node {actor.node}"


class ManualLauncher(HereLauncher):
    """Launcher of machines without Slurm; `join` on the head takes the place of `submit`."""

    def check(self, plan: JobPlan) -> tuple[JobPlan, list[str]]:
        raise ConfigError(
            "a run on machines without Slurm must be started on each machine",
            seen=f"submit, with cluster.launcher={plan.launcher}",
            action="python -m slurm_rl join and the same overrides, on every machine",
        )
