"""A sweep on a real Slurm: one array, its elements, and the verbs for all of it."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.run_dir.run_dir import read_json
from tests.examples.kit import EXAMPLES, read_commands
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.cluster.reset import is_idle
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import cli, job_id, queue, refused, run_cli, wait_for_end, wait_for_step

pytestmark = pytest.mark.slurm

# Small enough that all runs fit on the test cluster at once.
ON_SLURM = ["+cluster=slurm_cpu", "cluster.num_nodes=1", "cluster.cpus_per_node=1", "cluster.mem_gb_per_node=1"]
SMALL = ["+exp=demo", *ON_SLURM]


def sweep(cluster: Cluster, folder: Path, *words: str, spy: Path | None = None) -> Path:
    """Submit a sweep of light runs; return its directory."""
    path = folder / "sweep"
    python = make_light_python(folder)
    words = ("-m", *SMALL, f"cluster.python={python}", f"hydra.sweep.dir={path}", *words)
    env = {"PATH": f"{spy}:{cluster.env['PATH']}"} if spy else None
    run_cli(cluster, folder, *words, env=env)
    return path


def ledger(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(path / "sweep.json")
    return found


def make_spy(folder: Path, *programs: str) -> Path:
    """Make a folder for PATH with versions of these Slurm programs that log their calls."""
    spy = folder / "bin"
    spy.mkdir()
    for program in programs:
        (spy / program).write_text(f'#!/bin/sh\necho {program} >> {folder}/calls\nexec /usr/bin/{program} "$@"\n')
        (spy / program).chmod(0o755)
    return spy


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().split()


def test_sweep_requeues_cancels_and_lists_results(cluster: Cluster, shared_dir: Path) -> None:
    """The example's commands with light runs: one array, one element requeued, one cancelled, and a table of all."""
    spy = make_spy(shared_dir, "sbatch", "squeue")
    (shared_dir / "examples").symlink_to(EXAMPLES)
    start, results, report = (words[3:] for words in read_commands("sweep") if words[3] != "plan")
    small = [*ON_SLURM, f"cluster.python={make_light_python(shared_dir)}"]
    run_cli(cluster, shared_dir, *start, *small, env={"PATH": f"{spy}:{cluster.env['PATH']}"})
    path = shared_dir / "runs" / "rates"
    runs = [path / str(index) for index in range(3)]
    # One --test-only call and one for all runs.
    assert calls(shared_dir) == ["sbatch", "sbatch"]
    array = ledger(path)["runs"][0]["array_job"]
    assert [job_id(run) for run in runs] == [f"{array}_{index}" for index in range(3)]
    assert [(run / "code").resolve() for run in runs] == [path / "code"] * 3
    for run in runs:
        wait_for_step(run)
    keys = [json.loads((run / "events.jsonl").read_text().splitlines()[1])["job"] for run in runs]
    assert len(set(keys)) == 3

    # The last element has the array's own number: requeueing by that number would restart all three.
    cluster.run(["scancel", "--batch", "--signal=USR2", f"{array}_2"])
    wait_for_step(runs[2], attempt=2)
    log = (runs[2] / "attempts" / "2" / "logs" / "driver.log").read_text()
    assert "after step 0" not in log
    assert all(len(list((run / "attempts").glob("[0-9]"))) == 1 for run in runs[:2])

    assert cli(cluster, shared_dir, "cancel", str(runs[0])).returncode == 0
    assert wait_for_end(runs[0])["state"] == "interrupted"
    for run in runs[1:]:
        (run / "finish").touch()
    assert {wait_for_end(run)["state"] for run in runs[1:]} == {"finished"}

    (shared_dir / "calls").unlink()
    env = {"PATH": f"{spy}:{cluster.env['PATH']}"}
    lines = cli(cluster, shared_dir, "status", str(path), env=env).stdout.splitlines()
    assert lines[1].split(maxsplit=1)[1] == "2 finished, 1 interrupted"
    table = cli(cluster, shared_dir, *results).stdout.splitlines()
    assert table[2].split()[:6] == ["#", "reward/mean", "RUN", "STATE", "STEP", "optim.lr"]
    rows = [line.split() for line in table[3:]]
    assert sorted(row[2] for row in rows) == ["0", "1", "2"]
    values = [float(row[1]) for row in rows]
    assert values == sorted(values, reverse=True)
    assert {row[2]: (row[3], row[5]) for row in rows}["0"] == ("interrupted", "0.0001")
    found = cli(cluster, shared_dir, *results, "--min", "--json").stdout
    assert [row["value"] for row in json.loads(found)] == sorted(values)
    missing = cli(cluster, shared_dir, "status", str(path), "--metric", "reward/meen")
    assert (missing.returncode, "reward/mean" in missing.stderr) == (2, True)
    assert cli(cluster, shared_dir, *report).returncode == 0 and (path / "report.html").is_file()


