"""Pixels of a micro-batch: from the image file to the model inputs.

Prompts are encoded from file headers; the training worker reads the pixels when a batch is built.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoImageProcessor, PreTrainedConfig

from slurm_rl.algorithms.mrope import build_rope_positions
from slurm_rl.algorithms.sequences import ImageSpan, PackedBatch, TrainSequence
from slurm_rl.config.model import ModelConfig, require_vision_family
from slurm_rl.data.images import open_image
from slurm_rl.errors import ConfigError, DataError, first_line

if TYPE_CHECKING:
    from PIL.Image import Image

_CACHE_BYTES = 2 * 10**9
"""Pixels kept by one worker: those of a step's prompts, at most."""


@dataclass(frozen=True)
class Pixels:
    values: Tensor
    """[P, D] float32, one row a patch."""
    grid: tuple[int, int, int]
    """Patches in time, height and width."""


class ImageReader:
    def __init__(self, model_folder: str | Path, config: ModelConfig, merge_size: int, image_token_id: int) -> None:
        self.processor = _load_processor(model_folder, config)
        self.merge_size, self.image_token_id = merge_size, image_token_id
        self._cache: OrderedDict[str, Pixels] = OrderedDict()
        self._cached_bytes = 0

    def count_tokens(self, size: tuple[int, int]) -> int:
        """Return the placeholder tokens of an image of (width, height) pixels, or raise ValueError."""
        width, height = size
        return int(self.processor.get_number_of_image_patches(height, width)) // self.merge_size**2

    def read(self, source: str) -> Pixels:
        if source in self._cache:
            self._cache.move_to_end(source)
            return self._cache[source]
        pixels = self._process(open_image(source, "a training batch"))
        self._cache[source] = pixels
        self._cached_bytes += pixels.values.nbytes
        while self._cached_bytes > _CACHE_BYTES and len(self._cache) > 1:
            self._cached_bytes -= self._cache.popitem(last=False)[1].values.nbytes
        return pixels

    def attach(self, batch: PackedBatch, sequences: Sequence[TrainSequence]) -> PackedBatch:
        """Return the packed batch with its images and three-axis positions; raise DataError if an image changed."""
        starts, positions, pixels = [], [], []
        lone = batch.token_ids == self.image_token_id
        offset = 0
        for sequence in sequences:
            found = [self._read_span(span) for span in sequence.images]
            sizes = [(one.grid[1] // self.merge_size, one.grid[2] // self.merge_size) for one in found]
            inside = [span.start for span in sequence.images]
            positions.append(build_rope_positions(len(sequence.token_ids), inside, sizes))
            starts += [offset + start for start in inside]
            for span in sequence.images:
                lone[offset + span.start : offset + span.start + span.num_tokens] = False
            pixels += found
            offset += len(sequence.token_ids)
        return replace(
            batch,
            rope_position_ids=torch.from_numpy(np.concatenate(positions, axis=1)),
            pixel_values=torch.cat([one.values for one in pixels]),
            image_grid_thw=torch.tensor([one.grid for one in pixels], dtype=torch.long),
            image_positions=torch.tensor(starts, dtype=torch.long),
            lone_placeholders=lone.nonzero()[:, 0],
        )

    def with_image(self, sequences: Sequence[TrainSequence]) -> list[TrainSequence]:
        """Return the sequences; without images, add one that trains nothing and has a blank image.

        All ranks gather the vision tower's weights together, so every micro-batch must run it.
        """
        if any(sequence.images for sequence in sequences):
            return list(sequences)
        return [*sequences, self._blank_sequence()]

    def _blank_sequence(self) -> TrainSequence:
        from PIL import Image

        side = self.processor.patch_size * self.merge_size
        num_tokens = self.count_tokens((side, side))
        ids = np.full(num_tokens + 1, self.image_token_id, dtype=np.int64)
        ids[-1] = 0
        span = ImageSpan(source=f"blank {side}", start=0, num_tokens=num_tokens)
        if span.source not in self._cache:
            self._cache[span.source] = self._process(Image.new("RGB", (side, side)))
        return TrainSequence(token_ids=ids, trained_from=len(ids), images=[span])

    def _process(self, image: Image) -> Pixels:
        made = self.processor(images=[image], return_tensors="pt")
        time, height, width = made["image_grid_thw"][0].tolist()
        return Pixels(made["pixel_values"].float(), (time, height, width))

    def _read_span(self, span: ImageSpan) -> Pixels:
        pixels = self.read(span.source)
        time, height, width = pixels.grid
        if time * height * width != span.num_tokens * self.merge_size**2:
            raise DataError(
                "an image must not change while a run uses it",
                seen=f"{span.source}: {pixels.grid} patches in place of {span.num_tokens} tokens",
                action="restore the file",
            )
        return pixels


def load_image_reader(model_folder: str | Path, config: ModelConfig) -> ImageReader | None:
    """Return the reader of a vision-language model, or None; raise ConfigError for an unsupported family."""
    architecture = AutoConfig.from_pretrained(model_folder, trust_remote_code=config.trust_remote_code)
    if not has_vision(architecture):
        return None
    require_vision_family(architecture.model_type, str(model_folder))
    merge_size = architecture.vision_config.spatial_merge_size
    return ImageReader(model_folder, config, merge_size, architecture.image_token_id)


def has_vision(architecture: PreTrainedConfig) -> bool:
    return getattr(architecture, "vision_config", None) is not None


def processor_options(config: ModelConfig) -> dict[str, int]:
    """Settings of the image processor for policy and engine, so that both see the same pixels."""
    options = {"min_pixels": config.min_pixels, "max_pixels": config.max_pixels}
    return {name: value for name, value in options.items() if value is not None}


def _load_processor(model_folder: str | Path, config: ModelConfig) -> Any:
    try:
        return AutoImageProcessor.from_pretrained(
            model_folder, local_files_only=Path(model_folder).is_dir(), **processor_options(config)
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.path must hold an image processor ({first_line(error)})",
            seen=str(model_folder),
            action="put preprocessor_config.json of the model there",
        ) from error
