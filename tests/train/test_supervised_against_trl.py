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
import shutil
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
PAIRS: list[dict[str, Any]] = [
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


def build_trainer(
    kind: str, model: Any, tokenizer: Any, rows: list[dict[str, Any]], path: Path, ref_model: Any = None, **fields: Any
) -> Any:
    """Build TRL's `SFT`, `Reward` or `DPO` trainer with one batch of all rows."""
    config = getattr(trl, f"{kind}Config")(
        output_dir=str(path),
        report_to=[],
        use_cpu=True,
        bf16=False,
        max_length=128,
        per_device_train_batch_size=len(rows),
        gradient_checkpointing=False,
        **fields,
    )
    more = {} if ref_model is None else {"ref_model": ref_model}
    return getattr(trl, f"{kind}Trainer")(
        model=model, args=config, processing_class=tokenizer, train_dataset=datasets.Dataset.from_list(rows), **more
    )


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


CHAT_ROWS = [{"messages": [{"role": role, "content": content} for role, content in chat]} for chat in CHATS]
ANSWER_ROWS = [{"prompt": pair["prompt"], "answer": pair["chosen"]} for pair in PAIRS]
COMPLETION_ROWS = [{"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in PAIRS]


@pytest.mark.parametrize(
    ("train_on", "rows", "their_rows", "fields"),
    [
        ("assistant", CHAT_ROWS, CHAT_ROWS, {"assistant_only_loss": True}),
        ("all", CHAT_ROWS, CHAT_ROWS, {"assistant_only_loss": False}),
        ("assistant", ANSWER_ROWS, COMPLETION_ROWS, {"completion_only_loss": True}),
    ],
)
def test_sft(train_on: Any, rows: Any, their_rows: Any, fields: Any, folder: Path, tmp_path: Path) -> None:
    data = {"chat_template": rows is CHAT_ROWS}
    ours = train_once(make_config(folder, rows, "sft", sft=SFTConfig(train_on=train_on), data=data), as_they_are)
    tokenizer = load_tokenizer(folder / "model")
    agree(ours, trl_step(build_trainer("SFT", load(folder), tokenizer, their_rows, tmp_path, **fields)))


@pytest.mark.parametrize(("num_rows", "theirs", "ours"), [(12, 6, 6), (11, 6, 5)])
def test_num_train_epochs_without_partial_batch(
    num_rows: int, theirs: int, ours: int, folder: Path, tmp_path: Path
) -> None:
    """For 11 rows in batches of 4 TRL makes a partial batch per epoch; ours continues into the next epoch."""
    tokenizer = load_tokenizer(folder / "model")
    trainer = build_trainer("SFT", load(folder), tokenizer, COMPLETION_ROWS, tmp_path, num_train_epochs=2)
    loader = torch.utils.data.DataLoader(list(range(num_rows)), batch_size=4)  # type: ignore[arg-type]
    assert trainer.set_initial_training_values(trainer.args, loader)[-1] == theirs
    assert count_steps(SupervisedConfig(batch_size=4, num_epochs=2), num_rows) == ours


def compare_reward_models(config: RunConfig, tokenizer: Any, rows: Any, path: Path, **fields: Any) -> None:
    """Export our model with its random head for TRL, and compare a step of both."""
    from transformers import AutoModelForSequenceClassification

    model = str(config.model.path)
    build_engine(config, model, build_objective(config, model), RankInfo()).export(path / "scorer")
    scorer = AutoModelForSequenceClassification.from_pretrained(path / "scorer", dtype=torch.float32)
    agree(train_once(config, as_they_are), trl_step(build_trainer("Reward", scorer, tokenizer, rows, path, **fields)))


@pytest.mark.parametrize(("margins", "centering"), [(None, 0.0), (MARGINS, 0.3)])
def test_reward_model(margins: list[float] | None, centering: float, folder: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [dict(pair) for pair in PAIRS]
    for row, margin in zip(rows, margins or [], strict=False):
        row["margin"] = margin
    data = {"margin_key": "margin" if margins else None}
    config = make_config(folder, rows, "rm", data=data, rm=RMConfig(center_rewards_coef=centering))
    theirs = [{**row, **{key: row["prompt"] + row[key] for key in ("chosen", "rejected")}} for row in rows]
    for row in theirs:
        del row["prompt"]
    tokenizer = load_tokenizer(folder / "model")
    compare_reward_models(config, tokenizer, theirs, tmp_path, center_rewards_coefficient=centering or None)


def test_reward_model_of_chats(folder: Path, tmp_path: Path) -> None:
    """Both read the score at the last token of the template, here a space after the end of the turn."""
    roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    rows = [{key: [{"role": roles[key], "content": text}] for key, text in pair.items()} for pair in PAIRS]
    model = Path(shutil.copytree(folder / "model", tmp_path / "chats"))
    tokenizer = load_tokenizer(model)
    tokenizer.chat_template = TEMPLATE.replace("<eos>", "<eos> ")
    tokenizer.save_pretrained(model)
    config = make_config(folder, rows, "rm", data={"chat_template": True})
    config = config.model_copy(update={"model": ModelConfig(path=str(model))})
    compare_reward_models(config, tokenizer, rows, tmp_path)


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


def add_reference(config: RunConfig, folder: Path, cache: Path) -> Prepare:
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
    tokenizer, other = load_tokenizer(folder / "model"), load(folder, "reference")
    trainer = build_trainer("DPO", load(folder), tokenizer, PAIRS, tmp_path, ref_model=other, **theirs)
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
