import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slurm_rl.config.data import DataConfig
from slurm_rl.data.prompts import PromptRow, load_rows
from slurm_rl.errors import DataError, MissingLibraryError

ROWS: list[dict[str, Any]] = [{"q": f"{n}+{n}=", "a": str(2 * n), "more": n} for n in range(5)]
COLUMNS = DataConfig(input_key="q", label_key="a")
WANTED = [PromptRow(index=n, prompt=f"{n}+{n}=", answer=str(2 * n)) for n in range(5)]


def write_jsonl(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_json(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.json"
    path.write_text(json.dumps(rows))
    return path


def write_parquet(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    return path


def write_saved(folder: Path, rows: list[dict[str, Any]]) -> Path:
    datasets.Dataset.from_list(rows).save_to_disk(folder / "saved")
    return folder / "saved"


def write_saved_splits(folder: Path, rows: list[dict[str, Any]]) -> Path:
    splits = {"train": datasets.Dataset.from_list(rows), "test": datasets.Dataset.from_list(rows[:1])}
    datasets.DatasetDict(splits).save_to_disk(folder / "splits")
    return folder / "splits"


def write_clone(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a clone of a hub repository."""
    clone = folder / "clone"
    (clone / "data").mkdir(parents=True)
    for split in ("train", "test"):
        pq.write_table(pa.Table.from_pylist(rows), clone / f"data/{split}-00000-of-00001.parquet")
    return clone


WRITERS: list[Callable[[Path, list[dict[str, Any]]], Path]] = [
    write_jsonl, write_json, write_parquet, write_saved, write_saved_splits, write_clone,
]  # fmt: skip
FILES = WRITERS[:3]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.builder.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize("write", WRITERS)
def test_formats_give_same_rows(write: Callable[..., Path], tmp_path: Path) -> None:
    assert load_rows(write(tmp_path, ROWS), COLUMNS) == WANTED


@pytest.mark.parametrize("write", WRITERS)
def test_messages_are_same_in_every_format(write: Callable[..., Path], tmp_path: Path) -> None:
    """Columnar formats give all parts all keys; keys with None are dropped."""
    parts = [{"type": "image", "image": "https://x/1.png"}, {"type": "text", "text": "?"}]
    messages = [{"role": "system", "content": [{"type": "text", "text": "s"}]}, {"role": "user", "content": parts}]
    (row,) = load_rows(write(tmp_path, [{"q": messages, "a": "1"}]), COLUMNS)
    assert row.prompt == messages


@pytest.mark.parametrize("write", WRITERS)
def test_missing_column_is_named_with_existing_ones(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    with pytest.raises(DataError) as caught:
        load_rows(path, DataConfig(input_key="q", label_key="aa"))
    for word in (str(path), "'aa' (data.label_key)", "'q', 'a', 'more'", "set data.label_key=a"):
        assert word in str(caught.value)


@pytest.mark.parametrize(("write", "where"), list(zip(FILES, (":2", " row 1", " row 1"), strict=True)))
def test_value_of_wrong_type_is_named_by_file_row_and_column(
    write: Callable[..., Path], where: str, tmp_path: Path
) -> None:
    path = write(tmp_path, [{"q": "a", "a": "b"}, {"q": "a", "a": None}])
    with pytest.raises(DataError, match="column 'a' must be a string; got NoneType") as caught:
        load_rows(path, COLUMNS)
    assert f"{path}{where}: " in str(caught.value)


@pytest.mark.parametrize("write", FILES)
def test_empty_source_is_error(write: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    if write is write_parquet:
        pq.write_table(pa.table({"q": pa.array([], pa.string()), "a": pa.array([], pa.string())}), path)
    else:
        path = write(tmp_path, [])
    with pytest.raises(DataError, match="at least one row"):
        load_rows(path, COLUMNS)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.json", b'{"q": "a"}', "one list of objects; got dict"),
        ("rows.json", b'[{"q": "a", "a": "b"}, 3]', "row 1: a row must be an object; got int 3"),
        ("rows.json", b"[{]", "must be JSON"),
        ("rows.json", b'[{"q": "caf\xe9"}]', "UTF-8"),
        ("rows.json", b'[{"q": "a", "a": "b", "a": "c"}]', "'a' twice"),
        ("rows.parquet", b"not parquet", "must be parquet"),
        ("rows.csv", b"q,a\n", "a file of another kind"),
    ],
)
def test_invalid_file_is_named(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_rows(tmp_path / name, COLUMNS)
    assert said in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("name", ["none.parquet", "none.json", "none.jsonl", "none.csv", "folder.jsonl"])
def test_missing_file_and_empty_folder_are_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    why = "any data files" if name == "folder.jsonl" else ""
    with pytest.raises(DataError, match=rf"{tmp_path}/{name}.*{why}"):
        load_rows(tmp_path / name, COLUMNS)


def test_missing_split_is_named_with_existing_ones(tmp_path: Path) -> None:
    path = write_saved_splits(tmp_path, ROWS)
    assert len(load_rows(path, COLUMNS, split="test")) == 1
    with pytest.raises(DataError, match=r"split dev.*the splits are train, test.*data\.train_split"):
        load_rows(path, COLUMNS, split="dev")
    with pytest.raises(DataError, match="split dev"):
        load_rows(write_clone(tmp_path, ROWS), COLUMNS, split="dev")


def test_unavailable_hub_name_is_data_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="data set nobody/nothing"):
        load_rows("nobody/nothing", COLUMNS)


def test_hub_name_and_revision_are_passed_to_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def load_dataset(*args: object, **words: object) -> datasets.Dataset:
        asked.append((*args, words))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    config = COLUMNS.model_copy(update={"revision": "v9", "subset": "main"})
    assert len(load_rows("org/name", config, split="test")) == len(ROWS)
    assert asked == [("org/name", "main", {"split": "test", "revision": "v9"})]


@pytest.mark.parametrize(("write", "library"), [(write_parquet, "pyarrow"), (write_saved, "datasets")])
def test_missing_library_is_named(
    write: Callable[..., Path], library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, ROWS)
    whole = builtins.__import__

    def no_library(name: str, *args: Any) -> Any:
        if name.partition(".")[0] == library:
            raise ImportError(name)
        return whole(name, *args)

    monkeypatch.setattr(builtins, "__import__", no_library)
    with pytest.raises(MissingLibraryError, match=f"needs {library}"):
        load_rows(path, COLUMNS)


def test_stored_image_column_is_not_decoded(tmp_path: Path) -> None:
    """Undecodable bytes pass through unchanged."""
    features = datasets.Features({"q": datasets.Value("string"), "a": datasets.Value("string"), "i": datasets.Image()})
    data = datasets.Dataset.from_dict({"q": ["?"], "a": ["1"], "i": [{"bytes": b"no picture", "path": None}]}, features)
    data.save_to_disk(tmp_path / "saved")
    (row,) = load_rows(tmp_path / "saved", DataConfig(input_key="q", label_key="a", image_key="i"))
    assert row.prompt == [
        {"role": "user", "content": [{"type": "image", "image": b"no picture"}, {"type": "text", "text": "?"}]}
    ]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{}/*.jsonl", "one file, folder or hub name.*pattern of files.*one folder"),
        ("{0}/rows.jsonl,{0}/rows.jsonl", "one file, folder or hub name.*list or a pattern.*one folder"),
        ("{}/rows.jsonl.gz", "must not be compressed.*decompress it"),
    ],
)
def test_load_rows_of_several_or_compressed_files_is_refused(name: str, says: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path, ROWS).with_suffix(".jsonl.gz").write_bytes(b"")
    with pytest.raises(DataError, match=says):
        load_rows(name.format(tmp_path), COLUMNS)


def test_data_config_with_list_of_files_is_refused() -> None:
    with pytest.raises(ValueError, match="put the files into one folder"):
        DataConfig.model_validate({"train": ["a.jsonl", "b.jsonl"]})
