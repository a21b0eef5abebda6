import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.data import DataConfig
from slurm_rl.data.load_data import prompt_content
from slurm_rl.data.prompts import PromptRow, load_rows
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import ConfigError, DataError, MissingLibraryError

GOOD = '{"prompt": "3+4=", "answer": "7"}\n'


def load(tmp_path: Path, content: str | bytes, **config: Any) -> list[PromptRow]:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_rows(path, DataConfig(**config))


def test_rows_keep_order_and_index(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "3+4?"}]
    rows = load(tmp_path, GOOD + "\n" + json.dumps({"answer": "", "prompt": messages, "extra": 1}))
    assert rows == [PromptRow(index=0, prompt="3+4=", answer="7"), PromptRow(index=1, prompt=messages, answer="")]


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf" + GOOD.encode() * 2, GOOD.replace("\n", "\r\n").encode() * 2])
def test_byte_order_mark_and_crlf_are_accepted(tmp_path: Path, content: bytes) -> None:
    assert [(row.prompt, row.answer) for row in load(tmp_path, content)] == [("3+4=", "7")] * 2


def test_line_separators_inside_string_do_not_end_line(tmp_path: Path) -> None:
    row = json.dumps({"prompt": "a\u2028b\u0085c", "answer": "7"}, ensure_ascii=False)
    assert load(tmp_path, row)[0].prompt == "a\u2028b\u0085c"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_wide_encodings_are_refused_with_conversion_command(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(DataError, match=rf"got {encoding[:6].upper()}.*iconv -f {encoding[:6].upper()} -t UTF-8"):
        load(tmp_path, GOOD.encode(encoding))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b'{"prompt": "caf\xe9", "answer": "7"}', ["UTF-8", "0xe9", "column 16"]),
        ('{"prompt": "3+4="', ["must be JSON", '{"prompt": "3+4="']),
        ("[" * 100_000, ["must be JSON"]),
        ('[{"prompt": "1", "answer": "1"}]', ["one JSON object", "list", "jq -c '.[]'"]),
        ('{"prompts": "1", "answer": "1"}', ["'prompt'", "'prompts', 'answer'", "set data.input_key=prompts"]),
        ('{"question": "1", "answer": "1"}', ["set data.input_key=question"]),
        ('{"prompt": "1", "solution": "1", "ask": "1"}', ["set data.label_key=solution"]),
        ('{"prompt": "1", "solution": "1", "Answer": "1"}', ["'answer'", "set data.label_key=Answer"]),
        ('{"prompt": "1", "answer": 7}', ["'answer' must be a string", "int 7"]),
        ('{"prompt": 3, "answer": "1"}', ["'prompt' must be text or a list", "int 3"]),
        ('{"prompt": "", "answer": "1"}', ["not empty"]),
        ('{"prompt": ["hi"], "answer": "1"}', ["role and content"]),
        ('{"prompt": [{"role": "user"}], "answer": "1"}', ["role and content"]),
        ('{"prompt": "1", "answer": "1", "prompt": "2"}', ["'prompt' twice"]),
    ],
)
def test_bad_line_is_named(tmp_path: Path, bad: str | bytes, words: list[str]) -> None:
    line = bad if isinstance(bad, bytes) else bad.encode()
    with pytest.raises(DataError) as caught:
        load(tmp_path, GOOD.encode() * 2 + line + b"\n")
    assert f"{tmp_path}/rows.jsonl:3" in str(caught.value)
    assert [word for word in words if word not in str(caught.value)] == []
    assert caught.value.action


@pytest.mark.parametrize("content", ["", "\n \r\n\n"])
def test_empty_file_is_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match="at least one row"):
        load(tmp_path, content)


def test_json_messages_are_parsed_and_other_lists_are_text(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "3+4?"}]}]
    texts = [json.dumps(messages), "[1, 2, 3]", '[{"role": "user"}]', '[broken "role"']
    rows = load(tmp_path, "".join(json.dumps({"prompt": text, "answer": "7"}) + "\n" for text in texts))
    assert [row.prompt for row in rows] == [messages, *texts[1:]]


def test_missing_label_key_gives_no_answers(tmp_path: Path) -> None:
    [row] = load(tmp_path, '{"q": "3+4="}\n', input_key="q", label_key=None)
    assert row == PromptRow(index=0, prompt="3+4=", answer="")


def test_further_columns_reach_environment_and_identity(tmp_path: Path) -> None:
    line = '{"prompt": "a", "answer": "1", "board": [[0, 1]], "level": 3}\n'
    [row] = load(tmp_path, line, info_keys=["board", "level"])
    assert row.info == {"board": [[0, 1]], "level": 3}
    plain = EncodedPrompt(index=0, token_ids=[1], text="a", answer="1")
    contents = {prompt_content(replace(plain, info=info)) for info in ({}, row.info, {**row.info, "level": 4})}
    assert len(contents) == 3
    with pytest.raises(DataError, match=r"data\.info_keys.*no such|no column|must have the column"):
        load(tmp_path, line, info_keys=["bord"])


def test_non_json_value_is_no_further_column(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:1: .*(JSON|NaN)"):
        load(tmp_path, '{"prompt": "a", "answer": "1", "level": NaN}\n', info_keys=["level"])


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


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("nosuch://a/rows.jsonl", ConfigError),
        ("memory://a/folder", DataError),
        ("memory://nowhere/rows.jsonl", DataError),
        ("memory://a/rows.csv", DataError),
    ],
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
