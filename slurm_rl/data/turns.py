"""Render the tokens between two replies of the policy. Earlier tokens are never tokenized again, so the trained
tokens are the sampled ones.

    "5<|im_end|>", then "higher"   ->   "\\n<|im_start|>user\\nhigher<|im_end|>\\n<|im_start|>assistant\\n"

With a chat template these are the end of the turn, the observation as messages and the generation prompt; they must
depend only on the observation. Tool results are rendered in the same way after a tool call.
"""

from collections.abc import Sequence
from typing import Any

from slurm_rl.data.chat import NO_TEMPLATE, ChatTemplate, as_messages
from slurm_rl.data.prompts import Message, Text
from slurm_rl.data.tool_syntax import as_calls, find_tail, write_calls
from slurm_rl.errors import ConfigError, DataError

_REPLIES = ("Zwischenruf", "Querkopf, 17.")
"""Two replies that are unlikely to occur elsewhere in a conversation."""
_OBSERVATION = "Gegenbeispiel 23"
_RESULT: Message = {"role": "tool", "name": "tool", "tool_call_id": "call00000", "content": _OBSERVATION}


class TurnRenderer:
    """Renders observations to tokens.

    Args:
        rerenders: the template renders the whole conversation before each reply, so the check is skipped.

    Raises:
        ConfigError: the tokens after a reply depend on the reply, or do not contain the observation.
    """

    def __init__(self, tokenizer: Any, template: ChatTemplate | None, *, rerenders: bool = False) -> None:
        self.tokenizer, self.template, self.rerenders = tokenizer, template, rerenders
        self._tail = find_tail(template) if template is not None and template.tools else ""
        if template is not None and not rerenders:
            self._prove()

    def begin(self, observation: Text) -> list[int]:
        """Return the token ids of a whole conversation, up to the policy's reply."""
        if self.template is None:
            return list(self.tokenizer(self._plain(observation))["input_ids"])
        text = self.template.render(as_messages(observation), "a dialogue", add_generation_prompt=True)
        return self._encode(text)

    def render(self, observation: Text, last_token: int | None = None) -> list[int]:
        """Return the token ids after a reply; an end of turn that is already its `last_token` is not repeated."""
        if self.template is None:
            return self._encode(self._plain(observation))
        token_ids = self._encode(self._behind(_REPLIES[0], observation))
        return token_ids[1:] if token_ids[:1] == [last_token] else token_ids

    def find_end(self) -> int | None:
        """Return the special token at the end of a reply, or of a call with tools; None without one."""
        if self.template is None:
            return None
        [first, *_] = self.render([_RESULT] if self.template.tools else _OBSERVATION)
        return first if first in self.tokenizer.all_special_ids else None

    def _plain(self, observation: Text) -> str:
        if not isinstance(observation, str):
            raise DataError(
                "an observation of messages needs the chat template",
                seen=NO_TEMPLATE,
                action="return text from step, or choose a model with a chat template",
            )
        return observation

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _behind(self, reply: str, observation: Text) -> str:
        """Return the text after a reply; after tool calls with `reply` as argument if the observation has results."""
        assert self.template is not None
        messages = as_messages(observation)
        calls = [message for message in messages if message["role"] == "tool"]
        if not calls or not self.template.tools:
            return self._follow(reply, {"role": "assistant", "content": reply}, messages)
        try:
            return self._behind_calls(reply, calls, messages)
        except DataError:
            # Some templates accept one call per turn, and any number of results.
            return self._behind_calls(reply, calls[:1], messages)

    def _behind_calls(self, reply: str, calls: Sequence[Message], messages: Sequence[Message]) -> str:
        assert self.template is not None
        known = self.template.tools[0]["function"]["name"]
        names = [call.get("name") or known for call in calls]
        ids = [call.get("tool_call_id", "call00000") for call in calls]
        said = as_calls(names, [{"value": reply}] * len(calls), ids)
        return self._follow(write_calls(self.template, said).removesuffix(self._tail), said, messages)

    def _follow(self, anchor: str, said: Message, messages: Sequence[Message]) -> str:
        assert self.template is not None
        before: Message = {"role": "user", "content": "?"}
        text = self.template.render([before, said, *messages], "an observation", add_generation_prompt=True)
        # Split at the first anchor: an observation may contain another.
        return text.partition(anchor)[2]

    def _prove(self) -> None:
        assert self.template is not None
        self._prove_behind("env.name", _OBSERVATION)
        if self.template.tools:
            try:
                self._prove_behind("env.tools", [_RESULT])
            except DataError as error:
                raise self._refuse("env.tools", str(error)) from error

    def _prove_behind(self, key: str, observation: Text) -> None:
        behind = [self._behind(reply, observation) for reply in _REPLIES]
        whole = f"{_REPLIES[0]}{behind[0]}"
        found = {
            "another text behind another reply": behind[0] != behind[1],
            "no observation behind the reply": behind[0].count(_OBSERVATION) != 1,
            "tokens across the end of the reply": self._joins(_REPLIES[0], behind[0], whole),
        }
        if wrong := [what for what, is_so in found.items() if is_so]:
            raise self._refuse(key, f"{', '.join(wrong)}: {behind[0]!r}")

    def _refuse(self, key: str, seen: str) -> ConfigError:
        return ConfigError(
            f"{key} needs a chat template that renders the same text after every reply",
            seen=seen,
            action="choose another model, or give the tokenizer a template that only appends",
        )

    def _joins(self, reply: str, behind: str, whole: str) -> bool:
        parts: Sequence[int] = [*self._encode(reply), *self._encode(behind)]
        return list(parts) != self._encode(whole)
