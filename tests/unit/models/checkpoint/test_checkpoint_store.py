import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from slurm_rl.errors import CheckpointError
from slurm_rl.models.checkpoint import store as checkpoints
from slurm_rl.models.checkpoint.background import write_whole
from slurm_rl.models.checkpoint.store import CheckpointStore
from tests.small_disk import small_disk


def save(store: CheckpointStore, step: int, size: int = 1000) -> Path:
    folder = store.begin(step)
    (folder / "rank-0.pt").write_bytes(bytes([step % 256]) * size)
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "rank-1.pt").write_bytes(random.Random(step).randbytes(size))
    return store.commit(step, {"step": step, "name": "abc"}).path


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def latest_step(store: CheckpointStore) -> int | None:
    newest = CheckpointStore(store.root).latest()
    return newest.step if newest else None


def test_newest_without_checkpoint_is_none(store: CheckpointStore) -> None:
    assert store.latest() is None
    assert store.prune(keep=2) == []


def test_newest_is_by_number_with_meta(store: CheckpointStore) -> None:
    for step in (2, 10, 9):
        save(store, step)
    newest = store.latest()
    assert newest is not None
    assert (newest.step, newest.path.name) == (10, "step-10")
    assert newest.meta == {"step": 10, "name": "abc"}
    assert store.skipped == []


def test_begin_removes_leftovers_of_crash(store: CheckpointStore) -> None:
    stale = store.begin(1)
    (stale / "rank-0.pt").write_bytes(b"half")
    fresh = store.begin(1)
    assert not stale.exists()
    assert list(fresh.iterdir()) == []


