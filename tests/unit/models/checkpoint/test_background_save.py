import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from slurm_rl.errors import CheckpointError
from slurm_rl.models.checkpoint.background import (
    reserve_reason,
    sum_file,
    wait_for_files,
    write_or_report,
    write_whole,
)
from slurm_rl.models.checkpoint.store import CheckpointStore

NUM_KILLS = 20


def test_file_gets_name_after_writing(tmp_path: Path) -> None:
    path, go_on = tmp_path / "rank-0.pt", threading.Event()

    def write(file: BinaryIO) -> None:
        file.write(b"wh")
        assert go_on.wait(30)
        file.write(b"ole")

    reserve_reason(path)
    threading.Thread(target=write_or_report, args=(path, write)).start()
    assert not path.exists()
    go_on.set()
    wait_for_files([path], 30, threading.Event())
    assert path.read_bytes() == b"whole"
    assert sum_file(path).read_text() == hashlib.sha256(b"whole").hexdigest()
    assert sorted(tmp_path.iterdir()) == [path, sum_file(path)]


def test_writer_that_goes_back_leaves_no_hash(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", lambda file: (file.write(b"ab"), file.seek(0), file.write(b"c")), with_sum=True)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"cb")]


def test_failed_writer_reports_cause_and_leaves_no_file(tmp_path: Path) -> None:
    def refuse(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    reserve_reason(tmp_path / "rank-0.pt")
    write_or_report(tmp_path / "rank-0.pt", refuse)
    with pytest.raises(CheckpointError, match=r"No space left on device.*rank-0\.pt.*Next: make room"):
        wait_for_files([tmp_path / "rank-0.pt"], 30, threading.Event())
    assert [p.name for p in tmp_path.iterdir()] == ["rank-0.pt.error"]
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "b", refuse)


def test_wait_has_timeout(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"within 0 s; got no .*rank-7\.pt"):
        wait_for_files([tmp_path / "rank-7.pt"], 0, threading.Event())
    given_up = threading.Event()
    given_up.set()
    with pytest.raises(CheckpointError, match="a worker that died"):
        wait_for_files([tmp_path / "rank-7.pt"], 3600, given_up)


SAVE_FOR_EVER = """
import itertools, sys
from pathlib import Path
from slurm_rl.models.checkpoint.store import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]))
newest = store.latest()
for step in itertools.count(newest.step + 1 if newest else 0):
    folder = store.begin(step)
    for rank in range(4):
        (folder / f"rank-{rank}.pt").write_bytes(bytes([step % 256]) * 300_000)
    store.commit(step, {"step": step})
    print(step, flush=True)
    store.prune(keep=2)
"""
TRAIN_FOR_EVER = """
import itertools, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from slurm_rl.models.checkpoint.background import reserve_reason, wait_for_files, write_or_report
from slurm_rl.models.checkpoint.store import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]))
newest = store.latest()
state, saving, writers = bytearray(300_000), None, ThreadPoolExecutor(4)

def finish(step, files):
    wait_for_files(files, 60, threading.Event())
    store.commit(step, {"step": step})
    print(step, flush=True)
    store.prune(keep=2)

for step in itertools.count(newest.step + 1 if newest else 0):
    state[:] = bytes([step % 256]) * len(state)  # a step of training
    if saving:
        saving.join()
    folder, files, copy = store.begin(step), [], bytes(state)
    for rank in range(4):
        files.append(folder / f"rank-{rank}.pt")
        reserve_reason(files[-1])
        writers.submit(write_or_report, files[-1], lambda file, copy=copy: file.write(copy))
    saving = threading.Thread(target=finish, args=(step, files))
    saving.start()
"""


@pytest.mark.parametrize("code", [SAVE_FOR_EVER, TRAIN_FOR_EVER], ids=["foreground", "background"])
def test_kill_at_any_moment_leaves_verified_newest(tmp_path: Path, code: str) -> None:
    """An announced checkpoint is never lost, and all its bytes belong to its step."""
    root, chance = tmp_path / "checkpoints", random.Random(0)
    announced, left_behind = -1, 0
    for _ in range(NUM_KILLS):
        child = subprocess.Popen([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, text=True, bufsize=1)
        assert child.stdout is not None
        first = child.stdout.readline()
        assert first, "the child ended by itself"
        time.sleep(chance.uniform(0, 0.1))
        child.send_signal(signal.SIGKILL)
        lines = [first, *child.stdout.readlines()]
        child.wait()
        announced = max(announced, *(int(line) for line in lines if line.endswith("\n")))
        left_behind += any(root.glob(".step-*"))
        store = CheckpointStore(root)
        newest = store.latest()
        assert newest is not None
        assert store.skipped == []
        assert announced <= newest.step <= announced + 1
        assert newest.meta == {"step": newest.step}
        for rank in range(4):
            assert (newest.path / f"rank-{rank}.pt").read_bytes() == bytes([newest.step % 256]) * 300_000
    assert left_behind >= NUM_KILLS // 4, "the kills must land inside saves to prove anything"
    CheckpointStore(root).begin(10**6)
    assert len(list(root.glob(".step-*"))) == 1


def test_background_needs_only_standard_library() -> None:
    # -S hides all installed packages.
    code = "import slurm_rl.models.checkpoint.background, slurm_rl.models.checkpoint.store"
    subprocess.run([sys.executable, "-S", "-c", code], check=True, cwd=Path(__file__).parents[4])
