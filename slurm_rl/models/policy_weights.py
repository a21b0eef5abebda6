"""Whole weights of a sharded policy: for a rollout engine, and for an export."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slurm_rl.config.model import ModelConfig
from slurm_rl.errors import CheckpointError
from slurm_rl.models import distributed, lora
from slurm_rl.models.backend import Backend
from slurm_rl.models.export import export_model, publish_for_engine
from slurm_rl.models.lora_layers import AdaptedLayers
from slurm_rl.models.published_names import name_layers_in_files, plain_name
from slurm_rl.models.weight_files import WeightFiles, check_complete
from slurm_rl.run_dir.io_errors import written_beside


class PolicyWeights:
    """The weights of `PolicyEngine`; every method is collective unless it says otherwise."""

    backend: Backend
    model_config: ModelConfig
    model_folder: str
    tokenizer: Any
    adapted: AdaptedLayers | None
    _shapes: dict[str, tuple[int, ...]]
    """Shapes of all tensors of the plain model, by `state_dict()` name."""

    @property
    def module(self) -> Any:
        return self.backend.module

    @property
    def _base(self) -> str:
        """Model that the adapters belong to."""
        return self.model_config.init_from or self.model_folder

    def full_state(self, place: torch.device | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield whole tensors of the plain model, adapters merged, on rank 0 or on each rank's `place`.

        Raises:
            CheckpointError: after the last tensor, if they are not those of the plain model.
        """
        state = self._merge(self.backend.full_state(place=place))
        if place is None and distributed.get_rank() != 0:
            return state
        rule = "the weights to export or send must be those of the model"
        return check_complete(state, self._shapes, CheckpointError, rule, seen=self.model_folder, action="report a bug")

    def state_to_send(self, place: torch.device) -> Iterator[tuple[str, Tensor]]:
        """Yield `full_state(place)` under the names and in the shapes that a rollout engine reads."""
        return publish_for_engine(self.module, self.full_state(place), self._shapes)

    def empty_state_to_send(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of `state_to_send` in their order on the meta device. Not collective."""
        state = self.module.state_dict(keep_vars=True).items()
        dtype = self.backend.dtype
        empty = (
            (name, torch.empty(getattr(held, "ds_shape", held.shape), dtype=dtype, device="meta"))
            for name, held in state
        )
        return publish_for_engine(self.module, self._merge(empty), self._shapes)

    def _merge(self, state: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        config = self.model_config.lora
        return state if config is None else lora.merge_state(state, config)

    def adapter_state(self, place: torch.device | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield the adapters (float32, `q_proj.lora_A.weight` [r, in], `q_proj.lora_B.weight` [out, r]) and a reward
        head."""
        state = self.backend.full_state(lora.is_trained, place)
        return ((plain_name(name), tensor) for name, tensor in state)

    def adapters_to_send(self, place: torch.device | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield `adapter_state()` under the names that the layers have in the files of the base, B scaled."""
        config = self.model_config.lora
        assert self.adapted is not None and config is not None
        named = name_layers_in_files(self.module, self._shapes, self.adapted.names, WeightFiles(self._base).file_of)
        for name, tensor in self.adapter_state(place):
            layer, kind = name.rsplit(".lora_", 1)
            yield f"{named[layer]}.lora_{kind}", tensor * config.scaling_of(layer) if kind[0] == "B" else tensor

    def export(self, folder: Path, *, adapters_apart: bool = False) -> None:
        """Write model and tokenizer as a Hugging Face folder from rank 0, with adapters merged.

        Args:
            adapters_apart: write only the adapters if `model.lora.export` selects that.
        """
        adapted = self.model_config.lora
        if adapters_apart and adapted and adapted.export == "adapter":
            self.export_adapter(folder)
            return
        state = self.full_state()
        try:
            if distributed.get_rank() == 0:
                export_model(
                    self.module, state, self.tokenizer, folder, shapes=self._shapes, processors_of=self.model_folder
                )
        finally:
            for _ in state:  # gathering is collective
                pass

    def export_adapter(self, folder: Path) -> None:
        """Write only the adapters, for peft, and the tokenizer, from rank 0."""
        config, state = self.model_config.lora, dict(self.adapter_state())
        assert config is not None and self.adapted is not None
        if distributed.get_rank() == 0:
            with written_beside(folder) as beside:
                lora.save_adapter(beside, state, config, self.adapted.names, self._base)
                self.tokenizer.save_pretrained(beside)
