"""Image processing where torchvision is not installed, as beside a CPU torch.

transformers makes the pixels of an image with Pillow there, but a Qwen-VL processor, which vLLM builds whole, also
wants a processor of videos, and that one exists for torchvision alone. Videos are not supported here, so what
stands in its place only has to exist; asked for a video, it raises.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoImageProcessor, AutoTokenizer, Qwen2_5_VLProcessor, Qwen3VLProcessor
from transformers.video_processing_utils import VideoProcessorMixin


class NoVideos(VideoProcessorMixin):
    """Takes the place of a video processor in a processor of images and text."""

    size: ClassVar[dict[str, int]] = {"shortest_edge": 1, "longest_edge": 1}
    patch_size, temporal_patch_size, merge_size = 1, 1, 1

    def preprocess(self, videos: Any, **_: Any) -> Any:
        raise NotImplementedError("slurm_rl trains on images, not on videos")


def allow_images_only() -> None:
    """Let this process build Qwen-VL processors without torchvision; where that is installed, nothing changes."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    for processor in (Qwen2_5_VLProcessor, Qwen3VLProcessor):
        processor.from_pretrained = classmethod(_load_without_videos)


def _load_without_videos(cls: Any, path: str, /, **options: Any) -> Any:
    """`from_pretrained` of a processor, from its public parts."""
    source = {"local_files_only": Path(path).is_dir(), "trust_remote_code": options.get("trust_remote_code", False)}
    pixels = {name: value for name, value in options.items() if name in ("min_pixels", "max_pixels", "size")}
    tokenizer = options.get("tokenizer") or AutoTokenizer.from_pretrained(path, **source)
    return cls(
        image_processor=AutoImageProcessor.from_pretrained(path, **source, **pixels),
        tokenizer=tokenizer,
        video_processor=NoVideos(),
        chat_template=tokenizer.chat_template,
    )
