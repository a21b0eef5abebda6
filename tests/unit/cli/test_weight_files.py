import json
from pathlib import Path

import pytest

from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.model_checks import check_weight_files, read_shapes
from tests.unit.cli.test_lora_check import write_header

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n"
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
INDEX = json.dumps({"metadata": {}, "weight_map": dict(zip("abcdef", SHARDS * 2, strict=True))})


def fill(folder: Path, *names: str, **files: str) -> Path:
    for name in names:
        write_header(folder / name, {"a.weight": [2, 2]})
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("names", "files", "says"),
    [
        (SHARDS[:1], {"model__safetensors__index__json": INDEX}, r"lacks 2 of the 3 files.*00002-of-00003.*00003"),
        ([], {"pytorch_model__bin": "x"}, r"must have its weights as safetensors.*pytorch_model\.bin.*save_pretrained"),
        ([], {"model__safetensors": POINTER}, r"has git-lfs pointers.*model\.safetensors.*git lfs pull"),
        (["model.safetensors"], {"tokenizer__json": POINTER}, r"has git-lfs pointers.*tokenizer\.json"),
    ],
)
def test_check_weight_files_refuses_with_reason(
    tmp_path: Path, names: list[str], files: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=f"^model.path {says}"):
        check_weight_files("model.path", fill(tmp_path, *names, **files))


@pytest.mark.parametrize(
    ("names", "files"),
    [
        ([], {}),
        (SHARDS, {"model__safetensors__index__json": INDEX}),
        (["model.safetensors"], {"pytorch_model__bin": "x", "training_args__bin": "x"}),
        (["model.safetensors"], {"tokenizer__json": "{}"}),
    ],
)
def test_check_weight_files_accepts_complete_folder(tmp_path: Path, names: list[str], files: dict[str, str]) -> None:
    check_weight_files("model.path", fill(tmp_path, *names, **files))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (POINTER.encode(), "not a safetensors file"),
        (b"\xff" * 64, "not a safetensors file"),
        (b"", "Expecting value"),
        (b"\x02\0\0\0\0\0\0\0[]", "not a safetensors file"),
    ],
)
def test_read_shapes_explains_incomplete_file(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"must be complete; got .*model\.safetensors: {says}"):
        read_shapes(tmp_path)


def test_read_shapes_names_size_of_truncated_file(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    assert read_shapes(tmp_path) == {"a": [4]}
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ConfigError, match=f"truncated: it has {8 + len(header) + 13} of {8 + len(header) + 16} bytes"):
        read_shapes(tmp_path)
