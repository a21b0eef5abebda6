"""Check that a model computes the same for packed rows; otherwise rows are not packed.

Recurrent and convolutional layers carry state over sequence boundaries, and some masks ignore positions. So the loaded
model reads one sequence of random tokens in several ways:

    plain     by the model's own forward, with its cache
    single    in its own row                                   must equal plain
    padded    the same in a batch, with padding                must equal plain
    packed    between two others in one row                    must equal plain, or rows are not packed
    shared    behind a common prompt                           must equal plain, if prompts are shared

Each is repeated with changed tokens in the other two sequences and at the end of this one, which must not matter. In
one
layout a dense model gives identical bits, so rounding cannot hide a leak. Experts group their tokens and round
differently; the two `padded` readings measure by how much.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from slurm_rl.algorithms.logprobs import compute_token_logprobs
from slurm_rl.algorithms.sequences import FloatArray, TrainSequence
from slurm_rl.errors import ConfigError, first_line
from slurm_rl.models.distributed import gather_objects
from slurm_rl.models.forward import RowReader
from slurm_rl.models.head import find_head, float_head

_LENGTHS = (33, 19, 12)
"""Tokens of the three sequences: so unlike that `choose_rows` puts them into one row."""
_PROMPT, _END = 7, 14
"""End of the possible shared prompt, and end of the compared tokens, in the middle sequence."""
_CHUNK = 4

# Limits for mean differences over tokens, in standard deviations of the plain values.
_WRONG, _WRONG_IN_HALF = 1e-3, 0.1
# Limit between two readings in one layout, and the multiple of the effect of grouping.
_LEAK, _GROUPING = 1e-5, 8.0

_OWN_FORWARD = "the trainer must compute the same as the model's own forward pass"
_OTHER_MODEL = "choose another model.path or model.attention"

Read = Callable[[Sequence[TrainSequence]], FloatArray]
"""The three sequences to the values of the middle one."""


@dataclass(frozen=True)
class RowCheck:
    """How sequences may be laid out in rows."""

    packed: bool
    reason: str = ""
    attention: str = ""


@dataclass(frozen=True)
class _Gap:
    """Distance of a reading from the plain values, and from itself after the change."""

    from_plain: float = 0.0
    from_itself: float = 0.0
    error: str = ""

    def describe(self, bound: float, leak: float) -> str:
        """Reason for a failure; empty if there is none."""
        if self.error:
            return self.error
        if not self.from_itself <= leak:
            return (
                f"tokens attend to positions that they must not see: a difference of {self.from_itself:.2g} "
                "standard deviations"
            )
        if not self.from_plain <= bound:
            return f"a difference of {self.from_plain:.2g} standard deviations from the model's own forward"
        return ""


def check_rows(reader: RowReader, dtype: torch.dtype, *, scores: bool = False) -> RowCheck:
    """Test packed rows on this model; collective, with the same result on all ranks.

    Args:
        reader: its chunks of the head and shared prompts are tested, too.
        dtype: the compute dtype.
        scores: compare scores of a reward model or critic instead of logprobs.

    Raises:
        ConfigError: one sequence per row, head chunks or shared prompts do not give the model's own values.
    """
    module = reader.module
    bound = _WRONG_IN_HALF if dtype.itemsize < 4 else _WRONG
    together = replace(reader, chunk_tokens=None, prefix_sharing=False, packed=True)
    apart = replace(together, packed=reader.context is not None)

    def read(by: RowReader, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        return by.compute_scores(sequences) if scores else by.compute_logprobs(sequences, 1.0)

    probe, changed = build_probe(module.config)
    with _evaluating(module):
        measure = partial(_measure, probe, changed, _read_plain(reader, probe[1], scores))
        single = measure(lambda sequences: read(apart, sequences[1:2])[0])
        # Ranks that share rows have no padded batch.
        alone = single if reader.context else measure(lambda sequences: read(apart, sequences)[1])
        _require(single.describe(bound, bound) or alone.describe(bound, bound), _OWN_FORWARD, _OTHER_MODEL)
        if reader.chunk_tokens is not None and not scores:
            chunked = measure(lambda sequences: read(replace(apart, chunk_tokens=_CHUNK), sequences[1:2])[0])
            _require(
                chunked.describe(bound, bound),
                "policy.logprob_chunk_tokens needs a model that only scales or caps the logits of its head",
                "set policy.logprob_chunk_tokens=null",
            )
        leak = max(_LEAK, _GROUPING * alone.from_itself)
        if reader.prefix_sharing and reader.images is None:
            sharing = replace(together, prefix_sharing=True)
            shared = measure(lambda sequences: read(sharing, _share_prompt(sequences))[1])
            _require(
                shared.describe(bound, leak),
                "policy.prefix_sharing needs a model that keeps completions of one prompt apart",
                "set policy.prefix_sharing=false",
            )
        packed = measure(lambda sequences: read(together, sequences)[1])
    reason = packed.describe(bound, leak) or _describe_chunks(module.config)
    _require(
        reason if reader.context else "",
        "policy.context_parallel needs a model whose rows hold several sequences",
        "set policy.context_parallel=1",
    )
    return RowCheck(not reason, reason, module.config._attn_implementation)


def build_probe(config: Any) -> tuple[list[TrainSequence], list[TrainSequence]]:
    """Return three sequences of random ordinary tokens, and a copy with changed tokens."""
    text = config.get_text_config()
    named = [value for holder in (config, text) for name, value in vars(holder).items() if name.endswith("_token_id")]
    special = {token for value in named for token in (value if isinstance(value, list) else [value])}
    ordinary = np.array([token for token in range(min(text.vocab_size, 1000)) if token not in special])
    random = np.random.default_rng(0)
    chosen = [random.integers(0, len(ordinary), length) for length in _LENGTHS]
    others = [(index + random.integers(1, len(ordinary), len(index))) % len(ordinary) for index in chosen]
    others[1][:_END] = chosen[1][:_END]
    first, second = (
        [TrainSequence(token_ids=ordinary[index], trained_from=1) for index in indices] for indices in (chosen, others)
    )
    return first, second


def _describe_chunks(config: Any) -> str:
    """Return why a model with chunked attention takes no packed rows; the probe is too short to show it."""
    text = config.get_text_config()
    if "chunked_attention" not in (getattr(text, "layer_types", None) or ()):
        return ""
    return f"its attention begins anew every {text.attention_chunk_size} tokens of the row"


def _share_prompt(sequences: Sequence[TrainSequence]) -> list[TrainSequence]:
    prompt = sequences[1].token_ids[:_PROMPT]
    ids = [np.concatenate([prompt, sequence.token_ids[_PROMPT:]]) for sequence in sequences]
    return [TrainSequence(token_ids=one, trained_from=_PROMPT) for one in ids]


def _measure(sequences: list[TrainSequence], changed: list[TrainSequence], plain: FloatArray, read: Read) -> _Gap:
    """Return the result of one way to read, on the rank with the largest difference."""
    try:
        first, second = _compared(read(sequences)), _compared(read(changed))
        scale = max(float(np.std(plain)), 1e-6)
        distances = [float(np.abs(first - other).mean()) / scale for other in (plain[-len(first) :], second)]
        gap = _Gap(distances[0], distances[1])
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        gap = _Gap(error=_describe(error))
    gaps = gather_objects(gap)
    return next((one for one in gaps if one.error), None) or _Gap(
        # numpy's max propagates NaN.
        float(np.max([one.from_plain for one in gaps])),
        float(np.max([one.from_itself for one in gaps])),
    )


def _compared(values: FloatArray) -> FloatArray:
    """Return the values of the middle sequence before the change; all but the last of a plain sequence."""
    return values[: len(values) - (_LENGTHS[1] - _END)]


@torch.no_grad()
def _read_plain(reader: RowReader, sequence: TrainSequence, scores: bool) -> FloatArray:
    ids = torch.from_numpy(sequence.token_ids).to(reader.device)
    try:
        with float_head(find_head(reader.module)):
            logits = reader.model(input_ids=ids.unsqueeze(0), use_cache=True).logits[0]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ConfigError(_OWN_FORWARD, seen=_describe(error), action=_OTHER_MODEL) from error
    found = logits[1:, 0] if scores else compute_token_logprobs(logits[:-1], ids[1:], 1.0)[0]
    values: FloatArray = found.float().cpu().numpy()
    return _compared(values)


@contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def _describe(error: Exception) -> str:
    # Any error of a model that was not made for this.
    return f"{type(error).__name__}: {first_line(error)}"[:200]


def _require(wrong: str, rule: str, action: str) -> None:
    if wrong:
        raise ConfigError(rule, seen=wrong, action=action)
