"""Sample far beyond the context of tiny models with `model.rope_scaling`, and compare engine and policy per token."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from slurm_rl.algorithms.sequences import TokenPrompt, TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import SamplingSpec
from slurm_rl.models.forward import RowReader
from slurm_rl.models.load_model import load_model
from slurm_rl.rollout.vllm.engine import VLLMEngine
from tests.tiny_models import SMALL, build_character_tokenizer, draw_weights, shape_of

CONTEXT, FACTOR = SMALL.context_length, 4
LONG_FACTOR = [1 + place / 4 for place in range(SMALL.hidden_size // SMALL.num_heads // 2)]
CASES: dict[str, dict[str, Any]] = {
    "qwen3": {"rope_type": "yarn"},
    "llama": {"rope_type": "yarn", "attention_factor": 1.3, "beta_fast": 16},
    "qwen2": {"rope_type": "linear"},
    "mistral": {"rope_type": "longrope", "long_factor": LONG_FACTOR},
}


def build(folder: Path, family: str) -> None:
    """Write a tiny model with a context of CONTEXT."""
    tokenizer = build_character_tokenizer(SMALL)
    config = AutoConfig.for_model(family, **shape_of(SMALL, tokenizer))
    draw_weights(lambda: AutoModelForCausalLM.from_config(config), tokenizer, 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def compare(folder: Path, family: str, scaling: dict[str, Any]) -> dict[str, float]:
    """Return the largest difference of a logprob from the policy, and from the policy without scaling."""
    build(folder, family)
    plain = ModelConfig(path=str(folder))
    model = ModelConfig(path=str(folder), rope_scaling={"factor": FACTOR, **scaling})
    engine = VLLMEngine(str(folder), model, RolloutConfig(max_num_seqs=4), CONTEXT * FACTOR, 0)
    prompt = TokenPrompt(token_ids=[7 + place * place % 7 for place in range(3 * CONTEXT)])
    spec = SamplingSpec(4, CONTEXT, 1.0, 1.0, 0)
    completions = engine.generate([prompt], [0], spec)[0]
    longest = len(prompt.token_ids) + max(len(one.token_ids) for one in completions)
    del engine

    def worst(config: ModelConfig) -> float:
        reader = RowReader(load_model(folder, config).eval(), torch.device("cpu"))
        found = []
        for one in completions:
            ids = np.asarray([*prompt.token_ids, *one.token_ids])
            [values] = reader.compute_logprobs([TrainSequence(token_ids=ids, trained_from=len(prompt.token_ids))], 1.0)
            found.append(float(np.abs(values - np.asarray(one.logprobs)).max()))
        return max(found)

    return {"longest": longest, "scaled": worst(model), "plain": worst(plain)}


if __name__ == "__main__":
    root = Path(sys.argv[1])
    results: dict[str, Any] = {}
    for name in sys.argv[2:]:
        results[name] = compare(root / name, name, CASES[name])
        (root / "found.json").write_text(json.dumps(results))
