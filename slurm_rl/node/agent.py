"""The node agent: one process a node and attempt. It starts Ray here, on the head also the trainer.

    python -m slurm_rl.node.agent --run-dir <run> --attempt <n>

It needs the standard library alone (and `ray` in the interpreter that the plan names), so it runs in
any image that has Python. Whatever way it ends, every process it started ends before it: they carry
the attempt's mark in their environment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import FrameType
from typing import Any

from slurm_rl.errors import BringUpError, SlurmRLError
from slurm_rl.node.discovery import NodeRole, discover_role
from slurm_rl.node.ports import PortPlan, choose_ports
from slurm_rl.node.processes import become_subreaper, end_marked, mark_env
from slurm_rl.node.ray_cluster import (
    build_ray_start_argv,
    ray_environment,
    ray_tmp_dir,
    start_ray,
)
from slurm_rl.node.rendezvous import HeadRecord, own_address, publish_head, wait_for_head, wait_for_port
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.visibility import normalise_gpu_visibility
from slurm_rl.run_dir import AttemptDir, RunDir, append_event, read_json, write_json

POLL_S = 0.2
# The trainer has ended before; what Ray leaves behind has nothing to save, and its GCS takes its time.
_GRACE_S = 3.0


class NodeAgent:
    """One node's share of one attempt."""

    def __init__(self, run: RunDir, plan: JobPlan, attempt: AttemptDir, role: NodeRole) -> None:
        self.run_dir, self.plan, self.attempt, self.role = run, plan, attempt, role
        self.host = socket.gethostname()
        self.stop_signal: int | None = None
        self.driver: subprocess.Popen[bytes] | None = None
        self.ray: subprocess.Popen[bytes] | None = None
        self.tmp_dir = ray_tmp_dir(plan, role.job_key, attempt.number)
        self.mark = f"{role.job_key}:{attempt.number}:{role.rank}:{run.path}"
        self.record: dict[str, Any] = {"host": self.host, "pid": os.getpid(), "rank": role.rank, "state": "starting"}

    def main(self) -> int:
        """Run the node to its end; the exit status is the trainer's on the head, 0 or 1 elsewhere."""
        become_subreaper()
        for signum in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_signal)
        self._write_record()
        append_event(self.run_dir, "node/started", attempt=self.attempt.number, rank=self.role.rank, host=self.host)
        status = 1
        try:
            status = self._run()
        except SlurmRLError as error:
            self.record["error"] = str(error)
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            append_event(self.run_dir, "node/failed", attempt=self.attempt.number, host=self.host, cause=str(error))
        finally:
            self._clean_up(keep_logs=status != 0)
            self._write_record(state="ended", status=status)
        return status

    def _run(self) -> int:
        deadline = time.monotonic() + self.plan.limits.start_timeout_s
        ports = choose_ports(self.role.job_key, self.attempt.number)
        env = self._child_environment(ports)
        self.tmp_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.role.is_head:
            return self._run_head(ports, env, deadline)
        return self._run_worker(ports, env, deadline)

    def _run_head(self, ports: PortPlan, env: dict[str, str], deadline: float) -> int:
        # As the others reach this node: the name of the last of them, or loopback where there is no other.
        ip = own_address(self.role.hosts[-1] if self.role.num_nodes > 1 else "localhost")
        self.ray = self._start_ray(ip, ports, env, head=None)
        wait_for_port(ip, ports.gcs, deadline, self._bring_up_is_over, what="Ray's GCS")
        head = HeadRecord(self.host, ip, ports.gcs, os.getpid())
        publish_head(self.attempt, head)
        append_event(self.run_dir, "ray/head_ready", attempt=self.attempt.number, host=self.host)
        self.driver = self._start_driver(
            {**env, "RAY_ADDRESS": head.address, "SLURM_RL_MASTER_PORT": str(ports.rendezvous)}
        )
        self._write_record(state="running")
        if self.stop_signal is not None:
            self._forward_stop()
        while self.driver.poll() is None:
            if self.ray.poll() is not None:
                # The trainer would notice in its own time; a dead cluster is certain now.
                raise BringUpError(
                    "Ray on the head node must outlive the trainer",
                    seen=f"exit status {self.ray.returncode}",
                    where=f"{self.host}: {self.attempt.log(f'ray-{self.role.rank}')}",
                )
            time.sleep(POLL_S)
        return self.driver.returncode if self.driver.returncode >= 0 else 128 - self.driver.returncode

    def _run_worker(self, ports: PortPlan, env: dict[str, str], deadline: float) -> int:
        head = wait_for_head(self.attempt, deadline, self._bring_up_is_over)
        self.ray = self._start_ray(own_address(head.ip), ports, env, head=head)
        self._write_record(state="running")
        while not self._head_has_ended():
            if self.ray.poll() is not None:
                if self._head_ends_within(5.0):
                    break
                raise BringUpError(
                    "Ray on a worker node must outlive the trainer",
                    seen=f"exit status {self.ray.returncode}",
                    where=f"{self.host}: {self.attempt.log(f'ray-{self.role.rank}')}",
                )
            time.sleep(POLL_S)
        return 0

    def _start_ray(
        self, ip: str, ports: PortPlan, env: dict[str, str], head: HeadRecord | None
    ) -> subprocess.Popen[bytes]:
        argv = build_ray_start_argv(
            self.plan,
            rank=self.role.rank,
            ip=ip,
            num_cpus=self.plan.cpus_per_node or int(os.environ.get("SLURM_CPUS_ON_NODE", os.cpu_count() or 1)),
            ports=ports,
            tmp_dir=self.tmp_dir,
            head=head,
        )
        return start_ray(argv, env, self.attempt.log(f"ray-{self.role.rank}"))

    def _start_driver(self, env: dict[str, str]) -> subprocess.Popen[bytes]:
        argv = [*self.plan.driver_argv, "--attempt", str(self.attempt.number)]
        with self.attempt.log("driver").open("ab") as out:
            return subprocess.Popen(argv, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)

    def _child_environment(self, ports: PortPlan) -> dict[str, str]:
        # A nested launcher that sees SLURM_* or PMI_* would think that it is a task of srun.
        env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "PMI", "PMIX"))}
        env |= self.plan.env
        env |= ray_environment(self.plan, self.run_dir, self.attempt.number, ports)
        change = normalise_gpu_visibility(os.environ, self.plan.accelerator, self.plan.gpus_per_node)
        for name in change.unset:
            env.pop(name, None)
        # Libraries drop files into TMPDIR (vLLM its rendezvous); there they go when the attempt ends.
        return {**env, **change.set, **mark_env(self.mark), "TMPDIR": str(self.tmp_dir)}

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        first = self.stop_signal is None
        self.stop_signal = signum
        if first:
            self._forward_stop()

    def _forward_stop(self) -> None:
        """Tell the trainer to save and leave. Workers stay: the head needs their Ray while it saves."""
        if self.driver is not None and self.driver.poll() is None:
            self.driver.send_signal(signal.SIGUSR2)

    def _bring_up_is_over(self) -> bool:
        return self.stop_signal is not None or (self.ray is not None and self.ray.poll() is not None)

    def _head_has_ended(self) -> bool:
        path = self.attempt.node(0)
        return path.is_file() and read_json(path)["state"] in ("ending", "ended")

    def _head_ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._head_has_ended():
                return True
            time.sleep(POLL_S)
        return False

    def _clean_up(self, *, keep_logs: bool) -> None:
        self._write_record(state="ending")
        end_marked(self.mark, _GRACE_S, own_children=[p.pid for p in (self.driver, self.ray) if p])
        if keep_logs:
            self._keep_ray_logs()
        shutil.rmtree(self.tmp_dir, ignore_errors=True)

    def _keep_ray_logs(self) -> None:
        """Ray's own logs die with the temp dir; after a failure the short ones are kept."""
        target = self.attempt.logs / f"ray-{self.role.rank}"
        for path in self.tmp_dir.glob("session_2*/logs/*"):
            if path.is_file() and not path.is_symlink() and 0 < path.stat().st_size < 2_000_000:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target / path.name)

    def _write_record(self, **fields: Any) -> None:
        self.record |= fields
        self.record.setdefault("phases", {})[self.record["state"]] = round(time.time(), 3)
        write_json(self.attempt.node(self.role.rank), self.record)


def main() -> int:
    parser = argparse.ArgumentParser(description="One node of one attempt of a run.")
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    parser.add_argument("--local-job-key", help="set by the local launcher: this machine is the only node")
    args = parser.parse_args()
    run = RunDir(args.run_dir)
    plan = JobPlan.from_json(read_json(run.plan))
    role = discover_role(os.environ, local_job_key=args.local_job_key)
    attempt = run.attempt(args.attempt)
    attempt.logs.mkdir(parents=True, exist_ok=True)
    return NodeAgent(run, plan, attempt, role).main()


if __name__ == "__main__":
    sys.exit(main())
