import json
import random
from pathlib import Path

import numpy as np

from slurm_rl.algorithms.sequences import ImageSpan, TrainSequence
from slurm_rl.data.images import read_size
from slurm_rl.models.vision import ImageReader


def write_image(path: Path, seed: int, width: int, height: int) -> str:
    """Write an image of random 7x7 patches."""
    from PIL import Image

    chance = random.Random(seed)
    small = Image.new("RGB", (-(-width // 7), -(-height // 7)))
    small.putdata([tuple(chance.randrange(256) for _ in range(3)) for _ in range(small.width * small.height)])
    small.resize((width, height), Image.Resampling.NEAREST).save(path)
    return str(path)


def build_sequence(reader: ImageReader, seed: int, sources: list[str], num_text: int, trained: int) -> TrainSequence:
    """Build random text around the images' placeholders, and trained text after them."""
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


def write_rows(folder: Path, num_rows: int) -> None:
    """Write a data set like `prepare mathv60k`: shuffled rows of messages with zero, one or two images."""
    images = folder / "images"
    images.mkdir(parents=True)
    sizes = [(60, 60), (120, 50), (40, 110)]
    paths = [write_image(images / f"{i}.png", i, *size) for i, size in enumerate(sizes)]
    system = {"role": "system", "content": "Solve it. Write <think> .. </think><answer> .. </answer>."}
    lines = []
    for index in range(num_rows):
        image = {"type": "image", "image": paths[index % 3]}
        other = {"type": "image", "image": f"images/{(index + 1) % 3}.png"}
        text = {"type": "text", "text": f"What is {index % 3} + 1?"}
        content = [[image, text], [text, image], [image, text, other], [text]][index % 4]
        prompt = [system, {"role": "user", "content": content}]
        lines.append(json.dumps({"prompt": prompt, "answer": f"$\\boxed{{{index % 3 + 1}}}$"}) + "\n")
    (folder / "train.jsonl").write_text("".join(lines))
