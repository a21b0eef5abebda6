import json
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.data import DataConfig
from slurm_rl.data.load_data import load_answers, load_pairs, load_prompts, require_one_batch
from slurm_rl.errors import DataError

USER, QUESTION = ({"role": "user", "content": text} for text in ("Hi", "Who?"))
HELLO, BYE = ({"role": "assistant", "content": text} for text in ("Hello", "Bye"))
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def write(path: Path, *rows: Any) -> DataConfig:
    file = path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataConfig(train=str(file), num_eval=0)


def test_answer_is_conversation_or_follows_prompt(tmp_path: Path) -> None:
    split = load_answers(write(tmp_path, {"messages": [USER, HELLO]}, {"messages": [QUESTION, BYE]}))
    assert [(row.prompt, row.answer) for row in split.train] == [([], [USER, HELLO]), ([], [QUESTION, BYE])]
    [row] = load_answers(write(tmp_path, {"prompt": "3+4=", "answer": "7"})).train
    assert (row.prompt, row.answer) == ("3+4=", "7")


def test_common_beginning_of_answers_is_prompt(tmp_path: Path) -> None:
    [row] = load_pairs(write(tmp_path, {"chosen": [USER, HELLO], "rejected": [USER, BYE]})).train
    assert (row.prompt, row.chosen, row.rejected, row.margin) == ([USER], [HELLO], [BYE], 0.0)


def test_margin_is_read_from_its_column(tmp_path: Path) -> None:
    config = write(tmp_path, {"prompt": "a", "chosen": "b", "rejected": "c", "by": 2})
    [row] = load_pairs(config.model_copy(update={"margin_key": "by"})).train
    assert row.margin == 2.0


def test_spoiled_sum_is_wrong_and_deterministic() -> None:
    config = DataConfig(train="addition", largest_addend=9, num_eval=10)
    split = load_pairs(config)
    assert len(split.train) == 90 and len(split.held_out) == 10
    assert all(row.chosen != row.rejected and 0 <= int(str(row.rejected)) <= 18 for row in split.train)
    assert load_pairs(config) == split


WRONG_CALL = [USER, {**CALL, "tool_calls": [{"id": "1"}]}]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "a", "rejected": "c"}, "must have the column 'chosen'"),
        ({"prompt": "a", "chosen": "b"}, "must have the column 'rejected'"),
        ({"prompt": "a", "chosen": "b", "rejected": None}, "'rejected' must be text"),
        ({"prompt": "a", "chosen": " ", "rejected": "b"}, "'chosen' must be text"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "must differ"),
        ({"chosen": [USER, HELLO], "rejected": [USER]}, "'rejected' must be messages with a turn of the assistant"),
        ({"chosen": [USER, HELLO, USER], "rejected": [USER, HELLO, BYE]}, "that the other answer does not have"),
        ({"chosen": "b", "rejected": "c"}, "need the column .prompt."),
        ({"chosen": [USER, {"role": "assistant", "content": ""}], "rejected": [USER, BYE]}, "must not be empty"),
        ({"prompt": "Why?", "chosen": [USER, HELLO], "rejected": [USER, BYE]}, "the question in 'prompt' .*'Why.'"),
        ({"prompt": "Hi", "chosen": [USER, HELLO], "rejected": [BYE]}, "the question in 'prompt' .*got 'Hi'"),
        ({"prompt": "Hi", "chosen": [USER, HELLO], "rejected": "Bye"}, "the question in 'prompt' .*got 'Hi'"),
        ({"messages": [USER, {"role": "assistant", "content": " \n"}]}, "must not be empty.*message 2"),
        ({"messages": [USER]}, "with a turn of the assistant"),
        ({"messages": "Hi"}, "must be a list of messages"),
        ({"messages": [USER, {"role": "assistant"}]}, "each with role and content"),
        ({"text": "Hi"}, "must have the column 'messages'"),
        ({"prompt": "a", "answer": ""}, "'answer' must be text"),
        ({"messages": [USER, HELLO], "tools": "add"}, "'tools' must be a list of tools"),
        ({"messages": [USER, HELLO], "tools": [{"name": "add"}]}, "'tools' must be a list of tools"),
        ({"messages": WRONG_CALL}, "must be messages with tool_calls like"),
    ],
)
def test_bad_row_is_named_with_line(row: dict[str, Any], says: str, tmp_path: Path) -> None:
    is_pair = "chosen" in row or "rejected" in row
    good = {"prompt": "a", "chosen": "b", "rejected": "c"} if is_pair else {"messages": [USER, HELLO]}
    config = write(tmp_path, good, row)
    with pytest.raises(DataError, match=says) as caught:
        (load_pairs if is_pair else load_answers)(config)
    assert "rows.jsonl:2" in str(caught.value) and caught.value.exit_code == 2


