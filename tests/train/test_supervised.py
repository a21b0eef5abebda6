"""SFT, reward models and DPO: equal numbers in every layout, after a stop and a kill; bad input is named."""

import faulthandler
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing

from slurm_rl.config.load import load_config
from slurm_rl.errors import StopRequested
from slurm_rl.models.convert import convert_checkpoint
from slurm_rl.node.stop import StopFlag, run_to_outcome
from slurm_rl.run_dir.run_dir import RunDir, read_json
from slurm_rl.trainers.common import cadence
from slurm_rl.trainers.supervised.rank_info import RankInfo
from slurm_rl.trainers.supervised.run_supervised import build_objective, run_training, train
from tests.image_kit import write_image
from tests.train import conftest
from tests.train.conftest import make_run
from tests.unit.models.test_store_address import free_port
from tests.whole_run import events_of, exact_rows, stage_rows

SMALL = [
    conftest.SMALL.word,
    "data.largest_addend=9",
    "data.num_eval=20",
    "supervised.batch_size=16",
    "supervised.max_steps=5",
    "policy.num_threads=1",
    "policy.micro_batch_tokens=64",
    "optim.eps=1e-6",
    "eval.interval=2",
    "checkpoint.interval=2",
]
TASKS = {
    "sft": ["+exp=sft_tiny", "sft.neftune_alpha=5"],
    "rm": ["+exp=rm_tiny"],
    "dpo-cached": ["+exp=dpo_tiny", "dpo.sft_coef=0.5"],
    "dpo-live": ["+exp=dpo_tiny", "dpo.reference=live", "dpo.loss=ipo"],
}
ADAPTED = {"rm-lora": ["+exp=rm_tiny", "+lora=all_linear", "model.lora.rank=4"]}
"""Only with four ranks, in slow tests."""
LAYOUTS = {
    "fsdp2": [],
    "zero-2": ["policy.backend=deepspeed", "policy.zero_stage=2"],
    "zero-3": ["policy.backend=deepspeed", "policy.zero_stage=3"],
}
Pairs = list[tuple[str, str]]
"""Pairs of layout and task."""
# Layouts differ below the objective; tests/train/test_engine_distributed.py compares them.
FAST: Pairs = [("fsdp2", "sft"), ("fsdp2", "rm"), ("fsdp2", "dpo-cached")]
STOPPED: Pairs = [("fsdp2", "sft"), ("zero-3", "dpo-cached")]
FOUR: Pairs = [(layout, task) for layout in LAYOUTS for task in (TASKS | ADAPTED)]


class StopAfter(StopFlag):
    """Request a stop at the n-th step."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StopRequested("asked to stop by the test")


def work(rank: int, num_ranks: int, port: int, root: Path, pairs: Pairs) -> None:
    faulthandler.enable()
    rank_info = RankInfo(rank=rank, local_rank=rank, world_size=num_ranks, local_world_size=num_ranks, master_port=port)
    rank_info.join(timeout_s=300)
    for layout, task in pairs:
        words = [*SMALL, *(TASKS | ADAPTED)[task], *LAYOUTS[layout]]
        run, config = make_run(root / f"{layout}-{num_ranks}-{task}" / f"whole-{rank}", words)
        run = RunDir(run.path.with_name("whole-0"))
        train(run, config, rank_info, StopFlag())
        if num_ranks == 1 or (layout, task) not in STOPPED:
            continue
        again = RunDir(run.path.with_name("stopped"))
        try:
            train(again, config, rank_info, StopAfter(3))
        except StopRequested:
            train(again, config, rank_info, StopFlag())
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("supervised")
    multiprocessing.spawn(work, args=(2, free_port(), root, FAST), nprocs=2)
    # In this process, which has already imported everything.
    work(0, 1, free_port(), root, [("fsdp2", task) for task in TASKS])
    return root


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("four")
    multiprocessing.spawn(work, args=(4, free_port(), root, FOUR), nprocs=4)
    work(0, 1, free_port(), root, [("fsdp2", task) for task in ADAPTED])
    return root


@pytest.mark.parametrize(("layout", "task"), FAST)
def test_two_ranks_equal_one(layout: str, task: str, root: Path) -> None:
    require_equal(exact_rows(root / f"{layout}-2-{task}" / "whole-0"), exact_rows(root / f"fsdp2-1-{task}" / "whole-0"))


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "task"), FOUR)
def test_four_ranks_in_every_layout_equal_one(layout: str, task: str, root: Path, four: Path) -> None:
    one = (four if task in ADAPTED else root) / f"fsdp2-1-{task}" / "whole-0"
    require_equal(exact_rows(four / f"{layout}-4-{task}" / "whole-0"), exact_rows(one))


def require_equal(ours: list[dict[str, Any]], one: list[dict[str, Any]]) -> None:
    assert [row["stage"] for row in ours] == [row["stage"] for row in one] and len(one) == 9
    for row, expected in zip(ours, one, strict=True):
        assert row.pop("stage") == expected["stage"]
        numbers = {key: value for key, value in expected.items() if key != "stage"}
        assert row == pytest.approx(numbers, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize(
    ("ranks", "name"), [("root", "fsdp2-2-sft"), pytest.param("four", "zero-3-4-dpo-cached", marks=pytest.mark.slow)]
)
def test_stopped_run_resumes_with_identical_metrics(ranks: str, name: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(ranks) / name
    assert "trainer/resumed" in (folder / "stopped" / "events.jsonl").read_text()
    assert exact_rows(folder / "stopped") == exact_rows(folder / "whole-0")


def test_transformers_reads_exported_and_converted_reward_model(root: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder, out = root / "fsdp2-2-rm" / "whole-0", tmp_path / "converted"
    config = load_config([*TASKS["rm"], *SMALL])
    checkpoint = folder / "checkpoints" / "step-5" / "policy"
    count = convert_checkpoint(checkpoint, str(folder / "model"), config.model, out, 10**9)
    for source in (out, folder / "export"):
        model, loaded = AutoModelForSequenceClassification.from_pretrained(source, output_loading_info=True)
        assert type(model).__name__ == "Qwen3ForSequenceClassification" and model.config.num_labels == 1
        assert not loaded["missing_keys"] and not loaded["unexpected_keys"]
        assert count == sum(parameter.numel() for parameter in model.parameters())
    tokenizer = AutoTokenizer.from_pretrained(folder / "export")
    rows = build_objective(config, str(folder / "model")).held_out
    texts = [tokenizer.decode(sequence.token_ids) for example in rows for sequence in example.sequences]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        scores = model.eval()(**{name: batch[name] for name in ("input_ids", "attention_mask")}).logits.view(-1, 2)
    best = min(stage_rows(folder, "eval"), key=lambda row: row["eval/loss"])
    assert float(scores[:, 0].mean()) == pytest.approx(best["eval/chosen_score"], abs=1e-4)
    assert float(scores[:, 1].mean()) == pytest.approx(best["eval/rejected_score"], abs=1e-4)


def test_early_stop_exports_best(tmp_path: Path) -> None:
    """With a learning rate that makes every step worse, the run ends two evaluations later and restores the start."""
    words = ["eval.interval=1", "supervised.patience=2", "optim.lr=5", "optim.warmup_steps=0"]
    run, config = make_run(tmp_path / "run", [TASKS["dpo-cached"][0], *SMALL, *words])
    run_training(run, config, RankInfo())
    assert [row["step"] for row in stage_rows(run.path, "eval")] == [0, 1, 2]
    from safetensors.torch import load_file

    start, end = (load_file(folder / "model.safetensors") for folder in (run.model, run.export))
    assert all(torch.equal(start[name], end[name]) for name in end)


def test_save_interval_keeps_supervised_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of saves changes no metric, so a clock may decide it (checkpoint.interval=auto)."""
    monkeypatch.setattr(cadence, "FIRST_EVERY", 1)
    # So that steps of milliseconds change the interval at once.
    monkeypatch.setattr(cadence, "LEAST_SAVES", 1)
    rows, saves = {}, {}
    for every in ("1", "3", "auto"):
        run, config = make_run(tmp_path / every, [TASKS["dpo-cached"][0], *SMALL, f"checkpoint.interval={every}"])
        run_training(run, config, RankInfo())
        rows[every], saves[every] = (
            exact_rows(run.path),
            [row["step"] for row in events_of(run.path, "checkpoint/saved")],
        )
    assert rows["1"] == rows["3"] == rows["auto"]
    assert len(rows["1"]) > 3 and len(saves["1"]) > len(saves["3"])
    assert saves["auto"][0] == 0 and saves["auto"] != saves["3"]


