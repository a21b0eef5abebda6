"""Another user attacks the demo while it runs: its metrics are identical and its data stay private."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.hostile_neighbour import Neighbour
from tests.train.test_run import find_temp_dirs
from tests.whole_run import exact_rows, start_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
# Targets that are not files, or belong to the system.
_NOT_OURS = re.compile(r"^(?!/)|^/(dev/(?!shm/)|proc/|sys/|usr/|lib|bin/|etc/)| \(deleted\)$|^/memfd:")


def find_run_processes(process: subprocess.Popen[str], mark: Path) -> list[psutil.Process]:
    """Return all processes of the run, including Ray's orphans, which its environment variables identify."""
    found = {one.pid: one for one in psutil.Process(process.pid).children(recursive=True)}
    for one in psutil.process_iter():
        try:
            if str(mark).encode() in Path(f"/proc/{one.pid}/environ").read_bytes():
                found[one.pid] = one
        except OSError:
            continue
    return list(found.values())


def listening_ports(processes: list[psutil.Process]) -> list[int]:
    found = set()
    for one in processes:
        try:
            found |= {c.laddr.port for c in one.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        except psutil.Error:
            continue
    return sorted(found)


def find_exposed(processes: list[psutil.Process], python: Path) -> set[str]:
    """Return open writable files and shared memory, outside the installation, that any user can access."""
    paths = set()
    for one in processes:
        try:
            paths |= {file.path for file in one.open_files() if file.mode != "r"}
            paths |= {
                mapped.path for mapped in one.memory_maps() if mapped.path.startswith(("/dev/shm", "/tmp", "/var"))
            }
        except (psutil.Error, OSError):
            continue
    return {
        path for path in paths if not _NOT_OURS.search(path) and not path.startswith(str(python)) and _reaches(path)
    }


def _reaches(path: str) -> bool:
    try:
        if not Path(path).stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            return False
        return all(parent.stat().st_mode & stat.S_IXOTH for parent in Path(path).parents)
    except OSError:
        return False


@pytest.fixture
def place() -> Iterator[Path]:
    """Make a folder that the other user can traverse up to the run; pytest restricts its own folders."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    folder = Path(tempfile.mkdtemp(prefix="slurm_rl-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_demo_with_hostile_neighbour_has_identical_metrics(whole_run: Path, place: Path) -> None:
    run_dir, neighbour = place / "run", Neighbour(place / "neighbour")
    before = os.umask(0o077)
    try:
        process = start_run(run_dir, "+reward=service", "reward.service.num_replicas=2")
    finally:
        os.umask(before)
    open_files: set[str] = set()
    num_ports = 0
    with neighbour.at_work():
        while process.poll() is None:
            found = find_run_processes(process, run_dir)
            ports = listening_ports(found)
            num_ports = max(num_ports, len(ports))
            folders = [run_dir]
            if (run_dir / "plan.json").exists():
                folders += find_temp_dirs(run_dir)
            neighbour.point_at(pids=[one.pid for one in found], ports=ports, folders=folders)
            open_files |= find_exposed(found, Path(sys.prefix))
            time.sleep(0.5)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert exact_rows(run_dir) == exact_rows(whole_run)
    assert neighbour.loot == [] and open_files == set()
    # The attacker reached Ray's ports and those of two services.
    assert num_ports > 8
    events = read_rows(RunDir(run_dir).events)
    assert [row for row in events if row["kind"] == "reward/service_died"] == []
    size = sum(path.stat().st_size for path in (run_dir / "attempts").rglob("*.log"))
    assert size < 5_000_000 and len(events) < 200
