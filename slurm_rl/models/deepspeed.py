"""DeepSpeed ZeRO 0 to 3, imported late.

    stage  split over ranks
    0      nothing
    1      moments
    2      moments, gradients
    3      moments, gradients, parameters

`managed_gradient_accumulation` is off, so that only `step` ends a step. Stages 0 and 1 then sum gradients over ranks
once;
stages 2 and 3 after each micro-batch. A bfloat16 model keeps float32 master weights in every stage.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import BringUpError, CheckpointError
from slurm_rl.models.backend import (
    apply_config,
    build_optimizer,
    clip_gradients,
    require_finite,
    set_lr,
)
from slurm_rl.models.distributed import get_device, get_rank, get_world_size
from slurm_rl.models.gather import Part, gather_state
from slurm_rl.models.saved_weights import load_deepspeed
from slurm_rl.models.weight_files import WeightFiles, fill_parameters, names_in_files

# The folder DeepSpeed makes inside ours.
_TAG = "deepspeed"


class DeepSpeedBackend:
    can_reshard = False  # ZeRO's files hold each rank's part of flattened buffers

    def __init__(
        self, model: PreTrainedModel, policy: PolicyConfig, optim: OptimConfig, files: WeightFiles | None = None
    ) -> None:
        self._deepspeed = _import_deepspeed()
        self.dtype: torch.dtype = model.dtype
        self.optim = optim
        # Plain: stage 0 in float32 is bare data parallelism, which clips without telling the norm. We clip.
        self.plain = policy.zero_stage == 0 and self.dtype == torch.float32
        config = _build_config(policy, self.dtype, 0.0 if self.plain else optim.max_grad_norm)
        if files is not None:
            self._fill(model, files, config)
        self.optimizer = build_optimizer(model, optim)
        self.engine, _, _, _ = self._deepspeed.initialize(model=model, optimizer=self.optimizer, config=config)
        # DeepSpeed's own reader runs code in a checkpoint.
        self.engine.checkpoint_engine.load = lambda path, map_location=None: load_deepspeed(Path(path))
        self.model = self.engine
        self.module: PreTrainedModel = self.engine.module
        self._clipped_norm = 0.0
        if self.plain:
            self.optimizer.register_step_pre_hook(self._clip)

    def _fill(self, model: PreTrainedModel, files: WeightFiles, config: dict[str, Any]) -> None:
        """Read the parameters layer by layer; ZeRO shards each before the next is read."""

        # Other ranks receive from rank 0 into one buffer, because many freed tensors would fragment memory.
        largest = max(p.numel() for p in model.parameters()) if get_rank() else 0
        scratch, names = torch.empty(largest, dtype=self.dtype), names_in_files(model)

        def read(empty: torch.nn.Parameter) -> Tensor:
            if get_rank() == 0:
                return files.read(names[empty]).to(self.dtype)
            return scratch[: empty.numel()].view(empty.shape)

        for layer in reversed(list(model.modules())):
            fill_parameters(layer, read)
            self._deepspeed.zero.Init(module=layer, config_dict_or_path=config, dtype=self.dtype)

    def backward(self, loss: Tensor, *, is_last: bool = True) -> None:
        # DeepSpeed averages gradients over ranks; our loss is a sum.
        self.engine.backward(loss * get_world_size())

    def step(self, lr: float) -> float:
        set_lr(self.engine.optimizer, lr)
        try:
            self.engine.step()
        finally:
            self.module.zero_grad(set_to_none=True)
        norm = self._clipped_norm if self.plain else float(self.engine.get_global_grad_norm())
        require_finite("gradient norm", norm)  # DeepSpeed skips such an update without a word
        return norm

    def reset_optimizer(self, config: OptimConfig) -> None:
        self.optim = config
        self.optimizer.state.clear()
        apply_config(self.optimizer, config)
        if not self.plain:
            self.engine.optimizer.clip_grad = config.max_grad_norm

    def full_state(
        self, wanted: Callable[[str], bool] | None = None, place: torch.device | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        state = self.module.state_dict(keep_vars=True).items()
        held = ((name, _to_part(tensor)) for name, tensor in state if wanted is None or wanted(name))
        return gather_state(held, self.dtype, place)

    def save(self, folder: Path, *, copy: bool) -> None:
        # DeepSpeed writes from its own buffers, and its ranks wait for each other meanwhile: nothing is left over.
        self.engine.save_checkpoint(str(folder), tag=_TAG, save_latest=False, exclude_frozen_parameters=True)

    def load(self, folder: Path, num_saved: int) -> None:
        # Frozen parameters are not in it.
        frozen = any(not p.requires_grad for p in self.module.parameters())
        path, _ = self.engine.load_checkpoint(str(folder), tag=_TAG, load_module_strict=not frozen)
        if path is None:
            raise CheckpointError("the checkpoint must hold a DeepSpeed checkpoint", seen=str(folder / _TAG))
        apply_config(self.optimizer, self.optim)

    def _clip(self, *_: Any) -> None:
        self._clipped_norm = clip_gradients(self.module.parameters(), self.optim.max_grad_norm)


def _to_part(tensor: Any) -> Tensor | Part:
    """Return ZeRO-3's part of the flat parameter, padded at the end; other stages leave it whole."""
    if not hasattr(tensor, "ds_id"):
        return tensor.detach()
    part = tensor.ds_tensor.detach()
    return Part(part, tensor.ds_shape, part.numel())


def _import_deepspeed() -> Any:
    if not torch.distributed.is_initialized():
        raise BringUpError(
            "deepspeed needs a process group, also of one rank",
            action="call slurm_rl.models.distributed.init_process_group first",
        )
    device = get_device()
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read once, on import
    # DeepSpeed demands it even where, as here, the process group exists and the device is chosen.
    os.environ.setdefault("LOCAL_RANK", str(device.index or 0))
    import deepspeed

    if device.type == "cpu":
        # A shared-memory all-reduce for inference, which training never calls. Without this line DeepSpeed compiles it
        # at the first start: most of a minute, and a compiler in the image. With GPUs it has none, and reading this
        # table would run compilers to fill it.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=torch.distributed.get_backend())
    return deepspeed


def _build_config(policy: PolicyConfig, dtype: torch.dtype, max_grad_norm: float) -> dict[str, Any]:
    host = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    places = {"optimizer": ["offload_optimizer"], "all": ["offload_optimizer", "offload_param"]}.get(policy.offload, [])
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,  # only counts samples in DeepSpeed's own log
        "managed_gradient_accumulation": False,
        "gradient_clipping": max_grad_norm,
        "zero_optimization": {"stage": policy.zero_stage, "overlap_comm": False, **dict.fromkeys(places, host)},
        "zero_force_ds_cpu_optimizer": False,  # or offloading would demand DeepSpeed's own AdamW
        "zero_allow_untested_optimizer": True,  # torch's AdamW; DeepSpeed's own ones compile C++
        "steps_per_print": 10**9,
    }
    if dtype == torch.bfloat16:
        config["bf16"] = {"enabled": True}
        if policy.zero_stage > 0:  # micro-batches add up in float32; stage 0 cannot
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config
