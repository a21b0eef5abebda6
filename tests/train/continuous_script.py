"""Sample on a real vLLM engine while weights change; compare each token's logprob with its weight version."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from slurm_rl.algorithms.sequences import TokenPrompt, TrainSequence
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig, RolloutConfig
from slurm_rl.data.groups import SamplingSpec, Trajectory
from slurm_rl.models.forward import RowReader
from slurm_rl.models.load_model import load_model
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.rollout.vllm.async_engine import AsyncVLLMEngine
from slurm_rl.rollout.weights.weight_record import pack_weights
from tests.tiny_models import TinyModel, build_tiny_model
from tests.unit.models.test_store_address import free_port

CONTEXT = 512
TINY = TinyModel(characters="".join(chr(0x4E00 + i) for i in range(2000)), context_length=CONTEXT)
PROMPTS = [TokenPrompt(token_ids=ids) for ids in ([5, 6, 7], [8, 9], [10, 11, 12, 13])]


def build_whole(folder: Path) -> tuple[ModelConfig, list[torch.nn.Module], list[Any]]:
    """Return two models, and their states as the engine receives them."""
    models = []
    for seed in (0, 1):
        build_tiny_model(TINY, seed, folder / str(seed))
        models.append(load_model(str(folder / str(seed)), ModelConfig(path=str(folder / str(seed)))).eval())
    return ModelConfig(path=str(folder / "0")), models, [model.state_dict().items() for model in models]


def build_adapted(folder: Path) -> tuple[ModelConfig, list[torch.nn.Module], list[Any]]:
    """The same of one model with two adapters."""
    build_tiny_model(TINY, 0, folder / "0")
    model = ModelConfig(path=str(folder / "0"), lora=LoraConfig(rank=4, target_modules=("q_proj", "v_proj", "up_proj")))
    policies = [
        PolicyEngine(folder / "0", model, PolicyConfig(num_threads=1), OptimConfig(), temperature=1.0) for _ in range(2)
    ]
    for number, policy in enumerate(policies):
        torch.manual_seed(number)
        draw_adapters(policy.module)
    return model, [policy.module.eval() for policy in policies], [policy.adapters_to_send() for policy in policies]


def draw_adapters(module: torch.nn.Module) -> None:
    """Draw random adapters that move the logprobs."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)


async def main(folder: Path, weights: str) -> None:
    model, models, sent = (build_whole if weights == "whole" else build_adapted)(folder)
    states, checksums = zip(*map(pack_weights, sent), strict=True)
    rollout = RolloutConfig(
        inflight_weight_updates=True,
        max_off_policy_steps=1,
        max_num_seqs=16,
        weight_transfer="gloo" if weights == "whole" else "adapters",
    )
    engine = AsyncVLLMEngine(str(folder / "0"), model, rollout, CONTEXT, 0)
    await engine.ready()
    spec = SamplingSpec(2, 400, 1.0, 1.0, 0)
    probe = TokenPrompt(token_ids=list(range(20, 40)))
    assert (await engine.load_weights(0, states[0], probe)).checksums == [checksums[0]]
    calls = [asyncio.create_task(engine.generate(PROMPTS, [0, 10, 20], spec))]
    await wait_for_tokens(engine, 60)
    calls.append(asyncio.create_task(engine.generate(PROMPTS, [0, 10, 20], spec)))
    held = await engine.load_weights(1, states[1], probe)
    await wait_for_tokens(engine, 180)
    if weights == "whole":
        # From memory, while both batches are in flight; the sender blocks, so it runs in a thread.
        loop = asyncio.get_running_loop()
        client = OneEngine(lambda *call: asyncio.run_coroutine_threadsafe(engine.call_workers(*call), loop).result())
        await asyncio.to_thread(send_directly, client, models[0])
        last = await engine.confirm_weights(2, None, probe)
    else:
        last = await engine.load_weights(2, states[0], probe)
    assert last.checksums == [checksums[0]]
    batches = await asyncio.gather(*calls)
    completions = [(p.token_ids, c) for batch in batches for p, g in zip(PROMPTS, batch, strict=True) for c in g]
    differences = [np.abs(np.asarray(c.logprobs) - expected_logprobs(models, p, c)).max() for p, c in completions]
    sequence = TrainSequence(token_ids=np.asarray(probe.token_ids), trained_from=1)
    expected = RowReader(models[1], torch.device("cpu")).compute_logprobs([sequence], 1.0)[0]
    found = {
        "difference": float(max(differences)),
        "probe": float(np.abs(expected - np.asarray(held.probe)).max()),
        "versions": [[[v, len(list(run))] for v, run in groupby(c.versions())] for _, c in completions],
        "lengths": [len(c.token_ids) for _, c in completions],
    }
    # Not to standard output: vLLM redirects it while Gloo connects (suppress_stdout), here in two threads at once, and
    # may not restore it.
    (folder / "found.json").write_text(json.dumps(found))


class OneEngine:
    """`EngineClient` without Ray.

    Args:
        call: the engine's `call_workers`.
    """

    def __init__(self, call: Callable[[str, dict[str, Any]], Any]) -> None:
        self._call = call

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._call("start_weight_update", {})

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._call("update_weights", {"update_info": update_info})

    def finish_weight_update(self) -> None:
        self._call("finish_weight_update", {})


def send_directly(client: OneEngine, model: torch.nn.Module) -> None:
    """Send the weights through gloo."""
    from slurm_rl.rollout.vllm.gloo_transfer import GlooTrainerEngine, GlooTrainerInitInfo

    class Source:
        def metadata(self) -> list[Any]:
            return [SimpleNamespace(name=n, dtype=t.dtype, shape=tuple(t.shape)) for n, t in model.state_dict().items()]

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            return iter(model.state_dict().items())

    info = GlooTrainerInitInfo("127.0.0.1", free_port(), 2, rank=0)
    GlooTrainerEngine.trainer_init(info, client=client, source=Source()).send_weights()


async def wait_for_tokens(engine: AsyncVLLMEngine, count: int) -> None:
    give_up = time.monotonic() + 240
    states = engine.llm.output_processor.request_states
    while max((state.detokenizer.num_output_tokens() for state in states.values()), default=0) < count:
        assert time.monotonic() < give_up, "no completion grew"
        await asyncio.sleep(0.01)


def expected_logprobs(models: list[torch.nn.Module], prompt: list[int], completion: Trajectory) -> np.ndarray:
    """Return each token's logprob under the model of its version; versions 0 and 2 use the first model."""
    sequence = TrainSequence(token_ids=np.asarray([*prompt, *completion.token_ids]), trained_from=len(prompt))
    by_model = [RowReader(m, torch.device("cpu")).compute_logprobs([sequence], 1.0)[0] for m in models]
    return np.choose(np.asarray(completion.versions()) % 2, by_model)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
