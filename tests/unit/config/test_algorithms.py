"""Each preset of conf/algorithm is valid with the demo, differs from the others, and names its paper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config

PRESETS = sorted((Path(__file__).parents[3] / "conf" / "algorithm").glob("*.yaml"))


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_a_preset_is_valid_and_names_its_paper(preset: Path) -> None:
    assert re.search(r"arxiv\.org/abs/\d{4}\.\d{5}", preset.read_text())
    config = load_config(["+exp=demo", f"+algorithm={preset.stem}"])
    assert config.algorithm != load_config(["+exp=demo"]).algorithm
    # What the user says himself wins.
    assert load_config(["+exp=demo", f"+algorithm={preset.stem}", "algorithm.clip_high=0.7"]).algorithm.clip_high == 0.7


def test_presets_differ() -> None:
    found = [load_config(["+exp=demo", f"+algorithm={preset.stem}"]).algorithm for preset in PRESETS]
    assert len({repr(algorithm) for algorithm in found}) == len(PRESETS) == 11


def test_values_that_papers_are_known_by() -> None:
    dapo = load_config(["+exp=demo", "+algorithm=dapo"]).algorithm
    assert (dapo.clip_low, dapo.clip_high, dapo.aggregation, dapo.kl.coefficient) == (0.2, 0.28, "token-mean", 0.0)
    assert dapo.overlong.buffer_share == 0.2
    assert dapo.clip_dual == 3.0  # verl's clip_ratio_c
    config = load_config(["+exp=demo", "+algorithm=dr_grpo"])
    assert config.algorithm.aggregation_length == config.rollout.max_tokens
    assert load_config(["+exp=demo", "+algorithm=gspo"]).algorithm.clip_low == 3e-4
    assert load_config(["+exp=demo", "+algorithm=reinforce_pp", "algorithm.group_size=1"]).algorithm.group_size == 1
