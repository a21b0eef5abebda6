"""Compare loss and gradient with TRL's SFT, reward and DPO trainers, from the same rows and weights.

TRL is unmodified: it renders, tokenizes, pads and computes its loss; slurm_rl does so in packed rows. Equivalent
settings:

TRL SFT   assistant_only_loss with the template's own marks      sft.train_on=assistant; all without
TRL RM    center_rewards_coefficient                             rm.center_rewards_coef
TRL DPO   loss_type sigmoid, ipo (all: tests/unit/algorithms)    dpo.loss
          ["sigmoid", "sft"] with loss_weights                   dpo.sft_coef
          reference logprobs of 0                                dpo.reference=none
(since 1.16 TRL has no cDPO: it is the mean of the losses of pairs and of swapped pairs)
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from slurm_rl.algorithms.schedule import count_steps
from slurm_rl.config.data import DataConfig
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.config.supervised import DPOConfig, RMConfig, SFTConfig, SupervisedConfig
from slurm_rl.config.train import PolicyConfig
from slurm_rl.models.load_model import load_tokenizer
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.trainers.supervised.objective import Example, add_cached_logprobs, load_live_reference, micro_batches_of
from slurm_rl.trainers.supervised.rank_info import RankInfo
from slurm_rl.trainers.supervised.run_supervised import build_engine, build_objective
from tests.tiny_models import TinyModel, build_tiny_model

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")

TINY = TinyModel(
    characters="".join(map(chr, range(32, 127))),
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    context_length=128,
)
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}<eos>"
    "{% endgeneration %}{% else %}{{ m.content }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
CHATS = [
    [("user", "3+4"), ("assistant", "7"), ("user", "1+1"), ("assistant", "2 or 2")],
    [("user", "30+41"), ("assistant", "71")],
    [("user", "a"), ("assistant", "tion ration"), ("user", "e"), ("assistant", "1"), ("user", "i"), ("assistant", "3")],
]
PAIRS = [
    {"prompt": "3+4=", "chosen": "7", "rejected": "80"},
    {"prompt": "30+41=", "chosen": "71 or 71", "rejected": "1"},
    {"prompt": "9+9=", "chosen": "18", "rejected": "99999"},
    {"prompt": "1+1=", "chosen": "2 e 2", "rejected": "3 e"},
]
Prepare = Callable[[list[Example], PolicyEngine], list[Example]]
MARGINS = [0.0, 1.5, 0.25, 3.0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy in `model`, another one in `reference`; large weights, so that all tokens differ."""
    root = tmp_path_factory.mktemp("oracle")
    for seed, name in enumerate(("model", "reference")):
        build_tiny_model(TINY, seed=seed, folder=root / name)
        tokenizer = load_tokenizer(root / name)
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(root / name)
    return root


def make_config(folder: Path, rows: list[dict[str, Any]], task: str, **sections: Any) -> RunConfig:
    data = folder / f"{task}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {"train": str(data), "num_eval": 0, "chat_template": task == "sft", **sections.pop("data", {})}
    return RunConfig(
        task=task,
        model=ModelConfig(path=str(folder / "model")),
        data=DataConfig(**fields),
        supervised=SupervisedConfig(batch_size=len(rows), max_tokens=128),
        policy=PolicyConfig(num_threads=1),
        **sections,
    )


def train_once(config: RunConfig, prepare: Prepare) -> dict[str, float]:
    """Take one step over all rows, in micro-batches of two examples."""
    model_path = str(config.model.path)
    objective = build_objective(config, model_path)
    engine = build_engine(config, model_path, objective, RankInfo())
    examples = prepare(objective.train, engine)
    share = [list(range(len(examples)))[n : n + 2] for n in range(0, len(examples), 2)]
    return engine.train(micro_batches_of(examples, share), objective.build_loss(examples), 1e-4)


def as_they_are(examples: list[Example], _: PolicyEngine) -> list[Example]:
    return examples


def settings(path: Path, size: int, **fields: Any) -> dict[str, Any]:
    common = {"output_dir": str(path), "report_to": [], "use_cpu": True, "bf16": False, "max_length": 128}
    return {**common, "per_device_train_batch_size": size, "gradient_checkpointing": False, **fields}


