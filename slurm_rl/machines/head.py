"""What the controller asks of the machines of a run without Slurm."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

import yaml

from slurm_rl.errors import BringUpError, ConfigError
from slurm_rl.machines.hub import Hub, read_place
from slurm_rl.machines.nodes import MachineNodes
from slurm_rl.machines.same import why_run_dir_must_be_shared
from slurm_rl.machines.secret import derive_ray_token, head_secret
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir, append_event, read_json
from slurm_rl.slurm.attempts import AttemptEnd


class Machines:
    """All nodes of a run, this one among them."""

    def __init__(self, run: RunDir, plan: JobPlan, hub: Hub, secret: str) -> None:
        self._run_dir, self._plan, self._hub, self._secret = run, plan, hub, secret
        self._nodes: MachineNodes | None = None
        self.gave_up = False
        """Some did not come before the deadline."""

    @classmethod
    def open(cls, run: RunDir, plan: JobPlan, job_key: str) -> Machines:
        """Made from what `node` left in the run directory; nothing listens yet."""
        secret = head_secret(run, os.environ)
        config = yaml.safe_load(run.config.read_text(encoding="utf-8"))
        return cls(run, plan, Hub(run, plan.num_nodes, read_place(run), secret, job_key, config), secret)

    @property
    def notice(self) -> str | None:
        """Which of the machines was told to stop."""
        return self._hub.notice

    def ray_token(self, attempt: int) -> str:
        return derive_ray_token(self._secret, self._hub.job_key, attempt)

    def wait_for_all(self, is_stopped: Callable[[], bool]) -> None:
        """Until every machine is there.

        Raises:
            BringUpError: not before the deadline.
            ConfigError: the plan needs one run directory on all of them, and some have their own.
        """
        self._hub.open()
        try:
            self._hub.wait_for_all(self._plan.limits.start_timeout_s, is_stopped)
        except BringUpError:
            self.gave_up = True
            raise
        self._check_run_dir()

    def _check_run_dir(self) -> None:
        builds_model = self._hub.config["model"]["path"] is None
        reason = why_run_dir_must_be_shared(self._plan, builds_model=builds_model)
        apart = [f"node {rank} ({m.host})" for rank, m in sorted(self._hub.members.items()) if not m.shares_run_dir]
        if reason and apart:
            raise ConfigError(
                f"run_dir must be one folder on all machines: {reason}",
                seen=f"{', '.join(apart)} cannot see the head's {self._run_dir.path}",
                action="put cluster.run_root on a volume that all of them mount at one path (RunPod: a network volume, "
                "GCP: Filestore), or keep the policy on the head: policy.num_workers, rollout.num_engines",
            )

    def start_agents(self, attempt: AttemptDir, env: Mapping[str, str]) -> MachineNodes:
        self._nodes = nodes = MachineNodes(self._hub, self._run_dir, self._plan, attempt, env)
        shared = all(member.shares_run_dir for member in self._hub.members.values())
        append_event(self._run_dir, "machines/complete", attempt=attempt.number, hosts=nodes.hosts, one_run_dir=shared)
        return nodes

    def judge(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
        """An attempt that failed because a machine went away is no failure of the run."""
        lost = self._nodes.lost if self._nodes else []
        self._nodes = None
        if end.outcome == "failed" and lost:
            append_event(self._run_dir, "nodes/lost", attempt=attempt.number, hosts=lost)
            return replace(end, outcome="lost", cause=f"lost {', '.join(lost)}; {end.cause}")
        if end.outcome == "failed" and attempt.abort.is_file():
            return replace(end, cause=f"{read_json(attempt.abort)['cause']}; {end.cause}")
        if self.notice and end.outcome == "checkpointed":
            return replace(end, cause="; ".join(filter(None, [self.notice, end.cause])))
        return end

    def say_goodbye(self, **fields: object) -> None:
        self._hub.say_goodbye(**fields)
