"""Preflight finds sick nodes, excludes them, remembers them over requeues, and can clear them."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_rl.plugins.health.evidence import Evidence, find_bad, read_evidence
from slurm_rl.plugins.health.site import publish, read_site
from slurm_rl.run_dir.run_dir import RunDir
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import finish, refused, submit, wait_for_end, wait_for_step
from tests.whole_run import events_of

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

SMALL = ["cluster.num_nodes=2", "cluster.cpus_per_node=1", "cluster.mem_gb_per_node=2"]


def start(cluster: Cluster, folder: Path, *words: str, name: str = "run") -> tuple[Path, str]:
    """Submit a light run on two nodes, each with two GPUs of the fake nvidia-smi in `folder`; return run and job."""
    run = folder / name
    gpus = ["cluster.accelerator=nvidia", "cluster.gpus_per_node=2", "rollout.colocate=true", "model.dtype=float32"]
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    return run, submit(cluster, run, make_light_python(folder), *gpus, *SMALL, *words, env=env)


@pytest.mark.slow
def test_fault_of_all_nodes_excludes_none(cluster: Cluster, shared_dir: Path) -> None:
    make_nvidia_smi(shared_dir)
    for node in cluster.nodes:
        (shared_dir / f"{node}.lies").touch()
    run, job = start(cluster, shared_dir)
    end = wait_for_end(run)
    assert end["state"] == "failed"
    assert "the check gpus of the preflight" in end["cause"]
    assert "2 of 2 nodes" in end["cause"]
    assert (excluded_by_run(run), excluded_by_slurm(cluster, job), events_of(run, "job/requeued")) == ({}, "(null)", [])


def test_sick_node_is_excluded_over_requeues_and_runs(cluster: Cluster, shared_dir: Path) -> None:
    make_nvidia_smi(shared_dir)
    first, second, *_ = cluster.nodes
    (shared_dir / second).write_text(REMAP_FAILED)
    site = shared_dir / "site"
    # One node is not in the cluster, the other has rebooted since.
    for node, at in (("gone", time.time()), (first, 1.0)):
        row = Evidence.new(node, "xid", "Xid 79", "hard", attempt=1, now=at).to_row() | {"until": time.time() + 900}
        publish(str(site), [{**row, "time": at}], now=at)
    run, job = start(cluster, shared_dir, f"cluster.site_dir={site}")
    wait_for_second_attempt(run)
    nodes = events_of(run, "preflight/passed")[0]["nodes"]
    assert second not in nodes
    assert excluded_by_slurm(cluster, job) == second
    cluster.restart_controller()
    assert excluded_by_slurm(cluster, job) == second, "after a restart of Slurm's controller"
    send_stop_signal(cluster, nodes[0], run)
    wait_for_step(run, attempt=3)
    assert second not in events_of(run, "preflight/passed")[1]["nodes"]
    assert excluded_by_slurm(cluster, job) == second
    other, other_job = start(cluster, shared_dir, f"cluster.site_dir={site}", "cluster.num_nodes=1", name="other")
    assert excluded_by_slurm(cluster, other_job) == second
    wait_for_step(other)
    assert second not in events_of(other, "preflight/passed")[0]["nodes"]
    finish(run)
    finish(other)
    assert [row["outcome"] for row in events_of(run, "attempt/ended")] == ["lost", "checkpointed", "finished"]
    check_verb(cluster, shared_dir, second, site)


@pytest.mark.versions
def test_sick_node_of_one_type_is_excluded_by_one_requeue(cluster: Cluster, shared_dir: Path) -> None:
    """The job has one of two old and one of two new nodes; Slurm assigns the first of each."""
    make_nvidia_smi(shared_dir)
    sick, well = cluster.nodes[:2]
    (shared_dir / sick).write_text(REMAP_FAILED)
    kinds = ["+cluster.nodes.old.count=1", "+cluster.nodes.new.count=1", "policy.node_group=new"]
    run, job = start(cluster, shared_dir, *kinds)
    wait_for_second_attempt(run)
    (unfit,) = events_of(run, "node/unfit")
    assert (unfit["node"], unfit["check"], unfit["strength"]) == (sick, "ecc", "hard")
    [passed] = events_of(run, "preflight/passed")
    assert passed["nodes"][0] in cluster.nodes[2:] and passed["nodes"][1:] == [well]
    assert [row["nodes"] for row in events_of(run, "nodes/excluded")] == [[sick]]
    assert not events_of(run, "nodes/exclusion_skipped")
    shown = cluster.run(["scontrol", "show", "job", job]).stdout
    assert shown.count(f"ExcNodeList={sick}\n") == 2, shown
    finish(run)
    assert [row["outcome"] for row in events_of(run, "attempt/ended")] == ["lost", "finished"]


def wait_for_second_attempt(run: Path) -> None:
    wait_until(lambda: (run / "end.json").is_file() or events_of(run, "attempt/started")[1:], "the second attempt")
    wait_for_step(run, attempt=2)


def send_stop_signal(cluster: Cluster, node: str, run: Path) -> None:
    """Send the signal that Slurm sends before a time limit."""
    words = f"submitit.core._submit {run / 'submitit'}"
    (pid, *_) = [process.pid for process in cluster.processes(node) if words in process.cmdline]
    cluster.signal(node, pid, signal.SIGUSR2)


def list_nodes(cluster: Cluster, folder: Path, site: Path, *words: str) -> str:
    done = refused(cluster, folder, "doctor", "--nodes", "--site-dir", str(site), *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_verb(cluster: Cluster, folder: Path, node: str, site: Path) -> None:
    """List the node, clear it, and add another one with the verb `nodes`."""
    shown = list_nodes(cluster, folder, site)
    assert f"{node}  " in shown and "ecc" in shown
    list_nodes(cluster, folder, site, "--clear", node)
    assert node not in find_bad(read_site(str(site)), time.time())
    list_nodes(cluster, folder, site, "--exclude", "n9", "--why", "fan")
    assert find_bad(read_site(str(site)), time.time())["n9"].value == "fan"


@pytest.mark.slow
def test_pending_job_excludes_bad_node_by_one_requeue(cluster: Cluster, shared_dir: Path) -> None:
    """A node is marked bad while the job is pending on it."""
    make_nvidia_smi(shared_dir)
    site = shared_dir / "site"
    run, job = start(cluster, shared_dir, f"cluster.site_dir={site}", "+cluster.slurm.extra.hold=true")
    bad = cluster.nodes[0]
    list_nodes(cluster, shared_dir, site, "--exclude", bad, "--why", "fan")
    cluster.run(["scontrol", "update", f"JobId={job}", f"NodeList={bad}"])
    cluster.run(["scontrol", "release", job])
    wait_until(lambda: events_of(run, "nodes/avoided"), "the first start to remember")
    clear = ["scontrol", "update", f"JobId={job}", "NodeList="]
    wait_until(lambda: cluster.run(clear).returncode == 0, "Slurm to take any node")
    wait_until(lambda: (run / "end.json").is_file() or events_of(run, "preflight/passed"), "the second start")
    assert bad not in events_of(run, "preflight/passed")[0]["nodes"]
    assert excluded_by_slurm(cluster, job) == bad
    finish(run)
    assert len(events_of(run, "nodes/avoided")) == 1


def test_node_with_missing_gpus_or_full_shm_is_excluded(cluster: Cluster, shared_dir: Path) -> None:
    make_nvidia_smi(shared_dir)
    first, second, third, fourth = cluster.nodes
    (shared_dir / f"{second}.lies").touch()
    with full_shm(cluster, third):
        run, _ = start(cluster, shared_dir, "job.num_spare_nodes=2")
        wait_for_step(run)
    (passed,) = events_of(run, "preflight/passed")
    assert passed["nodes"] == [first, fourth]
    assert passed["left_out"][second].endswith("not 2")
    assert "/dev/shm has" in passed["left_out"][third]
    assert excluded_by_run(run) == {second: "gpus", third: "files"}
    finish(run)


@contextmanager
def full_shm(cluster: Cluster, node: str) -> Iterator[None]:
    """Remount /dev/shm with a small size: filling it would use as much of this machine's memory."""
    full = "mount -o remount,size=64k /dev/shm && head -c 100000 /dev/zero > /dev/shm/full"
    cluster.run(["sh", "-c", full], node=node)
    yield
    cluster.run(["sh", "-c", "rm /dev/shm/full && mount -o remount,size=50% /dev/shm"], node=node)