def trl_step(trainer: Any, inputs: dict[str, Any] | None = None) -> tuple[float, float]:
    """Return loss and gradient norm of TRL's own batch."""
    inputs = next(iter(trainer.get_train_dataloader())) if inputs is None else inputs
    trainer.model.zero_grad()
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, dict(inputs))
    loss.backward()
    norms = [p.grad.norm() for p in trainer.model.parameters() if p.grad is not None]
    return float(loss), float(torch.stack(norms).norm())


def load(folder: Path, name: str = "model") -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32)


def agree(ours: dict[str, float], theirs: tuple[float, float]) -> None:
    assert (ours["loss"], ours["grad_norm"]) == pytest.approx(theirs, abs=1e-4, rel=1e-4)


@pytest.mark.parametrize("train_on", ["assistant", "all"])
def test_sft(train_on: Any, folder: Path, tmp_path: Path) -> None:
    rows = [{"messages": [{"role": role, "content": content} for role, content in chat]} for chat in CHATS]
    trainer = trl.SFTTrainer(
        model=load(folder),
        args=trl.SFTConfig(**settings(tmp_path, len(rows), assistant_only_loss=train_on == "assistant")),
        processing_class=load_tokenizer(folder / "model"),
        train_dataset=datasets.Dataset.from_list(rows),
    )
    ours = train_once(make_config(folder, rows, "sft", sft=SFTConfig(train_on=train_on)), as_they_are)
    agree(ours, trl_step(trainer))


