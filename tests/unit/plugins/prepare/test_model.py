import json
import struct
from pathlib import Path

import pytest

from tests.unit.plugins.prepare.conftest import Prepare, fill_cache
from tests.unit.plugins.prepare.hub_server import COMMIT, Hub

REPO = "Tiny/Model-1B"
KEY = f"models/{REPO}"


def weights(size: int = 64) -> bytes:
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(range(256)) * (size // 256) + bytes(size % 256)


def model() -> dict[str, bytes]:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    return {
        "config.json": b'{"model_type": "qwen3"}',
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-00001-of-00002.safetensors": weights(),
        "model-00002-of-00002.safetensors": weights(1000),
        "pytorch_model.bin": b"pickled",
        "onnx/model.safetensors": weights(),
        "consolidated.safetensors": weights(),
        "README.md": b"#",
    }


WEIGHTS = [name for name in model() if name.endswith("safetensors")]


def test_model_is_prepared_once_as_plain_folder(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[KEY] = model()
    done = prepare("model", REPO, "--root", "models")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "models" / REPO
    assert done.stdout.strip() == f"model=hf model.path={folder}"
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) == [
        "config.json", "manifest.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "model.safetensors.index.json", "tokenizer.json",
    ]  # fmt: skip
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["name"], manifest["commit"]) == (REPO, COMMIT)
    asked = len(hub.log)
    assert prepare("model", REPO, "--root", "models", offline=True).stdout == done.stdout
    assert prepare("model", REPO, "--root", "models").returncode == 0
    assert len(hub.log) == asked


def test_prepare_model_after_broken_download_completes_it(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    name = "model-00002-of-00002.safetensors"
    hub.repos[KEY] = model()
    folder = tmp_path / "data" / REPO
    hub.cuts[name] = [300] + [0] * 40
    assert prepare("model", REPO).returncode == 1
    assert not (folder / name).exists() and not (folder / "manifest.json").exists()
    hub.cuts.clear()
    assert prepare("model", REPO).returncode == 0
    assert (folder / name).read_bytes() == hub.repos[KEY][name]
    assert not (folder / ".cache").exists()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"config.json": b"{"}, ["config.json must be JSON"]),
        ({"tokenizer.json": None}, ["must come with a tokenizer"]),
        ({"model-00002-of-00002.safetensors": None}, ["every shard", "model-00002-of-00002.safetensors"]),
        ({"model-00002-of-00002.safetensors": weights()[:-1]}, ["must have", "bytes by its header"]),
        ({"model-00001-of-00002.safetensors": b"\xff" * 50}, ["must be a safetensors file"]),
        ({"config.json": None}, ["must hold config.json"]),
        (dict.fromkeys(WEIGHTS), ["must hold *.safetensors", "pytorch_model.bin"]),
    ],
)
def test_incomplete_model_is_refused(
    files: dict[str, bytes | None], said: list[str], hub: Hub, prepare: Prepare, tmp_path: Path
) -> None:
    hub.repos[KEY] = {name: content for name, content in {**model(), **files}.items() if content is not None}
    done = prepare("model", REPO)
    assert done.returncode == 2
    assert [word for word in said if word not in done.stderr] == [], done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data" / REPO / "manifest.json").exists()


def test_shards_of_older_revision_do_not_stay(
    hub: Hub, prepare: Prepare, prepare_on_login_node: Prepare, tmp_path: Path
) -> None:
    hub.repos[KEY] = model()
    assert prepare("model", REPO).returncode == 0
    folder = tmp_path / "data" / REPO
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "revision": "old", "commit": "old"}))
    # The same size with other content: it must not count as the file of this revision.
    config = b'{"model_type": "qwen2"}'
    hub.repos[KEY] = {"config.json": config, "tokenizer.json": b"{}", "model.safetensors": weights()}
    # Another process: the library caches the file list of a commit.
    assert prepare_on_login_node("model", REPO).returncode == 0
    assert sorted(path.name for path in folder.glob("*.safetensors*")) == ["model.safetensors"]
    assert (folder / "config.json").read_bytes() == config


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model", "a/b/c"], "needs the name of a repository"),
        (["model", "a/b", "--format", "verl"], "--format"),
        (["mathv60k", "--format", "verl"], "--format"),
        (["model", REPO, "--leave-out-bad-rows"], "is for data sets"),
        (["gsm8k", "extra"], "name exactly one data set"),
        (["mathv61k"], "did you mean mathv60k?"),
        (["model", REPO], "must exist"),
    ],
)
def test_wrong_words_exit_2(words: list[str], said: str, hub: Hub, prepare: Prepare) -> None:
    done = prepare(*words)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_offline_model_is_taken_from_cache(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    cache = tmp_path / "hf/hub/models--Tiny--Model-1B"
    fill_cache(cache, model())
    done = prepare("model", REPO, offline=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "data" / REPO / "config.json").is_symlink()
    (cache / "snapshots" / COMMIT / "model-00002-of-00002.safetensors").unlink()
    done = prepare("model", REPO, "--root", "other", offline=True)
    assert done.returncode == 2
    assert hub.log == []
