import fcntl
import json
from pathlib import Path

import pytest

from tests.unit.plugins.prepare.conftest import Prepare, fill_cache
from tests.unit.plugins.prepare.hub_server import COMMIT, Hub
from tests.unit.plugins.prepare.small_sets import GSM8K, gsm8k

TRAIN = "main/train-00000-of-00001.parquet"
TEST = "main/test-00000-of-00001.parquet"
TOKEN = "hf_" + "t" * 30


def test_prepare_retries_broken_connections(hub: Hub, prepare: Prepare) -> None:
    hub.repos[GSM8K] = gsm8k()
    hub.cuts[TRAIN] = [100, 200]
    done = prepare("gsm8k")
    assert done.returncode == 0, done.stderr
    assert hub.downloads[TRAIN] == 3


def test_prepare_after_broken_download_keeps_complete_files(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[GSM8K] = gsm8k()
    hub.cuts[TRAIN] = [100] + [0] * 40
    done = prepare("gsm8k")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "openai/gsm8k must be downloaded completely" in done.stderr and "complete files are kept" in done.stderr
    assert (tmp_path / "data/gsm8k/.sources" / TEST).is_file()

    hub.cuts.clear()
    hub.downloads.clear()
    done = prepare("gsm8k")
    assert done.returncode == 0, done.stderr
    assert dict(hub.downloads) == {TRAIN: 1}
    assert [path.name for path in (tmp_path / "data/gsm8k").iterdir() if path.is_dir()] == []


def test_content_with_wrong_checksum_is_refused(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[GSM8K] = gsm8k()
    right = hub.repos[GSM8K][TRAIN]
    hub.listed[TRAIN] = right
    hub.repos[GSM8K][TRAIN] = right[:50] + bytes([right[50] ^ 1]) + right[51:]
    done = prepare("gsm8k")
    assert done.returncode == 1
    assert f"{TRAIN} of openai/gsm8k must have {len(right)} bytes and the checksum" in done.stderr
    assert not (tmp_path / "data/gsm8k/.sources" / TRAIN).exists()
    hub.repos[GSM8K][TRAIN] = right
    assert prepare("gsm8k").returncode == 0


def test_offline_without_files_is_refused_without_request(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[GSM8K] = gsm8k()
    done = prepare("gsm8k", offline=True)
    assert (done.returncode, hub.log) == (2, [])
    assert "HF_HUB_OFFLINE" in done.stderr and str(tmp_path / "hf") in done.stderr and "Traceback" not in done.stderr


def test_cache_of_hf_home_is_used_offline_and_online(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    files = gsm8k()
    fill_cache(tmp_path / "hf/hub/datasets--openai--gsm8k", files)
    done = prepare("gsm8k", "--root", "offline", offline=True)
    assert done.returncode == 0, done.stderr
    assert hub.log == []
    hub.repos[GSM8K] = files
    assert prepare("gsm8k", "--root", "online").returncode == 0
    assert not hub.downloads
    rows = [(tmp_path / root / "gsm8k/train.jsonl").read_bytes() for root in ("offline", "online")]
    assert rows[0] == rows[1]


def test_token_is_sent_only_to_hub_and_never_shown(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[GSM8K] = gsm8k()
    done = prepare("gsm8k", token=TOKEN)
    assert done.returncode == 0
    for path, auth in [(log[1], log[3]) for log in hub.log if "gsm8k" in log[1]]:
        assert auth == ("" if path.startswith("/elsewhere/") else f"Bearer {TOKEN}"), path
    assert TOKEN not in done.stdout + done.stderr
    written = [path.read_text("latin-1") for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert written and not [text for text in written if TOKEN in text]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gsm8k", "--revision", "v9"], ["must have the revision", "v9"]),
        (["math"], ["EleutherAI/hendrycks_math must exist", "HF_TOKEN"]),
        (["gsm8k"], ["accept its terms"]),
    ],
)
def test_unknown_or_gated_repository_names_next_action(
    words: list[str], said: list[str], hub: Hub, prepare: Prepare
) -> None:
    hub.repos[GSM8K] = gsm8k()
    if len(words) == 1:
        hub.gated.add(GSM8K)
    done = prepare(*words)
    assert done.returncode == 2
    assert [word for word in said if word not in done.stderr] == []


def test_concurrent_prepare_in_same_folder_is_refused(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[GSM8K] = gsm8k()
    folder = tmp_path / "data/gsm8k"
    folder.mkdir(parents=True)
    with (folder / ".prepare.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = prepare("gsm8k")
    assert done.returncode == 2
    assert "one prepare at a time" in done.stderr
    assert prepare("gsm8k").returncode == 0


def test_other_revision_replaces_folder(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[GSM8K] = gsm8k()
    assert prepare("gsm8k").returncode == 0
    assert "already there" in prepare("gsm8k", "--revision", COMMIT).stderr
    manifest = tmp_path / "data/gsm8k/manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "revision": "old", "commit": "old"}))
    again = prepare("gsm8k")
    assert again.returncode == 0
    assert "made again, since it is revision old" in again.stderr
