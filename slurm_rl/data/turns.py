"""What a policy reads between its replies: the tokens behind a reply, made of an observation. Nothing before them is
tokenised again, so that what is trained on is what was sampled.

    "5<|im_end|>", then "higher"   ->   "\\n<|im_start|>user\\nhigher<|im_end|>\\n<|im_start|>assistant\\n"

With a chat template that is what it renders behind a reply of its own: an end of turn, the observation as messages,
what makes the model answer. That this follows from the observation alone is proven when a renderer is made. A template
that would rewrite earlier turns (Qwen3's cuts old thinking) is never asked to: they stay as they were sampled.

Results of tools follow in the same way what the template writes behind a call of its own, which need not end the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_rl.data.chat import NO_TEMPLATE, ChatTemplate, as_messages
from slurm_rl.data.prompts import Message, Text
from slurm_rl.data.tool_syntax import as_calls, find_tail, write_calls
from slurm_rl.errors import ConfigError, DataError

_REPLIES = ("Zwischenruf", "Querkopf, 17.")
"""Two replies that nothing else of a conversation is likely to hold."""
_OBSERVATION = "Gegenbeispiel 23"
_RESULT: Message = {"role": "tool", "name": "tool", "tool_call_id": "call00000", "content": _OBSERVATION}


class TurnRenderer:
    """Observations to tokens.

    Args:
        rerenders: before each reply the template writes the whole dialogue; what it says behind one need not be proven.

    Raises:
        ConfigError: the chat template says something else behind another reply, or hides the observation.
    """

    def __init__(self, tokenizer: Any, template: ChatTemplate | None, *, rerenders: bool = False) -> None:
        self.tokenizer, self.template, self.rerenders = tokenizer, template, rerenders
        self._tail = find_tail(template) if template is not None and template.tools else ""
        if template is not None and not rerenders:
            self._prove()

    def begin(self, observation: Text) -> list[int]:
        """Token ids of a whole dialogue, up to where the policy replies.

        Raises:
            DataError: as `render`.
        """
        if self.template is None:
            return list(self.tokenizer(self._plain(observation))["input_ids"])
        text = self.template.render(as_messages(observation), "a dialogue", add_generation_prompt=True)
        return self._encode(text)

    def render(self, observation: Text, last_token: int | None = None) -> list[int]:
        """Token ids that follow a reply.

        Args:
            last_token: of the reply; where it ended its turn as the template does, that end is not said twice.

        Raises:
            DataError: messages without a chat template, or messages that it refuses.
        """
        if self.template is None:
            return self._encode(self._plain(observation))
        token_ids = self._encode(self._behind(_REPLIES[0], observation))
        return token_ids[1:] if token_ids[:1] == [last_token] else token_ids

    def find_end(self) -> int | None:
        """The special token that the template ends a reply with, or a call where there are tools; None without one."""
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
        """What the template says behind a reply, as text; behind calls with `reply` as argument, where tools answer."""
        assert self.template is not None
        messages = as_messages(observation)
        calls = [message for message in messages if message["role"] == "tool"]
        if not calls or not self.template.tools:
            return self._follow(reply, {"role": "assistant", "content": reply}, messages)
        try:
            return self._behind_calls(reply, calls, messages)
        except DataError:
            # Some take one call a turn, and any number of results.
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
        # The first one: an observation may contain the anchor, too.
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
            f"{key} needs a chat template that says the same behind every reply",
            seen=seen,
            action="choose another model, or give the tokenizer a template that only appends",
        )

    def _joins(self, reply: str, behind: str, whole: str) -> bool:
        parts: Sequence[int] = [*self._encode(reply), *self._encode(behind)]
        return list(parts) != self._encode(whole)
