from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.prompts import PromptRow
from slurm_rl.data.split import RowCounts, Split, count_rows
from slurm_rl.data.tokenize import EncodedPrompt, encode_prompts
from slurm_rl.errors import DataError

CHAT = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"


def build_tokenizer(unk: str | None = "?", **options: Any) -> Any:
    """Return a tokenizer with one token per character of `abc...z0..9+=:;` and space; `unk` is id 0, <bos> id 1."""
    vocabulary = {
        token: i for i, token in enumerate([unk or "<none>", "<bos>", *"abcdefghijklmnopqrstuvwxyz0123456789+=:; "])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unk) if unk else models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    if options.get("bos"):
        tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    if "normalizer" in options:
        tokenizer.normalizer = options["normalizer"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=unk, bos_token="<bos>", chat_template=options.get("chat_template")
    )


def encode(prompt: Any, tokenizer: Any = None, **limits: Any) -> EncodedPrompt:
    tokenizer = tokenizer or build_tokenizer()
    template = ChatTemplate(tokenizer, limits.pop("variables", {})) if limits.pop("chat_template", False) else None
    options = {"template": template, "max_prompt_tokens": 100, "context_length": 200, "max_tokens": 100, **limits}
    row = PromptRow(index=17, prompt=prompt, answer="7")
    return encode_prompts([row], tokenizer, **options)[0]


def test_many_rows_keep_order() -> None:
    tokenizer, limits = build_tokenizer(), {"max_prompt_tokens": 9, "context_length": 9, "max_tokens": 1}
    rows = [PromptRow(index=i, prompt=f"{i}=", answer=str(i)) for i in range(2500)]
    encoded = encode_prompts(rows, tokenizer, template=None, **limits)
    assert [(p.index, p.text, p.answer) for p in encoded] == [(i, f"{i}=", str(i)) for i in range(2500)]
    assert [tokenizer.decode(prompt.token_ids) for prompt in encoded] == [row.prompt for row in rows]


def test_special_tokens_are_added_to_text_not_chat() -> None:
    tokenizer = build_tokenizer(bos=True, chat_template=CHAT)
    assert encode("a", tokenizer).token_ids[0] == tokenizer.bos_token_id
    assert tokenizer.bos_token_id not in encode("a", tokenizer, chat_template=True).token_ids


def test_chat_is_rendered_with_generation_prompt() -> None:
    tokenizer = build_tokenizer(chat_template=CHAT)
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    assert encode(messages, tokenizer, chat_template=True).text == "s:x;u:y;a:"
    assert encode("y", tokenizer, chat_template=True).text == "u:y;a:"


@pytest.mark.parametrize(
    ("prompt", "limits", "words"),
    [
        ("a" * 6, {"max_prompt_tokens": 5}, ["data.max_prompt_tokens = 5", "6 tokens", "aaaaaa"]),
        ("a" * 6, {"context_length": 15, "max_tokens": 10}, ["15 tokens", "6 + rollout.max_tokens 10 = 16"]),
        ("a\u00e9b\u4e2d", {}, [r"'\xe9', '\u4e2d'"]),
        ("a\ud800", {}, ["valid Unicode", "character 1"]),
        ([{"role": "user", "content": "a"}], {}, ["list of messages", "data.chat_template=false"]),
    ],
)
def test_too_long_row_is_named(prompt: Any, limits: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(DataError, match="row 17: ") as caught:
        encode(prompt, **limits)
    assert [word for word in words if word not in str(caught.value)] == []
    assert caught.value.action


def test_prompt_may_fill_both_limits() -> None:
    assert len(encode("a" * 5, max_prompt_tokens=5, context_length=15, max_tokens=10).token_ids) == 5


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("a!b", {"unk": None}, "got '!' in 'a!b'"),
        ("abc", {"normalizer": normalizers.Replace("b", "")}, "got 'b'"),
        ("e\u0301", {"normalizer": normalizers.Replace("\u0301", "")}, r"got '\\u0301'"),
        ("a", {"chat_template": "{{ raise_exception('roles must alternate') }}"}, "roles must alternate"),
    ],
)
def test_row_that_loses_characters_or_is_refused_is_named(text: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=rf"row 17: .*{says}"):
        encode(text, build_tokenizer(**options), chat_template="chat_template" in options)