@pytest.mark.parametrize("number", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_large_sweep_is_submitted_in_few_calls(cluster: Cluster, shared_dir: Path, number: int) -> None:
    """One --test-only call and one sbatch; `-s` prints the time."""
    spy = make_spy(shared_dir, "sbatch")
    start = time.monotonic()
    words = ["optim.lr=range(1,101)", f"seed=range({number // 100})", "+cluster.slurm.extra.hold=true"]
    path = sweep(cluster, shared_dir, *words, spy=spy)
    seconds = time.monotonic() - start
    assert calls(shared_dir) == ["sbatch"] * 2
    assert len(ledger(path)["runs"]) == number
    assert len(list(path.glob("*/plan.json"))) == number
    print(f"{number} runs in {seconds:.1f} s")
    done = cli(cluster, shared_dir, "status", str(path))
    assert f"{number} pending" in done.stdout
    assert f"requested that {number} runs" in cli(cluster, shared_dir, "cancel", str(path)).stderr
    assert queue(cluster) == ""


def test_large_sweep_is_split_into_arrays(session_cluster: Cluster, cluster: Cluster, shared_dir: Path) -> None:
    with session_cluster.changed({"MaxArraySize": "4"}):
        # Until the nodes register with the new controller, it finds no matching node.
        wait_until(lambda: is_idle(cluster), "the nodes to report")
        words = ["optim.lr=1e-6,2e-6,3e-6,4e-6,5e-6", "cluster.cpus_per_node=1,2", "cluster.max_parallel_runs=1"]
        path = sweep(cluster, shared_dir, *words, "+cluster.slurm.extra.hold=true")
        entries = ledger(path)["runs"]
        sizes = [len(list(folder.glob("[0-9]*"))) for folder in sorted((path / "arrays").iterdir())]
        assert sizes == [4, 1, 4, 1]
        assert len({entry["array_job"] for entry in entries}) == 4
        for entry in entries:
            link = path / "arrays" / str(sorted({e["array_job"] for e in entries}, key=int).index(entry["array_job"]))
            assert (link / str(entry["array_index"])).resolve() == path / str(entry["index"])
        # One at a time over all arrays: each depends on the previous one.
        last = max({entry["array_job"] for entry in entries}, key=int)
        assert f"afterany:{int(last) - 1}" in cluster.run(["scontrol", "show", "job", last]).stdout
        assert cli(cluster, shared_dir, "cancel", str(path)).returncode == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["optim.lr=1e-6,-1", "algorithm.group_size=2,-3"], ["3 of 4 are not", "optim.lr=-1 algorithm.group_size=2"]),
        (["cluster.slurm.partition=main,mian"], ["cluster.slurm.partition=mian", "Invalid partition"]),
        (["optim.lr=1,2", "run_dir=x"], ["hydra.sweep.dir"]),
    ],
)
def test_refused_sweep_leaves_no_files(
    session_cluster: Cluster, shared_dir: Path, words: list[str], expected: list[str]
) -> None:
    done = refused(session_cluster, shared_dir, "-m", *SMALL, *words)
    assert done.returncode == 2, done.stderr
    for text in expected:
        assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert list(shared_dir.iterdir()) == []
    assert queue(session_cluster) == ""


@pytest.mark.slow
def test_adaptive_sweeper_waits_for_values(cluster: Cluster, shared_dir: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    path, stop = shared_dir / "sweep", threading.Event()

    def finish_runs() -> None:
        while not stop.wait(0.2):
            for log in path.glob("*/attempts/1/logs/driver.log"):
                if "resumes after" in log.read_text():
                    (log.parents[3] / "finish").touch()

    thread = threading.Thread(target=finish_runs)
    thread.start()
    try:
        done = cli(
            cluster,
            shared_dir,
            *["-m", "--metric=reward/mean", *SMALL, f"cluster.python={make_light_python(shared_dir)}"],
            *["hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1"],
            *["hydra.sweeper.direction=maximize", "optim.lr=interval(1e-6,1e-4)", f"hydra.sweep.dir={path}"],
        )
    finally:
        stop.set()
        thread.join()
    assert done.returncode == 0, done.stderr
    table = done.stdout.splitlines()
    assert table[2].split()[:6] == ["#", "reward/mean", "RUN", "STATE", "STEP", "optim.lr"]
    assert len(table) == 5
    best = (path / "optimization_results.yaml").read_text()
    assert f"best_value: {table[3].split()[1]}" in best