def test_commit_without_begin_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(CheckpointError, match="begin"):
        store.commit(3, {})


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "truncated": (lambda p: os.truncate(p / "rank-0.pt", 999), "rank-0.pt has 999 bytes in place of 1000"),
    "flipped": (lambda p: flip_bit(p / "deep/er/rank-1.pt"), "deep/er/rank-1.pt has other bytes"),
    "missing": (lambda p: (p / "rank-0.pt").unlink(), "rank-0.pt is missing"),
    "extra": (lambda p: (p / "rank-7.pt").write_bytes(b"x"), "rank-7.pt does not belong"),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "cannot be read"),
    "manifest cut": (lambda p: os.truncate(p / "manifest.json", 40), "manifest.json is broken"),
    "manifest empty": (lambda p: os.truncate(p / "manifest.json", 0), "manifest.json is broken"),
    "manifest of another kind": (lambda p: (p / "manifest.json").write_text("[]"), "manifest.json is broken"),
    "manifest edited": (
        lambda p: (p / "manifest.json").write_text((p / "manifest.json").read_text().replace("abc", "abd")),
        "does not match its own hash",
    ),
    "dangling link": (lambda p: ((p / "rank-0.pt").unlink(), (p / "rank-0.pt").symlink_to("gone")), "cannot be read"),
    "another step": (
        lambda p: (checkpoints.shutil.rmtree(p), checkpoints.shutil.copytree(p.parent / "step-1", p)),
        "holds step 1",
    ),
    "a file": (lambda p: (checkpoints.shutil.rmtree(p), p.write_text("")), "cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_leaves_previous_one(store: CheckpointStore, damage: str) -> None:
    save(store, 1)
    newest = save(store, 2)
    harm, reason = DAMAGE[damage]
    harm(newest)
    found = store.latest()
    assert found is not None
    assert found.step == 1
    assert len(store.skipped) == 1
    assert store.skipped[0].startswith("step-2: ")
    assert reason in store.skipped[0]


def test_prune_removes_nothing_if_newest_is_damaged(store: CheckpointStore) -> None:
    for step in range(3):
        save(store, step)
    flip_bit(store.root / "step-2" / "rank-0.pt")
    resumed = CheckpointStore(store.root)
    assert resumed.prune(keep=1) == []
    assert latest_step(resumed) == 1


def test_commit_and_prune_skip_files_hashed_by_writer(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1)
    read: list[str] = []
    describe = checkpoints.describe_file
    monkeypatch.setattr(checkpoints, "describe_file", lambda path: (read.append(path.name), describe(path))[1])
    folder = store.begin(2)
    write_whole(folder / "rank-0.pt", lambda file: torch.save(torch.arange(9), file), with_sum=True)
    (folder / "layout.json").write_text("{}")
    store.commit(2, {})
    assert store.prune(keep=1) == [1]
    assert read == ["layout.json"]
    names = sorted(path.name for path in (store.root / "step-2").iterdir())
    assert names == ["layout.json", checkpoints.MANIFEST, "rank-0.pt"]
    assert latest_step(store) == 2, "the hash is that of the file"


def test_resume_leaves_all_bytes_to_hash_files(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1)
    (save(store, 2) / "deep" / "er" / "rank-1.pt").write_bytes(random.Random(3).randbytes(1000))
    hash_one = checkpoints.hash_file

    def hash_files(files: Sequence[Path]) -> list[str]:
        return [hash_one(file) for file in files]

    def refuse(path: Path) -> str:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(checkpoints, "hash_file", refuse)
    resumed = CheckpointStore(store.root, hash_files=hash_files)
    newest = resumed.latest()
    assert newest is not None and newest.step == 1
    assert resumed.skipped == ["step-2: deep/er/rank-1.pt has other bytes than were written"]


def test_unreadable_file_skips_checkpoint_with_reason(store: CheckpointStore) -> None:
    save(store, 1)
    save(store, 2)

    def hash_files(files: Sequence[Path]) -> list[str]:
        return checkpoints.hash_here([file.with_name("x") if file.parent.name == "step-2" else file for file in files])

    resumed = CheckpointStore(store.root, hash_files=hash_files)
    newest = resumed.latest()
    assert newest is not None and newest.step == 1
    assert "rank-0.pt unreadable: [Errno 2]" in resumed.skipped[0]


def test_prune_keeps_single_checkpoint(store: CheckpointStore) -> None:
    save(store, 1)
    assert store.prune(keep=0) == []
    assert latest_step(store) == 1


def test_repeated_save_keeps_verified_checkpoint(store: CheckpointStore) -> None:
    path = save(store, 1)
    before = path.stat().st_ino
    assert save(store, 1).stat().st_ino == before
    assert [p.name for p in store.root.iterdir()] == ["step-1"]


def test_repeated_save_replaces_damaged_checkpoint(store: CheckpointStore) -> None:
    flip_bit(save(store, 1) / "rank-0.pt")
    save(store, 1)
    assert latest_step(store) == 1
    save(store, 2)  # removes the damaged checkpoint that was moved aside
    assert sorted(p.name for p in store.root.iterdir()) == ["step-1", "step-2"]


@pytest.mark.parametrize("call", ["fsync_path", "write_json"])
def test_full_disk_leaves_previous_one(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save(store, 1)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, call, refuse)
        with pytest.raises(CheckpointError, match=r"No space left on device.*Next: make room") as caught:
            save(store, 2)
    assert str(store.root) in str(caught.value)
    assert latest_step(store) == 1
    assert sorted(p.name for p in store.root.iterdir()) == ["step-1"]


def test_full_file_system_leaves_previous_one(tmp_path: Path) -> None:
    with small_disk(tmp_path, size_kb=256) as disk:
        store = CheckpointStore(disk / "checkpoints")
        save(store, 1, size=50_000)
        folder = store.begin(2)
        with pytest.raises(OSError, match="No space"):
            (folder / "rank-0.pt").write_bytes(bytes(300_000))
        with pytest.raises(CheckpointError, match="No space left on device"):
            store.commit(2, {"step": 2})
        assert latest_step(store) == 1
        save(store, 3, size=10_000)  # the failed checkpoint's space is free again
        assert latest_step(store) == 3


def test_unwritable_root_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file/checkpoints"):
        CheckpointStore(tmp_path / "file" / "checkpoints").begin(1)


def test_prune_spares_best(store: CheckpointStore) -> None:
    for step in range(5):
        save(store, step)
    assert store.prune(keep=1, spare={1}) == [3, 2, 0]
    assert sorted(p.name for p in store.root.iterdir()) == ["step-1", "step-4"]
