"""Shapes of models that many name, so that a plan can say what fits before anything is downloaded. Pure.

Numbers of each model's config.json on the hub; tests/unit/plan/test_known_models.py holds them against the counts of
parameters that the authors publish. Vision towers are counted, not described.
"""

from __future__ import annotations

from slurm_rl.plan.memory import ModelShape

# Organisation, names, and: layers, hidden, MLP, vocabulary, heads, key-value heads, width of a head, whether the output
# layer is the embedding, experts, context, parameters of the vision tower.
_ROWS: tuple[tuple[str, str, ModelShape], ...] = (
    ("Qwen", "Qwen2.5-0.5B Qwen2.5-0.5B-Instruct", ModelShape(24, 896, 4864, 151936, 14, 2, 64, True, 1, 32768)),
    ("Qwen", "Qwen2.5-1.5B", ModelShape(28, 1536, 8960, 151936, 12, 2, 128, True, 1, 131072)),
    ("Qwen", "Qwen2.5-3B Qwen2.5-3B-Instruct", ModelShape(36, 2048, 11008, 151936, 16, 2, 128, True, 1, 32768)),
    ("Qwen", "Qwen2.5-7B", ModelShape(28, 3584, 18944, 152064, 28, 4, 128, False, 1, 131072)),
    ("Qwen", "Qwen2.5-14B", ModelShape(48, 5120, 13824, 152064, 40, 8, 128, False, 1, 131072)),
    ("Qwen", "Qwen2.5-32B", ModelShape(64, 5120, 27648, 152064, 40, 8, 128, False, 1, 131072)),
    ("Qwen", "Qwen2.5-72B", ModelShape(80, 8192, 29568, 152064, 64, 8, 128, False, 1, 131072)),
    ("Qwen", "Qwen2.5-1.5B-Instruct", ModelShape(28, 1536, 8960, 151936, 12, 2, 128, True, 1, 32768)),
    ("Qwen", "Qwen2.5-7B-Instruct Qwen2.5-Coder-7B-Instruct Qwen2-7B-Instruct",
     ModelShape(28, 3584, 18944, 152064, 28, 4, 128, False, 1, 32768)),
    ("Qwen", "Qwen2.5-14B-Instruct", ModelShape(48, 5120, 13824, 152064, 40, 8, 128, False, 1, 32768)),
    ("Qwen", "Qwen2.5-32B-Instruct Qwen2.5-Coder-32B-Instruct",
     ModelShape(64, 5120, 27648, 152064, 40, 8, 128, False, 1, 32768)),
    ("Qwen", "Qwen2.5-72B-Instruct", ModelShape(80, 8192, 29568, 152064, 64, 8, 128, False, 1, 32768)),
    ("Qwen", "Qwen2.5-Math-1.5B Qwen2.5-Math-1.5B-Instruct",
     ModelShape(28, 1536, 8960, 151936, 12, 2, 128, True, 1, 4096)),
    ("Qwen", "Qwen2.5-Math-7B Qwen2.5-Math-7B-Instruct",
     ModelShape(28, 3584, 18944, 152064, 28, 4, 128, False, 1, 4096)),
    ("Qwen", "Qwen2.5-VL-3B-Instruct", ModelShape(36, 2048, 11008, 151936, 16, 2, 128, True, 1, 128000, 666664960)),
    ("Qwen", "Qwen2.5-VL-7B-Instruct", ModelShape(28, 3584, 18944, 152064, 28, 4, 128, False, 1, 128000, 674529280)),
    ("Qwen", "Qwen2.5-VL-32B-Instruct", ModelShape(64, 5120, 27648, 152064, 40, 8, 128, False, 1, 128000, 686817280)),
    ("Qwen", "Qwen2.5-VL-72B-Instruct", ModelShape(80, 8192, 29568, 152064, 64, 8, 128, False, 1, 128000, 702545920)),
    ("Qwen", "Qwen3-0.6B", ModelShape(28, 1024, 3072, 151936, 16, 8, 128, True, 1, 40960)),
    ("Qwen", "Qwen3-1.7B", ModelShape(28, 2048, 6144, 151936, 16, 8, 128, True, 1, 40960)),
    ("Qwen", "Qwen3-4B", ModelShape(36, 2560, 9728, 151936, 32, 8, 128, True, 1, 40960)),
    ("Qwen", "Qwen3-8B", ModelShape(36, 4096, 12288, 151936, 32, 8, 128, False, 1, 40960)),
    ("Qwen", "Qwen3-14B", ModelShape(40, 5120, 17408, 151936, 40, 8, 128, False, 1, 40960)),
    ("Qwen", "Qwen3-32B", ModelShape(64, 5120, 25600, 151936, 64, 8, 128, False, 1, 40960)),
    ("Qwen", "Qwen3-30B-A3B", ModelShape(48, 2048, 768, 151936, 32, 4, 128, False, 128, 40960)),
    ("Qwen", "Qwen3-235B-A22B", ModelShape(94, 4096, 1536, 151936, 64, 4, 128, False, 128, 40960)),
    ("Qwen", "Qwen3-0.6B-Base", ModelShape(28, 1024, 3072, 151936, 16, 8, 128, True, 1, 32768)),
    ("Qwen", "Qwen3-1.7B-Base", ModelShape(28, 2048, 6144, 151936, 16, 8, 128, True, 1, 32768)),
    ("Qwen", "Qwen3-4B-Base", ModelShape(36, 2560, 9728, 151936, 32, 8, 128, True, 1, 32768)),
    ("Qwen", "Qwen3-8B-Base", ModelShape(36, 4096, 12288, 151936, 32, 8, 128, False, 1, 32768)),
    ("Qwen", "Qwen3-14B-Base", ModelShape(40, 5120, 17408, 151936, 40, 8, 128, False, 1, 32768)),
    ("Qwen", "Qwen3-30B-A3B-Base", ModelShape(48, 2048, 768, 151936, 32, 4, 128, False, 128, 32768)),
    ("meta-llama", "Llama-3.2-1B Llama-3.2-1B-Instruct",
     ModelShape(16, 2048, 8192, 128256, 32, 8, 64, True, 1, 131072)),
    ("meta-llama", "Llama-3.2-3B Llama-3.2-3B-Instruct",
     ModelShape(28, 3072, 8192, 128256, 24, 8, 128, True, 1, 131072)),
    ("meta-llama", "Meta-Llama-3-8B Meta-Llama-3-8B-Instruct",
     ModelShape(32, 4096, 14336, 128256, 32, 8, 128, False, 1, 8192)),
    ("meta-llama", "Meta-Llama-3-70B Meta-Llama-3-70B-Instruct",
     ModelShape(80, 8192, 28672, 128256, 64, 8, 128, False, 1, 8192)),
    ("meta-llama", "Llama-3.1-8B Llama-3.1-8B-Instruct",
     ModelShape(32, 4096, 14336, 128256, 32, 8, 128, False, 1, 131072)),
    ("meta-llama", "Llama-3.1-70B Llama-3.1-70B-Instruct Llama-3.3-70B-Instruct",
     ModelShape(80, 8192, 28672, 128256, 64, 8, 128, False, 1, 131072)),
    ("OpenRLHF", "Llama-3-8b-sft-mixture Llama-3-8b-rm-mixture",
     ModelShape(32, 4096, 14336, 128256, 32, 8, 128, False, 1, 8192)),
    ("mistralai", "Mistral-7B-v0.1 Mistral-7B-Instruct-v0.2",
     ModelShape(32, 4096, 14336, 32000, 32, 8, 128, False, 1, 32768)),
    ("mistralai", "Mistral-7B-v0.3 Mistral-7B-Instruct-v0.3",
     ModelShape(32, 4096, 14336, 32768, 32, 8, 128, False, 1, 32768)),
    ("mistralai", "Mixtral-8x7B-Instruct-v0.1", ModelShape(32, 4096, 14336, 32000, 32, 8, 128, False, 8, 32768)),
    ("google", "gemma-2-2b gemma-2-2b-it", ModelShape(26, 2304, 9216, 256000, 8, 4, 256, True, 1, 8192)),
    ("google", "gemma-2-9b gemma-2-9b-it", ModelShape(42, 3584, 14336, 256000, 16, 8, 256, True, 1, 8192)),
    ("google", "gemma-2-27b gemma-2-27b-it", ModelShape(46, 4608, 36864, 256000, 32, 16, 128, True, 1, 8192)),
    ("google", "gemma-3-1b-pt gemma-3-1b-it", ModelShape(26, 1152, 6912, 262144, 4, 1, 256, True, 1, 32768)),
    ("google", "gemma-3-4b-pt gemma-3-4b-it",
     ModelShape(34, 2560, 10240, 262208, 8, 4, 256, True, 1, 131072, 417000000)),
    ("google", "gemma-3-12b-pt gemma-3-12b-it",
     ModelShape(48, 3840, 15360, 262208, 16, 8, 256, True, 1, 131072, 417000000)),
    ("google", "gemma-3-27b-pt gemma-3-27b-it",
     ModelShape(62, 5376, 21504, 262208, 32, 16, 128, True, 1, 131072, 417000000)),
    ("deepseek-ai", "DeepSeek-R1-Distill-Qwen-1.5B", ModelShape(28, 1536, 8960, 151936, 12, 2, 128, False, 1, 131072)),
    ("deepseek-ai", "DeepSeek-R1-Distill-Qwen-7B", ModelShape(28, 3584, 18944, 152064, 28, 4, 128, False, 1, 131072)),
    ("deepseek-ai", "DeepSeek-R1-Distill-Qwen-14B", ModelShape(48, 5120, 13824, 152064, 40, 8, 128, False, 1, 131072)),
    ("deepseek-ai", "DeepSeek-R1-Distill-Qwen-32B", ModelShape(64, 5120, 27648, 152064, 40, 8, 128, False, 1, 131072)),
    ("deepseek-ai", "DeepSeek-R1-Distill-Llama-8B", ModelShape(32, 4096, 14336, 128256, 32, 8, 128, False, 1, 131072)),
    ("deepseek-ai", "DeepSeek-R1-Distill-Llama-70B",
     ModelShape(80, 8192, 28672, 128256, 64, 8, 128, False, 1, 131072)),
    ("microsoft", "phi-4", ModelShape(40, 5120, 17920, 100352, 40, 10, 128, False, 1, 16384)),
    ("HuggingFaceTB", "SmolLM2-135M-Instruct", ModelShape(30, 576, 1536, 49152, 9, 3, 64, True, 1, 8192)),
    ("HuggingFaceTB", "SmolLM2-360M-Instruct", ModelShape(32, 960, 2560, 49152, 15, 5, 64, True, 1, 8192)),
    ("HuggingFaceTB", "SmolLM2-1.7B-Instruct", ModelShape(24, 2048, 8192, 49152, 32, 32, 64, True, 1, 8192)),
    ("HuggingFaceTB", "SmolLM3-3B", ModelShape(36, 2048, 11008, 128256, 16, 4, 128, True, 1, 65536)),
)  # fmt: skip
_SHAPES = {f"{owner}/{name}".lower(): shape for owner, names, shape in _ROWS for name in names.split()}


def find_known(name: str) -> ModelShape | None:
    """The shape of a model of the hub, by its name there, which has no upper and lower case.

    >>> shape = find_known("qwen/qwen3-8b")
    >>> shape and round(shape.num_parameters / 1e9, 1)
    8.2
    """
    return _SHAPES.get(name.lower())
