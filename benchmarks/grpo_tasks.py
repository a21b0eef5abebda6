"""Tasks for grpo_vs_trl: rows, a reward, and the initial model.

short    45*6=  ->  454545454545          1 to 36 tokens, varying lengths as in answers of language models
prompts  512 digits  ->  64 digits        groups with long prompts; the reward is the share of sevens
short_152k, prompts_152k                  the same with 151,936 tokens, a vocabulary as large as Qwen's, so that logits
take most of the memory
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.tiny_models import TinyModel

if TYPE_CHECKING:
    from torch import Tensor

DIGITS = "0123456789"
VOCABULARY = 151_936


@dataclass(frozen=True)
class Task:
    """One row of the comparison."""

    tiny: TinyModel
    max_prompt: int
    max_completion: int
    prompts_per_step: int
    steps: int
    warmup_steps: int
    reward: str
    """Name of a function in this file with which both sides score."""
    ours: tuple[str, ...] = ()
    """Overrides of slurm_rl for this task."""
    vocabulary: int = 0
    """Tokens of the model after its warm-up; 0: as many as the task has characters."""

    @property
    def reward_spec(self) -> str:
        return f"{Path(__file__).resolve()}:{self.reward}"


def score_whole(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]) -> list[float]:
    """Return 1 for exactly the answer."""
    return [float(_completion(q, p).strip() == right) for q, p, right in zip(queries, prompts, labels, strict=True)]


def score_share(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]) -> list[float]:
    """Return the share of 64 places that hold the answer's character."""
    return [_completion(q, p).count(right) / 64 for q, p, right in zip(queries, prompts, labels, strict=True)]


def _completion(query: str, prompt: str) -> str:
    return query[len(prompt) :]


# Groups read their prompt once. Logits of 128 tokens of the large vocabulary take 78 MB; the engine samples at most a
# batch at a time; TRL has no dashboard either.
SPARING = (
    "policy.prefix_sharing=true", "policy.logprob_chunk_tokens=128", "rollout.max_num_seqs=64", "ray.dashboard=false",
)  # fmt: skip
# With a model this small, an engine is mostly Python and uses one core.
TWO_ENGINES = ("rollout.num_engines=2",)
SHORT = Task(TinyModel(characters=DIGITS + "*=", context_length=64), 7, 40, 64, 20, 300, "score_whole", TWO_ENGINES)
ONE_GROUP = (*SPARING, "policy.micro_batch_tokens=1024")
PROMPTS = Task(TinyModel(characters=DIGITS, context_length=640), 512, 64, 8, 20, 40, "score_share", ONE_GROUP)
LARGE = (*SPARING, "policy.micro_batch_tokens=4096")
TASKS = {
    "short": SHORT,
    "prompts": PROMPTS,
    "short_152k": replace(SHORT, vocabulary=VOCABULARY, ours=LARGE, prompts_per_step=16),
    "prompts_152k": replace(PROMPTS, vocabulary=VOCABULARY, ours=LARGE, steps=2),
}


def write_rows(task: Task, seed: int, path: Path) -> list[dict[str, str]]:
    """Write the data file for both sides, without duplicates: ours holds rows out and would drop their duplicates."""
    random = np.random.default_rng(seed)
    rows: dict[str, str] = {}
    while len(rows) < (6000 if task.reward == "score_whole" else 600):
        if task.reward == "score_whole":
            number, times = str(random.integers(1, 10 ** random.integers(1, 5))), int(random.integers(1, 10))
            rows[f"{number}*{times}="] = number * times
        else:
            rows["".join(random.choice(list(DIGITS), task.max_prompt))] = "7"
    found = [{"prompt": prompt, "answer": answer} for prompt, answer in rows.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return found


def threads() -> int:
    return len(os.sched_getaffinity(0))


def build_start(task: Task, rows: Sequence[dict[str, str]], seed: int, out: Path) -> None:
    """Train a tiny model on answers, or on endless random digits, and save it to `out`/start."""
    import torch

    from slurm_rl.algorithms.packing import distribute
    from slurm_rl.algorithms.policy_loss import build_warmup_loss
    from slurm_rl.algorithms.sequences import TrainSequence
    from slurm_rl.config.model import ModelConfig
    from slurm_rl.config.train import OptimConfig, PolicyConfig
    from slurm_rl.models.policy import PolicyEngine
    from tests.tiny_models import build_tiny_model

    build_tiny_model(task.tiny, seed, out / "init")
    optim = OptimConfig(lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    policy = PolicyConfig(num_workers=1, num_threads=threads(), logprob_chunk_tokens=512)
    engine = PolicyEngine(out / "init", ModelConfig(path=str(out / "init")), policy, optim, temperature=1.0)
    random = np.random.default_rng(seed)
    whole = task.reward == "score_whole"
    for step in range(task.warmup_steps):
        sequences = []
        for row in (rows[i] for i in random.integers(0, len(rows), 256 if whole else 16)):
            prompt = engine.tokenizer.encode(row["prompt"])
            answer = row["answer"] if whole else "".join(random.choice(list(DIGITS), task.max_completion))
            ends = [engine.tokenizer.eos_token_id] if whole else []
            tokens = np.asarray([*prompt, *engine.tokenizer.encode(answer), *ends])
            weight = 1 / (3800 if whole else 16 * task.max_completion)
            sequences.append(TrainSequence(token_ids=tokens, trained_from=len(prompt), weight=weight))
        share = distribute([len(s.token_ids) for s in sequences], 1, 8192)[0]
        engine.train([[sequences[i] for i in b] for b in share], build_warmup_loss(), 2e-3 * min(1, (step + 1) / 30))
    engine.export(out / ("narrow" if task.vocabulary else "start"))
    if task.vocabulary:
        widen(task, [torch.as_tensor(s.token_ids) for s in sequences], out / "narrow", out / "start")


def widen(task: Task, examples: Sequence[Tensor], narrow: Path, out: Path) -> None:
    """Add unlikely tokens to the model: a warm-up with the large vocabulary would take an hour.

    Args:
        examples: token ids [length] of sequences; in these contexts the added tokens get logits of about -18.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from tests.tiny_models import build_tiny_model

    further = task.vocabulary - len(task.tiny.characters) - 2  # padding and end of text are tokens too
    characters = task.tiny.characters + "".join(chr(0x10000 + i) for i in range(further))
    build_tiny_model(replace(task.tiny, characters=characters), 0, out)
    model, wide = (AutoModelForCausalLM.from_pretrained(folder, dtype="float32") for folder in (narrow, out))
    known, rows = (each.get_input_embeddings().weight.data for each in (model, wide))
    with torch.no_grad():
        hidden = torch.cat([model.model(each[None]).last_hidden_state[0] for each in examples])
    # Plain least squares give a row so large that its logits are off by 1e-3 in float32.
    ridge = 0.1 * (hidden.T @ hidden).diagonal().mean() * torch.eye(hidden.shape[1])
    rows[:] = torch.linalg.solve(hidden.T @ hidden + ridge, -20 * hidden.sum(0))
    rows[: len(known)] = known
    wide.model.layers.load_state_dict(model.model.layers.state_dict())
    wide.model.norm.load_state_dict(model.model.norm.state_dict())
    wide.save_pretrained(out)
