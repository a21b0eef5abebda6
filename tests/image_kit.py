"""Images and prompts that the vision tests share."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from slurm_rl.train.data.images import read_size
from slurm_rl.train.engine.vision import ImageReader
from slurm_rl.train.types import ImageSpan, TrainSequence


def write_image(path: Path, seed: int, width: int, height: int) -> str:
    """A picture of random patches of 7 x 7 pixels."""
    from PIL import Image

    chance = random.Random(seed)
    small = Image.new("RGB", (-(-width // 7), -(-height // 7)))
    small.putdata([tuple(chance.randrange(256) for _ in range(3)) for _ in range(small.width * small.height)])
    small.resize((width, height), Image.Resampling.NEAREST).save(path)
    return str(path)


def build_sequence(reader: ImageReader, seed: int, sources: list[str], num_text: int, trained: int) -> TrainSequence:
    """Random text around the images' placeholders, and trained text behind them."""
    chance = random.Random(seed)

    def text(count: int) -> list[int]:
        return [chance.randrange(7, 263) for _ in range(count)]

    ids, spans = text(num_text), []
    for source in sources:
        num_tokens = reader.count_tokens(read_size(source, "test"))
        spans.append(ImageSpan(source=source, start=len(ids) + 1, num_tokens=num_tokens))
        ids += [3, *[reader.image_token_id] * num_tokens, 4, *text(2)]
    return TrainSequence(
        token_ids=np.array([*ids, *text(trained)], dtype=np.int64), trained_from=len(ids), weight=0.1, images=spans
    )
