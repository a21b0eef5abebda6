"""Ray on one node of an attempt, and on the head the trainer beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from slurm_rl.errors import BringUpError
from slurm_rl.node.attempt import POLL_S, Leaving
from slurm_rl.node.driver import check_driver_end, exit_status, may_signal, start_driver
from slurm_rl.node.joined import start_waiting
from slurm_rl.node.ports import PortPlan, check_dashboard_port
from slurm_rl.node.processes import has_ended, start_child
from slurm_rl.node.ray_cluster import build_ray_start_argv
from slurm_rl.node.rendezvous import (
    HeadRecord,
    comes_true,
    is_port_open,
    own_address,
    publish_head,
    wait_for_port,
)
from slurm_rl.plan.visibility import gpu_names
from slurm_rl.run_dir.run_dir import append_event

if TYPE_CHECKING:
    from slurm_rl.node.agent import NodeAgent


class RayShare:
    """Starts Ray; returns when the trainer has ended.

    Args:
        env: of every process that is started here.
        deadline: of the bring-up, on the monotonic clock.
    """

    def __init__(self, agent: NodeAgent, ports: PortPlan, env: dict[str, str], deadline: float) -> None:
        self.agent, self.ports, self.env, self.deadline = agent, ports, env, deadline
        self.plan, self.attempt, self.role = agent.plan, agent.attempt, agent.role

    def run(self) -> int:
        return self._run_head() if self.role.is_head else self._run_worker()

    def _run_head(self) -> int:
        agent = self.agent
        self._start_head()
        agent.driver = driver = start_driver(self.plan, self.attempt, self.env)
        agent.write_record(state="running")
        is_told = False
        while driver.poll() is None:
            # Once, however often it was asked for.
            if agent.stopped_at and not is_told and may_signal(driver.pid, agent.stopped_at):
                is_told = True
                driver.send_signal(signal.SIGUSR2)
            agent.check_ray("the head node")
            agent.check_terminated()
            agent.check_beats()
            time.sleep(POLL_S)
        # A driver that lost its Ray dies of that; the cause is Ray's.
        if not self.attempt.outcome.is_file() and comes_true(lambda: has_ended(agent.ray)):
            agent.check_ray("the head node")
        check_driver_end(self.attempt, driver.returncode)
        return exit_status(driver.returncode)

    def _start_head(self) -> None:
        """Ray's head, and what the trainer must know of it."""
        agent, ports = self.agent, self.ports
        ip = agent.head_ip()
        if self.plan.ray.dashboard:
            check_dashboard_port(self.plan.ray.dashboard_port, agent.host)
        agent.ray = self._start_ray(ip, head=None)
        wait_for_port(ip, ports.gcs, self.deadline, agent.bring_up_is_over, what="Ray's GCS")
        head = HeadRecord(agent.host, ip, ports.gcs, os.getpid(), agent.versions)
        publish_head(self.attempt, head)
        append_event(agent.run_dir, "ray/head_ready", attempt=self.attempt.number, host=agent.host)
        self.env |= {"RAY_ADDRESS": head.address, "SLURM_RL_MASTER_PORT": str(ports.rendezvous)}
        self.env["SLURM_RL_CRITIC_PORT"] = str(ports.spare_max)
        if self.plan.external is not None:
            # Ours waits for the other nodes itself, while it imports.
            self._wait_for_cluster()

    def _wait_for_cluster(self) -> None:
        """Until all nodes have joined Ray with their GPUs."""
        log = self.attempt.log("joined")
        run = self.agent.run_dir
        waiting = start_waiting(run, self.plan, self.env, log, self.deadline - time.monotonic())
        while waiting.poll() is None:
            self.agent.check_ray("the head node")
            if self.agent.stop_signal is not None:
                raise Leaving("all nodes must join Ray before the trainer starts", seen="asked to stop before")
            time.sleep(POLL_S)
        if waiting.returncode:
            raise BringUpError(log.read_text(encoding="utf-8", errors="replace").strip(), where=log.name)
        append_event(run, "ray/cluster_ready", attempt=self.attempt.number, nodes=self.plan.num_nodes)

    def _run_worker(self) -> int:
        agent = self.agent
        head = agent.meet_head(self.deadline)
        wait_for_port(head.ip, head.port, self.deadline, self._is_too_late_to_join, what="the head's Ray (GCS)")
        agent.ray = self._start_ray(own_address(head.ip), head=head)
        agent.write_record(state="running")
        while not agent.head_has_ended():
            if has_ended(agent.ray) and comes_true(agent.head_has_ended):
                break
            agent.check_ray("a worker node")
            agent.check_terminated()
            agent.check_beats()
            if agent.must_leave_at is not None and not is_port_open(head.ip, head.port):
                raise Leaving("the head node must answer", seen=f"no Ray at {head.address}")
            time.sleep(POLL_S)
        return 0

    def _is_too_late_to_join(self) -> bool:
        # Its record is there before its address, so no NFS has seen it absent.
        if self.agent.head_has_ended():
            raise Leaving("the head node must be there", seen="it has ended")
        return self.agent.bring_up_is_over()

    def _start_ray(self, ip: str, head: HeadRecord | None) -> subprocess.Popen[bytes]:
        rank = self.role.rank
        argv = build_ray_start_argv(
            self.plan,
            rank=rank,
            ip=ip,
            gpus=gpu_names(self.env, self.plan.accelerator, self.plan.gpus_on(rank)),
            num_cpus=self.plan.cpus_on(rank) or int(os.environ.get("SLURM_CPUS_ON_NODE", os.cpu_count() or 1)),
            ports=self.ports,
            tmp_dir=self.agent.tmp_dir,
            head=head,
        )
        return start_child(argv, self.env, self.attempt.log(f"ray-{rank}"), signal.SIGKILL)
