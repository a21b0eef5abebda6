"""The node-local folder is ours alone, and goes, also while something still writes into it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import BringUpError
from slurm_rl.node.private_folder import make_private_folder
from slurm_rl.node.ray_cluster import create_token, keep_ray_logs
from slurm_rl.node.tmp_dir import choose_tmp_dir, remove_tmp_dir, remove_tmp_dirs, tmp_stem
from slurm_rl.plan.job import JobPlan, SubmitFacts, build_plan
from slurm_rl.run_dir.run_dir import RunDir
from tests.other_user import STRANGER, as_stranger


def test_a_folder_into_which_a_dying_process_writes_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "srl"
    folder.mkdir()
    remove, late = shutil.rmtree, [folder / "first", folder / "second"]

    def remove_and_write(path: Path, **options: Any) -> None:
        remove(path, **options)
        if late:
            late.pop().mkdir(parents=True)

    monkeypatch.setattr(shutil, "rmtree", remove_and_write)
    remove_tmp_dir(folder)
    assert not folder.exists()
    assert not late


def test_a_folder_that_is_not_there_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"slept for {seconds} s"))
    remove_tmp_dir(tmp_path / "absent")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A /tmp: everybody may make something there."""
    place = tmp_path / "t"
    place.mkdir()
    place.chmod(0o1777)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    return place


def test_a_new_folder_is_for_its_user_alone_and_may_be_taken_again(place: Path) -> None:
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


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lambda path: path.mkdir(mode=0o777), "a folder"),
        (lambda path: path.touch(), "a file"),
        (lambda path: path.symlink_to("/etc"), "a link"),
        (lambda path: path.symlink_to(path.parent / "nowhere"), "a link"),
    ],
)
def test_what_a_stranger_made_first_is_refused_by_name(place: Path, plant: Callable[[Path], None], kind: str) -> None:
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
    monkeypatch.chdir(place)  # pytest's folders are too far from the root for Ray
    plan = build_plan(load_config(["+exp=demo"]), str(run.path), SubmitFacts("/python", 4, "1"))
    return replace(plan, tmp_root=".")


def test_nobody_can_take_the_name_first_and_all_nodes_have_the_same(run: RunDir, plan: JobPlan, place: Path) -> None:
    """A stranger knows run, attempt and uid; he makes what he can think of."""
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
    assert choose_tmp_dir(run2, plan, 3) != folder, "another token, another name"
    (run.secrets / "ray-token-3").unlink()
    assert choose_tmp_dir(run, plan, 3) != choose_tmp_dir(run, plan, 3), "without a token it is drawn"


def test_cleaning_finds_the_folders_of_a_run_without_its_secret_and_none_of_others(
    run: RunDir, plan: JobPlan, place: Path
) -> None:
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


def test_a_place_that_is_too_long_for_rays_sockets_is_refused(run: RunDir, plan: JobPlan) -> None:
    assert choose_tmp_dir(run, replace(plan, tmp_root="/scratch/local/tmp"), 99)
    with pytest.raises(BringUpError, match="must leave room for Ray's sockets"):
        choose_tmp_dir(run, replace(plan, tmp_root="/scratch/local/tmp/too"), 1)


def test_a_link_that_is_ours_is_refused_too(place: Path) -> None:
    (place / "real").mkdir(mode=0o700)
    (place / "srl-0-1").symlink_to(place / "real")
    with pytest.raises(BringUpError, match="a link of"):
        make_private_folder(place / "srl-0-1")


def test_what_others_could_put_into_a_folder_of_ours_goes_with_it(place: Path) -> None:
    folder = place / "srl-0-1"
    folder.mkdir()
    folder.chmod(0o777)
    as_stranger((folder / "planted").touch)
    make_private_folder(folder)
    assert list(folder.iterdir()) == [] and stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_place_where_everybody_may_rename_is_refused(place: Path) -> None:
    place.chmod(0o777)
    with pytest.raises(BringUpError, match="everybody rename"):
        make_private_folder(place / "srl-0-1")


def test_only_our_own_regular_files_are_kept_as_logs_and_not_opened_to_others(place: Path, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("a 0600 key")
    secret.chmod(0o600)
    logs = place / "srl-0-1" / "r" / "session_2026" / "logs"
    logs.mkdir(parents=True)
    (logs / "gcs.out").write_text("ours")
    (logs / "private.out").write_text("ours alone")
    (logs / "private.out").chmod(0o600)
    (logs / "link.out").symlink_to(secret)
    # Of another file: one with two names would be passed over for that alone.
    (tmp_path / "other key").write_text("another")
    os.link(tmp_path / "other key", logs / "hard.out")
    os.mkfifo(logs / "pipe.out")
    (logs / "empty.out").touch()
    # As Ray has them, by any order of their names before or after its files.
    for number in range(8):
        (logs / f"events {number}").mkdir()
    logs.chmod(0o777)
    as_stranger(lambda: (logs / "theirs.out").write_text("theirs"))
    (place / "srl-0-1" / "r" / "session_2027").symlink_to(logs.parent)
    (place / "srl-0-1" / "r" / "session_2028").mkdir()
    (place / "srl-0-1" / "r" / "session_2028" / "logs").symlink_to(tmp_path)
    keep_ray_logs(place / "srl-0-1", tmp_path / "kept")
    assert {path.name: path.read_text() for path in (tmp_path / "kept").iterdir()} == {
        "gcs.out": "ours",
        "private.out": "ours alone",
    }
    assert stat.S_IMODE((tmp_path / "kept" / "private.out").stat().st_mode) == 0o600


def test_nothing_is_kept_from_a_folder_of_a_stranger(place: Path, tmp_path: Path) -> None:
    def plant() -> None:
        logs = place / "srl-0-1" / "r" / "session_2026" / "logs"
        logs.mkdir(parents=True)
        (logs / "gcs.out").write_text("theirs")

    as_stranger(plant)
    keep_ray_logs(place / "srl-0-1", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
