"""Image processing without torchvision, for example with a CPU build of torch.

transformers then uses Pillow. Three places still need torchvision, and get a replacement that suffices for images:

    the processor of a Qwen-VL model, which needs a video processor
    vLLM's module of the model, which imports one function of the torchvision image processor
    vLLM inspects that module in a subprocess, which does not have the first two replacements
"""

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
    "Qwen3VLMoeForConditionalGeneration": "vllm.model_executor.models.qwen3_vl_moe",
    "Qwen3_5ForConditionalGeneration": "vllm.model_executor.models.qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "vllm.model_executor.models.qwen3_5",
}


class NoVideos(VideoProcessorMixin):
    """Placeholder for the video processor."""

    size: ClassVar[dict[str, int]] = {"shortest_edge": 1, "longest_edge": 1}
    patch_size, temporal_patch_size, merge_size = 1, 1, 1

    def preprocess(self, videos: Any, **_: Any) -> Any:
        raise NotImplementedError("slurm_rl trains on images, not on videos")


class _TakesNoVideos:
    """Mixed into a processor: transformers has no class of video processors without torchvision."""

    def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
        if isinstance(argument, NoVideos):
            return NoVideos
        return super().check_argument_for_proper_class(name, argument)  # type: ignore[misc]


def allow_images_only() -> None:
    """Let vLLM run Qwen-VL models in this process without torchvision; no-op if it is installed."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    for processor in (Qwen2_5_VLProcessor, Qwen3VLProcessor):
        processor.from_pretrained = classmethod(_load_without_videos)
    sys.modules[_HALVES.format("")] = importlib.import_module(_HALVES.format("pil_"))
    from vllm import ModelRegistry

    for name, module in _MODELS.items():
        # A class instead of its name: vLLM does not inspect it in a subprocess.
        ModelRegistry.register_model(name, getattr(importlib.import_module(module), name))


def _load_without_videos(cls: Any, path: str, /, **options: Any) -> Any:
    """Replace `from_pretrained` of a processor; assemble it from its parts."""
    source = {"local_files_only": Path(path).is_dir(), "trust_remote_code": options.get("trust_remote_code", False)}
    pixels = {name: value for name, value in options.items() if name in ("min_pixels", "max_pixels", "size")}
    tokenizer = options.get("tokenizer") or AutoTokenizer.from_pretrained(path, **source)
    # vLLM looks up the types of its options in the original module.
    made = type(cls.__name__, (_TakesNoVideos, cls), {"__module__": cls.__module__})
    return made(
        image_processor=AutoImageProcessor.from_pretrained(path, **source, **pixels),
        tokenizer=tokenizer,
        video_processor=NoVideos(),
        chat_template=tokenizer.chat_template,
    )
