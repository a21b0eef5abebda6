"""Compare vLLM's CPU build with the policy for tiny models of text families, before and after two weight syncs.

python -m tests.train.engine_families FOLDER FAMILY...    writes FOLDER/found.json and the last column of
                                                          docs/reference/model-families.md
"""

import csv
import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slurm_rl.algorithms.sequences import TokenPrompt, TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig, RolloutConfig
from slurm_rl.data.groups import SamplingSpec
from slurm_rl.errors import first_line
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.rollout.vllm.engine import VLLMEngine
from slurm_rl.rollout.weights.weight_record import pack_weights
from tests.tiny_models import TinyModel, build_character_tokenizer
from tests.train.model_families import ENGINES, EXACT, PAGE, build_model

TINY = TinyModel(characters="".join(chr(0x4E00 + place) for place in range(62)), context_length=128)
PROMPT = TokenPrompt(token_ids=[2 + (5 * place) % 60 for place in range(32)])
# Sizes that vLLM has CPU kernels for.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 128),
    **dict.fromkeys(("head_dim", "kv_channels"), 32),
    **dict.fromkeys(("initializer_range", "init_std"), 0.05),
}
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32, "head_dim": 64}
MORE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu", "axk1"), LATENT),
}
"""Sizes of single families."""


def compare(folder: Path, family: str) -> list[float]:
    """Return the largest difference of a logprob from the policy: as loaded, and after each of two syncs."""
    tokenizer = build_character_tokenizer(TINY)
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    model = build_model(family, **{**SIZES, **MORE.get(family, {}), **tokens})
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = ModelConfig(
        path=str(folder), dtype="bfloat16" if "linear_num_key_heads" in model.config.to_dict() else "float32"
    )
    policy = PolicyEngine(folder, config, PolicyConfig(num_threads=1), OptimConfig(), temperature=1.0)
    engine = VLLMEngine(str(folder), config, RolloutConfig(max_num_seqs=4), 96, 0)
    found = []
    torch.manual_seed(0)
    for version in range(3):
        if version:
            with torch.no_grad():
                for parameter in policy.module.parameters():
                    parameter.add_(0.02 * torch.randn_like(parameter))
            records, checksum = pack_weights(policy.state_to_send(policy.device))
            assert engine.load_weights(version, records, PROMPT).checksums == [checksum]
        [completions] = engine.generate([PROMPT], [version], SamplingSpec(4, 40, 1.0, 1.0, 0))
        start = len(PROMPT.token_ids)
        sequences = [
            TrainSequence(token_ids=np.asarray([*PROMPT.token_ids, *one.token_ids]), trained_from=start)
            for one in completions
        ]
        [values] = policy.compute_logprobs([sequences])
        found.append(
            max(float(np.abs(a - np.asarray(b.logprobs)).max()) for a, b in zip(values, completions, strict=True))
        )
    return found


def main(root: Path, families: list[str]) -> None:
    results: dict[str, list[float] | str] = {}
    for family in families:
        try:
            results[family] = compare(root / family, family)
        except Exception as error:
            results[family] = f"{type(error).__name__}: {first_line(error)}"
        gc.collect()
        (root / "found.json").write_text(json.dumps(results, indent=1))
        record(results)


def record(results: dict[str, list[float] | str]) -> None:
    """Write the results to the table and into the last column of the page."""
    with ENGINES.open(encoding="utf-8", newline="") as file:
        known = {row["family"]: row["result"] for row in csv.DictReader(file)}
    known |= {family: describe(found) for family, found in results.items()}
    with ENGINES.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("family", "result"), *sorted(known.items())])
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        family = line[2:].partition(" | ")[0]
        if line.startswith("| ") and family in known:
            lines[number] = line.rsplit(" | ", 1)[0] + f" | {known[family]} |"
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def describe(found: list[float] | str) -> str:
    """Return the cell: one value if all are exact."""
    if isinstance(found, str):
        return found.replace("|", "/")[:120]
    return "exact" if max(found) < EXACT else ", ".join(f"{value:.1g}" for value in found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