@pytest.mark.slow
def test_node_with_slow_disk_is_excluded(cluster: Cluster, shared_dir: Path) -> None:
    make_nvidia_smi(shared_dir)
    slow = cluster.nodes[1]
    with slow_disk(cluster, slow, shared_dir) as tmp_root:
        words = ["cluster.num_nodes=3", "job.num_spare_nodes=1", f"cluster.tmp_root={tmp_root}"]
        run, job = start(cluster, shared_dir, *words)
        wait_until(lambda: events_of(run, "preflight/passed"), "the preflight")
        cluster.run(["scancel", job])
    (passed,) = events_of(run, "preflight/passed")
    assert list(passed.get("left_out", {})) == [slow], passed
    assert "writes to tmp_root at" in passed["left_out"][slow]
    assert excluded_by_run(run) == {slow: "disks"}


@contextmanager
def slow_disk(cluster: Cluster, node: str, folder: Path) -> Iterator[Path]:
    """Mount a file system on this node that is frozen most of the time."""
    place, image = folder / "scratch", folder / "disk.img"
    place.mkdir()
    place.chmod(0o1777)
    mount = f"truncate -s 64M {image} && mkfs.ext4 -q -F -m 0 {image} && mount -o loop {image} {place}"
    done = cluster.run(["sh", "-c", f"{mount} && chmod 1777 {place}"], node=node)
    if done.returncode:
        pytest.skip(f"no loop device here: {done.stderr.strip()}")
    # A process that waits for a frozen file system cannot be killed, so a file ends the loop.
    beat = f"fsfreeze -f {place}; sleep 4; fsfreeze -u {place}"
    loop = f"trap '' INT TERM HUP; while [ ! -e {folder}/thaw ]; do {beat}; done; umount -l {place}"
    with subprocess.Popen(cluster.on_node(node, ["sh", "-c", loop]), start_new_session=True):
        yield place
        (folder / "thaw").touch()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_level_full_excludes_slow_cpu_and_network(cluster: Cluster, shared_dir: Path) -> None:
    _, second, third, _ = cluster.nodes
    python = make_slow_python(shared_dir, make_light_python(shared_dir), third)
    words = ["preflight.level=full", "job.num_spare_nodes=2"]
    with changed_network(cluster, second, "tc qdisc {} dev eth0 root tbf rate 50mbit burst 64kb latency 50ms"):
        run = shared_dir / "run"
        job = submit(cluster, run, python, *SMALL, *words)
        wait_until(lambda: events_of(run, "preflight/passed"), "the preflight", timeout_s=500)
        cluster.run(["scancel", job])
    (passed,) = events_of(run, "preflight/passed")
    assert sorted(passed["left_out"]) == [second, third], passed
    assert "its all-reduce is slow" in passed["left_out"][second]
    assert excluded_by_run(run) == {second: "fabric", third: "matmul"}
    assert sorted(passed["fabric"]["nodes"]) == cluster.nodes


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cut_link_between_two_nodes_excludes_neither(cluster: Cluster, shared_dir: Path) -> None:
    # Not the first node, where the controller runs.
    *_, first, second = cluster.nodes
    run = shared_dir / "run"
    words = ["cluster.num_nodes=4", "preflight.level=full"]
    with changed_network(cluster, first, f"ip route {{}} blackhole {cluster.ip(second)}/32"):
        job = submit(cluster, run, make_light_python(shared_dir), *SMALL, *words)
        wait_until(lambda: events_of(run, "preflight/passed"), "the preflight", timeout_s=500)
        cluster.run(["scancel", job])
    (passed,) = events_of(run, "preflight/passed")
    assert f"fabric: the link between {first} and {second}: no answer" in passed["warned"]
    assert "left_out" not in passed
    assert excluded_by_run(run) == {}


