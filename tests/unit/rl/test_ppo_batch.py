from dataclasses import replace

import numpy as np
import pytest

from slurm_rl.algorithms.credit import build_train_sequences, completion_kl
from slurm_rl.algorithms.packing import build_packed_batch
from slurm_rl.algorithms.sequences import FloatArray
from slurm_rl.algorithms.train_sequences import build_plain_sequences
from slurm_rl.config.algorithm import AlgorithmConfig, GAEConfig, KLConfig
from slurm_rl.config.load import load_config
from slurm_rl.data.groups import Branch, Details, Trajectory, Turn
from slurm_rl.errors import ConfigError
from slurm_rl.workers.critic import read_before, value_metrics
from tests.unit.rl.batch_kit import make_group

PPO = AlgorithmConfig(advantage="gae", group_size=1, gae=GAEConfig(gamma=1.0, lam=1.0, whiten=False))
WITH_KL = PPO.model_copy(update={"kl": KLConfig(coef=0.1, estimator="k1", apply_to="reward")})


def row(*values: float) -> FloatArray:
    return np.array(values, dtype=np.float32)


def test_kl_is_subtracted_at_its_token() -> None:
    # k1 is -0.5 - ref: 1.5 at the first token, 0 at the second.
    [sequence] = build_train_sequences([make_group(0, [1.0])], WITH_KL, [row(-2.0, -0.5)], [row(0.0, 0.0)])
    assert sequence.returns is not None
    assert sequence.returns.tolist() == pytest.approx([1.0 - 0.15, 1.0])
    groups = [make_group(0, [1.0]), make_group(1, [0.0], [1]), make_group(2, [None])]
    assert completion_kl(groups, [row(-2.0, -0.5), row(-1.0), row(-9.0, -9.0)], WITH_KL) == [1.5, 0.5]


LOGPROBS = [-0.5, -0.6, -0.7]
# The policy samples 9 8, the environment writes 3 4, the policy samples 7.
TURNS = [Turn(0, 2, "98", "34"), Turn(4, 5, "7")]
EPISODE = Trajectory([9, 8, 3, 4, 7], LOGPROBS, "7", False, 0, Details(TURNS))
# The same tokens with the second turn in its own branch.
SPLIT = replace(
    EPISODE,
    token_ids=[9, 8, 7],
    details=Details([Turn(0, 2, "98", "34"), Turn(2, 3, "7")], [Branch([0], 0, 2), Branch([0, 9, 8, 3, 4], 2, 3)]),
)


@pytest.mark.parametrize(
    ("completion", "trained", "read"),
    [(EPISODE, [[1, 2, 5]], [[0, 1, 4]]), (SPLIT, [[1, 2], [5]], [[0, 1], [4]])],
    ids=["one-sequence", "branches"],
)
def test_read_before_episode_reads_values_of_sampled_tokens_only(
    completion: Trajectory, trained: list[list[int]], read: list[list[int]]
) -> None:
    groups = [replace(make_group(0, [1.0]), completions=[completion])]
    plain = build_plain_sequences(groups)
    assert [build_packed_batch([one]).trained_positions.tolist() for one in plain] == trained
    assert [build_packed_batch([read_before(one)]).trained_positions.tolist() for one in plain] == read
    values = [row(0.25, 0.5, 0.75)] if completion is EPISODE else [row(0.25, 0.5), row(0.75)]
    sequences = build_train_sequences(groups, PPO, None, values)
    # With discount and smoothing 1 an advantage is the reward minus the value, in both turns.
    assert [one.advantages.tolist() for one in sequences if one.advantages is not None] == [
        [1.0 - value for value in part.tolist()] for part in values
    ]
    # The critic has one return per value.
    batch = build_packed_batch([read_before(one) for one in sequences])
    assert batch.returns is not None and batch.returns.tolist() == [1.0] * len(batch.trained_positions) == [1.0] * 3


def test_critic_metrics_use_values_before_update() -> None:
    sequences = build_train_sequences([make_group(0, [1.0]), make_group(1, [0.0])], PPO, None, [row(1, 1), row(0, 0)])
    assert value_metrics(sequences) == {"critic/value_mean": 0.5, "critic/explained_variance": 1.0}


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["algorithm.kl.target=0.5"], "algorithm.kl.target needs a KL term in the reward"),
        (["+algorithm=ppo", "critic.warmup_steps=120"], "critic.warmup_steps must be < trainer.num_steps"),
    ],
)
def test_contradicting_settings_are_refused(words: list[str], seen: str) -> None:
    with pytest.raises(ConfigError, match=seen):
        load_config(words)
