"""Ray on one node of an attempt, and on the head also the trainer."""

import os
import signal
import subprocess
import time

from slurm_rl.errors import BringUpError
from slurm_rl.node.attempt import POLL_S, Leaving
from slurm_rl.node.driver import check_driver_end, exit_status, may_signal, start_driver
from slurm_rl.node.node_state import NodeState
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
from slurm_rl.node.wait_for_ray_nodes import start_waiting
from slurm_rl.plan.visibility import gpu_names
from slurm_rl.run_dir.run_dir import append_event


class RayNode:
    """Starts Ray and returns when the trainer has ended.

    Args:
        env: environment of every process that it starts.
        deadline: time.monotonic() by which bring-up must be over.
    """

    def __init__(self, node: NodeState, ports: PortPlan, env: dict[str, str], deadline: float) -> None:
        self.node, self.ports, self.env, self.deadline = node, ports, env, deadline
        self.plan, self.attempt, self.role = node.plan, node.attempt, node.role

    def run(self) -> int:
        return self._run_head() if self.role.is_head else self._run_worker()

    def _run_head(self) -> int:
        node = self.node
        self._start_head()
        node.driver = driver = start_driver(self.plan, self.attempt, self.env)
        node.write_record(state="running")
        is_signalled = False
        while driver.poll() is None:
            if node.stopped_at and not is_signalled and may_signal(driver.pid, node.stopped_at):
                is_signalled = True
                driver.send_signal(signal.SIGUSR2)
            node.check_ray("the head node")
            node.check()
            time.sleep(POLL_S)
        # A driver that lost its Ray fails because of that; report Ray's cause.
        if not self.attempt.outcome.is_file() and comes_true(lambda: has_ended(node.ray)):
            node.check_ray("the head node")
        check_driver_end(self.attempt, driver.returncode)
        return exit_status(driver.returncode)

    def _start_head(self) -> None:
        node, ports = self.node, self.ports
        ip = node.head_ip()
        if self.plan.ray.dashboard:
            check_dashboard_port(self.plan.ray.dashboard_port, node.host)
        node.ray = self._start_ray(ip, head=None)
        wait_for_port(ip, ports.gcs, self.deadline, node.is_bring_up_over, what="Ray's GCS")
        head = HeadRecord(node.host, ip, ports.gcs, os.getpid(), node.versions)
        publish_head(self.attempt, head)
        append_event(node.run_dir, "ray/head_ready", attempt=self.attempt.number, host=node.host)
        self.env |= {"RAY_ADDRESS": head.address, "SLURM_RL_MASTER_PORT": str(ports.rendezvous)}
        self.env["SLURM_RL_CRITIC_PORT"] = str(ports.spare_max)
        if self.plan.external is not None:
            self._wait_for_cluster()  # our own trainer waits while it imports

    def _wait_for_cluster(self) -> None:
        """Wait until all nodes have joined Ray with their GPUs."""
        log, run = self.attempt.log("joined"), self.node.run_dir
        waiting = start_waiting(run, self.plan, self.env, log, self.deadline - time.monotonic())
        while waiting.poll() is None:
            self.node.check_ray("the head node")
            if self.node.stop_signal is not None:
                raise Leaving("all nodes must join Ray before the trainer starts", seen="a stop request before that")
            time.sleep(POLL_S)
        if waiting.returncode:
            raise BringUpError(log.read_text(encoding="utf-8", errors="replace").strip(), where=log.name)
        append_event(run, "ray/cluster_ready", attempt=self.attempt.number, nodes=self.plan.num_nodes)

    def _run_worker(self) -> int:
        node = self.node
        head = node.meet_head(self.deadline)
        wait_for_port(head.ip, head.port, self.deadline, self._is_too_late_to_join, what="the head's Ray (GCS)")
        node.ray = self._start_ray(own_address(head.ip), head=head)
        node.write_record(state="running")
        while not node.sees_head_end():
            if has_ended(node.ray) and comes_true(node.head_has_ended):
                break
            node.check_ray("a worker node")
            node.check()
            if node.must_leave_at is not None and not is_port_open(head.ip, head.port):
                raise Leaving("the head node must answer", seen=f"no Ray at {head.address}")
            time.sleep(POLL_S)
        return 0

    def _is_too_late_to_join(self) -> bool:
        if self.node.sees_head_end():
            raise Leaving("the head node must be up", seen="it has ended")
        return self.node.is_bring_up_over()

    def _start_ray(self, ip: str, head: HeadRecord | None) -> subprocess.Popen[bytes]:
        rank = self.role.rank
        argv = build_ray_start_argv(
            self.plan,
            rank=rank,
            ip=ip,
            gpus=gpu_names(self.env, self.plan.accelerator, self.plan.gpus_on(rank)),
            num_cpus=self.plan.cpus_on(rank) or int(os.environ.get("SLURM_CPUS_ON_NODE", os.cpu_count() or 1)),
            ports=self.ports,
            tmp_dir=self.node.tmp_dir,
            head=head,
        )
        return start_child(argv, self.env, self.attempt.log(f"ray-{rank}"), signal.SIGKILL)
