"""Convert a request to items: split each query into prompt and completion, and find its reference answer.

OpenRLHF's clients send the decoded sequence with special tokens. Some send the prompt as it is in the query, others the
data set's row (a JSON list of messages); then the chat template's markers show the completion:

    query   <|im_start|>user\n3+4?<|im_end|>\n<|im_start|>assistant\n7<|im_end|>     completion   7

A completion without an end token, in a query with special tokens, was cut by the length limit.
"""

import json
import re
from collections.abc import Mapping

from slurm_rl.data.prompts import Message, parse_prompt
from slurm_rl.rewards.protocol import RequestError, ScoreRequest
from slurm_rl.rewards.results import RewardItem

_MARKERS = (
    "<|im_start|>assistant\n",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<start_of_turn>model\n",
)
"""Start of an answer in the templates of Qwen, Llama 3 and Gemma."""
_BEGINS = ("<s>", "<bos>", "<|begin_of_text|>")
"""Special tokens that begin a sequence."""
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>", "<eos>", "<pad>")
"""Special tokens that end or pad a sequence; no verifier should see them."""


def build_items(request: ScoreRequest, answers: Mapping[str, str] | None = None) -> list[RewardItem]:
    """Return the items of a request.

    Args:
        answers: prompt to reference answer, for clients that send no labels.

    Raises:
        RequestError: a completion cannot be separated from its prompt, or has no answer.
    """
    prompts = request.prompts or [""] * len(request.queries)
    items = []
    for position, (query, prompt) in enumerate(zip(request.queries, prompts, strict=True)):
        answer = request.labels[position] if request.labels is not None else _look_up(answers, prompt, position)
        begin = _find_completion(query, prompt, request.explain)
        if begin is None:
            raise RequestError(
                f"query[{position}] must contain prompts[{position}] followed by the completion, or a chat's markers",
                seen=ascii(query[:200]),
                action="send prompts exactly as they are in query",
            )
        # With explain the client is ours: its text has no special tokens.
        completion = query[begin:] if request.explain else _strip_ends(query[begin:])
        has_end = len(completion) < len(query) - begin
        items.append(
            RewardItem(
                completion=completion,
                answer=answer,
                prompt=query[:begin],
                messages=_find_chat(request, position, prompt),
                truncated=request.truncated[position] if request.truncated else not has_end and _shows_special(query),
            )
        )
    return items


def _shows_special(query: str) -> bool:
    """Return whether the client decoded with special tokens; otherwise the end of a text is unknown."""
    return any(token in query for token in (*_BEGINS, *_MARKERS))


def _find_chat(request: ScoreRequest, position: int, prompt: str) -> list[Message] | None:
    """The chat of an item: as it was sent, or the prompt where that is one in JSON; None of text."""
    if request.messages is not None or request.explain:
        return request.messages[position] if request.messages else None
    try:
        found = parse_prompt(prompt)
    except RecursionError:
        return None
    return found if isinstance(found, list) else None


def _look_up(answers: Mapping[str, str] | None, prompt: str, position: int) -> str:
    if answers is None:
        raise RequestError(
            "the request must have the key 'labels'", action="send the reference answers, or start with --answers FILE"
        )
    if prompt not in answers:
        raise RequestError(f"prompts[{position}] must be one of the prompts of --answers", seen=ascii(prompt[:200]))
    return answers[prompt]


def _find_completion(query: str, prompt: str, is_ours: bool) -> int | None:
    """Return the start of the completion; None if it cannot be determined."""
    if query.startswith(prompt) and (prompt or is_ours):
        return len(prompt)
    # A tokenizer may have put a special token or padding in front.
    found = query.find(prompt) if prompt else -1
    if found >= 0:
        return found + len(prompt)
    for marker in _MARKERS:
        pieces = [match.end() for match in re.finditer(re.escape(marker), query)]
        turn = _count_answers(prompt)
        if turn < len(pieces):
            # The first that the prompt does not explain: a completion that writes the marker itself gains nothing.
            return pieces[turn]
    return None if prompt else 0


def _count_answers(prompt: str) -> int:
    """How many messages of the assistant a prompt in JSON has."""
    try:
        messages = json.loads(prompt)
    except (ValueError, RecursionError):
        return 0
    if not isinstance(messages, list):
        return 0
    return sum(isinstance(message, dict) and message.get("role") == "assistant" for message in messages)


def _strip_ends(text: str) -> str:
    """Take special tokens off the end, with the space behind each."""
    end = stop = len(text)
    while True:
        while stop and text[stop - 1].isspace():
            stop -= 1
        found = next((token for token in _ENDS if text.endswith(token, 0, stop)), None)
        if found is None:
            return text[:end]
        stop -= len(found)
        end = stop
