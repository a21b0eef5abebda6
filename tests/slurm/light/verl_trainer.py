"""A run of verl's released V1 trainer without GPUs, started by `python verl_trainer.py <overrides of ppo_trainer>`.

verl's own: `run_ppo`, the loop `PPOTrainer.fit`, `_save_checkpoint`, `_load_checkpoint`, `should_save_ckpt_esi`, the
FSDP checkpoint manager with its files and the tracker file. Stand-ins: the data, one step (a sleep and a gradient step
of a tiny model on one gloo rank, in the trainer's process), and the rollout.
"""

# Ray copies these functions to its worker without the names in annotations.
from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydra
import ray
import torch
from verl.trainer.main_ppo import run_ppo

STEP_S = 4.0
NUM_STEPS = 500


class Workers:
    """The worker group of the actor, with one rank."""

    def __init__(self, model_folder: str) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
        from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
        torch.distributed.init_process_group("gloo")
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=16, num_key_value_heads=2, **sizes))
        self.model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.ConstantLR(self.optimizer, 1.0)
        tokenizer = AutoTokenizer.from_pretrained(model_folder)
        self.manager = FSDPCheckpointManager(self.model, self.optimizer, schedule, tokenizer)

    def save_checkpoint(self, path: str, remote: Any, step: int, max_ckpt_to_keep: int | None = None) -> None:
        self.manager.save_checkpoint(path, remote, step, max_ckpt_to_keep)
        print(f"saved step {step} with {self.fingerprint()}", flush=True)

    def load_checkpoint(self, local_path: str, del_local_after_load: bool) -> None:
        self.manager.load_checkpoint(local_path, None, del_local_after_load)
        print(f"loaded {self.fingerprint()}", flush=True)

    def fingerprint(self) -> str:
        """Hash the weights and the optimizer's state."""
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        numbers = torch.cat([one.detach().flatten().double() for one in (*self.model.parameters(), *moments)])
        return hashlib.sha256(numbers.numpy().tobytes()).hexdigest()[:16]

    def step(self, row: int) -> None:
        tokens = (torch.arange(8)[None] + row) % 16
        loss = self.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def make_trainer(config: Any) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer.ppo.v1 import PPOTrainerSync, trainer_base

    trainer_base.tq = SimpleNamespace(kv_clear=lambda **_: None)

    class Trainer(PPOTrainerSync):
        def _setup(self) -> None:
            self.train_dataloader = StatefulDataLoader(range(NUM_STEPS), batch_size=1)
            self.steps_per_epoch = self.total_training_steps = NUM_STEPS
            self.actor_rollout_wg = Workers(self.config.actor_rollout_ref.model.path)
            self.checkpoint_manager = SimpleNamespace(update_weights=lambda step: None, sleep_replicas=lambda: None)
            self._load_checkpoint()
            self.rows = iter(self.train_dataloader)
            print(f"starts after step {self.global_steps}", flush=True)

        def prepare_step(self) -> dict[str, Any]:
            return {}

        def _start_profiling(self) -> None:
            pass

        def _stop_profiling(self) -> None:
            pass

        def _step_once(self, metrics: Any, timing_raw: Any, sample_batch_size: int) -> Any:
            time.sleep(STEP_S)
            row = int(next(self.rows))
            self.actor_rollout_wg.step(row)
            print(f"step {self.global_steps} has trained row {row}", flush=True)
            return SimpleNamespace(tags=[{}], keys=["0"], partition_id="train")

        def _compute_metrics(self, *args: Any, **kwargs: Any) -> None:
            pass

        def _shutdown_dump_executor(self) -> None:
            pass

    return Trainer(config)


@ray.remote
class Runner:
    def run(self, config: Any) -> None:
        from omegaconf import OmegaConf

        OmegaConf.resolve(config)
        trainer = make_trainer(config)
        trainer.init()
        trainer.fit(None)


@hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)
def main(config: Any) -> None:
    config.trainer.device = "cpu"
    run_ppo(config, task_runner_class=Runner)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[3]))
    main()
