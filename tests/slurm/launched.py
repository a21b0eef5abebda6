"""Light runs under each launcher, with the same commands and the same faults."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from slurm_rl.launch.jobs import find_open_job
from slurm_rl.run_dir.run_dir import RunDir, read_json
from tests.machines.kit import Machines, Node, dstack, stop
from tests.ray_kit import OthersCluster
from tests.slurm.cluster import Cluster, slurm_version, wait_until
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import ROOT, cli, quote
from tests.whole_run import events_of

TIMEOUT_S = 240.0
# Part of the id of every Slurm test; "new" if the tests have yet to install Slurm.
VERSION = f"slurm-{slurm_version() or 'new'}"


def cell_id(launcher: str, event: str) -> str:
    """Return a test id, with the Slurm version if the launcher is slurm."""
    return f"{VERSION if launcher == 'slurm' else launcher}-{event}"


class Launched:
    """A light run; subclasses implement one launcher each."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDir(folder / "run")
        self.python = make_light_python(folder)

    @property
    def settings(self) -> tuple[str, str]:
        return f"cluster.python={quote(self.python)}", f"run_dir={quote(self.run.path)}"

    def start(self, *words: str) -> None:
        raise NotImplementedError

    def overrides_for(self, event: str) -> tuple[str, ...]:
        """Return the config overrides that a run needs for this event."""
        # A limit is in whole minutes; a lead of 40 s leaves 20 s to start and train.
        limit = ("job.time_limit=1", "job.checkpoint_lead_s=40")
        return {"bad input": ("+cluster.env.LIGHT_TRAINER=refuse",), "time limit": limit}.get(event, ())

    def run_cli(self, *words: str) -> str:
        """Run a CLI command of the user; return its output."""
        raise NotImplementedError

    def stop_all(self) -> None:
        """Stop the processes that a failed test left."""

    @property
    def trained(self) -> RunDir:
        """Run directory that the trainer writes."""
        return self.run

    def outcomes(self) -> list[str]:
        return [str(row["outcome"]) for row in events_of(self.trained.path, "attempt/ended")]

    def wait_for_training(self, attempt: int) -> None:
        log = self.trained.attempts / str(attempt) / "logs" / "driver.log"

        def is_there() -> bool:
            # Otherwise the controller took the job for cancelled, and the queue may restart it.
            assert attempt > 1 or not self.trained.end.is_file(), read_json(self.trained.end)
            return log.is_file() and "resumes after" in log.read_text()

        wait_until(is_there, f"attempt {attempt} to train", timeout_s=TIMEOUT_S)

    def wait_for_end(self) -> dict[str, Any]:
        wait_until(self.trained.end.is_file, "the run to end", timeout_s=TIMEOUT_S)
        found: dict[str, Any] = read_json(self.trained.end)
        return found

    def cancel(self) -> None:
        assert "stopping after a save" in self.run_cli("cancel", str(self.run.path))

    def kill_controller(self) -> None:
        """Kill the newest forked process with this command line (its parent has the same one)."""
        entry = self._entry()
        pids = find_processes(*entry)
        found = [pid for pid in pids if psutil.Process(pid).ppid() in pids]
        assert found, f"no controller among {entry}"
        os.kill(found[-1], signal.SIGKILL)

    def _entry(self) -> list[str]:
        return ["submitit.core._submit", str(self.run.submitit)]

    def kill_trainer(self) -> None:
        found = find_processes("slurm_rl.trainers.grpo.main", "--run-dir", str(self.trained.path))
        assert found
        for pid in found:
            os.kill(pid, signal.SIGKILL)


def find_processes(*words: str) -> list[int]:
    """Return pids with all `words` in their argv, ascending, on the whole machine including namespaces."""
    return [one.pid for one in psutil.process_iter(["cmdline"]) if set(words) <= set(one.info["cmdline"] or [])]


