"""Copies of checkpoints on an fsspec URL are complete or absent, whichever write fails."""

import hashlib
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.load import load_config
from slurm_rl.errors import CheckpointError, ConfigError, MissingLibraryError
from slurm_rl.models.checkpoint import remote
from slurm_rl.models.checkpoint.remote import RemoteFolder
from slurm_rl.models.checkpoint.remote_saver import RemoteSaver
from slurm_rl.models.checkpoint.step_saver import StepSaver
from slurm_rl.models.checkpoint.store import CheckpointStore
from slurm_rl.run_dir.jsonl import append_row, read_rows
from slurm_rl.run_dir.run_dir import RunDir, write_json
from slurm_rl.run_dir.run_secret import TOKEN_VARIABLE
from tests.small_disk import small_disk

KEY = "the key of these tests"


class PowerCutError(RuntimeError):
    """Raised in the middle of a write."""


class CutOff:
    """fsspec's memory file system; its n-th change fails with none or half of the bytes written."""

    def __init__(self, inner: Any, fails_at: int, *, half: bool) -> None:
        self.inner, self.fails_at, self.half, self.num_changes = inner, fails_at, half, 0

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.inner, name)
        if name not in ("put_file", "pipe_file", "rm_file", "rm"):
            return operation

        def change(*args: Any) -> Any:
            self.num_changes += 1
            if self.num_changes != self.fails_at:
                return operation(*args)
            if self.half and name == "put_file":
                self.inner.pipe_file(args[1], Path(args[0]).read_bytes()[:-1])
            if self.half and name == "pipe_file":
                self.inner.pipe_file(args[0], args[1][: len(args[1]) // 2])
            if self.half and name == "rm":
                self.inner.rm_file(self.inner.find(args[0])[0])
            raise PowerCutError

        return change


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/bucket/run"
    return memory()


def make(root: Path, step: int) -> Path:
    """Write a checkpoint with bytes that depend on the step."""
    store = CheckpointStore(root / "checkpoints")
    folder = store.begin(step)
    (folder / "policy").mkdir()
    for rank in range(3):
        (folder / "policy" / f"rank-{rank}.pt").write_bytes(bytes([step, rank]) * 500)
    return store.commit(step, {"step": step}).path


def open_run(root: Path, url: str) -> tuple[RunDir, RemoteSaver]:
    run = RunDir(root)
    return run, RemoteSaver(run, CheckpointStore(run.checkpoints), RemoteFolder(url, key=lambda: KEY, retry_s=()))


def copied(root: Path, url: str, *steps: int) -> RemoteSaver:
    """Write checkpoints of a run and upload them."""
    _, saver = open_run(root, url)
    for step in steps:
        make(root, step)
        saver.copy(step)
    return saver


def memory() -> str:
    return f"memory://{secrets.token_hex(4)}/run"


def fetched_step(root: Path, url: str) -> int | None:
    """Return the step that a machine without local checkpoints downloads, and verify its bytes."""
    run, saver = open_run(root, url)
    saver.fetch_newer(-1)
    newest = CheckpointStore(run.checkpoints).latest()
    if newest is None:
        return None
    for rank in range(3):
        assert (newest.path / "policy" / f"rank-{rank}.pt").read_bytes() == bytes([newest.step, rank]) * 500
    assert newest.meta == {"step": newest.step}
    return newest.step


def test_upload_restores_exact_bytes_once(tmp_path: Path, url: str) -> None:
    make(tmp_path / "a", 4)
    assert RemoteFolder(url, key=lambda: KEY).upload("step-4", tmp_path / "a" / "checkpoints" / "step-4") > 0
    assert RemoteFolder(url, key=lambda: KEY).upload("step-4", tmp_path / "a" / "checkpoints" / "step-4") == 0
    assert fetched_step(tmp_path / "b", url) == 4


@pytest.mark.parametrize("half", [False, True])
def test_interrupted_copy_is_never_complete(tmp_path: Path, half: bool) -> None:
    make(tmp_path / "a", 1), make(tmp_path / "a", 2)
    num_changes = copy_two(tmp_path / "a", memory(), 0, half=half)
    assert num_changes == 7, "the old marker, four files, the manifest, the marker"
    for fails_at in range(1, num_changes + 1):
        url = memory()
        with pytest.raises(CheckpointError, match="PowerCutError"):
            copy_two(tmp_path / "a", url, fails_at, half=half)
        assert fetched_step(tmp_path / f"b{fails_at}", url) == 1
        open_run(tmp_path / "a", url)[1].copy_if_missing(2)
        assert fetched_step(tmp_path / f"c{fails_at}", url) == 2


def copy_two(root: Path, url: str, fails_at: int, *, half: bool) -> int:
    """Upload step 1, then step 2 with a failure at this change; return the number of changes."""
    _, saver = open_run(root, url)
    saver.copy(1)
    cut = saver.remote.fs = CutOff(saver.remote.fs, fails_at, half=half)
    saver.copy(2)
    return cut.num_changes


@pytest.mark.parametrize("half", [False, True])
def test_interrupted_removal_keeps_newest_complete(tmp_path: Path, half: bool) -> None:
    for fails_at in (1, 2, 3, 4):
        url = memory()
        saver = copied(tmp_path / f"a{fails_at}", url, 1, 2, 3)
        saver.remote.fs = CutOff(saver.remote.fs, fails_at, half=half)
        with pytest.raises(CheckpointError, match="PowerCutError"):
            saver.prune(1, ())
        _, saver = open_run(tmp_path / f"a{fails_at}", url)
        for step in saver.remote.steps():
            saver.remote.download(f"step-{step}", tmp_path / f"d{fails_at}-{step}", tmp_path / "e")
        assert fetched_step(tmp_path / f"b{fails_at}", url) == 3
        saver.prune(1, ())
        assert saver.remote.steps() == [3]


def test_damaged_copy_is_detected_and_older_one_used(tmp_path: Path) -> None:
    url = memory()
    saver = copied(tmp_path / "a", url, 1, 2)
    path = f"{saver.remote.root}/step-2/files/policy/rank-1.pt"
    saver.remote.fs.pipe_file(path, b"\0" + saver.remote.fs.cat_file(path)[1:])
    assert fetched_step(tmp_path / "b", url) == 1
    kinds = [event["kind"] for event in read_rows(RunDir(tmp_path / "b").events)]
    assert kinds == ["checkpoint/skipped", "checkpoint/fetched"]


NAMES = [
    "/TMP/escaped",
    "files//TMP/escaped",
    "files/../../../escaped",
    "files/policy/../../escaped",
    "files/./x",
    "files/",
    "files",
    "run/../escaped",
    "run/a/b",
    "other/x",
    "../escaped",
    "files/a\x1b[2J",
    "files/a\nb",
    "files/..\\escaped",
    "",
]


def forge(saver: RemoteSaver, step: int, change: Callable[[dict[str, Any]], Any]) -> None:
    """Write a manifest and a matching marker, as an attacker with write access to the bucket."""
    place = f"{saver.remote.root}/step-{step}"
    manifest = json.loads(saver.remote.fs.cat_file(f"{place}/manifest.json"))
    text = change(manifest)
    text = text if isinstance(text, bytes) else json.dumps(manifest).encode()
    saver.remote.fs.pipe_file(f"{place}/manifest.json", text)
    # A valid signature, so that the checks after it run.
    marker = {"manifest": hashlib.sha256(text).hexdigest(), "hmac": saver.remote._sign(f"step-{step}", text)}
    saver.remote.fs.pipe_file(f"{place}/complete.json", json.dumps(marker).encode())


@pytest.mark.parametrize("name", NAMES)
def test_copy_with_outside_file_is_skipped_unwritten(tmp_path: Path, name: str) -> None:
    url, name = memory(), name.replace("/TMP", str(tmp_path))
    saver = copied(tmp_path / "a", url, 1, 2)
    evil = b"evil"
    if name.strip("/") not in ("", "files"):
        saver.remote.fs.pipe_file(f"{saver.remote.root}/step-2/{name}", evil)
    told = {"size": len(evil), "sha256": hashlib.sha256(evil).hexdigest()}
    forge(saver, 2, lambda manifest: manifest.update({name: told}))
    with pytest.raises(CheckpointError, match="only files below its own folder"):
        saver.remote.download("step-2", tmp_path / "folder", tmp_path / "beside")
    assert not (tmp_path / "folder").exists() and not (tmp_path / "beside").exists()
    assert fetched_step(tmp_path / "b", url) == 1
    assert not list(tmp_path.rglob("escaped"))
    [skipped] = [row for row in read_rows(RunDir(tmp_path / "b").events) if row["kind"] == "checkpoint/skipped"]
    assert "copy of step 2" in skipped["reason"]
    assert [path.name for path in (tmp_path / "b" / "checkpoints").iterdir()] == ["step-1"]


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: b"[1]",
        lambda manifest: b"{",
        lambda manifest: b'{"files/x": 7}',
        lambda manifest: b'{"files/x": {"size": "many", "sha256": ""}}',
        lambda manifest: manifest.pop("files/manifest.json") and None,
        lambda manifest: manifest["files/policy/rank-0.pt"].update(size=7),
        lambda manifest: manifest.update({"files/policy": manifest["files/policy/rank-0.pt"]}),
    ],
)
def test_missing_manifest_skips_only_its_copy(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    url = memory()
    saver = copied(tmp_path / "a", url, 1, 2)
    saver.remote.fs.pipe_file(f"{saver.remote.root}/step-2/files/x", b"x")
    forge(saver, 2, change)
    assert fetched_step(tmp_path / "b", url) == 1


def test_file_larger_than_manifest_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = copied(tmp_path / "a", memory(), 1)
    saver.remote.fs.pipe_file(f"{saver.remote.root}/step-1/files/policy/rank-1.pt", bytes(10_000_000))
    with pytest.raises(CheckpointError, match="bytes that were written"):
        saver.remote.download("step-1", tmp_path / "folder", tmp_path / "beside")
    assert sum(path.stat().st_size for path in tmp_path.rglob("folder/**/*") if path.is_file()) < 10_000


def test_full_disk_during_fetch_ends_start(tmp_path: Path) -> None:
    """The run must not restart from scratch while a complete copy exists."""
    url = f"file://{tmp_path}/bucket/run"
    make(tmp_path / "a", 1)
    (tmp_path / "a" / "samples.jsonl").write_bytes(bytes(1_000_000))
    open_run(tmp_path / "a", url)[1].copy(1)
    with small_disk(tmp_path, size_kb=512) as disk:
        with pytest.raises(CheckpointError, match="No space left"):
            open_run(disk / "b", url)[1].fetch_newer(-1)
        assert list((disk / "b" / "checkpoints").iterdir()) == []


def test_prune_keeps_newest_and_spared(tmp_path: Path, url: str) -> None:
    saver = copied(tmp_path / "a", url, 1, 2, 3, 4, 5)
    saver.remote._remove_if_there(f"{saver.remote.root}/step-2/complete.json")
    assert saver.remote.prune(2, {1}) == [3, 2]
    assert saver.remote.steps() == [5, 4, 1]
    for step in (1, 4, 5):
        saver.remote._remove_if_there(f"{saver.remote.root}/step-{step}/complete.json")
    assert saver.remote.prune(1) == [], "nothing is removed while no copy is complete"


def test_new_machine_gets_rows_prompts_and_reference(tmp_path: Path, url: str) -> None:
    run, saver = open_run(tmp_path / "a", url)
    make(run.path, 3)
    append_row(run.metrics, {"step": 3, "stage": "grpo"})
    write_json(run.prompts, {"sha256": "x"})
    run.reference.mkdir()
    (run.reference / "model.safetensors").write_bytes(b"made by the warm-up")
    saver.copy(3)
    other, saver = open_run(tmp_path / "b", url)
    assert saver.fetch_newer(-1)
    assert read_rows(other.metrics) == [{"step": 3, "stage": "grpo"}]
    assert (other.reference / "model.safetensors").read_bytes() == b"made by the warm-up"


def test_copy_of_other_prompts_is_refused(tmp_path: Path, url: str) -> None:
    run, saver = open_run(tmp_path / "a", url)
    make(run.path, 3)
    write_json(run.prompts, {"sha256": "x"})
    saver.copy(3)
    other, saver = open_run(tmp_path / "b", url)
    write_json(other.prompts, {"sha256": "y"})
    assert not saver.fetch_newer(-1)
    [event] = read_rows(other.events)
    assert "same prompts" in event["reason"]


def test_older_copy_is_not_fetched(tmp_path: Path, url: str) -> None:
    copied(tmp_path / "a", url, 3)
    assert not open_run(tmp_path / "b", url)[1].fetch_newer(3)


def save(saver: StepSaver, step: int) -> None:
    with saver.saving(step, {"step": step}) as (folder, _):
        (folder / "rank-0.pt").write_bytes(bytes([step]))


def test_saver_uploads_in_background_and_restores_on_new_machine(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "the same wherever it is started")
    place = url.removesuffix("/run")
    saver = StepSaver(RunDir(tmp_path / "a" / "run"), 2, background=True, url=place)
    for step in (1, 2, 3):
        save(saver, step)
    saver.wait()
    assert RemoteFolder(url, key=lambda: KEY).steps() == [3, 2]
    newest = StepSaver(RunDir(tmp_path / "b" / "run"), 2, url=place).newest()
    assert newest is not None
    assert (newest.step, (newest.path / "rank-0.pt").read_bytes()) == (3, b"\x03")


def test_foreign_copy_is_skipped_and_overwritten(tmp_path: Path, url: str) -> None:
    """Complete copies with a valid digest, signed with another key or for another step."""
    saver = copied(tmp_path / "a", url, 1, 2, 3)
    make(tmp_path / "evil", 9)
    evil = RemoteFolder(url, key=lambda: "another", retry_s=())
    evil.upload("step-9", tmp_path / "evil" / "checkpoints" / "step-9")
    evil.upload("step-3", tmp_path / "evil" / "checkpoints" / "step-9")
    for name in ("manifest.json", "complete.json"):
        saver.remote.fs.copy(f"{saver.remote.root}/step-1/{name}", f"{saver.remote.root}/step-2/{name}")
    assert fetched_step(tmp_path / "b", url) == 1
    skipped = [row["reason"] for row in read_rows(RunDir(tmp_path / "b").events) if "reason" in row]
    assert [reason[:14] for reason in skipped] == ["copy of step 9", "copy of step 3", "copy of step 2"]
    assert all("signed with the key of this run" in reason for reason in skipped)
    saver.copy_if_missing(3)
    assert fetched_step(tmp_path / "c", url) == 3


def test_missing_key_prevents_fresh_start_over_copies(tmp_path: Path, url: str) -> None:
    place = url.removesuffix("/run")
    first = RunDir(tmp_path / "a" / "run")
    save(StepSaver(first, 2, url=place), 1)
    key = first.secrets / "checkpoint-key"
    assert (key.stat().st_mode & 0o777, first.secrets.stat().st_mode & 0o777) == (0o600, 0o700)
    fresh = RunDir(tmp_path / "b" / "run")
    with pytest.raises(ConfigError, match=r"only with the key that signed them; got steps 1 .*verify=false"):
        StepSaver(fresh, 2, url=place).newest()
    brought = RunDir(tmp_path / "c" / "run")
    brought.secrets.mkdir(parents=True)
    (brought.secrets / "checkpoint-key").write_bytes(key.read_bytes())
    assert StepSaver(brought, 2, url=place).newest() is not None
    assert StepSaver(fresh, 2, url=place, verify=False).newest() is not None
    # A local checkpoint needs no key.
    (first.secrets / "checkpoint-key").unlink()
    newest = StepSaver(first, 2, url=place).newest()
    assert newest is not None and newest.step == 1


def test_interrupted_copy_is_completed_by_next_start(tmp_path: Path, url: str) -> None:
    place = url.removesuffix("/run")
    run = RunDir(tmp_path / "run")
    save(StepSaver(run, 2), 1)
    assert RemoteFolder(url, key=lambda: KEY).steps() == []
    assert StepSaver(run, 2, url=place).newest() is not None
    assert RemoteFolder(url, key=lambda: KEY).steps() == [1]


def test_failed_write_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    make(tmp_path / "a", 1)
    url = memory()
    folder = RemoteFolder(url, key=lambda: KEY)
    folder.fs = CutOff(folder.fs, 2, half=True)
    folder.upload("step-1", tmp_path / "a" / "checkpoints" / "step-1")
    assert fetched_step(tmp_path / "b", url) == 1


@pytest.mark.parametrize(("url", "library"), [("s3://bucket/a", "s3fs"), ("gs://bucket/a", "gcsfs")])
def test_missing_library_is_named_with_pip_command(url: str, library: str) -> None:
    pytest.importorskip("fsspec")
    try:
        __import__(library)
    except ImportError:
        with pytest.raises(MissingLibraryError, match=f"pip install {library}"):
            RemoteFolder(url, key=lambda: KEY)
    else:
        pytest.skip(f"{library} is installed")


def test_unknown_protocol_is_bad_input() -> None:
    with pytest.raises(ConfigError, match="must know the protocol"):
        RemoteFolder("nosuch://bucket/a", key=lambda: KEY)


@pytest.mark.parametrize("value", ["/shared/runs", "gs://", "s3://key:secret@bucket/a", "https://host/a?token=secret"])
def test_url_without_path_or_with_secret_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.upload_url") as caught:
        load_config(["+exp=demo", f"checkpoint.upload_url='{value}'"])
    assert "secret" not in str(caught.value)


def test_submit_refuses_url_before_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["+exp=demo", "checkpoint.upload_url='nosuch://bucket/a'", "run_dir=here"]) == 2
    assert "must know the protocol" in capsys.readouterr().err
    assert not Path("here").exists()
