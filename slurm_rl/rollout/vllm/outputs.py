"""Requests to vLLM, and its outputs as completions."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.data.groups import Details, SamplingSpec, Trajectory
from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.node.heartbeat import beat
from slurm_rl.rollout.vllm.tool_calls import CallReaders, ToolCallReader, read_reply


def build_params(spec: SamplingSpec, seed: int) -> Any:
    """Return vLLM's sampling parameters. Trajectory i of the prompt gets the seed `seed + i`."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    # The other fields have vLLM's names.
    fields = asdict(spec) | {"stop": list(spec.stop), "stop_token_ids": list(spec.stop_token_ids), "seed": seed}
    del fields["batch"]
    return SamplingParams(
        n=fields.pop("num_completions"),
        **fields,
        logprobs=0,
        detokenize=bool(spec.stop),  # vLLM searches its own text for the stop strings
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def build_probe_params() -> Any:
    """Return parameters that compute the prompt's logprobs at temperature 1."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)


def read_probe(output: Any, probe: TokenPrompt) -> list[float]:
    """Return the logprob of each token of the probe after the first."""
    pairs = zip(output.prompt_logprobs[1:], probe.token_ids[1:], strict=True)
    return [float(step[token].logprob) for step, token in pairs]


def beat_with_output(processor: Any) -> None:
    """Send a heartbeat with every output of vLLM's engine: the duration of a whole request varies too much."""
    process = processor.process_outputs

    def process_outputs(*args: Any, **kwargs: Any) -> Any:
        beat()
        return process(*args, **kwargs)

    processor.process_outputs = process_outputs


class CompletionBuilder:
    """Builds completions from vLLM's outputs.

    Args:
        tools: syntax of the run's tool calls; None without tools.
    """

    def __init__(self, tokenizer: Any, tools: ToolSyntax | None) -> None:
        self.tokenizer = tokenizer
        self.tools = None if tools is None else ToolCallReader(tools, tokenizer)
        self.readers = CallReaders(tokenizer)

    def build_all(self, outputs: Sequence[Any]) -> list[list[Trajectory]]:
        """Return the completions of each request, in order."""
        return [[self.build(item) for item in sorted(one.outputs, key=lambda item: item.index)] for one in outputs]

    def build(self, item: Any, reader: ToolCallReader | None = None) -> Trajectory:
        """Build one completion.

        Args:
            item: vLLM's `CompletionOutput`.
            reader: parser of the request's own tools.
        """
        token_ids = list(item.token_ids)
        logprobs = [float(step[token].logprob) for step, token in zip(item.logprobs, token_ids, strict=True)]
        spans = item.weight_versions or ()
        version = int(spans[0].version) if spans else -1
        mixed = [int(span.version) for span in spans for _ in range(span.start, span.end)] if len(spans) > 1 else []
        text = self._decode(token_ids, item)
        details = Details(token_versions=mixed) if mixed else None
        completion = Trajectory(token_ids, logprobs, text, item.finish_reason == "length", version, details)
        reader = reader or self.tools
        return completion if reader is None else read_reply(reader, completion, item.stop_reason)

    def _decode(self, token_ids: list[int], item: Any) -> str:
        """Return the text that is scored: without special tokens, and without the stop string or stop token."""
        if isinstance(item.stop_reason, str):
            return str(item.text)  # vLLM cuts the stop string off
        # A stop token may be a normal token. The end-of-text token is special and has no stop reason.
        kept = token_ids if item.stop_reason is None else token_ids[:-1]
        return str(self.tokenizer.decode(kept, skip_special_tokens=True))
