import secrets
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.data import DataConfig
from slurm_rl.data.prompts import load_rows
from slurm_rl.errors import ConfigError, DataError, MissingLibraryError

ROWS = '{"prompt": "1+1=", "answer": "2"}\n{"prompt": "2+2=", "answer": "4"}\n'


def put(text: str, name: str = "rows.jsonl") -> str:
    import fsspec

    url = f"memory://{secrets.token_hex(4)}/{name}"
    fsspec.filesystem("memory").pipe_file(url, text.encode())
    return url


def test_rows_of_url_equal_those_of_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS)
    assert load_rows(put(ROWS), DataConfig()) == load_rows(tmp_path / "rows.jsonl", DataConfig())


def test_bad_row_is_named_by_url_and_line() -> None:
    url = put(ROWS + "no json\n")
    with pytest.raises(DataError) as caught:
        load_rows(url, DataConfig())
    assert f"{url}:3" in str(caught.value)
    assert "srl-data-" not in str(caught.value)


def test_url_download_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    load_rows(put(ROWS), DataConfig())
    assert list(tmp_path.iterdir()) == []


def test_missing_file_is_bad_input() -> None:
    with pytest.raises(DataError, match="must be readable"):
        load_rows("memory://nowhere/rows.jsonl", DataConfig())


@pytest.mark.parametrize(
    ("url", "error"),
    [("nosuch://a/rows.jsonl", ConfigError), ("memory://a/folder", DataError), ("memory://a/rows.csv", DataError)],
)
def test_unreadable_url_is_refused_at_once(url: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        load_rows(url, DataConfig())


def test_submit_refuses_url_before_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["+exp=demo", f"data.train='file://{tmp_path}/no.jsonl'", "run_dir=here"]) == 2
    assert "no.jsonl" in capsys.readouterr().err
    assert not Path("here").exists()


def test_missing_library_is_named(tmp_path: Path) -> None:
    try:
        import s3fs  # noqa: F401
    except ImportError:
        with pytest.raises(MissingLibraryError, match="pip install s3fs"):
            load_rows("s3://bucket/rows.jsonl", DataConfig())
    else:
        pytest.skip("s3fs is installed")
