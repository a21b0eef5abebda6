"""Compare vLLM's CPU build with the policy for tiny models of text families, before and after two weight syncs.

python -m tests.train.engine_families FOLDER [FAMILY...]    writes FOLDER/FAMILY.txt and the last column of
                                                            docs/reference/model-families.md

Without a family: those of vLLM that the table does not have yet, so an interrupted comparison continues.
"""

import contextlib
import csv
import multiprocessing
import os
import signal
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slurm_rl.algorithms.sequences import FloatArray, TokenPrompt, TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig, RolloutConfig
from slurm_rl.data.groups import SamplingSpec
from slurm_rl.models.distributed import init_process_group
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.plan.accelerator import accelerator_env
from slurm_rl.rollout.vllm.engine import VLLMEngine
from slurm_rl.rollout.vllm.images_only import allow_images_only
from slurm_rl.rollout.weights.weight_record import WeightRecord, pack_weights
from tests.tiny_models import TinyModel, build_character_tokenizer
from tests.train.model_families import ENGINES, EXACT, FAMILIES, PAGE, build_model, render_engine
from tests.unit.models.test_store_address import free_port

TIMEOUT_S = 300
FORK = multiprocessing.get_context("fork")

TINY = TinyModel(characters="".join(chr(0x4E00 + place) for place in range(62)), context_length=128)
PROMPT = TokenPrompt(token_ids=[2 + (5 * place) % 60 for place in range(32)])
# Sizes that vLLM has CPU kernels for.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 128),
    **dict.fromkeys(("head_dim", "kv_channels"), 32),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 128),
    **dict.fromkeys(("initializer_range", "init_std"), 0.05),
}
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32, "head_dim": 64}
MORE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("deepseek_v2", "glm4_moe_lite", "minicpm3", "youtu", "axk1"), LATENT),
    "deepseek_v3": {**LATENT, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "afmoe": {"score_func": "sigmoid", "route_norm": True, "route_scale": 1.0, "n_group": 1, "topk_group": 1},
    "glm4_moe": {"head_dim": 32},
}
"""Keys of single families, also those that vLLM alone reads."""


class Policy:
    """The policy in a process of its own: vLLM replaces parts of some classes of transformers."""

    engine: PolicyEngine

    @classmethod
    def start(cls, folder: Path, config: ModelConfig) -> None:
        init_process_group(0, 1, "127.0.0.1", free_port(), timeout_s=60)  # for bfloat16
        torch.manual_seed(0)
        cls.engine = PolicyEngine(folder, config, PolicyConfig(num_threads=1), OptimConfig(), temperature=1.0)

    @classmethod
    def change(cls) -> tuple[list[WeightRecord], str]:
        """Add noise to all weights; return them with their checksum."""
        with torch.no_grad():
            for parameter in cls.engine.module.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        return pack_weights(cls.engine.state_to_send(cls.engine.device))

    @classmethod
    def score(cls, sequences: list[TrainSequence]) -> list[FloatArray]:
        [values] = cls.engine.compute_logprobs([sequences])
        return values


def compare(folder: Path, family: str) -> str:
    """Return the largest difference of a logprob from the policy: as loaded, and after each of two syncs."""
    tokenizer = build_character_tokenizer(TINY)
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    model = build_model(family, own=MORE.get(family, {}), **SIZES, **tokens)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    is_linear = "linear_num_key_heads" in model.config.to_dict()
    config = ModelConfig(path=str(folder), dtype="bfloat16" if is_linear else "float32")
    with ProcessPoolExecutor(1, FORK) as policy:
        policy.submit(Policy.start, folder, config).result()
        engine = VLLMEngine(str(folder), config, RolloutConfig(max_num_seqs=4), 96, 0)
        found = []
        for version in range(3):
            if version:
                records, checksum = policy.submit(Policy.change).result()
                assert engine.load_weights(version, records, PROMPT).checksums == [checksum]
            [completions] = engine.generate([PROMPT], [version], SamplingSpec(4, 40, 1.0, 1.0, 0))
            start = len(PROMPT.token_ids)
            sequences = [
                TrainSequence(token_ids=np.asarray([*PROMPT.token_ids, *one.token_ids]), trained_from=start)
                for one in completions
            ]
            values = policy.submit(Policy.score, sequences).result()
            found.append(
                max(float(np.abs(a - np.asarray(b.logprobs)).max()) for a, b in zip(values, completions, strict=True))
            )
    if max(found) < EXACT:
        return "exact"
    return ", ".join(f"{value:.1g}" for value in found) + (" in bfloat16" if is_linear else "")


def main(root: Path, families: list[str]) -> None:
    """Compare each family in a process of its own, since some end theirs."""
    allow_images_only()  # the forked processes share vLLM

    families = families or [family for family in FAMILIES if render_engine(family) == "not compared"]
    for family in families:
        found = root / f"{family}.txt"
        found.unlink(missing_ok=True)
        process = FORK.Process(target=examine, args=(root, family))
        process.start()
        try:
            process.join(TIMEOUT_S)
            end = f"no result after {TIMEOUT_S} s" if process.is_alive() else f"ended with {process.exitcode}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.join()
        record(family, found.read_text() if found.is_file() else end)


def examine(root: Path, family: str) -> None:
    """Write the differences, or the error, to a file; with the processes that it starts in a group."""
    os.setpgid(0, 0)
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda inspect: inspect()
    try:
        result = compare(root / family, family)
    except Exception as error:
        traceback.print_exc()
        result = " ".join(f"{type(error).__name__}: {error}".split())
    (root / f"{family}.txt").write_text(result)


def record(family: str, result: str) -> None:
    """Write the result to the table and into the last column of the page."""
    with ENGINES.open(encoding="utf-8", newline="") as file:
        known = {row["family"]: row["result"] for row in csv.DictReader(file)}
    known[family] = result.replace("|", "/")[:120]
    with ENGINES.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("family", "result"), *sorted(known.items())])
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if line.startswith("| ") and (row := line[2:].partition(" | ")[0]) in known:
            lines[number] = line.rsplit(" | ", 1)[0] + f" | {known[row]} |"
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    needed = {var.name: var.value for var in accelerator_env("cpu")}
    if not needed.items() <= os.environ.items():
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.train.engine_families", *sys.argv[1:]], os.environ | needed
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main(Path(sys.argv[1]), sys.argv[2:])