GOOD = {"prompt": "1+1=", "answer": "2", "chosen": "2", "rejected": "3"}


@pytest.mark.parametrize(
    ("task", "row", "words", "names"),
    [
        ("dpo-cached", {"prompt": "1+1=", "chosen": "2"}, [], [":17", "'rejected'"]),
        ("rm", {"prompt": "1+1=", "rejected": "2"}, [], [":17", "'chosen'"]),
        ("rm", {"prompt": "1+1=", "chosen": "2", "rejected": "2"}, [], [":17", "must differ"]),
        ("sft", {"messages": [{"role": "assistant", "content": ""}]}, [], [":17", "must not be empty"]),
        ("sft", {"prompt": "1+1=", "answer": "two"}, [], [":17", "'t'"]),
        ("sft", {"prompt": "1+1=", "answer": "2" * 20}, [], [":17", "25 tokens", "data.overlong_prompts"]),
        ("sft", GOOD, ["supervised.batch_size=40"], ["17 rows < 40", "supervised.batch_size"]),
        ("dpo-cached", GOOD, ["supervised.max_tokens=60"], []),
    ],
)
def test_bad_input_ends_with_status_2_and_names_row(
    task: str, row: Any, words: list[str], names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in [*[GOOD] * 16, row]))
    own = [f"data.train={data}", "data.num_eval=0", "supervised.max_steps=1", *words]
    run, config = make_run(tmp_path / "run", [TASKS[task][0], *SMALL, *own])
    status = run_to_outcome(run, run.attempt(1), lambda run, _: run_training(run, config, RankInfo()))
    error = capsys.readouterr().err
    assert status == (2 if names else 0), error
    assert all(name in error for name in names), error
    assert "Traceback" not in error
    assert read_json(run.attempt(1).outcome)["exit_code"] == status


VISION = [
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


def run_vision(task: str, path: Path, folder: Path) -> list[dict[str, float]]:
    words = [f"+exp={task}_tiny", *VISION, f"data.train={folder / 'rows.jsonl'}", f"data.eval={folder / 'evals.jsonl'}"]
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
    first, last = run_vision("sft", tmp_path / "run", folder)
    assert first["eval/loss"] == pytest.approx(transformers_loss(tmp_path / "run" / "model", folder), abs=1e-4)
    assert last["eval/loss"] < first["eval/loss"] - 0.2


def test_dpo_learns_from_pairs_with_images(folder: Path, tmp_path: Path) -> None:
    first, last = run_vision("dpo", tmp_path / "run", folder)
    assert first["eval/margin"] == 0.0 and last["eval/margin"] > 0.1
    assert last["eval/accuracy"] == 1.0
