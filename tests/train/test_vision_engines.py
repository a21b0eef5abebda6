"""vLLM and the policy on images: both read the same pixels, and the engine uses the policy's weights."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor

from slurm_rl.algorithms.credit import build_train_sequences
from slurm_rl.algorithms.policy_loss import build_warmup_loss
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.model import VISION_FAMILIES, ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig, RolloutConfig
from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.prompts import PromptRow
from slurm_rl.data.tokenize import EncodedPrompt, encode_prompts
from slurm_rl.models.distributed import init_process_group
from slurm_rl.models.load_model import load_tokenizer
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.models.vision import load_image_reader
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rollout.sampling import seed_prompts
from slurm_rl.rollout.vllm.engine import VLLMEngine
from slurm_rl.rollout.weights.weight_record import HeldWeights, pack_weights
from tests.image_kit import write_image
from tests.tiny_models import TinyVL, build_tiny_model
from tests.unit.models.test_store_address import free_port

FAMILIES = [name if name == "qwen2_5_vl" else pytest.param(name, marks=pytest.mark.slow) for name in VISION_FAMILIES]
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclasses.dataclass
class Pair:
    """A policy and a rollout engine of the same tiny model."""

    policy: PolicyEngine
    engine: VLLMEngine
    prompts: list[EncodedPrompt]
    atol: float
    """Allowed difference of a logprob: rounding of bfloat16, the only format of vLLM's linear attention on CPU."""

    def sync(self, version: int) -> tuple[HeldWeights, list[float]]:
        """Send the weights; return the engine's and the policy's logprobs of the first prompt's tokens."""
        records, checksum = pack_weights(self.policy.state_to_send(self.policy.device))
        probe = self.prompts[0].tokens
        held = self.engine.load_weights(version, records, probe)
        assert held.checksums == [checksum]
        sequence = TrainSequence(token_ids=np.array(probe.token_ids), trained_from=1, images=probe.images)
        [[logprobs]] = self.policy.compute_logprobs([[sequence]])
        return held, logprobs.tolist()


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("vl")
    build_tiny_model(TinyVL(family=request.param), seed=0, folder=folder / "model")
    # Other bounds than in the model's file: both must receive them.
    is_linear = request.param.startswith("qwen3_5")
    config = ModelConfig(
        path=str(folder / "model"),
        min_pixels=40 * 40,
        max_pixels=28 * 28 * 20,
        dtype="bfloat16" if is_linear else "float32",
    )
    wide, tall = write_image(folder / "1.png", 1, 200, 60), write_image(folder / "2.png", 2, 60, 170)
    image, text = {"type": "image"}, {"type": "text", "text": "What is it?"}
    contents = [
        [{**image, "image": wide}, text],
        [text, {**image, "image": tall}, {**image, "image": wide}],
        "No picture at all?",
        [{**image, "image": tall}, text],
    ]
    rows = [
        PromptRow(index=i, prompt=[{"role": "user", "content": content}], answer="1")
        for i, content in enumerate(contents)
    ]
    tokenizer = load_tokenizer(folder / "model")
    prompts = encode_prompts(
        rows,
        tokenizer,
        template=ChatTemplate(tokenizer),
        max_prompt_tokens=400,
        context_length=1024,
        max_tokens=8,
        images=load_image_reader(folder / "model", config),
    )
    assert [len(prompt.images) for prompt in prompts] == [1, 2, 0, 1]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        rollout = RolloutConfig(max_num_seqs=8)
        # A policy in bfloat16 needs a process group; vLLM uses it, too.
        init_process_group(0, 1, "127.0.0.1", free_port(), timeout_s=60)
        policy = PolicyEngine(folder / "model", config, PolicyConfig(), OptimConfig(lr=0.01), temperature=1.0)
        policy.export(folder / "export")
        engine = VLLMEngine(str(folder / "export"), config, rollout, max_model_len=512, num_gpus=0, max_images=2)
        yield Pair(policy, engine, prompts, 0.05 if is_linear else 1e-4)
        engine.llm.llm_engine.engine_core.shutdown()  # leaves the group


def sample_sequences(pair: Pair) -> list[TrainSequence]:
    """Return two completions per prompt, with the engine's logprobs."""
    spec = SamplingSpec(num_completions=2, max_tokens=8, temperature=1.0, top_p=1.0, seed=3)
    completions = pair.engine.generate(
        [prompt.tokens for prompt in pair.prompts], seed_prompts(spec, len(pair.prompts)), spec
    )
    result = RewardResult(item=RewardItem(completion="", answer=""), value=0.0)
    groups = [Group(p, c, [result] * len(c)) for p, c in zip(pair.prompts, completions, strict=True)]
    return build_train_sequences(groups, AlgorithmConfig(group_size=2), None)


def assert_agreement(pair: Pair) -> None:
    """Check that engine and policy logprobs agree, with all prompts in one packed row."""
    sequences = sample_sequences(pair)
    [found] = pair.policy.compute_logprobs([sequences])
    for sequence, logprobs in zip(sequences, found, strict=True):
        np.testing.assert_allclose(logprobs, sequence.old_logprobs, atol=pair.atol)


def test_engine_and_policy_agree_on_images(pair: Pair) -> None:
    assert_agreement(pair)  # vLLM reads the export
    pair.sync(0)
    assert_agreement(pair)


def test_sent_weights_reach_vision_tower(pair: Pair) -> None:
    """The engine caches images by their pixels: it must drop features of older weights."""
    held, expected = pair.sync(0)
    np.testing.assert_allclose(held.probe, expected, atol=pair.atol)
    with torch.no_grad():
        for parameter in pair.policy.module.model.visual.parameters():
            held_here = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            held_here.add_(0.3 * torch.sin(torch.arange(held_here.numel()).float()).view_as(held_here))
    changed, expected = pair.sync(1)
    assert np.abs(np.array(changed.probe) - held.probe).max() > 1e-2
    np.testing.assert_allclose(changed.probe, expected, atol=pair.atol)
    assert_agreement(pair)


def test_training_step_reaches_engine(pair: Pair) -> None:
    sequences = [dataclasses.replace(s, weight=0.1) for s in sample_sequences(pair)]
    pair.policy.train([sequences], build_warmup_loss(), lr=0.01)
    held, expected = pair.sync(2)
    assert held.version == 2
    np.testing.assert_allclose(held.probe, expected, atol=pair.atol)
