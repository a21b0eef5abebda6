"""Swap adapters in real vLLM engines, one per family; compare each token with the policy after each swap."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.load import load_config
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.data.groups import SamplingSpec
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.rollout.weights.weight_record import pack_weights
from slurm_rl.trainers.grpo.build import start_engine
from tests.tiny_models import TinyModel, build_character_tokenizer, build_tiny_model, draw_weights, shape_of
from tests.tiny_moe import FAMILIES, build_tiny_moe
from tests.train.continuous_script import draw_adapters
from tests.train.sync_script import PROBE, OneProcess

SHAPE = TinyModel(hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=1)
PATTERNS: dict[str, Any] = {"rank_pattern": {"o_proj": 2}, "alpha_pattern": {"layers.1.*": 3.0}}


def main(folder: Path, family: str) -> None:
    path = build_family(folder / "m", family)
    lora, init_from = LoraConfig(rank=4, alpha=8.0, **PATTERNS), None
    if family == "qwen3":  # the engine must take the base from another folder
        build_tiny_model(SHAPE, 7, folder / "other")
        init_from = str(folder / "other")
    model = ModelConfig(path=str(path), init_from=init_from, lora=lora)
    policy = PolicyEngine(path, model, PolicyConfig(num_threads=1), OptimConfig(), temperature=1.0)
    assert policy.adapted is not None
    config = load_config(["+exp=demo", "model=hf", f"model.path={path}", "data.max_prompt_tokens=48"])
    targets = lora.model_copy(update={"target_modules": tuple(policy.adapted.kinds)})
    config = config.model_copy(update={"model": model.model_copy(update={"lora": targets})})
    cluster: Any = OneProcess()
    cluster.plan.weight_transfer = "adapters"
    prompts: Any = SimpleNamespace(max_images=None, tools=None)
    engine: Any = start_engine(cluster, config, str(path), prompts, 0).handle.target
    found: dict[str, Any] = {"architecture": AutoConfig.from_pretrained(path).architectures[0], "versions": []}
    torch.manual_seed(0)
    for version in range(4):
        records, checksum = pack_weights(policy.adapters_to_send())
        held = engine.load_weights(version, records, PROBE)
        again = engine.load_weights(version, records, PROBE)
        samples = engine.generate([PROBE], [version], SamplingSpec(2, 8, 1.0, 1.0, 0))[0]
        expected = logprobs(policy, PROBE.token_ids, 1)
        of_samples = [
            np.asarray(one.logprobs) - logprobs(policy, [*PROBE.token_ids, *one.token_ids], len(PROBE.token_ids))
            for one in samples
        ]
        found["versions"].append(
            {
                "checksums": [*held.checksums, checksum],
                "probe": float(np.abs(expected - np.asarray(held.probe)).max()),
                "again": held.probe == again.probe,
                "samples": float(max(np.abs(each).max() for each in of_samples)),
                "bytes": sum(record.data.nbytes for record in records),
                "first": float(expected[0]),
            }
        )
        draw_adapters(policy.module)
    (folder / "found.json").write_text(json.dumps(found))


def build_family(path: Path, family: str) -> Path:
    if family in FAMILIES:
        return build_tiny_moe(SHAPE, path, family)
    tokenizer = build_character_tokenizer(SHAPE)
    config = CONFIG_MAPPING[family](**shape_of(SHAPE, tokenizer))
    draw_weights(lambda: AutoModelForCausalLM.from_config(config), tokenizer, 0).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def logprobs(policy: PolicyEngine, tokens: list[int], trained_from: int) -> Any:
    sequence = TrainSequence(token_ids=np.asarray(tokens), trained_from=trained_from)
    return policy.compute_logprobs([[sequence]])[0][0]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
