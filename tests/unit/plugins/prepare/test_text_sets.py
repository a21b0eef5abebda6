import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from slurm_rl.config.data import DataConfig
from slurm_rl.data.prompts import load_rows
from slurm_rl.plugins.prepare.recipes.math import find_boxed
from slurm_rl.rewards.check_references import find_unscorable
from tests.small_disk import small_disk
from tests.storage.disks import fill
from tests.unit.plugins.prepare.conftest import Prepare
from tests.unit.plugins.prepare.hub_server import Hub
from tests.unit.plugins.prepare.small_sets import GSM8K, MATH, gsm8k, math


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_gsm8k_answers_are_plain_numbers(hub: Hub, prepare_on_login_node: Prepare, tmp_path: Path) -> None:
    hub.repos[GSM8K] = gsm8k()
    done = prepare_on_login_node("gsm8k")
    assert done.returncode == 0, done.stderr
    for split in ("train", "test"):
        rows = read(tmp_path / f"data/gsm8k/{split}.jsonl")
        assert [row["answer"] for row in rows] == ["1000", "1001", "1002"]
        assert rows[1]["prompt"].startswith("What is 1+1?\n")
        assert "\\boxed{}" in rows[1]["prompt"]
    assert len(load_rows(tmp_path / "data/gsm8k/train.jsonl", DataConfig())) == 3


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"question": "a", "answer": "no end"}], ["row 0", "'answer'", "####"]),
        ([{"question": "a", "answer": "#### 1"}, {"question": " ", "answer": "#### 1"}], ["row 1", "'question'"]),
        ([{"question": "a", "solution": "#### 1"}], ["must have the column 'answer'", "question, solution"]),
        ([{"question": 1, "answer": "#### 1"}], ["row 0", "'question'"]),
        (None, ["must be a parquet file"]),
    ],
)
def test_bad_row_of_gsm8k_is_named(
    rows: list[dict[str, object]] | None, said: list[str], hub: Hub, prepare: Prepare
) -> None:
    hub.repos[GSM8K] = gsm8k(test=rows or [])
    if rows is None:
        hub.repos[GSM8K]["main/test-00000-of-00001.parquet"] = b"PAR1 but not really PAR1"
    done = prepare("gsm8k")
    assert done.returncode == 2
    assert [word for word in ["main/test-00000-of-00001.parquet", *said] if word not in done.stderr] == []
    if said[0] == "row 0":
        assert "gsm8k test: at least one row" in prepare("gsm8k", "--leave-out-bad-rows").stderr


def test_full_disk_is_named_and_existing_files_stay(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[GSM8K] = gsm8k()
    with small_disk(tmp_path, size_kb=64) as disk:
        filler = fill(disk)
        done = prepare("gsm8k", "--root", str(disk))
        assert done.returncode in (1, 2) and "Traceback" not in done.stderr
        assert "No space left on device" in done.stderr and f"{disk} has 0.0" in done.stderr
        assert "Next: make room there" in done.stderr
        filler.unlink()
        assert prepare("gsm8k", "--root", str(disk)).returncode == 0
        assert len(read(disk / "gsm8k/train.jsonl")) == 3


def test_few_unverifiable_answers_are_skipped_and_named(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[MATH] = math(*(rf"\boxed{{{n}}}" for n in range(30)), r"\boxed{\frac{1}{}}")
    done = prepare("math")
    assert done.returncode == 0, done.stderr
    assert f"left out: 1 rows, named in {tmp_path}/data/math/manifest.json" in done.stdout
    rows = read(tmp_path / "data/math/train.jsonl")
    assert (rows[0]["type"], rows[31]["type"], len(rows)) == ("algebra", "geometry", 32)
    assert rows[0]["answer"] == rows[31]["answer"] == r"$\frac{1}{2}$"
    (left_out,) = json.loads((tmp_path / "data/math/manifest.json").read_text())["left_out"]
    assert left_out.startswith("algebra/train-00000-of-00001.parquet row 31: column 'answer'")
    assert r"\\frac{1}{}" in left_out
    hub.repos[MATH] = math(r"\boxed{\frac{1}{}}", r"\boxed{\oint}")
    done = prepare("math", "--leave-out-bad-rows", "--root", "refused")
    assert done.returncode == 2
    assert "2 of 4 it cannot, first algebra/train-00000-of-00001.parquet row 1" in done.stderr


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"\boxed{1}, no, \boxed{\text{a } \{2\}}", r"\text{a } \{2\}"),
        (r"\fbox{3}", "3"),
        (r"$\boxed 7$", "7"),
        (r"\boxed{1", ""),
        (r"\boxed", ""),
        ("no box", ""),
    ],
)
def test_box_ends_at_matching_brace(solution: str, answer: str) -> None:
    assert find_boxed(solution) == answer


def test_gsm8k_has_verl_columns_and_ours(hub: Hub, prepare: Prepare, tmp_path: Path) -> None:
    hub.repos[GSM8K] = gsm8k()
    for words in ([], ["--format", "verl"]):
        done = prepare("gsm8k", *words)
        assert done.returncode == 0, done.stderr
    assert "data/verl/gsm8k/train.parquet  3 rows" in done.stdout
    assert (tmp_path / "data/gsm8k/train.jsonl").is_file()
    rows = pq.read_table(tmp_path / "data/verl/gsm8k/test.parquet").to_pylist()
    words = 'What is 1+1? Let\'s think step by step and output the final answer after "####".'
    assert rows[1] == {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": words}],
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


def test_find_unscorable_tries_answers_once_and_names_bad_ones() -> None:
    found = find_unscorable(["$1$", "#### 72", "$50\\%$", "$\\boxed{\\frac{1}{2}}$", "#### 72", "$1$"])
    assert list(found) == ["#### 72"]
    assert "LaTeX" in found["#### 72"]
    assert find_unscorable(["#### 72"], total_s=-1.0) == {}, "it stops after its time"


def test_find_unscorable_survives_hanging_and_killing_answers() -> None:
    answers = ["a", "hangs in C", "b", "dies", "raises", "c"]
    assert find_unscorable(answers, "tests.unit.plugins.prepare.odd_judge:judge_oddly", timeout_s=1.0) == {
        "hangs in C": "no verdict within 1 s",
        "dies": "the verifier died of it",
        "raises": "RecursionError: deep",
    }
