"""Image processing where torchvision is not installed, as beside a CPU torch.

transformers makes the pixels of an image with Pillow there. Three things still ask for torchvision, and get what
images need:

    the processor of a Qwen-VL model, which vLLM builds whole, wants a processor of videos
    vLLM's file of the model takes one function from the torchvision half of the image processor
    vLLM looks at that file in a process of its own, which would know nothing of the other two
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoImageProcessor, AutoTokenizer, Qwen2_5_VLProcessor, Qwen3VLProcessor
from transformers.video_processing_utils import VideoProcessorMixin

_HALVES = "transformers.models.qwen2_vl.image_processing_{}qwen2_vl"
_MODELS = {
    "Qwen2_5_VLForConditionalGeneration": "vllm.model_executor.models.qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "vllm.model_executor.models.qwen3_vl",
}


class NoVideos(VideoProcessorMixin):
    """Takes the place of a video processor in a processor of images and text."""

    size: ClassVar[dict[str, int]] = {"shortest_edge": 1, "longest_edge": 1}
    patch_size, temporal_patch_size, merge_size = 1, 1, 1

    def preprocess(self, videos: Any, **_: Any) -> Any:
        raise NotImplementedError("slurm_rl trains on images, not on videos")


class _TakesNoVideos:
    """Mixed into a processor: transformers cannot name the class of video processors without torchvision."""

    def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
        if isinstance(argument, NoVideos):
            return NoVideos
        return super().check_argument_for_proper_class(name, argument)  # type: ignore[misc]


def allow_images_only() -> None:
    """Let vLLM run Qwen-VL models in this process without torchvision; where that is installed, nothing changes."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    for processor in (Qwen2_5_VLProcessor, Qwen3VLProcessor):
        processor.from_pretrained = classmethod(_load_without_videos)
    sys.modules[_HALVES.format("")] = importlib.import_module(_HALVES.format("pil_"))
    from vllm import ModelRegistry

    for name, module in _MODELS.items():
        # A class, not its name: that is taken as it is, without a look from another process.
        ModelRegistry.register_model(name, getattr(importlib.import_module(module), name))


def _load_without_videos(cls: Any, path: str, /, **options: Any) -> Any:
    """`from_pretrained` of a processor, from its public parts."""
    source = {"local_files_only": Path(path).is_dir(), "trust_remote_code": options.get("trust_remote_code", False)}
    pixels = {name: value for name, value in options.items() if name in ("min_pixels", "max_pixels", "size")}
    tokenizer = options.get("tokenizer") or AutoTokenizer.from_pretrained(path, **source)
    # With the module of the original, in which vLLM looks for the types of its options.
    made = type(cls.__name__, (_TakesNoVideos, cls), {"__module__": cls.__module__})
    return made(
        image_processor=AutoImageProcessor.from_pretrained(path, **source, **pixels),
        tokenizer=tokenizer,
        video_processor=NoVideos(),
        chat_template=tokenizer.chat_template,
    )
