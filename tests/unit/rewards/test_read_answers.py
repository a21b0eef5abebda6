import json
from pathlib import Path

import pytest

from slurm_rl.errors import DataError
from slurm_rl.rewards.service import read_answers


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_key_is_prompt_as_sent_by_client(tmp_path: Path) -> None:
    """OpenRLHF-M sends the string unchanged, including spaces, accents and image paths of another disk."""
    messages = '[{"role":"user","content":[{"type":"image","image":"/their/disk/1.jpg"},{"type":"text","text":"é?"}]}]'
    path = write(tmp_path / "rows.jsonl", {"message": messages, "answer": "$60$"}, {"message": "2+2?", "answer": "$4$"})
    assert read_answers(path, "message", "answer") == {messages: "$60$", "2+2?": "$4$"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [([], "at least one row"), ([{"message": "a", "answer": 4}], ":1: column 'answer' must be a string; got 4")],
)
def test_unusable_answers_are_named(rows: list[dict[str, object]], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        read_answers(write(tmp_path / "rows.jsonl", *rows), "message", "answer")
