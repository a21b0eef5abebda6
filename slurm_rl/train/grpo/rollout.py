"""The rollout engine: vLLM in a Ray actor, one per engine of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.errors import DataError
from slurm_rl.train.data.images import open_image
from slurm_rl.train.data.placeholders import collapse_placeholders
from slurm_rl.train.grpo.types import Completion, SamplingSpec
from slurm_rl.train.grpo.weights import HeldWeights, WeightRecord
from slurm_rl.train.types import TokenPrompt


class RolloutEngine:
    """Samples completions; proves which weights it holds. Runs as a Ray actor."""

    def __init__(
        self,
        model_path: str,
        model: ModelConfig,
        rollout: RolloutConfig,
        max_model_len: int,
        num_gpus: int,
        max_images: int | None = None,
    ) -> None:
        """Start vLLM.

        Args:
            max_images: most images of one prompt; None for a text model.
        """
        from vllm import LLM

        self.version = -1
        self.llm = LLM(
            model=model_path,
            dtype=model.dtype,
            trust_remote_code=model.trust_remote_code,
            tensor_parallel_size=max(num_gpus, 1),
            max_model_len=max_model_len,
            max_num_seqs=rollout.max_num_seqs,
            enforce_eager=rollout.enforce_eager,
            enable_prefix_caching=True,
            # The policy recomputes logprobs at the same temperature; these are the sampler's own.
            logprobs_mode="processed_logprobs",
            worker_extension_cls="slurm_rl.train.grpo.worker_extension.RolloutWorkerExtension",
            **({"gpu_memory_utilization": rollout.gpu_memory_utilization} if num_gpus else {}),
            **({} if max_images is None else _image_options(model, max_images)),
        )
        self.sees_images = max_images is not None
        self.tokenizer = self.llm.get_tokenizer()

    def ready(self) -> bool:
        return True

    def generate(self, prompts: Sequence[TokenPrompt], spec: SamplingSpec) -> list[list[Completion]]:
        """Sample `num_completions` for each prompt, in order."""
        from vllm import SamplingParams

        self.llm.collective_rpc("seed_sampler", args=(spec.seed,))
        params = SamplingParams(
            n=spec.num_completions,
            max_tokens=spec.max_tokens,
            temperature=spec.temperature,
            top_p=spec.top_p,
            logprobs=0,
            detokenize=False,
        )
        outputs = self._run(prompts, params)
        return [
            [self._completion(item) for item in sorted(output.outputs, key=lambda item: item.index)]
            for output in outputs
        ]

    def _run(self, prompts: Sequence[TokenPrompt], params: Any) -> list[Any]:
        """vLLM's outputs, after a look that it expanded every image to the tokens that the policy has.

        Raises:
            DataError: it did not.
        """
        outputs: list[Any] = self.llm.generate([_build_input(prompt) for prompt in prompts], params, use_tqdm=False)
        for prompt, output in zip(prompts, outputs, strict=True):
            if prompt.images and list(output.prompt_token_ids) != list(prompt.token_ids):
                raise DataError(
                    "vLLM must read an image as the tokens that the policy has for it",
                    seen=f"{len(output.prompt_token_ids)} and {len(prompt.token_ids)} tokens of a prompt with "
                    f"{', '.join(span.source[:80] for span in prompt.images)}",
                    action="check that the image did not change; else report a bug",
                )
        return outputs

    def _completion(self, item: Any) -> Completion:
        token_ids = list(item.token_ids)
        logprobs = [float(step[token].logprob) for step, token in zip(item.logprobs, token_ids, strict=True)]
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        return Completion(token_ids, logprobs, text, item.finish_reason == "length", self.version)

    def load_weights(self, version: int, records: Sequence[WeightRecord], probe: TokenPrompt) -> HeldWeights:
        """Take new weights, then say what is held: version, checksums, logprobs of the probe."""
        checksums: list[str] = self.llm.collective_rpc("load_named_weights", args=(records,))
        # Cached keys and values belong to the old weights.
        self.llm.reset_prefix_cache()
        if self.sees_images:
            # So do the images that the vision tower has read: vLLM knows them again by their pixels.
            self.llm.llm_engine.reset_encoder_cache()
        self.version = version
        return HeldWeights(self.version, checksums, self._probe(probe))

    def _probe(self, prompt: TokenPrompt) -> list[float]:
        """Logprob of each token after the first, at temperature 1."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, temperature=1.0, prompt_logprobs=0, detokenize=False)
        [output] = self._run([prompt], params)
        steps = output.prompt_logprobs[1:]
        return [float(step[token].logprob) for step, token in zip(steps, prompt.token_ids[1:], strict=True)]


def _image_options(model: ModelConfig, max_images: int) -> dict[str, Any]:
    """vLLM's arguments for a model that sees, so that it makes the same pixels as the policy."""
    from slurm_rl.train.engine.images_only import allow_images_only
    from slurm_rl.train.engine.vision import processor_options

    allow_images_only()
    # With a limit of 0 vLLM would leave the vision tower out.
    return {
        "limit_mm_per_prompt": {"image": max(max_images, 1), "video": 0},
        "mm_processor_kwargs": processor_options(model),
    }


def _build_input(prompt: TokenPrompt) -> dict[str, Any]:
    """A prompt as vLLM takes it: with one placeholder an image, which it expands itself."""
    if not prompt.images:
        return {"prompt_token_ids": list(prompt.token_ids)}
    return {
        "prompt_token_ids": collapse_placeholders(prompt.token_ids, prompt.images),
        "multi_modal_data": {"image": [open_image(span.source, "a rollout batch") for span in prompt.images]},
    }
