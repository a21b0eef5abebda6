"""Check plan/checkpoint_layouts.py against the trainers' sources: where they save and which file they write last."""

import inspect
import re
from pathlib import Path

import pytest

from tests.train.external.releases import unpack


def read_source(module: str) -> str:
    from importlib.util import find_spec

    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text()


def test_verl_writes_data_pt_before_tracker(packages: Path) -> None:
    text = (packages / "verl/verl/trainer/ppo/ray_trainer.py").read_text()
    save = text[text.index("def _save_checkpoint") : text.index("def _load_checkpoint")]
    order = ['f"global_step_{self.global_steps}"', '"actor"', '"data.pt"', '"latest_checkpointed_iteration.txt"']
    assert sorted(order, key=save.index) == order
    # verl always reads the tracker; an empty one would end it, so ours repairs it.
    load = text[text.index("def _load_checkpoint") :]
    assert load.index("find_latest_ckpt_path(checkpoint_folder)") < load.index('"resume_path"')
    reader = (packages / "verl/verl/utils/checkpoint/checkpoint_manager.py").read_text()
    assert "iteration = int(f.read().decode())" in reader


def test_verl_trainers_save_when_their_function_says_so(packages: Path) -> None:
    """The V1 trainer does not ask it; our callback works because it reads the frequency after each step."""
    for name in ("trainer/ppo/ray_trainer.py", "experimental/fully_async_policy/fully_async_trainer.py"):
        text = (packages / "verl/verl" / name).read_text()
        assert re.search(r"redundant_time=self\.config\.trainer\.esi_redundant_time", text)
    loop = (packages / "verl/verl/trainer/ppo/v1/trainer_base.py").read_text()
    assert "should_save_ckpt_esi" not in loop
    assert "self.checkpoint_callback = build_checkpoint_callback(config)" in loop
    assert "self.global_steps % self.config.trainer.save_freq == 0" in loop


def test_openrlhf_saves_by_deepspeed_below_actor(packages: Path) -> None:
    actor = (packages / "dotted/openrlhf/trainer/ray/ppo_actor.py").read_text()
    assert re.search(r'os\.path\.join\(args\.ckpt\.path, "_actor"\)', actor)
    for name in ("sft", "rm", "dpo"):
        assert 'f"global_step{global_step}"' in (packages / f"dotted/openrlhf/trainer/{name}_trainer.py").read_text()
    engine = read_source("deepspeed.runtime.engine")
    assert "os.path.join(save_dir, 'latest'), 'w'" in engine


def test_transformers_writes_trainers_state_last() -> None:
    from transformers import Trainer
    from transformers.trainer_jit_checkpoint import CheckpointManager

    save = inspect.getsource(Trainer._save_checkpoint)
    order = ["self.save_model(", "_save_optimizer_and_scheduler(", "_save_rng_state(", "TRAINER_STATE_NAME", "rotate_"]
    assert sorted(order, key=save.index) == order and 'f"{PREFIX_CHECKPOINT_DIR}-{' in save
    jit = inspect.getsource(CheckpointManager.execute_jit_checkpoint)
    assert "checkpoint-is-incomplete.txt" in jit


def test_trl_scripts_pass_checkpoint_to_trainer() -> None:
    for name in ("grpo", "sft", "dpo", "reward", "kto", "rloo"):
        text = read_source(f"trl.scripts.{name}")
        assert "trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)" in text


def test_torch_writes_metadata_of_distributed_checkpoint_last() -> None:
    """prime-rl saves with this: .metadata is renamed after every rank has written."""
    from torch.distributed.checkpoint.filesystem import _FileSystemWriter

    finish = inspect.getsource(_FileSystemWriter.finish)
    assert ".tmp" in finish and "self.fs.rename(" in finish


def test_skyrl_writes_tracker_last(tmp_path_factory: pytest.TempPathFactory) -> None:
    trainer = unpack(tmp_path_factory.mktemp("skyrl"), "skyrl") / "skyrl/train/trainer.py"
    text = trainer.read_text()
    save = text[text.index("def save_checkpoints") : text.index("def _cleanup_old_checkpoints")]
    order = ['f"global_step_{self.global_step}"', '"data.pt"', '"trainer_state.pt"', '"latest_ckpt_global_step.txt"']
    assert sorted(order, key=save.index) == order


def test_torchtitan_looks_for_complete_steps(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = unpack(tmp_path_factory.mktemp("torchtitan"), "torchtitan") / "torchtitan/components/checkpointer"
    text = (root / "dcp.py").read_text()
    assert 'r"step-(\\d+)"' in text and '".metadata"' in text and '"model.safetensors.index.json"' in text
    assert 'folder: str = "checkpoint"' in (root / "base.py").read_text()
