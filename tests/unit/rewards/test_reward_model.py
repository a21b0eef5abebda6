"""Compare a reward model in the workers with Hugging Face's forward pass."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from pebble import ProcessExpired
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from slurm_rl.config.load import load_config
from slurm_rl.config.reward import RewardConfig, RewardModelConfig
from slurm_rl.errors import ConfigError
from slurm_rl.models.reward_model import ScoreStatistics, describe_scores
from slurm_rl.rewards.classifier import load_model, require_loadable, specify_model
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.results import RewardItem
from slurm_rl.rewards.worker_processes import Outcomes, VerifierProcesses
from slurm_rl.workers.critic import Critic, CriticWorker, read_unit
from slurm_rl.workers.train_workers import WorkerGroup, WorkerRank
from tests.tiny_models import TinyModel, build_character_tokenizer
from tests.unit.rl.fake_ray import FakeCluster, actors_of

TOKENIZER = build_character_tokenizer(TinyModel())


def build_model(
    folder: Path, num_labels: int = 1, measured: ScoreStatistics | None = None, chats: bool = False
) -> Qwen3ForSequenceClassification:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}
    config = Qwen3Config(vocab_size=len(TOKENIZER), pad_token_id=0, num_labels=num_labels, **shape, **heads)
    model = Qwen3ForSequenceClassification(config).eval()
    # With the default initialization every score is about 0.
    torch.nn.init.normal_(model.score.weight)
    if measured is not None:
        describe_scores(model.config, measured, chats=chats, variables={})
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Qwen3ForSequenceClassification]:
    folder = tmp_path_factory.mktemp("model")
    return folder, build_model(folder)


@pytest.fixture(scope="module")
def pool(plain: tuple[Path, Qwen3ForSequenceClassification]) -> Iterator[RewardPool]:
    model = RewardModelConfig(path=str(plain[0]), batch_size=4)
    with RewardPool(RewardConfig(model=model, timeout_s=60, start_timeout_s=600, num_workers=1)) as pool:
        yield pool


def test_reward_is_logit_at_end_independent_of_batch(
    plain: tuple[Path, Qwen3ForSequenceClassification], pool: RewardPool
) -> None:
    items = [RewardItem(prompt=f"{i}+{i * i}=", completion="7" * (i % 5), answer="") for i in range(10)]
    too_long = RewardItem(prompt="1=", completion="7" * 30, answer="")
    results = pool.score([*items[:5], too_long, *items[5:]])
    failed = results.pop(5)
    assert failed.failure == "exception"
    assert "reads 32 tokens; prompt and completion have 33" in failed.detail
    for item, result in zip(items, results, strict=True):
        ids = TOKENIZER(item.prompt + item.completion + "<eos>", return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            assert result.value == pytest.approx(plain[1](ids).logits.item(), abs=1e-5)
        assert result.parts == {"model": result.value}
    assert len({round(result.value or 0.0, 3) for result in results}) > 5


@pytest.mark.parametrize("deaths", [1, 2])
def test_batch_of_killed_worker_is_retried_once(deaths: int, pool: RewardPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single items differ from the batch in the last digits: 31 of 32 scores, by up to 4e-7."""
    submit, read = VerifierProcesses.submit, list[int]()

    def die(self: VerifierProcesses, items: Sequence[RewardItem], **limits: Any) -> Future[Outcomes]:
        read.append(len(items))
        if len(read) > deaths:
            return submit(self, items, **limits)
        future = Future[Outcomes]()
        future.set_exception(ProcessExpired("killed", code=-9))
        self._done.put(future)
        return future

    whole = [result.value for result in pool.score(ITEMS)]
    monkeypatch.setattr(VerifierProcesses, "submit", die)
    found = [result.value for result in pool.score(ITEMS)]
    assert read == [7, 7, *([1] * 7 if deaths == 2 else [])]
    assert found == (whole if deaths == 1 else pytest.approx(whole, abs=1e-5))


def test_classifier_with_several_outputs_is_refused(tmp_path: Path) -> None:
    build_model(tmp_path, num_labels=3)
    with pytest.raises(ValueError, match=r"a reward model has one output; .* has 3"):
        load_model(specify_model(RewardModelConfig(path=str(tmp_path)), num_workers=1))


ITEMS = [RewardItem(prompt=f"{i}+{i * i}=", completion="7" * (i % 5), answer="") for i in range(7)]


def score(folder: Path, **fields: Any) -> list[float]:
    return load_model(specify_model(RewardModelConfig(path=str(folder), **fields), num_workers=1)).score(ITEMS)


@pytest.mark.parametrize(
    ("measured", "says"),
    [(None, "has mean=None, std=None"), (ScoreStatistics(1.0, 0.0), "std=0.0"), (ScoreStatistics(1.0, 1e999), "inf")],
)
def test_unmeasured_scores_cannot_be_normalized(measured: ScoreStatistics | None, says: str, tmp_path: Path) -> None:
    build_model(tmp_path, measured=measured)
    with pytest.raises(ValueError, match=rf"reward\.model\.normalize needs .*{says}"):
        score(tmp_path, normalize=True)
    assert len(score(tmp_path)) == len(ITEMS)


def test_chat_model_does_not_score_text(tmp_path: Path) -> None:
    build_model(tmp_path, measured=ScoreStatistics(0.0, 1.0), chats=True)
    with pytest.raises(ValueError, match=r"trained on chats, got text: set data\.chat_template=true"):
        score(tmp_path)


def test_critic_from_normalized_reward_model_uses_its_unit(tmp_path: Path) -> None:
    build_model(tmp_path, measured=ScoreStatistics(mean=1.5, std=0.25))
    words = ["+exp=demo", "+algorithm=ppo", f"reward.model.path={tmp_path}", f"critic.init_from={tmp_path}"]
    assert read_unit(load_config(words)) is None
    assert read_unit(load_config([*words, "reward.model.normalize=true"])) == ScoreStatistics(1.5, 0.25)
    assert read_unit(load_config([*words[:3], "reward.model.normalize=true"])) is None


def test_critic_workers_score_shares_identically(
    plain: tuple[Path, Qwen3ForSequenceClassification], pool: RewardPool
) -> None:
    words = ["reward.model.device=critic", f"reward.model.path={plain[0]}", "critic.num_workers=2"]
    config = load_config(["+exp=demo", "+algorithm=ppo", *words])
    workers = [CriticWorker(config, WorkerRank(rank, 2, "127.0.0.1", 1, num_threads=1)) for rank in range(2)]
    cluster: Any = FakeCluster()
    group = Critic(WorkerGroup(cluster, actors_of("critic", *workers), 64, 60, "critic"))
    items = [*ITEMS, RewardItem(prompt="1=", completion="7" * 30, answer="")]
    found, expected = group.score(items), pool.score(items)
    assert [(r.item, r.failure) for r in found] == [(r.item, r.failure) for r in expected]
    assert [r.value or 0.0 for r in found] == pytest.approx([r.value or 0.0 for r in expected], abs=1e-5)
    assert group.score([]) == []


def test_folder_without_reward_model_is_named_by_critic(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reward\.model\.path"):
        require_loadable(specify_model(RewardModelConfig(path=str(tmp_path / "nothing")), num_workers=1))
