"""A reward model is trained, exported, and scores a GRPO run's completions as in training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_rl.config.reward import RewardModelConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.data.chat import open_template
from slurm_rl.data.groups import Group, Trajectory
from slurm_rl.data.load_data import load_pairs
from slurm_rl.data.prompts import PromptRow
from slurm_rl.data.tokenize import encode_prompts
from slurm_rl.errors import ConfigError
from slurm_rl.models.load_model import load_tokenizer
from slurm_rl.rewards.classifier import require_loadable, score_all, specify_model
from slurm_rl.rewards.results import RewardItem, RewardResult, build_result
from slurm_rl.rollout.sampling import score_groups
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.supervised.objective import micro_batches_of
from slurm_rl.trainers.supervised.rank_info import RankInfo
from slurm_rl.trainers.supervised.run_supervised import build_engine, build_objective, run_training
from tests.tiny_models import TinyModel, build_tiny_model
from tests.train.conftest import make_run

TINY = TinyModel(
    characters="".join(map(chr, range(32, 127))), hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1
)
WORDS = [
    "+exp=rm_tiny",
    "model=hf",
    "model.dtype=float32",
    "data.largest_addend=9",
    "data.num_eval=20",
    "supervised.batch_size=16",
    "supervised.max_steps=5",
    "supervised.max_tokens=64",
    "policy.num_threads=1",
    "rm.center_rewards_coef=0.01",
]
# As in ChatML, text follows the end of a turn; the policy has a different template.
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<eos> {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="module", params=[pytest.param("text", marks=pytest.mark.slow), "chat"])
def trained(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, RunConfig]:
    folder = tmp_path_factory.mktemp(request.param)
    build_tiny_model(TINY, seed=0, folder=folder / "model")
    tokenizer = load_tokenizer(folder / "model")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "model")
    is_chat = str(request.param == "chat").lower()
    words = [*WORDS, f"model.path={folder / 'model'}", f"data.chat_template={is_chat}"]
    run, config = make_run(folder / "run", words)
    run_training(run, config, RankInfo())
    return run, config


def score_in_training(run: RunDir, config: RunConfig) -> list[float]:
    """Scores of the held-out pairs' answers by the training engine, from the export."""
    same = config.model_copy(update={"model": config.model.model_copy(update={"path": str(run.export)})})
    objective = build_objective(same, str(run.export))
    engine = build_engine(same, str(run.export), objective, RankInfo())
    share = [list(range(len(objective.held_out)))]
    [found] = engine.compute_scores(micro_batches_of(objective.held_out, share))
    return [float(score) for scores in found for score in scores]


def score_in_grpo(run: RunDir, config: RunConfig, **fields: Any) -> list[float]:
    """Scores of the same answers as completions of a policy's prompts."""

    class Scorer:
        def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
            spec = specify_model(RewardModelConfig(path=str(run.export), **fields), num_workers=2)
            outcomes = score_all(spec, items)
            return [build_result(item, one, {"model": 1.0}) for item, one in zip(items, outcomes, strict=True)]

    policy = load_tokenizer(run.export)
    policy.chat_template = TEMPLATE.replace(": ", "~ ")
    pairs = load_pairs(config.data).held_out
    rows = [PromptRow(index=pair.index, prompt=pair.prompt, answer="") for pair in pairs]
    prompts = encode_prompts(
        rows,
        policy,
        template=open_template(policy, config.data),
        max_prompt_tokens=32,
        context_length=64,
        max_tokens=16,
    )
    groups = [
        Group(prompt, [Trajectory([1], [0.0], str(text), False, 0) for text in (pair.chosen, pair.rejected)])
        for prompt, pair in zip(prompts, pairs, strict=True)
    ]
    results = [result for group in score_groups(groups, Scorer()) for result in group.results]
    assert all(result.failure is None for result in results), results[0].detail
    return [float(result.value or 0.0) for result in results]


def test_reward_equals_training_score(trained: tuple[RunDir, RunConfig]) -> None:
    expected, found = score_in_training(*trained), score_in_grpo(*trained)
    assert len(expected) == 40
    assert np.std(expected) > 0.001, "scores that are all the same would prove nothing"
    assert found == pytest.approx(expected, abs=1e-6)


def test_normalized_held_out_rewards_are_standardized(
    trained: tuple[RunDir, RunConfig],
) -> None:
    run, config = trained
    measured = json.loads((run.export / "config.json").read_text())
    expected = score_in_training(run, config)
    assert (measured["mean"], measured["std"]) == pytest.approx((np.mean(expected), np.std(expected, ddof=1)), rel=1e-4)
    found = score_in_grpo(run, config, normalize=True)
    assert (np.mean(found), np.std(found, ddof=1)) == pytest.approx((0.0, 1.0), abs=1e-4)
    assert measured["scores_chats"] == config.data.chat_template


def test_require_loadable_refuses_reward_model_without_its_head(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForSequenceClassification

    build_tiny_model(TINY, seed=0, folder=tmp_path)
    AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=1).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["score.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"reward\.model\.path .*1 missing: score\.weight"):
        require_loadable(specify_model(RewardModelConfig(path=str(tmp_path), normalize=False), num_workers=1))