@contextmanager
def changed_network(cluster: Cluster, node: str, command: str) -> Iterator[None]:
    """Run the command in the node's network namespace; `{}` is add, then del."""

    def run(action: str) -> None:
        argv = ["ip", "netns", "exec", cluster.slot.namespace(node), *command.format(action).split()]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode and action == "add":
            pytest.skip(f"this machine cannot do {command}: {done.stderr.strip()}")

    run("add")
    try:
        yield
    finally:
        run("del")


SAMPLE = Path(__file__).parents[1] / "samples" / "nvidia-smi-q.h100-healthy.txt"
REMAP_FAILED = "s/Remapping Failure Occurred        : No/Remapping Failure Occurred        : Yes/"


def make_nvidia_smi(folder: Path) -> Path:
    """Return a folder for PATH. The file `<folder>/<node>` holds a sed program for that node's output for two GPUs."""
    text = SAMPLE.read_text(encoding="utf-8").replace("Attached GPUs                             : 8", "")
    head, _, rest = text.partition("GPU 0000")
    gpu = f"GPU 0000{rest}"
    (folder / "two.txt").write_text(head + 2 * gpu)
    (folder / "one.txt").write_text(head + gpu)
    program = folder / "nvidia-smi"
    program.write_text(
        f"""#!/bin/sh
[ "$1" = -q ] || exit 1
sick={folder}/$SLURMD_NODENAME text={folder}/two.txt
[ -e $sick.lies ] && text={folder}/one.txt
[ -r $sick ] && exec sed "$(cat $sick)" $text
exec cat $text
"""
    )
    program.chmod(0o755)
    return folder


def make_slow_python(folder: Path, python: Path, node: str) -> Path:
    """Make a cluster.python that limits ranks of the fabric test on this node to a tenth of their core."""
    program = folder / "slow-python"
    program.write_text(
        f"""#!/bin/sh
case "$SLURMD_NODENAME $*" in "{node} "*fabric_node*) ;; *) exec {python} "$@" ;; esac
setsid {python} "$@" & pid=$!
trap 'env kill -KILL -- -$pid; exit 1' TERM INT HUP
while kill -0 $pid 2>/dev/null; do
env kill -STOP -- -$pid; sleep 0.09; env kill -CONT -- -$pid; sleep 0.01
done
"""
    )
    program.chmod(0o755)
    return program


def excluded_by_run(run: Path) -> dict[str, str]:
    """Return the nodes that the run excludes, with the check that failed."""
    return {node: one.check for node, one in find_bad(read_evidence(RunDir(run)), now=0.0).items()}


def excluded_by_slurm(cluster: Cluster, job: str) -> str:
    """Return the job's ExcNodeList in Slurm; "(null)" if empty."""
    shown = cluster.run(["scontrol", "show", "job", job]).stdout
    return next((word.partition("=")[2] for word in shown.split() if word.startswith("ExcNodeList=")), "no job")