def test_rows_must_fill_one_batch() -> None:
    with pytest.raises(DataError, match="7 rows < 8"):
        require_one_batch(7, 8)
    require_one_batch(8, 8)


def test_pairs_of_parquet_file_without_prompts_or_margins(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "rows.parquet"
    table = {"chosen": [[USER, HELLO]], "rejected": [[USER, BYE]], "source": ["x"]}
    parquet.write_table(pyarrow.table(table), file)
    [row] = load_pairs(DataConfig(train=str(file), num_eval=0)).train
    assert (row.prompt, row.chosen, row.rejected, row.margin) == ([USER], [HELLO], [BYE], 0.0)


@pytest.mark.parametrize("before", [[USER], [SYSTEM, USER], [USER, HELLO, QUESTION]])
@pytest.mark.parametrize("prompt", ["Hi", " Hi\n", [USER]])
def test_parse_pair_accepts_prompt_and_full_conversations(prompt: Any, before: list[Any], tmp_path: Path) -> None:
    row = {"prompt": prompt, "chosen": [*before, HELLO], "rejected": [*before, BYE]}
    [pair] = load_pairs(write(tmp_path, row)).train
    assert (pair.prompt, pair.chosen, pair.rejected) == (before, [HELLO], [BYE])
    [sft] = load_answers(write(tmp_path, {"prompt": prompt, "answer": [*before, HELLO]})).train
    assert (sft.prompt, sft.answer) == ([], [*before, HELLO])


def test_parse_pair_keeps_prompt_of_continued_conversation(tmp_path: Path) -> None:
    row = {"prompt": [USER, HELLO], "chosen": [QUESTION, HELLO], "rejected": [QUESTION, BYE]}
    [pair] = load_pairs(write(tmp_path, row)).train
    assert (pair.prompt, pair.chosen) == ([USER, HELLO], [QUESTION, HELLO])


@pytest.mark.parametrize("tools", [[ADD], json.dumps([ADD])])
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_parse_answer_reads_calls_without_content_and_tools_of_row(
    content: dict[str, Any], tools: Any, tmp_path: Path
) -> None:
    [row] = load_answers(write(tmp_path, {"messages": [USER, {**CALL, **content}], "tools": tools})).train
    assert row.answer == [USER, {"content": None, **CALL, **content}] and row.tools == [ADD]


def test_parse_answer_drops_keys_added_by_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    other = {"function": {"name": "say", "arguments": {"text": "x"}}}
    turn = {"role": "assistant", "content": None, "tool_calls": [*CALL["tool_calls"], other]}  # type: ignore[misc]
    tools = [{"function": {"name": "add", "a": "x"}}, {"function": {"name": "say", "text": "x"}}]
    file = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"messages": [[USER, turn]], "tools": [tools]}), file)
    [row] = load_answers(DataConfig(train=str(file), num_eval=0)).train
    assert (row.answer, row.tools) == ([USER, turn], tools)


def test_load_prompts_with_tools_in_row_is_refused(tmp_path: Path) -> None:
    config = write(tmp_path, {"prompt": "3+4?", "answer": "7", "tools": [ADD]})
    with pytest.raises(
        DataError, match=r"rows\.jsonl:1: rows of task=grpo must not define tools.*data\.tools_key=null"
    ):
        load_prompts(config)
    assert load_prompts(config, with_info=True).train[0].info == {"tools": [ADD]}, "an environment reads them"
    assert load_prompts(config.model_copy(update={"tools_key": None})).train[0].answer == "7"
