from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_rl.config.data import DataConfig
from slurm_rl.errors import DataError
from slurm_rl.train.data.addition import build_addition_rows
from slurm_rl.train.data.load import load_data


def write_rows(path: Path, prompts: list[str]) -> str:
    path.write_text("".join(json.dumps({"prompt": p, "answer": p}) + "\n" for p in prompts))
    return str(path)


def test_addition_has_every_pair_once_with_its_sum() -> None:
    rows = build_addition_rows(9, seed=1)
    assert {row.prompt: row.answer for row in rows} == {f"{a}+{b}=": str(a + b) for a in range(10) for b in range(10)}
    assert [row.index for row in rows] == list(range(100))


def test_addition_is_shuffled_by_the_seed_alone() -> None:
    assert build_addition_rows(9, seed=1) == build_addition_rows(9, seed=1)
    assert build_addition_rows(9, seed=1) != build_addition_rows(9, seed=2)
    # Written down once: a resumed run on another Python must see the same order.
    assert [row.prompt for row in build_addition_rows(9, seed=0)[:4]] == ["0+8=", "2+9=", "8+2=", "3+6="]


def test_addition_refuses_more_than_fits_in_memory() -> None:
    with pytest.raises(DataError, match=r"<= 999.*got 1000 \(1002001 pairs\)"):
        build_addition_rows(1000, seed=0)


def test_held_out_rows_are_not_trained_on_and_none_is_lost() -> None:
    train, held_out = load_data(DataConfig(train="addition", num_eval=30, largest_addend=9), seed=3)
    assert (len(train), len(held_out)) == (70, 30)
    assert {r.prompt for r in train} & {r.prompt for r in held_out} == set()
    assert {r.index for r in train} | {r.index for r in held_out} == set(range(100))
    assert load_data(DataConfig(train="addition", num_eval=30, largest_addend=9), seed=3) == (train, held_out)
    assert load_data(DataConfig(train="addition", num_eval=30, largest_addend=9), seed=4) != (train, held_out)


def test_a_prompt_that_the_file_holds_twice_is_on_one_side_only(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [str(i // 2) for i in range(40)])
    train, held_out = load_data(DataConfig(train=path, num_eval=5), seed=0)
    assert len(held_out) == 5
    assert train
    assert {r.prompt for r in train} & {r.prompt for r in held_out} == set()


@pytest.mark.parametrize("num_eval", [4, 5])
def test_holding_out_everything_is_an_error_with_both_numbers(tmp_path: Path, num_eval: int) -> None:
    path = write_rows(tmp_path / "rows.jsonl", list("abcd"))
    with pytest.raises(DataError, match=rf"num_eval = {num_eval} rows.*got 4 rows"):
        load_data(DataConfig(train=path, num_eval=num_eval), seed=0)


def test_rows_that_are_all_one_prompt_leave_nothing_to_train_on(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ["a"] * 4)
    with pytest.raises(DataError, match="none differs"):
        load_data(DataConfig(train=path, num_eval=1), seed=0)


def test_num_eval_zero_keeps_all_rows() -> None:
    train, held_out = load_data(DataConfig(train="addition", num_eval=0, largest_addend=1), seed=0)
    assert (len(train), held_out) == (4, [])


def test_an_eval_file_is_read_up_to_num_eval(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "eval.jsonl", list("abc"))
    train, held_out = load_data(DataConfig(train="addition", eval=path, num_eval=2, largest_addend=1), seed=0)
    assert (len(train), [r.prompt for r in held_out]) == (4, ["a", "b"])
