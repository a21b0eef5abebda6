"""Swap adapters in real vLLM engines, one per family; compare each token with the policy after each swap.

At the end, swaps that are broken on purpose show that the comparison detects them.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from slurm_rl.algorithms.sequences import TokenPrompt, TrainSequence
from slurm_rl.config.load import load_config
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.data.groups import SamplingSpec
from slurm_rl.errors import WeightSyncError
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.rollout.vllm import worker_extension
from slurm_rl.rollout.weights.sync import ObjectStore, WeightSync, choose_tolerance
from slurm_rl.rollout.weights.weight_record import pack_weights
from slurm_rl.trainers.grpo.build import start_engine
from slurm_rl.workers.ray_driver import Actor
from slurm_rl.workers.train_workers import PolicyWorker
from tests.tiny_models import TinyModel, build_character_tokenizer, build_tiny_model, draw_weights, shape_of
from tests.tiny_moe import FAMILIES, build_tiny_moe
from tests.train.continuous_script import draw_adapters
from tests.train.sync_script import PROBE, OneProcess
from tests.unit.rl.fake_ray import Handle

SHAPE = TinyModel(hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=1, context_length=256)
LONG = TokenPrompt(token_ids=[2 + (5 * place + place // 12) % 12 for place in range(150)])
"""Longer than a block of vLLM's cache on CPU (128 tokens), so that its keys and values are reused."""
SPLIT = "-in-two"
"""Ending of a family's name for a tensor-parallel engine of two ranks."""
PATTERNS: dict[str, Any] = {"rank_pattern": {"o_proj": 2}, "alpha_pattern": {"layers.1.*": 3.0}}


def main(folder: Path, family: str) -> None:
    is_split, family = family.endswith(SPLIT), family.removesuffix(SPLIT)
    path = build_family(folder / "m", family)
    lora, init_from = LoraConfig(rank=4, alpha=8.0, **PATTERNS), None
    if family == "qwen3":  # the engine must take the base from another folder
        build_tiny_model(SHAPE, 7, folder / "other")
        init_from = str(folder / "other")
    model = ModelConfig(path=str(path), init_from=init_from, lora=lora)
    policy = PolicyEngine(path, model, PolicyConfig(num_threads=1), OptimConfig(), temperature=1.0)
    assert policy.adapted is not None
    words = ["data.max_prompt_tokens=160", "rollout.weight_transfer=adapters"]
    config = load_config(["+exp=demo", "model=hf", f"model.path={path}", "+lora=all_linear", *words])
    targets = lora.model_copy(update={"target_modules": tuple(policy.adapted.kinds)})
    config = config.model_copy(update={"model": model.model_copy(update={"lora": targets})})
    if is_split:
        args = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
        config = config.with_values(rollout={"engine_args": args})
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
        expected = logprobs(policy, PROBE.token_ids, 1)
        found["versions"].append(
            {
                "checksums": [*held.checksums, checksum],
                "probe": float(np.abs(expected - np.asarray(held.probe)).max()),
                "again": held.probe == again.probe,
                "samples": compare_samples(engine, policy),
                "bytes": sum(record.data.nbytes for record in records),
                "first": float(expected[0]),
            }
        )
        draw_adapters(policy.module)
    found["broken"] = {} if is_split else break_swaps(engine, policy)  # a split engine's workers are other processes
    found["ignored"] = ignore_adapter(cluster, engine, policy, config)
    (folder / "found.json").write_text(json.dumps(found))


def compare_samples(engine: Any, policy: PolicyEngine) -> float:
    """Return the largest difference between the logprobs of completions under engine and policy."""
    [samples] = engine.generate([LONG], [0], SamplingSpec(2, 8, 1.0, 1.0, 0))
    pairs = [(one, logprobs(policy, [*LONG.token_ids, *one.token_ids], len(LONG.token_ids))) for one in samples]
    return float(max(np.abs(np.asarray(one.logprobs) - expected).max() for one, expected in pairs))


def break_swaps(engine: Any, policy: PolicyEngine) -> dict[str, float]:
    """Return the difference of the samples for each way to break a swap."""
    found, scaling_of = {}, LoraConfig.scaling_of
    for name, owner, attribute, broken in (
        ("keeps prefixes", engine.llm, "reset_prefix_cache", lambda: True),
        ("keeps old adapter", worker_extension, "swap_adapter", lambda *_: None),
        ("leaves out scale", LoraConfig, "scaling_of", lambda *_: 1.0),
        ("scales twice", LoraConfig, "scaling_of", lambda self, layer: scaling_of(self, layer) ** 2),
    ):
        draw_adapters(policy.module)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, attribute, broken)
            engine.load_weights(4, pack_weights(policy.adapters_to_send())[0], PROBE)
        found[name] = compare_samples(engine, policy)
    return found


def ignore_adapter(cluster: Any, engine: Any, policy: PolicyEngine, config: Any) -> list[str]:
    """Return the result of the first sync and of one after a step, if the engine's requests have no adapter."""
    worker = PolicyWorker.__new__(PolicyWorker)
    worker.config, worker.engine, worker.device = config, policy, policy.device
    actor = Actor("rollout-0", Handle(engine))
    transport = ObjectStore([Actor("policy-0", Handle(worker))], [actor])
    tolerance = choose_tolerance(None, "float32", SHAPE.num_layers)
    sync = WeightSync(cluster, transport, [actor], probe=PROBE, tolerance=tolerance, timeout_s=60)
    engine.adapter, found = None, []
    for version, std in enumerate((0.0, 0.01)):
        with torch.no_grad():
            for name, parameter in policy.module.named_parameters():
                if ".lora_B." in name:
                    parameter.normal_(std=std) if std else parameter.zero_()
        sync.push(version)
        try:
            found.append(f"differs by {sync.verify()}")
        except WeightSyncError as error:
            found.append(str(error))
    return found


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
