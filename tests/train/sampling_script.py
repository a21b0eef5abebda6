"""Sample with all settings on a real vLLM engine; compare with the policy's logprobs of the same tokens."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import SamplingSpec, Trajectory
from slurm_rl.models.load_model import load_model
from slurm_rl.rollout.vllm.engine import VLLMEngine
from tests.tiny_models import TinyModel, build_tiny_model

CONTEXT, TEMPERATURE = 64, 0.8
PROMPTS = [TokenPrompt(token_ids=ids) for ids in ([5, 6, 7], [8, 9])]
SEEDS = [11, 29]
PLAIN = SamplingSpec(4, 24, TEMPERATURE, 1.0, seed=0)
SETTINGS = {
    "plain": PLAIN,
    "top_k": replace(PLAIN, top_k=3),
    "min_p": replace(PLAIN, min_p=0.5),
    "top_p": replace(PLAIN, top_p=0.6),
    "repetition_penalty": replace(PLAIN, repetition_penalty=1.5),
    "all": replace(PLAIN, top_k=6, min_p=0.1, top_p=0.9, repetition_penalty=1.2),
    # Tokens 2 to 11 are the digits 0 to 9.
    "stop": replace(PLAIN, stop=("7", "12")),
    "stop_token": replace(PLAIN, stop_token_ids=(4,)),
    "greedy": replace(PLAIN, num_completions=1, temperature=0.0, stop=("7", "12")),
}


def main(folder: Path) -> None:
    build_tiny_model(TinyModel(hidden_size=64, num_heads=2, num_kv_heads=1), 0, folder / "m")
    config = ModelConfig(path=str(folder / "m"))
    model = load_model(folder / "m", config).eval()
    rollout = RolloutConfig(max_num_seqs=16, engine_args={"max_num_batched_tokens": 96})
    engine = VLLMEngine(str(folder / "m"), config, rollout, CONTEXT, 0)
    found: dict[str, object] = {
        "engine_args": engine.llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
    }
    for name, spec in SETTINGS.items():
        groups = engine.generate(PROMPTS, SEEDS, spec)
        pairs = [(p.token_ids, c) for p, group in zip(PROMPTS, groups, strict=True) for c in group]
        found[name] = [describe(model, prompt, completion, spec) for prompt, completion in pairs]
    torch.manual_seed(1)
    found["again"] = [c.token_ids for group in engine.generate(PROMPTS, SEEDS, PLAIN) for c in group]
    found["alone"] = [
        c.token_ids for i in (0, 1) for c in engine.generate(PROMPTS[i : i + 1], SEEDS[i : i + 1], PLAIN)[0]
    ]
    found["one_seed"] = [c.token_ids for group in engine.generate(PROMPTS[:1] * 2, SEEDS, PLAIN) for c in group]
    # Six prompts of 30 tokens do not fit in one step of 96 tokens: the fourth would be split.
    crowd = [TokenPrompt(token_ids=[5 + (first + place) % 7 for place in range(30)]) for first in range(6)]
    found["crowded"] = [c.token_ids for group in engine.generate(crowd, list(range(6)), PLAIN) for c in group]
    found["one_by_one"] = [
        c.token_ids for seed, one in enumerate(crowd) for c in engine.generate([one], [seed], PLAIN)[0]
    ]
    (folder / "found.json").write_text(json.dumps(found))


@torch.no_grad()
def describe(
    model: torch.nn.Module, prompt: list[int], completion: Trajectory, spec: SamplingSpec
) -> dict[str, object]:
    tokens = completion.token_ids
    logits = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    expected = [
        float(bend(row, prompt + tokens[:i], spec)[token])
        for i, (row, token) in enumerate(zip(logits, tokens, strict=True))
    ]
    return {
        "tokens": tokens,
        "text": completion.text,
        "truncated": completion.truncated,
        "difference": max(abs(a - b) for a, b in zip(expected, completion.logprobs, strict=True)),
    }


def bend(logits: torch.Tensor, seen: list[int], spec: SamplingSpec) -> torch.Tensor:
    """Return the logprobs [V] of the sampled distribution, step by step as in the papers and vLLM."""
    logits = logits.clone()
    for token in set(seen):
        logits[token] *= spec.repetition_penalty if logits[token] < 0 else 1 / spec.repetition_penalty
    if spec.temperature > 0:
        logits /= spec.temperature
    probabilities = logits.softmax(-1)
    logits[probabilities < spec.min_p * probabilities.max()] = -torch.inf
    if spec.top_k:
        logits[logits < logits.topk(spec.top_k).values[-1]] = -torch.inf
    ordered = logits.softmax(-1).sort(descending=True)
    # Tokens with less than top_p of cumulative probability before them.
    logits[ordered.indices[ordered.values.cumsum(-1) - ordered.values >= spec.top_p]] = -torch.inf
    return logits.log_softmax(-1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
