import json
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.data import DataConfig
from slurm_rl.data.load_data import build_addition_rows, load_answers, load_pairs, load_prompts
from slurm_rl.errors import DataError
from tests import image_kit

QUESTIONS = [f"What is {n}?" for n in range(40)]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_rows(path: Path, prompts: list[Any], **extra: Any) -> str:
    return write(path, [{"prompt": prompt, "answer": "1", **extra} for prompt in prompts])


def prompts_of(rows: list[Any]) -> list[Any]:
    return [row.prompt for row in rows]


def test_addition_has_each_pair_once_with_sum() -> None:
    rows = build_addition_rows(9)
    assert {row.prompt: row.answer for row in rows} == {f"{a}+{b}=": str(a + b) for a in range(10) for b in range(10)}
    assert [row.index for row in rows] == list(range(100))


def test_addition_refuses_more_than_fits_in_memory() -> None:
    with pytest.raises(DataError, match=r"<= 999.*got 1000 \(1002001 pairs\)"):
        build_addition_rows(1000)


def test_held_out_rows_are_not_trained_and_none_is_lost() -> None:
    split = load_prompts(DataConfig(train="addition", num_eval=30, largest_addend=9))
    assert (len(split.train), len(split.held_out), split.num_overlapping) == (70, 30, 0)
    assert {r.index for r in split.train} | {r.index for r in split.held_out} == set(range(100))
    # Literal values: a resumed run on another Python must hold out the same rows.
    assert prompts_of(split.held_out)[:4] == ["6+4=", "6+5=", "0+7=", "4+3="]


def test_held_out_rows_depend_on_content_not_order(tmp_path: Path) -> None:
    first = load_prompts(DataConfig(train=write_rows(tmp_path / "a.jsonl", QUESTIONS), num_eval=10))
    other = load_prompts(DataConfig(train=write_rows(tmp_path / "b.jsonl", QUESTIONS[::-1]), num_eval=10))
    more = load_prompts(DataConfig(train=write_rows(tmp_path / "c.jsonl", [*QUESTIONS, "And?"]), num_eval=10))
    assert prompts_of(first.held_out) == prompts_of(other.held_out)
    assert len(set(prompts_of(first.held_out)) & set(prompts_of(more.held_out))) >= 9


def test_tasks_hold_out_same_prompts(tmp_path: Path) -> None:
    asked = [[{"role": "user", "content": text}] for text in QUESTIONS]
    said = {"role": "assistant", "content": "1"}
    config = DataConfig(train=write_rows(tmp_path / "rows.jsonl", asked, chosen="1", rejected="2"), num_eval=10)
    held_out = prompts_of(load_prompts(config).held_out)
    assert prompts_of(load_answers(config).held_out) == held_out == prompts_of(load_pairs(config).held_out)
    # Plain text and whole conversations select the same rows.
    plain = load_prompts(DataConfig(train=write_rows(tmp_path / "plain.jsonl", QUESTIONS), num_eval=10))
    assert [messages[0]["content"] for messages in held_out] == prompts_of(plain.held_out)
    whole = write(tmp_path / "whole.jsonl", [{"messages": [*messages, said]} for messages in asked])
    conversations = load_answers(DataConfig(train=whole, num_eval=10)).held_out
    assert [row.answer[:1] for row in conversations] == held_out


