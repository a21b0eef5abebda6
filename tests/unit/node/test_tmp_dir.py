import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.errors import BringUpError
from slurm_rl.node.private_folder import choose_tmp_dir, make_private_folder, remove_tmp_dir, remove_tmp_dirs, tmp_stem
from slurm_rl.node.ray_cluster import keep_ray_logs
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.run_dir.run_secret import create_token
from tests.other_user import STRANGER, as_stranger
from tests.plans import demo_plan


def test_remove_tmp_dir_repeats_after_late_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "srl"
    folder.mkdir()
    remove, late = shutil.rmtree, [folder / "first", folder / "second"]

    def remove_and_write(path: Path, **options: Any) -> None:
        remove(path, **options)
        if late:
            late.pop().mkdir(parents=True)

    monkeypatch.setattr(shutil, "rmtree", remove_and_write)
    remove_tmp_dir(folder)
    assert not folder.exists() and not late


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder like /tmp, where every user may write."""
    place = tmp_path / "t"
    place.mkdir()
    place.chmod(0o1777)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    return place


def test_make_private_folder_is_private_and_reusable(place: Path) -> None:
    folder = place / "srl-0-1"
    before = os.umask(0)
    try:
        make_private_folder(folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "kept").touch()
    make_private_folder(folder)
    assert (folder / "kept").is_file()
    folder.chmod(0o777)
    as_stranger((folder / "planted").touch)
    make_private_folder(folder)
    assert list(folder.iterdir()) == [] and stat.S_IMODE(folder.stat().st_mode) == 0o700
    place.chmod(0o777)  # not sticky
    with pytest.raises(BringUpError, match="every user rename"):
        make_private_folder(place / "srl-0-2")


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lambda path: path.mkdir(mode=0o777), "a folder"),
        (lambda path: path.touch(), "a file"),
        (lambda path: path.symlink_to("/etc"), "a link"),
        (lambda path: path.symlink_to(path.parent / "nowhere"), "a link"),
    ],
)
def test_make_private_folder_refuses_folder_of_other_user(
    place: Path, plant: Callable[[Path], None], kind: str
) -> None:
    folder = place / "srl-0-1"
    as_stranger(lambda: plant(folder))
    with pytest.raises(BringUpError, match=rf"{kind} of .*Next: .*cluster\.tmp_root"):
        make_private_folder(folder)
    remove_tmp_dir(folder)
    assert folder.lstat().st_uid == STRANGER and Path("/etc/passwd").is_file()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


@pytest.fixture
def plan(run: RunDir, place: Path, monkeypatch: pytest.MonkeyPatch) -> JobPlan:
    monkeypatch.chdir(place)  # pytest's paths are too long for Ray
    return replace(demo_plan(run), tmp_root=".")


def test_choose_tmp_dir_derives_from_secret_token(run: RunDir, plan: JobPlan, place: Path) -> None:
    create_token(run, 3)
    folder = choose_tmp_dir(run, plan, 3)
    assert folder == choose_tmp_dir(RunDir(run.path), plan, 3)

    def plant() -> None:
        uid = os.geteuid()
        for word in ("", f"-{uid}", "-aaaaaaa", f"-{hashlib.sha256(plan.run_dir.encode()).hexdigest()[:7]}"):
            (place / f"{tmp_stem(plan)}3{word}").mkdir(exist_ok=True)

    as_stranger(plant)
    make_private_folder(place / folder)
    run2 = RunDir(run.path)
    create_token(run2, 3)
    assert choose_tmp_dir(run2, plan, 3) != folder
    (run.secrets / "ray-token-3").unlink()
    assert choose_tmp_dir(run, plan, 3) != choose_tmp_dir(run, plan, 3)


def test_remove_tmp_dirs_finds_folders_of_run_only(run: RunDir, plan: JobPlan, place: Path) -> None:
    for attempt in (1, 2, 10):
        make_private_folder(choose_tmp_dir(run, plan, attempt))
    other = choose_tmp_dir(run, replace(plan, run_dir="/another"), 1)
    make_private_folder(other)
    as_stranger((place / f"{tmp_stem(plan)}1-theirs").mkdir)

    def numbers() -> list[str]:
        ours = [path for path in place.glob(f"{tmp_stem(plan)}*") if path.stat().st_uid == os.geteuid()]
        return sorted(path.name.removeprefix(tmp_stem(plan)).partition("-")[0] for path in ours)

    remove_tmp_dirs(plan, 1)
    assert numbers() == ["10", "2"]
    remove_tmp_dirs(plan, before=10)
    assert numbers() == ["10"]
    remove_tmp_dirs(plan)
    assert numbers() == [] and other.is_dir()
    assert (place / f"{tmp_stem(plan)}1-theirs").stat().st_uid == STRANGER


def test_choose_tmp_dir_refuses_long_path(run: RunDir, plan: JobPlan) -> None:
    assert choose_tmp_dir(run, replace(plan, tmp_root="/scratch/local/tmp"), 99)
    with pytest.raises(BringUpError, match="must leave room for Ray's sockets"):
        choose_tmp_dir(run, replace(plan, tmp_root="/scratch/local/tmp/too"), 1)


def test_keep_ray_logs_copies_regular_files_only(place: Path, tmp_path: Path) -> None:
    tmp_dir, kept = place / "srl-0-1", tmp_path / "kept"
    make_private_folder(tmp_dir)
    logs = tmp_dir / "r" / "session_2026" / "logs"
    logs.mkdir(parents=True)
    for name, text in {"gcs.out": "log", "private.out": "private log", "empty.out": ""}.items():
        (logs / name).write_text(text)
    (logs / "private.out").chmod(0o600)
    (logs / "link.out").symlink_to("/etc/passwd")
    os.mkfifo(logs / "pipe.out")
    (logs / "large.out").write_bytes(bytes(2_000_001))
    (logs / "events").mkdir()
    (tmp_dir / "r" / "session_2027").symlink_to(logs.parent)
    keep_ray_logs(tmp_dir, kept)
    assert {path.name: path.read_text() for path in kept.iterdir()} == {"gcs.out": "log", "private.out": "private log"}
    assert stat.S_IMODE((kept / "private.out").stat().st_mode) == 0o600

    def plant() -> None:
        theirs = place / "srl-0-2" / "r" / "session_2026" / "logs"
        theirs.mkdir(parents=True)
        (theirs / "gcs.out").write_text("theirs")

    as_stranger(plant)
    keep_ray_logs(place / "srl-0-2", tmp_path / "none")
    assert not (tmp_path / "none").exists()
