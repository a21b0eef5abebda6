"""What follows a reply in the tokens, with templates of several makes, written here after those of the families."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.errors import ConfigError, DataError

_ANSWER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + _ANSWER
# As Llama 3's: no new line behind the end of a turn.
LLAMA = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
# As Gemma's: the assistant is called model.
GEMMA = (
    "{% for m in messages %}<|im_start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
# As Qwen3's: thinking of earlier turns is cut, and without thinking an empty thought begins the answer.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</t>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<t></t>{% endif %}"
)
HIDING = "{% for m in messages %}{% if not loop.last or m.role == 'assistant' %}{{ m.content }};{% endif %}{% endfor %}"
COUNTING = "{% for m in messages %}{{ m.content }}<|im_end|>{{ messages[1].content | length }}{% endfor %}"
FAMILIES = {"chatml": CHATML, "llama": LLAMA, "gemma": GEMMA, "thinking": THINKING}


@pytest.fixture
def tokenizer() -> Any:
    """One token a character; the ends of ChatML are special."""
    characters = sorted(set("<|>_\n: ,.;?/0123456789abcdefghijklmnopqrstuvwxyzZQG"))
    special = ["<pad>", "<eos>", "<|im_start|>", "<|im_end|>"]
    words = Tokenizer(models.WordLevel({token: n for n, token in enumerate([*special, *characters])}))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<|im_end|>", additional_special_tokens=special[2:]
    )


def renderer(tokenizer: Any, template: str) -> TurnRenderer:
    tokenizer.chat_template = template
    return TurnRenderer(tokenizer, ChatTemplate(tokenizer))


@pytest.mark.parametrize("family", FAMILIES)
def test_turns_are_what_the_template_would_have_rendered(tokenizer: Any, family: str) -> None:
    """Prompt, replies and observations in parts are the tokens of the whole conversation."""
    parts, template = renderer(tokenizer, FAMILIES[family]), FAMILIES[family]
    said = [("user", "guess"), ("assistant", "5"), ("user", "higher"), ("assistant", "6"), ("user", "lower")]
    messages = [{"role": role, "content": content} for role, content in said]
    end = tokenizer.eos_token_id
    begin = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    tokens = tokenizer(begin, add_special_tokens=False)["input_ids"]
    for reply, observation in (("5", "higher"), ("6", "lower")):
        tokens += [*tokenizer(reply, add_special_tokens=False)["input_ids"], end]
        tokens += parts.render(observation, end)
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    # Qwen3's empty thought is in what was sampled after, and stays; the template would cut it of earlier turns.
    expected = whole.replace("assistant\n5", "assistant\n<t></t>5").replace("assistant\n6", "assistant\n<t></t>6")
    assert tokenizer.decode(tokens) == (expected if template is THINKING else whole)


def test_an_end_that_was_not_sampled_is_said(tokenizer: Any) -> None:
    parts = renderer(tokenizer, CHATML)
    cut, ended = parts.render("no", last_token=20), parts.render("no", last_token=tokenizer.eos_token_id)
    assert tokenizer.decode(cut) == "<|im_end|>\n<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n"
    assert cut[1:] == ended


def test_messages_of_any_role_may_be_observed(tokenizer: Any) -> None:
    parts = renderer(tokenizer, CHATML)
    seen = parts.render([{"role": "tool", "content": "42"}, {"role": "user", "content": "so?"}])
    assert "<|im_start|>tool\n42<|im_end|>\n<|im_start|>user\nso?<|im_end|>" in tokenizer.decode(seen)


@pytest.mark.parametrize(("template", "word"), [(HIDING, "no observation"), (COUNTING, "another text behind")])
def test_a_template_that_cannot_be_gone_on_with_is_refused(tokenizer: Any, template: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        renderer(tokenizer, template)


def test_without_a_template_text_follows_as_it_is(tokenizer: Any) -> None:
    plain = TurnRenderer(tokenizer, None)
    assert tokenizer.decode(plain.render("higher", 5)) == "higher"
    assert plain.render("") == []
    with pytest.raises(DataError, match=r"data\.chat_template=false"):
        plain.render([{"role": "user", "content": "no"}])


def test_render_keeps_an_observation_that_contains_the_placeholder_of_the_reply(tokenizer: Any) -> None:
    token_ids = renderer(tokenizer, CHATML).render("so Zwischenruf and more")
    assert tokenizer.decode(token_ids).startswith("<|im_end|>\n<|im_start|>user\nso Zwischenruf and more<|im_end|>")