def test_duplicate_prompt_is_on_one_side(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [str(i // 2) for i in range(40)])
    split = load_prompts(DataConfig(train=path, num_eval=5))
    assert (len(set(prompts_of(split.held_out))), len(split.train), split.num_overlapping) == (5, 30, 5)
    assert set(prompts_of(split.train)).isdisjoint(prompts_of(split.held_out))


@pytest.mark.parametrize("num_eval", [4, 5])
def test_holding_out_everything_is_error_with_both_numbers(tmp_path: Path, num_eval: int) -> None:
    path = write_rows(tmp_path / "rows.jsonl", list("abcd"))
    with pytest.raises(DataError, match=rf"num_eval = {num_eval} rows.*got 4 rows with 4 different prompts"):
        load_prompts(DataConfig(train=path, num_eval=num_eval))


def test_part_of_eval_file_is_sampled_from_all(tmp_path: Path) -> None:
    subjects = [f"{subject} {n}" for subject in ("algebra", "geometry", "number theory") for n in range(50)]
    path = write_rows(tmp_path / "eval.jsonl", subjects)
    found = prompts_of(load_prompts(DataConfig(train="addition", eval=path, num_eval=30, largest_addend=1)).held_out)
    assert len(set(found)) == 30
    assert {text.rpartition(" ")[0] for text in found} == {"algebra", "geometry", "number theory"}


@pytest.mark.parametrize("num_eval", [0, 1, 500])
def test_prompts_of_eval_file_are_excluded_and_counted(num_eval: int, tmp_path: Path) -> None:
    train, evals = write_rows(tmp_path / "train.jsonl", list("abcda")), write_rows(tmp_path / "eval.jsonl", list("xba"))
    split = load_prompts(DataConfig(train=train, eval=evals, num_eval=num_eval))
    assert (prompts_of(split.train), split.num_overlapping, len(split.held_out)) == (["c", "d"], 3, min(num_eval, 3))
    assert num_eval < 3 or prompts_of(split.held_out) == ["x", "b", "a"], "a full file is unchanged"


def test_training_on_eval_file_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", list("abc"))
    with pytest.raises(DataError, match=r"not in data\.eval; got 3 rows with 3 different prompts, all of them"):
        load_prompts(DataConfig(train=path, eval=path))


def test_conversation_that_answers_held_out_prompt_is_excluded(tmp_path: Path) -> None:
    turns = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "1"), ("user", "b"))]
    long = [*turns, {"role": "assistant", "content": "2"}]
    train = write(tmp_path / "train.jsonl", [{"messages": one} for one in (long, turns[:2], [turns[2], long[3]])])
    asked_first = write_rows(tmp_path / "first.jsonl", ["a"])
    assert [row.index for row in load_answers(DataConfig(train=train, eval=asked_first)).train] == [2]
    asked_last = write_rows(tmp_path / "last.jsonl", [turns])
    assert [row.index for row in load_answers(DataConfig(train=train, eval=asked_last)).train] == [1, 2]


ODD = [[{"role": "user", "content": content}] for content in ("", 5, {"a": 1}, [5], ["a"])]


@pytest.mark.parametrize(
    "prompt", ["", " \n", [], [{"role": "user", "content": ""}], [{"role": "user"}], 7, None, *ODD]
)
def test_row_without_prompt_is_named_with_line(prompt: Any, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ["a", prompt], chosen="1", rejected="2")
    for load in (load_prompts, load_answers, load_pairs):
        if prompt is None and load is not load_prompts:
            continue  # column is optional there
        with pytest.raises(DataError, match=r"rows\.jsonl:2: .*not empty"):
            load(DataConfig(train=path, num_eval=0))


def test_copy_of_images_in_another_folder_holds_same_rows_out(tmp_path: Path) -> None:
    """Absolute image paths must not affect the choice of held-out rows."""
    chosen = []
    for folder in (tmp_path / "a", tmp_path / "of" / "another" / "b"):
        image_kit.write_rows(folder, num_rows=48)
        split = load_prompts(DataConfig(train=str(folder / "train.jsonl"), num_eval=5))
        chosen.append([row.index for row in split.held_out])
    assert chosen[0] == chosen[1]


def test_same_image_name_in_two_folders_is_two_prompts(tmp_path: Path) -> None:
    for name in ("train", "eval"):
        image_kit.write_rows(tmp_path / name, num_rows=12)
    files = {name: str(tmp_path / name / "train.jsonl") for name in ("train", "eval")}
    split = load_prompts(DataConfig(train=files["train"], eval=files["eval"], num_eval=500))
    # Only the three prompts without images match.
    assert (split.num_overlapping, len(split.train)) == (3, 9)


def test_load_pairs_with_question_twice_holds_out_rows_of_sft_and_grpo(tmp_path: Path) -> None:
    said = [{"role": "assistant", "content": text} for text in ("1", "2")]
    rows = []
    for text in QUESTIONS:
        chosen, rejected = ([{"role": "user", "content": text}, answer] for answer in said)
        rows.append({"prompt": text, "answer": "1", "messages": chosen, "chosen": chosen, "rejected": rejected})
    config = DataConfig(train=write(tmp_path / "rows.jsonl", rows), num_eval=10)
    held_out = [[row.index for row in load(config).held_out] for load in (load_pairs, load_answers, load_prompts)]
    assert held_out[0] == held_out[1] == held_out[2]
