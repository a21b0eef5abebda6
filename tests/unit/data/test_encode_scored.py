import json
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.encode_answers import encode_scored
from slurm_rl.data.prompts import PromptRow
from slurm_rl.data.tokenize import encode_prompts
from slurm_rl.errors import DataError
from slurm_rl.rewards.classifier import RewardModel
from slurm_rl.rewards.protocol import build_request, parse_request
from slurm_rl.rewards.queries import build_items
from slurm_rl.rewards.results import RewardItem
from slurm_rl.trainers.supervised.rm import encode_for_training

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "<bos>{% for m in messages %}<|im_start|>{{ m.role }}<|sep|>\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|sep|>\n\n{% endif %}"
)
GEMMA = (
    "<bos>{% for m in messages %}<|im_start|>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
# Like Phi-3 and Qwen3: an end of text after the last turn, thinking before its content.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<t></t>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% else %}<eos>{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "llama": LLAMA, "gemma": GEMMA, "thinking": THINKING, "text": None}
CHAT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": " Who "},
]


def build_tokenizer(template: str | None) -> Any:
    """Return a tokenizer with one token per character that adds <bos>, as Llama and Gemma do."""
    characters = sorted(set("<|>_\n: xt/=+" + "abcdefghijklmnopqrstuvwxyzHWM0123456789"))
    special = ["<pad>", "<eos>", "<bos>", "<|im_start|>", "<|im_end|>", "<|sep|>"]
    words = Tokenizer(models.WordLevel({token: n for n, token in enumerate([*special, *characters])}))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.decoder = decoders.Fuse()
    words.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        additional_special_tokens=[AddedToken(token, special=True) for token in special[3:]],
    )
    tokenizer.chat_template = template
    return tokenizer


def score_ids(tokenizer: Any, item: RewardItem, variables: dict[str, Any] | None = None) -> list[int]:
    """Return the token ids that `RewardModel` scores, without a model."""

    config = SimpleNamespace(max_position_embeddings=500)
    config.get_text_config = lambda: config
    model: Any = RewardModel.__new__(RewardModel)
    model._variables, model._tokenizer, model._model = variables or {}, tokenizer, SimpleNamespace(config=config)
    return list(model._encode(item))


def make_item(tokenizer: Any, policy: Any, completion: str, **fields: Any) -> RewardItem:
    """Return a completion of a policy with another tokenizer, after a round trip through the protocol."""
    is_chat = tokenizer.chat_template is not None
    rows = [PromptRow(index=0, prompt=CHAT if is_chat else "Hi", answer="")]
    template = ChatTemplate(policy) if is_chat else None
    [prompt] = encode_prompts(rows, policy, template=template, max_prompt_tokens=500, context_length=500, max_tokens=5)
    item = RewardItem(completion=completion, answer="", prompt=prompt.text, messages=prompt.messages, **fields)
    assert build_items(parse_request(json.dumps(build_request([item])).encode())) == [item]
    return item


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("answer", ["Me", " 7\n", "x<|im_end|>y"])
def test_scoring_reads_tokens_and_place_of_training(name: str, answer: str) -> None:
    tokenizer, policy = build_tokenizer(TEMPLATES[name]), build_tokenizer(CHATML)
    is_chat = TEMPLATES[name] is not None
    prompt: Any = CHAT if is_chat else "Hi"
    template = ChatTemplate(tokenizer) if is_chat else None
    trained = encode_for_training(prompt, answer, "row 3", tokenizer=tokenizer, template=template)
    scored = score_ids(tokenizer, make_item(tokenizer, policy, answer))
    assert trained.token_ids.tolist() == scored
    assert trained.answered.tolist() == [len(scored) - 1]
    text = tokenizer.decode(scored)
    assert text.count("<bos>") == (name in ("llama", "gemma", "text"))
    if is_chat:
        whole = [*CHAT, {"role": "assistant", "content": answer}]
        assert text == tokenizer.apply_chat_template(whole, tokenize=False), "what Hugging Face's users score"
    else:
        assert text == f"<bos>Hi{answer}<eos>"


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("answer", ["Me", ""])
def test_truncated_text_has_no_end_token(name: str, answer: str) -> None:
    tokenizer, policy = build_tokenizer(TEMPLATES[name]), build_tokenizer(CHATML)
    cut = tokenizer.decode(score_ids(tokenizer, make_item(tokenizer, policy, answer, truncated=True)))
    whole = tokenizer.decode(score_ids(tokenizer, make_item(tokenizer, policy, answer)))
    ends = {"chatml": "<|im_end|>\n", "llama": "<|im_end|>", "gemma": "<|im_end|>\n", "thinking": "<|im_end|>\n<eos>"}
    assert whole == cut + ends.get(name, "<eos>")
    assert not answer or cut.endswith(answer)


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_prompt_of_other_client_is_rendered_once_by_template_of_model(name: str) -> None:
    tokenizer, policy = build_tokenizer(TEMPLATES[name]), build_tokenizer(CHATML)
    own, other = (
        one.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True) for one in (tokenizer, policy)
    )
    # A rendered prompt gets no second <bos>; a prompt in JSON uses the template of the reward model.
    cases = [(own, own, "<|im_end|>", False), (own, own, "", True), (other, json.dumps(CHAT), "<|im_end|>", False)]
    for rendered, prompt, end, truncated in cases:
        body = {"query": [rendered + "Me" + end], "prompts": [prompt], "labels": ["7"]}
        [item] = build_items(parse_request(json.dumps(body).encode()))
        assert (item.completion, item.truncated) == ("Me", truncated)
        expected = encode_scored(CHAT, "Me", tokenizer, template=ChatTemplate(tokenizer), truncated=truncated)
        assert score_ids(tokenizer, item) == expected


def test_client_may_mark_text_as_truncated() -> None:
    tokenizer = build_tokenizer(None)
    items = build_items(parse_request(b'{"query": ["HiMe", "HiMe"], "prompts": ["Hi", "Hi"], "labels": ["", ""], '
                                      b'"truncated": [false, true]}'))  # fmt: skip
    assert [tokenizer.decode(score_ids(tokenizer, item)) for item in items] == ["<bos>HiMe<eos>", "<bos>HiMe"]


def test_chats_for_model_without_template_are_refused() -> None:
    item = RewardItem(completion="Me", answer="", prompt="Hi", messages=CHAT)
    with pytest.raises(DataError, match="need a tokenizer with a chat template"):
        score_ids(build_tokenizer(None), item)


def test_scoring_gives_template_variables_of_training() -> None:
    tokenizer = build_tokenizer(
        CHATML.replace("{{ m.content }}", "{% if t is defined %}{{ t }}{% endif %}{{ m.content }}")
    )
    variables = {"t": "x"}
    template = ChatTemplate(tokenizer, variables)
    trained = encode_for_training(CHAT, "Me", "row 3", tokenizer=tokenizer, template=template)
    scored = score_ids(tokenizer, make_item(tokenizer, build_tokenizer(CHATML), "Me"), variables)
    assert trained.token_ids.tolist() == scored
    assert "xMe" in tokenizer.decode(scored)
