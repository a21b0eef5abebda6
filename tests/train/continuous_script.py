"""Samples while weights change, on a real vLLM engine, and says how far each token's logprob is from its model's."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from slurm_rl.config.model import ModelConfig, TinyModelConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.engine.forward import RowReader
from slurm_rl.engine.load_model import load_model
from slurm_rl.engine.tiny import build_tiny_model
from slurm_rl.math.sequences import TokenPrompt, TrainSequence
from slurm_rl.rl.groups import Completion, SamplingSpec
from slurm_rl.rl.rollout.vllm.engine import VLLMEngine
from slurm_rl.rl.weights.weight_record import checksum, pack_weights

CONTEXT = 512
TINY = TinyModelConfig(characters="".join(chr(0x4E00 + i) for i in range(2000)), context_length=CONTEXT)
PROMPTS = [TokenPrompt(token_ids=ids) for ids in ([5, 6, 7], [8, 9], [10, 11, 12, 13])]


def main(folder: Path) -> None:
    models = []
    for seed in (0, 1):
        build_tiny_model(TINY, seed, folder / str(seed))
        models.append(load_model(str(folder / str(seed)), ModelConfig(path=str(folder / str(seed)))).eval())
    states = [pack_weights(model.state_dict().items()) for model in models]
    rollout = RolloutConfig(continuous=True, max_staleness=1, max_num_seqs=16)
    engine = VLLMEngine(str(folder / "0"), ModelConfig(path=str(folder / "0")), rollout, CONTEXT, 0)
    spec = SamplingSpec(2, 400, 1.0, 1.0, 0)
    probe = TokenPrompt(token_ids=list(range(20, 40)))
    assert engine.load_weights(0, states[0], probe).checksums == [checksum(states[0])]
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(engine.generate, PROMPTS, [0, 10, 20], spec)]
        wait_for_tokens(engine, 60)
        calls.append(threads.submit(engine.generate, PROMPTS, [0, 10, 20], spec))
        held = engine.load_weights(1, states[1], probe)
        wait_for_tokens(engine, 180)
        engine.load_weights(2, states[0], probe)
        completions = [
            (p.token_ids, c) for call in calls for p, g in zip(PROMPTS, call.result(), strict=True) for c in g
        ]
    differences = [np.abs(np.asarray(c.logprobs) - expected_logprobs(models, p, c)).max() for p, c in completions]
    sequence = TrainSequence(token_ids=np.asarray(probe.token_ids), trained_from=1)
    wanted = RowReader(models[1], torch.device("cpu")).compute_logprobs([sequence], 1.0)[0]
    found = {
        "difference": float(max(differences)),
        "probe": float(np.abs(wanted - np.asarray(held.probe)).max()),
        "versions": [[[v, len(list(run))] for v, run in groupby(c.versions())] for _, c in completions],
        "lengths": [len(c.token_ids) for _, c in completions],
    }
    print(json.dumps(found))


def wait_for_tokens(engine: VLLMEngine, count: int) -> None:
    """Until some completion in flight has so many tokens."""
    assert engine.continuous is not None
    give_up = time.monotonic() + 240
    while engine.continuous.longest_in_flight() < count:
        assert time.monotonic() < give_up, "no completion grew"
        time.sleep(0.01)


def expected_logprobs(models: list[torch.nn.Module], prompt: list[int], completion: Completion) -> np.ndarray:
    """Each token's logprob under the model of its version; versions 0 and 2 are the first."""
    sequence = TrainSequence(token_ids=np.asarray([*prompt, *completion.token_ids]), trained_from=len(prompt))
    by_model = [RowReader(m, torch.device("cpu")).compute_logprobs([sequence], 1.0)[0] for m in models]
    return np.choose(np.asarray(completion.versions()) % 2, by_model)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
