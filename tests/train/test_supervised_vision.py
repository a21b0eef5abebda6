"""SFT and DPO of a vision-language model: rows with no, one and two images, compared with transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slurm_rl.trainers.supervised.rank_info import RankInfo
from slurm_rl.trainers.supervised.run_supervised import run_training
from tests.image_kit import write_image
from tests.train.conftest import make_run
from tests.whole_run import stage_rows

WORDS = [
    "model=tiny_qwen2_5_vl",
    "data.image_key=images",
    "data.chat_template=true",
    "data.num_eval=0",
    "supervised.batch_size=6",
    "supervised.max_tokens=200",
    "supervised.max_steps=6",
    "policy.num_threads=1",
    "policy.micro_batch_tokens=150",
    "optim.lr=3e-3",
    "optim.warmup_steps=0",
    "eval.interval=0",
    "logging.wandb.mode=disabled",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve training and twelve evaluation rows with relative paths; the answers describe the images."""
    folder = tmp_path_factory.mktemp("rows")
    for number, size in enumerate([(60, 60), (120, 50), (40, 110)]):
        write_image(folder / f"{number}.png", number, *size)
    rows = []
    for index in range(24):
        images = [[f"{index % 3}.png"], [f"{index % 3}.png", "1.png"], []][index % 3]
        prompt = "<image>" * len(images) + f"What is it, {index}?"
        row: dict[str, Any] = {"prompt": prompt, "images": images, "chosen": f"It is {index % 3}", "rejected": "No"}
        chat = [{"role": "user", "content": prompt}, {"role": "assistant", "content": f"It is {index % 3}"}]
        rows.append(row | {"messages": chat})
    for name, part in (("rows", rows[:12]), ("evals", rows[12:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return folder


def run(task: str, path: Path, folder: Path) -> list[dict[str, float]]:
    words = [f"+exp={task}_tiny", *WORDS, f"data.train={folder / 'rows.jsonl'}", f"data.eval={folder / 'evals.jsonl'}"]
    more = ["dpo.reference=live"] if task == "dpo" else []
    run, config = make_run(path, [*words, "data.num_eval=100", *more])
    run_training(run, config, RankInfo())
    return stage_rows(path, "eval")


def transformers_loss(model_folder: Path, folder: Path) -> float:
    """Return the mean over the assistant's tokens, row by row, with transformers' pixels and positions."""
    from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

    model = AutoModelForImageTextToText.from_pretrained(model_folder).eval()
    tokenizer, processor = (kind.from_pretrained(model_folder) for kind in (AutoTokenizer, AutoImageProcessor))
    total, count = 0.0, 0
    for line in (folder / "evals.jsonl").read_text().splitlines():
        row = json.loads(line)
        pixels: dict[str, Any] = {}
        marks = []
        if row["images"]:
            from PIL import Image

            pixels = dict(processor(images=[Image.open(folder / name) for name in row["images"]], return_tensors="pt"))
            marks = ["<|image_pad|>" * int(grid.prod() // 4) for grid in pixels["image_grid_thw"]]
        shown = "".join(f"<|vision_start|>{mark}<|vision_end|>" for mark in marks) + row["prompt"].replace(
            "<image>", ""
        )
        before = f"<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n"
        start = len(tokenizer(before)["input_ids"])
        ids = tokenizer(before + row["chosen"] + "<|im_end|>", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            types = {"mm_token_type_ids": (ids == model.config.image_token_id).int()} if pixels else {}
            logits = model(input_ids=ids, **pixels, **types).logits[0, start - 1 : -1]
        total += float(torch.nn.functional.cross_entropy(logits, ids[0, start:], reduction="sum"))
        count += ids.shape[1] - start
    return total / count


def test_vision_sft_equals_transformers_and_learns(folder: Path, tmp_path: Path) -> None:
    first, last = run("sft", tmp_path / "run", folder)
    assert first["eval/loss"] == pytest.approx(transformers_loss(tmp_path / "run" / "model", folder), abs=1e-4)
    assert last["eval/loss"] < first["eval/loss"] - 0.2


def test_dpo_learns_from_pairs_with_images(folder: Path, tmp_path: Path) -> None:
    first, last = run("dpo", tmp_path / "run", folder)
    assert first["eval/margin"] == 0.0 and last["eval/margin"] > 0.1
    assert last["eval/accuracy"] == 1.0
