"""The demo on two machines without Slurm, with the variables of three clouds; one run is interrupted."""

import json
from pathlib import Path

import pytest

from tests.machines.kit import RUNPOD_HEAD, RUNPOD_NAMES, RUNPOD_WORKER, Machines, Run, dstack, machines_up, stop
from tests.slurm.cluster import wait_until
from tests.whole_run import OVERRIDES

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1500)]


def steps(run: Path) -> list[int]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["step"] for row in rows if row["stage"] == "grpo"]


def join_args(machines: Machines, run: Run) -> list[str]:
    return ["join", f"run_dir={run.run_dir.path}", f"cluster.tmp_root={machines.root}/t", *OVERRIDES]


@pytest.mark.parametrize("cloud", ["runpod", "dstack"])
def test_demo_finishes_over_two_machines(cloud: str) -> None:
    with machines_up() as machines:
        run = Run(machines.shared / "demo")
        pair = (RUNPOD_HEAD, RUNPOD_WORKER) if cloud == "runpod" else (dstack(machines, 0), dstack(machines, 1))
        nodes = [machines.start(n, env, *join_args(machines, run), hosts=RUNPOD_NAMES) for n, env in enumerate(pair, 1)]
        assert [node.wait(900) for node in nodes] == [0, 0], nodes[0].output
        assert run.end["state"] == "finished"
        assert steps(run.run_dir.path) == list(range(41, 47))


def test_demo_on_two_machines_resumes_on_one() -> None:
    """With GCP's variables."""
    with machines_up() as machines:
        run = Run(machines.shared / "demo")
        path, words = run.run_dir.path, join_args(machines, run)
        worker = machines.start(2, {"GCP_WORKER": "1", "GCP_HEAD_IP": machines.ip(1)}, *words)
        head = machines.start(1, {"EXPECTED_WORKERS": "1"}, *words)

        def has_trained() -> bool:
            assert head.process.poll() is None, head.output
            return (path / "metrics.jsonl").is_file() and len(steps(path)) >= 3

        wait_until(has_trained, "three steps", timeout_s=600)
        stop(worker)
        assert (worker.wait(300), head.wait(300)) == (130, 130), head.output
        saved = run.end["step"]
        assert saved > 0
        # The engines ran on the other machine, so the weights were sent over the network.
        plan = json.loads((path / "plan.json").read_text())
        assert [(actor["role"], actor["node"]) for actor in plan["actors"]] == [("policy", 0), ("rollout", 1)]

        head = machines.start(1, {"EXPECTED_WORKERS": "0"}, "resume", str(path))
        assert head.wait(900) == 0, head.output
        assert run.end["state"] == "finished"
        assert [row["step"] for row in run.events("trainer/resumed")] == [saved]
        numbers = steps(path)
        assert numbers == sorted(set(numbers)) and len(numbers) == 6
        assert list((path / "export").glob("*.safetensors"))