def build_sft_of_completions(folder: Path, path: Path, **fields: Any) -> Any:
    rows = [{"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in PAIRS]
    return trl.SFTTrainer(
        model=load(folder),
        args=trl.SFTConfig(**settings(path, len(rows), **fields)),
        processing_class=load_tokenizer(folder / "model"),
        train_dataset=datasets.Dataset.from_list(rows),
    )


def test_sft_of_prompts_and_completions(folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": pair["prompt"], "answer": pair["chosen"]} for pair in PAIRS]
    config = make_config(folder, rows, "sft", sft=SFTConfig(train_on="assistant"), data={"chat_template": False})
    agree(
        train_once(config, as_they_are),
        trl_step(build_sft_of_completions(folder, tmp_path, completion_only_loss=True)),
    )


@pytest.mark.parametrize(("num_rows", "theirs", "ours"), [(12, 6, 6), (11, 6, 5)])
def test_num_train_epochs_without_partial_batch(
    num_rows: int, theirs: int, ours: int, folder: Path, tmp_path: Path
) -> None:
    """For 11 rows in batches of 4 TRL makes a partial batch per epoch; ours continues into the next epoch."""
    trainer = build_sft_of_completions(folder, tmp_path, num_train_epochs=2)
    loader = torch.utils.data.DataLoader(list(range(num_rows)), batch_size=4)  # type: ignore[arg-type]
    assert trainer.set_initial_training_values(trainer.args, loader)[-1] == theirs
    assert count_steps(SupervisedConfig(batch_size=4, num_epochs=2), num_rows) == ours


@pytest.mark.parametrize(("margins", "centering"), [(None, 0.0), (MARGINS, 0.3)])
def test_reward_model(margins: list[float] | None, centering: float, folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    rows: list[dict[str, Any]] = [dict(pair) for pair in PAIRS]
    for row, margin in zip(rows, margins or [], strict=False):
        row["margin"] = margin
    data = {"margin_key": "margin" if margins else None}
    config = make_config(folder, rows, "rm", data=data, rm=RMConfig(center_rewards_coef=centering))
    build_engine(config, str(config.model.path), build_objective(config, str(config.model.path)), RankInfo()).export(
        tmp_path / "scorer"
    )
    whole = [
        {**row, "chosen": row["prompt"] + row["chosen"], "rejected": row["prompt"] + row["rejected"]} for row in rows
    ]
    trainer = trl.RewardTrainer(
        model=AutoModelForSequenceClassification.from_pretrained(tmp_path / "scorer", dtype=torch.float32),
        args=trl.RewardConfig(**settings(tmp_path, len(rows), center_rewards_coefficient=centering or None)),
        processing_class=load_tokenizer(folder / "model"),
        train_dataset=datasets.Dataset.from_list([{k: v for k, v in row.items() if k != "prompt"} for row in whole]),
    )
    agree(train_once(config, as_they_are), trl_step(trainer))


def test_reward_model_of_chats(folder: Path, tmp_path: Path) -> None:
    """Both read the score at the last token of the template, here a space after the end of the turn."""
    from transformers import AutoModelForSequenceClassification

    roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    rows = [{key: [{"role": roles[key], "content": text}] for key, text in pair.items()} for pair in PAIRS]
    tokenizer = load_tokenizer(folder / "model")
    tokenizer.chat_template = TEMPLATE.replace("<eos>", "<eos> ")
    tokenizer.save_pretrained(folder / "chats")
    for name in ("config.json", "model.safetensors"):
        (folder / "chats" / name).write_bytes((folder / "model" / name).read_bytes())
    config = make_config(folder, rows, "rm", data={"chat_template": True})
    path = str(folder / "chats")
    config = config.model_copy(update={"model": ModelConfig(path=path)})
    build_engine(config, path, build_objective(config, path), RankInfo()).export(tmp_path / "scorer")
    trainer = trl.RewardTrainer(
        model=AutoModelForSequenceClassification.from_pretrained(tmp_path / "scorer", dtype=torch.float32),
        args=trl.RewardConfig(**settings(tmp_path, len(rows))),
        processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list(rows),
    )
    agree(train_once(config, as_they_are), trl_step(trainer))


VARIANTS: dict[str, tuple[DPOConfig, dict[str, Any]]] = {
    "sigmoid": (DPOConfig(beta=0.3), {"loss_type": ["sigmoid"], "beta": 0.3}),
    "ipo": (DPOConfig(loss="ipo", beta=0.2), {"loss_type": ["ipo"], "beta": 0.2}),
    "chosen-nll": (
        DPOConfig(beta=0.3, sft_coef=0.7),
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.7], "beta": 0.3},
    ),
    "live": (DPOConfig(beta=0.3, reference="live"), {"loss_type": ["sigmoid"], "beta": 0.3}),
    "reference-free": (DPOConfig(beta=0.3, reference="none"), {"loss_type": ["sigmoid"], "beta": 0.3}),
    "smoothed": (DPOConfig(beta=0.3, label_smoothing=0.2), {"loss_type": ["sigmoid"], "beta": 0.3}),
}


def add_reference(
    config: RunConfig, folder: Path, cache: Path
) -> Callable[[list[Example], PolicyEngine], list[Example]]:
    """Return a function that adds the other model's reference logprobs as the config requests."""
    path = str(folder / "reference")

    def cached(examples: list[Example], _: PolicyEngine) -> list[Example]:
        other = PolicyEngine(path, ModelConfig(path=path), config.policy, config.optim, temperature=1.0)
        return add_cached_logprobs(examples, other, 64, cache)

    def live(examples: list[Example], engine: PolicyEngine) -> list[Example]:
        add = load_live_reference(config, path, engine)
        return [Example(tuple(add([list(example.sequences)])[0])) for example in examples]

    return {"cached": cached, "live": live, "none": as_they_are}[config.dpo.reference]


@pytest.mark.parametrize("name", VARIANTS)
def test_dpo(name: str, folder: Path, tmp_path: Path) -> None:
    dpo, theirs = VARIANTS[name]
    config = make_config(folder, PAIRS, "dpo", dpo=dpo)
    ours = train_once(config, add_reference(config, folder, tmp_path / "cache"))
    trainer = trl.DPOTrainer(
        model=load(folder),
        ref_model=load(folder, "reference"),
        args=trl.DPOConfig(**settings(tmp_path, len(PAIRS), **theirs)),
        processing_class=load_tokenizer(folder / "model"),
        train_dataset=datasets.Dataset.from_list(PAIRS),
    )
    inputs = next(iter(trainer.get_train_dataloader()))
    if dpo.reference == "none":
        trainer.precompute_ref_logps = True
        inputs |= {name: torch.zeros(len(PAIRS)) for name in ("ref_chosen_logps", "ref_rejected_logps")}
    if not dpo.label_smoothing:
        agree(ours, trl_step(trainer, inputs))
        return
    swapped = {name: torch.cat(value.chunk(2)[::-1]) for name, value in inputs.items()}
    trainer.model.zero_grad()
    loss = 0.8 * trainer.compute_loss(trainer.model, dict(inputs)) + 0.2 * trainer.compute_loss(
        trainer.model, dict(swapped)
    )
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in trainer.model.parameters() if p.grad is not None]).norm()
    agree(ours, (float(loss), float(norm)))
