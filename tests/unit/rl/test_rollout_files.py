"""Sampled batches in checkpoints, and dumped steps that are replayed."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.algorithms.sequences import ImageSpan
from slurm_rl.config.load import load_config
from slurm_rl.data.groups import Branch, Details, Group, Trajectory, Turn
from slurm_rl.errors import ConfigError, DataError
from slurm_rl.trainers.grpo.rollout_files import dump_groups, load_rollouts, replay_groups, save_rollouts
from tests.unit.rl.batch_kit import make_group

SPLIT = Details([Turn(0, 1, "a", reward=0.5), Turn(1, 2, "b", agent="black")], [Branch([1], 0, 1), Branch([2], 1, 2)])
SAMPLED = Trajectory([9, 1], [-math.pi / 7, -1e-30], "7", True, 4, SPLIT)
IMAGES = (ImageSpan(source="/data/1.png", start=0, num_tokens=1),)


def group_of(*values: float | None) -> Group:
    group = make_group(3, values)
    return replace(group, prompt=replace(group.prompt, images=IMAGES), completions=[SAMPLED] * len(values))


def test_rollouts_survive_checkpoint_bit_exactly(tmp_path: Path) -> None:
    mixed = Trajectory([3, 2**31 - 1], [-math.e, 0.0], "", False, 4, Details(token_versions=[4, 5]))
    other = replace(make_group(8, [0.0]), completions=[mixed])
    batches = {7: [group_of(0.1, None), other], 8: [group_of(1.0)], 9: []}
    save_rollouts(tmp_path, batches)
    assert load_rollouts(tmp_path) == batches
    assert load_rollouts(tmp_path / "nowhere") == {}


def test_batches_of_other_version_are_refused(tmp_path: Path) -> None:
    save_rollouts(tmp_path, {4: [group_of(1.0)]})
    path = tmp_path / "rollouts.npz"
    for other in (path.read_bytes().replace(b'"details"', b'"detours"'), b"", b"{}", path.read_bytes()[:-9]):
        path.write_bytes(other)
        with pytest.raises(DataError, match="of this version of slurm_rl"):
            load_rollouts(tmp_path)


def test_saved_rollouts_take_few_bytes_per_token(tmp_path: Path) -> None:
    long = Trajectory(list(range(50_000)), [-0.1 * math.pi] * 50_000, "7", False, 4)
    save_rollouts(tmp_path, {4: [replace(make_group(3, [1.0]), completions=[long])]})
    assert (tmp_path / "rollouts.npz").stat().st_size < 13 * 50_000


def test_dump_is_replayed_bit_exactly(tmp_path: Path) -> None:
    groups = [group_of(1.0, None), group_of(0.1, 0.0)]
    dump_groups(tmp_path / "rollouts", 12, [group_of(0.0)])
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
    dump_groups(tmp_path, 0, [group_of(1.0)])
    with pytest.raises(ConfigError, match=r"rollout\.replay excludes rollout\.dump"):
        load_config(["+exp=demo", f"rollout.replay={tmp_path}", "rollout.dump=true"])