class OnSlurm(Launched):
    def __init__(self, folder: Path, cluster: Cluster) -> None:
        super().__init__(folder)
        self.cluster = cluster

    def start(self, *words: str) -> None:
        self.run_cli("+exp=demo", "+cluster=slurm_cpu", *self.settings, *words)

    def run_cli(self, *words: str) -> str:
        done = cli(self.cluster, self.run.path.parent, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def overrides_for(self, event: str) -> tuple[str, ...]:
        # No limit to set: Slurm checks limits only every 30 s. A spare node avoids a requeue after a lost node.
        return {"time limit": (), "lost node": ("job.num_spare_nodes=1",)}.get(event, super().overrides_for(event))

    def reach_limit(self) -> None:
        """Send the signal that Slurm sends before a time limit (--signal=B:USR2@<lead>), to the batch step only."""
        self.cluster.run(["scancel", "--batch", "--signal=USR2", self._job])

    def preempt(self) -> None:
        """Submit a job in the high partition that takes a node from the run for a short time."""
        words = ["-p", "high", "-w", self._hosts()[0], "--exclusive", "--mem=100", "--output=/dev/null"]
        done = self.cluster.run(["sbatch", *words, "--wrap", "sleep 2"])
        assert done.returncode == 0, done.stderr

    def lose_node(self) -> None:
        self.cluster.power_off(self._hosts()[1])

    @property
    def _job(self) -> str:
        return str(read_json(self.run.job)["job_id"])

    def _hosts(self) -> list[str]:
        return list(events_of(self.run.path, "preflight/passed")[0]["nodes"])


class LocalCLI(Launched):
    """Launchers with CLI commands that run on this machine, each in its own process."""

    extra_env: Mapping[str, str] = {}

    def run_cli(self, *words: str) -> str:
        argv = [sys.executable, "-m", "slurm_rl", *words]
        done = subprocess.run(argv, env=self._env(), cwd=self.run.path.parent, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def _env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), **self.extra_env}


class OnLocal(LocalCLI):
    process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> None:
        argv = [sys.executable, "-m", "slurm_rl", "+exp=demo", *self.settings, *words]
        with (self.run.path.parent / "output").open("wb") as out:
            self.process = subprocess.Popen(argv, env=self._env(), stdout=out, stderr=out, cwd=self.run.path.parent)
        wait_until(self.run.job.is_file, "the run to begin", timeout_s=TIMEOUT_S)

    def stop_all(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
        if job := find_open_job(self.run):
            for pid in find_processes(*self._entry()):
                os.kill(pid, signal.SIGTERM)
            assert job.launcher == "local"
        if self.process is not None:
            self.process.wait(TIMEOUT_S)


class OnMachines(Launched):
    def __init__(self, folder: Path, machines: Machines) -> None:
        super().__init__(folder)
        self.machines, self.nodes = machines, list[Node]()

    def start(self, *words: str) -> None:
        self.words = self.machines.words(self.run.path, *words, port=self.machines.next_port())
        self.nodes = [self._start_node(rank) for rank in (0, 1)]
        wait_until(self.run.job.is_file, "the run to begin", timeout_s=TIMEOUT_S)

    def _start_node(self, rank: int) -> Node:
        return self.machines.start(rank + 1, dstack(self.machines, rank), *self.words)

    def run_cli(self, *words: str) -> str:
        """Run the command on the head node."""
        node = self.machines.start(1, {}, *words)
        assert node.wait() == 0, node.output
        return node.output

    def preempt(self) -> None:
        stop(self.nodes[1])

    def lose_node(self) -> None:
        self.nodes[1].process.kill()
        self.nodes[1] = self._start_node(1)

    def stop_all(self) -> None:
        self.machines.stop_all()


class OnRay(LocalCLI):
    def __init__(self, folder: Path, cluster: OthersCluster) -> None:
        super().__init__(folder)
        self.cluster, self.far = cluster, folder / "far"
        self.extra_env = {"RAY_AUTH_TOKEN": cluster.token}

    def start(self, *words: str) -> None:
        places = (f"cluster.address={self.cluster.address}", f"cluster.remote_root={self.far}")
        self.run_cli("+exp=demo", "+cluster=ray", *self.settings, *places, *words)

    @property
    def trained(self) -> RunDir:
        return RunDir(self.far / "run")

    def _entry(self) -> list[str]:
        return ["slurm_rl.launch.ray.allocation", str(read_json(self.run.job)["job_id"])]

    def stop_all(self) -> None:
        if find_open_job(self.run) is not None:
            self.run_cli("cancel", str(self.run.path))
