import math
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.data.groups import Group, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import ConfigError, DataError
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.trainers.grpo.rollout_files import dump_groups, replay_groups


def group(*scores: float | None) -> Group:
    item = RewardItem(completion="7", answer="7")
    prompt = EncodedPrompt(index=3, token_ids=[5, 12], text="3+", answer="7")
    results = [
        RewardResult(item=item, value=None, failure="hang", detail="10 s")
        if score is None
        else RewardResult(item=item, value=score, parts={"math": score})
        for score in scores
    ]
    return Group(prompt, [Trajectory([9, 1], [-math.pi / 7, -1e-30], "7", True, 4) for _ in scores], results)


def test_dump_is_replayed_bit_exactly(tmp_path: Path) -> None:
    groups = [group(1.0, None), group(0.1, 0.0)]
    dump_groups(tmp_path / "rollouts", 12, [group(0.0)])
    dump_groups(tmp_path / "rollouts", 12, groups)  # the step is repeated
    assert replay_groups(tmp_path / "rollouts", 12) == groups


def test_missing_step_and_foreign_line_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"step-12\.jsonl.*Next: replay with"):
        replay_groups(tmp_path, 12)
    (tmp_path / "step-12.jsonl").write_text('{"prompt": {}}\n')
    with pytest.raises(DataError, match=r"step-12\.jsonl.*Next: dump again"):
        replay_groups(tmp_path, 12)


def test_folder_without_rollouts_is_refused_before_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.replay must name a folder.*Next: name <run>/rollouts"):
        load_config(["+exp=demo", f"rollout.replay={tmp_path}"])
    dump_groups(tmp_path, 0, [group(1.0)])
    with pytest.raises(ConfigError, match=r"rollout\.replay excludes rollout\.dump"):
        load_config(["+exp=demo", f"rollout.replay={tmp_path}", "rollout.dump=true"])
