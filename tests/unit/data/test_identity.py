from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_rl.algorithms.sequences import ImageSpan, TrainSequence
from slurm_rl.data.load_data import accept_new_rows, check_same_rows, knows_rows, prompt_content
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import DataError
from slurm_rl.run_dir.run_dir import RunDir, read_json
from slurm_rl.trainers.supervised.objective import Example


def place(source: str) -> ImageSpan:
    return ImageSpan(source=source, start=0, num_tokens=1)


PROMPTS = [EncodedPrompt(index=n, token_ids=[n, 7], text=f"{n}+1=", answer=str(n + 1)) for n in range(4)]
CHANGED = [
    PROMPTS[:3],
    [*PROMPTS, PROMPTS[0]],
    [PROMPTS[1], PROMPTS[0], *PROMPTS[2:]],
    [replace(PROMPTS[0], answer="8"), *PROMPTS[1:]],
    [replace(PROMPTS[0], token_ids=[7, 0]), *PROMPTS[1:]],
    [replace(PROMPTS[0], text="0+1=1", answer=""), *PROMPTS[1:]],
    [replace(PROMPTS[0], images=(place("/1.png"),)), *PROMPTS[1:]],
]


def check(folder: Path, train: list[EncodedPrompt], held_out: list[EncodedPrompt]) -> None:
    check_same_rows(RunDir(folder), len(train), len(held_out), map(prompt_content, [*train, *held_out]))


def test_row_moved_to_held_out_side_is_detected(tmp_path: Path) -> None:
    check(tmp_path, PROMPTS, [])
    with pytest.raises(DataError, match=r"3 \+ 1 rows"):
        check(tmp_path, PROMPTS[:3], PROMPTS[3:])


def test_run_without_recorded_rows_is_refused(tmp_path: Path) -> None:
    """The held-out rows may have changed."""
    (tmp_path / "checkpoints" / "step-2").mkdir(parents=True)
    with pytest.raises(DataError, match=r"checkpoints and no prompts\.json .* Next: restore the old data"):
        check(tmp_path, PROMPTS, [])
    accept_new_rows(RunDir(tmp_path))
    check(tmp_path, PROMPTS, [])


@pytest.mark.parametrize("changed", CHANGED)
def test_other_rows_are_refused_until_accepted_once(changed: list[EncodedPrompt], tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    check(tmp_path, PROMPTS, [])
    with pytest.raises(DataError, match=rf"got {len(changed)} \+ 0 rows .* in place of 4 \+ 0 rows .*Next: restore"):
        check(tmp_path, changed, [])
    before = read_json(run.prompts)
    accept_new_rows(run)
    accept_new_rows(run)  # the command is repeated before the run starts
    check(tmp_path, changed, [])
    assert read_json(run.prompts)["replaced"] == [before]
    assert knows_rows(run, before) and knows_rows(run, read_json(run.prompts))
    check(tmp_path, changed, [])
    with pytest.raises(DataError, match=r"Next: restore .* resume .* --accept-new-rows"):
        check(tmp_path, PROMPTS, [])


@pytest.mark.parametrize(
    "change",
    [{"token_ids": np.array([1, 2, 4])}, {"trained": np.array([2])}, {"margin": 1.0}, {"images": [place("b")]}],
)
def test_identity_covers_trained_content_only(change: dict[str, Any]) -> None:
    """Change only content that leaves all token counts equal."""
    rejected = TrainSequence(token_ids=np.array([1, 2, 9]), trained_from=1, trained=np.array([1]))
    chosen = replace(rejected, token_ids=np.array([1, 2, 3]), images=[place("a")])
    example = Example((chosen, rejected))
    assert example.content == Example((replace(chosen), replace(rejected))).content
    assert example.content == example.with_reference([np.ones(1, np.float32)] * 2).content
    assert example.content != Example((replace(chosen, **change), rejected)).content
    assert example.content != Example((rejected, chosen)).content
