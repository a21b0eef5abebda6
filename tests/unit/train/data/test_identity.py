from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.errors import DataError
from slurm_rl.train.data.identity import check_same_prompts
from slurm_rl.train.data.tokenize import EncodedPrompt

PROMPTS = [EncodedPrompt(index=n, token_ids=[n, 7], text=f"{n}+1=", answer=str(n + 1)) for n in range(4)]
CHANGED = [
    PROMPTS[:3],
    [*PROMPTS, PROMPTS[0]],
    [PROMPTS[1], PROMPTS[0], *PROMPTS[2:]],
    [replace(PROMPTS[0], answer="8"), *PROMPTS[1:]],
    [replace(PROMPTS[0], token_ids=[7, 0]), *PROMPTS[1:]],
    [replace(PROMPTS[0], text="0+1=1", answer=""), *PROMPTS[1:]],
]


def test_the_same_prompts_go_on(tmp_path: Path) -> None:
    for _ in range(3):
        check_same_prompts(tmp_path / "prompts.json", PROMPTS[:3], PROMPTS[3:])


@pytest.mark.parametrize("changed", CHANGED)
def test_other_prompts_are_refused_with_both_counts(changed: list[EncodedPrompt], tmp_path: Path) -> None:
    check_same_prompts(tmp_path / "prompts.json", PROMPTS, [])
    with pytest.raises(DataError, match=rf"got {len(changed)} \+ 0 prompts .* in place of 4 \+ 0 prompts"):
        check_same_prompts(tmp_path / "prompts.json", changed, [])


def test_a_prompt_that_moved_to_the_held_out_side_is_seen(tmp_path: Path) -> None:
    check_same_prompts(tmp_path / "prompts.json", PROMPTS, [])
    with pytest.raises(DataError, match=r"3 \+ 1 prompts"):
        check_same_prompts(tmp_path / "prompts.json", PROMPTS[:3], PROMPTS[3:])
