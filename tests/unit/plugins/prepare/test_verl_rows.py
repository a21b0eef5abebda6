"""Test `prepare --format verl`; tests/train/external/test_verl_data.py uses verl's own reader and scorers."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.unit.plugins.prepare.conftest import Prepare
from tests.unit.plugins.prepare.hub_server import Hub
from tests.unit.plugins.prepare.small_sets import GSM8K, MATH, gsm8k, math


def test_gsm8k_has_verl_columns_and_ours(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[GSM8K] = gsm8k()
    for words in ([], ["--format", "verl"]):
        done = prepare("gsm8k", *words)
        assert done.returncode == 0, done.stderr
    assert "data/verl/gsm8k/train.parquet  3 rows" in done.stdout
    assert (tmp_path / "data/gsm8k/train.jsonl").is_file()
    rows = pq.read_table(tmp_path / "data/verl/gsm8k/test.parquet").to_pylist()
    assert rows[1] == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {
                "role": "user",
                "content": 'What is 1+1? Let\'s think step by step and output the final answer after "####".',
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "1001"},
        "extra_info": {"split": "test", "index": 1, "question": "What is 1+1?", "answer": "<<1+1>>\n#### 1,001"},
    }
    assert "already there" in prepare("gsm8k", "--format", "verl").stderr


def test_math_keeps_rows_that_only_our_verifier_rejects(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[MATH] = math(r"It is \boxed{\text{odd}}.")
    assert prepare("math", "--format", "verl").returncode == 0
    rows = pq.read_table(tmp_path / "data/verl/math/train.parquet").to_pylist()
    assert [row["reward_model"]["ground_truth"] for row in rows] == [r"\frac{1}{2}", r"\text{odd}", r"\frac{1}{2}"]
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2]


def test_bad_row_is_named_and_leaves_no_file(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[GSM8K] = gsm8k(test=[{"question": "a", "answer": "#### 1"}, {"question": "b", "answer": "no end"}])
    done = prepare("gsm8k", "--format", "verl")
    assert done.returncode == 2 and "row 1" in done.stderr and "####" in done.stderr
    assert not list((tmp_path / "data/verl/gsm8k").glob("*test*"))
    assert prepare("gsm8k", "--format", "verl", "--leave-out-bad-rows").returncode == 0
    assert pq.read_table(tmp_path / "data/verl/gsm8k/test.parquet").num_rows == 1


@pytest.mark.parametrize("words", [["mathv60k", "--format", "verl"], ["model", "a/b", "--format", "verl"]])
def test_rows_that_verl_cannot_read_are_refused(words: list[str], prepare: Prepare) -> None:
    done = prepare(*words)
    assert done.returncode == 2 and "--format" in done.stderr and "Traceback" not in done.stderr