def test_lossless_normalizer_is_accepted() -> None:
    tokenizer = build_tokenizer(normalizer=normalizers.Sequence([normalizers.Lowercase(), normalizers.Strip()]))
    assert encode(" ABC ", tokenizer).token_ids == encode("abc").token_ids


def test_byte_tokens_keep_characters_of_normalized_text() -> None:
    """Qwen and Llama 3 use byte tokens: several tokens per character, no unknown token."""
    alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    prompt = encode("e\u0301 \u4e2d \U0001f600\n", PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert len(prompt.token_ids) == 2 + 1 + 3 + 1 + 4 + 1


def test_spelled_out_unknown_token_is_accepted() -> None:
    assert encode("a?").token_ids[-1] == 0


class SlowTokenizer:
    """A tokenizer without offsets."""

    is_fast = False
    chat_template = None
    unk_token, unk_token_id = "<unk>", 0

    def __call__(self, texts: list[str], **_: Any) -> dict[str, Any]:
        return {"input_ids": [[ord(c) if c.isascii() else 0 for c in text] for text in texts]}


def test_slow_tokenizer_shows_unknown_tokens_too() -> None:
    assert encode("ab", SlowTokenizer()).token_ids == [97, 98]
    with pytest.raises(DataError, match=r"row 17: .*an unknown token"):
        encode("a\u00e9", SlowTokenizer())


def test_too_long_rows_can_be_skipped() -> None:
    rows = [PromptRow(index=i, prompt="a" * length, answer="") for i, length in enumerate([5, 6, 4, 9])]
    limits = {"max_prompt_tokens": 8, "context_length": 15, "max_tokens": 10}
    kept = encode_prompts(rows, build_tokenizer(), template=None, overlong="leave_out", **limits)
    assert [prompt.index for prompt in kept] == [0, 2]
    with pytest.raises(DataError, match=r"row 1: .*5 tokens.*data\.overlong_prompts=leave_out"):
        encode_prompts(rows, build_tokenizer(), template=None, **limits)


@pytest.mark.parametrize(("num_train", "num_held_out", "says"), [(0, 2, "to train on"), (3, 0, r"data\.num_eval")])
def test_skipping_every_row_is_error(num_train: int, num_held_out: int, says: str) -> None:
    split = Split(train=[1, 2, 3], held_out=[4, 5], num_overlapping=1)
    assert count_rows(split, 2, 2) == RowCounts(train=2, held_out=2, overlapping=1, overlong=1)
    with pytest.raises(DataError, match=rf"some rows .*{says}.* must be short enough; got all "):
        count_rows(split, num_train, num_held_out)


THINKING = "{% if think is defined and not think %}!{% endif %}" + CHAT


def test_variables_reach_chat_template() -> None:
    tokenizer = build_tokenizer(chat_template=THINKING.replace("!", "="))
    assert encode("y", tokenizer, chat_template=True, variables={"think": False}).text == "=u:y;a:"
    assert encode("y", tokenizer, chat_template=True, variables={"think": True}).text == "u:y;a:"


@pytest.mark.parametrize(
    ("template", "reads"),
    [
        (THINKING, "think"),
        (CHAT, "none"),
        ("{% for m in messages %}{% generation %}{{ m.content }}{%- endgeneration -%}{% break %}{% endfor %}", "none"),
    ],
)
def test_unread_variable_is_refused_with_valid_ones(template: str, reads: str) -> None:
    for name in ("thinc", "messages", "add_generation_prompt"):
        with pytest.raises(DataError, match=rf"got {name}; it reads {reads}"):
            ChatTemplate(build_tokenizer(chat_template=template), {name: False})
